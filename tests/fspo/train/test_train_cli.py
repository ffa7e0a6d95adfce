"""``fspo train`` as a user meets it: help, one clear line and exit status 2 for bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_run

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.train import __main__ as train


def saved_model(folder: Path, template: str | None = None) -> Path:
    """A tiny Llama with a word tokenizer, on disk."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", "user", "bot", *"0123456789+=?"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", behavior="isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = template
    torch.manual_seed(0)
    shape = {"vocab_size": len(words), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2}
    config = LlamaConfig(**shape, pad_token_id=0, eos_token_id=1, bos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def saved_rows(path: Path, answers: list[str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"{i} + 1 =", "answer": a}) + "\n" for i, a in enumerate(answers)))
    return path


def arguments(tmp_path: Path, *more: str, template: str | None = None) -> list[str]:
    model = saved_model(tmp_path / "base", template)
    rows = saved_rows(tmp_path / "rows.jsonl", [str(i % 8 + 1) for i in range(10)])
    judge = {"verifier": "studies.counting_reward:graded", "workers": 1}
    options = json.dumps({"path": str(rows), "eval_share": 0.2, "judge": judge})
    return [
        *tiny_run.ARGUMENTS,
        *("--output", str(tmp_path / "run"), "--model.name_or_path", str(model)),
        *("--task.name", "dataset", "--task.options", options, "--sampling.max_new_tokens", "8", *more),
    ]


TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}bot{% endif %}"
)


def test_a_model_on_disk_trains_on_a_data_set(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    more = ["--eval.every", "1", "--rule.outside", "truncate", "--rollouts", "3"]
    command = [sys.executable, "-m", "fspo.train", *arguments(tmp_path, *more, template=TEMPLATE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    model = f"; model and tokenizer for transformers: {tmp_path / 'run' / 'model'}"
    assert done.stdout.splitlines() == [f"run: {tmp_path / 'run'}{model}", f"next: fspo analyse {tmp_path / 'run'}"]
    assert "Traceback" not in done.stderr
    assert "Writing model shards" not in done.stderr
    lines = tiny_run.metrics(tmp_path / "run")
    assert [line["phase"] for line in lines] == ["eval", *["train", "eval"] * 3]
    assert all(0 <= line["eval/reward"] <= 1 for line in lines if line["phase"] == "eval")
    assert any(line["reward"] > 0 for line in lines if line["phase"] == "train")
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert any((a != b).any() for a, b in zip(trained.parameters(), base.parameters(), strict=True))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer.chat_template == TEMPLATE
    rows = read_log(tmp_path / "run", rollouts=(0, 0)).table.to_pandas()
    first = rows[rows.times_used == 0]
    assert len(first) == 16
    prompts = lines[1]["num_tokens"] - first.length.sum()
    assert prompts == 16 * (len("user") + 4 + len("bot"))  # "3 + 1 =", one token a sign


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model.name_or_path", "/nowhere/model"], r"cannot load '/nowhere/model'"),
        (["--task.options", '{"path": "/nowhere/rows.jsonl"}'], r"no file /nowhere/rows.jsonl"),
        (["--model.name_or_path", "embedded"], r"has no worked solutions to warm up the embedded model on"),
        (["--task.max_prompt_tokens", "2"], r"every prompt exceeds task.max_prompt_tokens=2"),
        (["--sampling.max_new_tokens", "500"], r"128"),
        (["--task.chat_template", "true"], r"chat_template|chat template"),
        (["--task.options.eval_share", "0", "--eval.every", "1"], r"eval\.every to 0"),
    ],
)
def test_bad_input_names_the_cure(tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        train.main(arguments(tmp_path, *more))
    assert "\n" not in str(error.value)


def test_a_run_whose_S_is_0_is_sent_to_the_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = ["--batch.minibatches", "1", "--batch.epochs", "1", "--rollouts", "1"]
    assert train.main(arguments(tmp_path, *once)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"next: fspo doctor {tmp_path / 'run'}"


def test_keyboard_interrupt_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fspo.train.updates import Updater

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Updater, "accumulate", interrupt)
    assert train.main(arguments(tmp_path)) == 130
    said = capsys.readouterr().err
    assert "interrupted before the first checkpoint (--checkpoint-every): this command begins anew\n" in said
    assert f"next: fspo train --config {tmp_path / 'run'}/config.yaml --resume true\n" in said
