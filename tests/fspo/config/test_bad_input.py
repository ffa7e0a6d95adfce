"""Bad input to the commands of training: one line that names the cure, exit status 2, no traceback, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fspo.base.errors import run_cli
from fspo.evaluate import __main__ as evaluate
from fspo.plan import __main__ as plan
from fspo.train import __main__ as train

OPTIONS: list[tuple[str, str, str]] = [
    ("--seed", str(2**70), "seed is 1180591620717411303424: use 4294967295 or less"),
    ("--seed", "-1", "seed is -1: use 0 or more"),
    ("--seed", "1.5", "give a value of type int"),
    ("--seed", "", "seed is ''"),
    ("--output", "", "output is ''"),
    ("--output", "  ", "output is '  '"),
    ("--rollouts", "0", "rollouts is 0: use 1 or more"),
    ("--rollouts", str(10**30), "use 1000000000 or less"),
    ("--rollouts", ".inf", "rollouts"),
    ("--threads", "100000", "use 1024 or less"),
    ("--trackers", "5", "trackers"),
    ("--trackers", "{a: 1}", "trackers"),
    ("--resume", "maybe", "resume"),
    ("--batch", "null", "batch"),
    ("--batch", "3", "batch"),
    ("--batch", "{prompts: 4, prompts: 8}", "'prompts' stands twice: keep one"),
    ("--batch.prompts", ".nan", "batch.prompts"),
    ("--batch.prompts", "null", "batch.prompts"),
    ("--batch.drop", "[late]", "batch.drop"),
    ("--batch.epochs", "-3", "batch.epochs is -3: use 1 or more"),
    ("--optim.learning_rate", ".inf", "optim.learning_rate is inf: use 1 or less"),
    ("--optim.learning_rate", "1e300", "use 1 or less"),
    ("--optim.learning_rate", "-1e-3", "write --optim.learning-rate=VALUE"),
    ("--optim.weight_decay", ".inf", "optim.weight_decay"),
    ("--optim.weight_decay", ".nan", "optim.weight_decay"),
    ("--optim.beta1", ".nan", "optim.beta1"),
    ("--optim.beta1", "1", "use a number below 1"),
    ("--optim.max_grad_norm", "0", "use .inf, or a number above 0"),
    ("--optim.max_grad_norm", ".nan", "optim.max_grad_norm"),
    ("--eval.temperature", ".inf", "eval.temperature is inf: use 0, or 1000 or less"),
    ("--eval.temperature", "1e-300", "use 0, or 0.001 or more"),
    ("--sampling.temperature", "1e-300", "use 0, or 0.001 or more"),
    ("--sampling.temperature", ".nan", "sampling.temperature"),
    ("--sampling.engine", "fsat", "did you mean 'fast'"),
    ("--sampling.max_new_tokens", "0", "use 1 or more"),
    ("--rule.range_lo", ".inf", "rule.range_lo is inf"),
    ("--rule.range_hi", ".nan", "rule.range_hi is nan"),
    ("--rule.range_hi", "0", "use a number above 0"),
    ("--rule.dual", ".inf", "rule.dual is inf"),
    ("--rule.gamma", ".nan", "rule.gamma is nan"),
    ("--rule.kl_coef", ".inf", "rule.kl_coef is inf"),
    ("--rule.target", ".nan", "rule.target is nan"),
    ("--rule.constant_length", "7", "constant_length belongs to"),
    ("--rule.preset", "", "unknown rule ''"),
    ("--rule", "fspo", "rule"),
    ("--log.length_edges", f"[1, {10**12}]", "log.length_edges"),
    ("--log.length_edges", "[1, .nan]", "--log.length-edges"),
    ("--log.scores.width", "0", "log.scores.width is 0: use 1 or more"),
    ("--log.scores", "null", "log.scores"),
    ("--model.lora.rank", "0", "model.lora.rank is 0: use 1 or more"),
    ("--model.lora.alpha", ".inf", "model.lora.alpha is inf"),
    ("--model.lora.seed", str(2**70), "model.lora.seed"),
    ("--model.dtype", "float16", "model.dtype"),
    ("--task.options", "[1]", "task.options"),
    ("--task.options", "{path: &a [*a]}", "refers to itself by its anchor"),
    ("--task.options", "{path: 1", "task.options"),
    ("--task.max_prompt_tokens", "1e400", "--task.max-prompt-tokens"),
    ("--warmup.muon_lr", ".inf", "warmup.muon_lr is inf: use 1 or less"),
    ("--warmup.seed", str(2**70), "warmup.seed"),
    ("--warmup.slip_from", ".nan", "warmup.slip_from is nan"),
    ("--no-such", "3", "unknown option"),
    ("out/run", "--seed=1", "'out/run' is no option: name it, for example --output out/run"),
    ("--config", "", "cannot read the configuration file ''"),
    ("--config", ".", "cannot read the configuration file '.'"),
]


def refused(
    command: Callable[[list[str]], int], words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """The line of a refused command, after checks that it is one and that nothing was written."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        run_cli(lambda: command(words))
    said = capsys.readouterr()
    assert stop.value.code == 2, said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1, said.err
    assert len(said.err) < 1000
    assert said.out == ""
    assert sorted(folder.rglob("*")) == before
    return said.err


@pytest.mark.parametrize("command", [train.main, plan.main], ids=["train", "plan"])
@pytest.mark.parametrize(("option", "value", "message"), OPTIONS, ids=[f"{o} {v}"[:60] for o, v, _ in OPTIONS])
def test_refused_options(
    command: Callable[[list[str]], int],
    option: str,
    value: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    nowhere = ["--model.name_or_path", "/nowhere/model"]  # so that what is not refused starts no run
    assert message in refused(command, [*nowhere, option, value], tmp_path, capsys)


FILES = [
    ("- 1\n- 2\n", "is no mapping of options to values: write lines such as `rollouts: 30`"),
    ("just text\n", "is no mapping of options"),
    ("a: b: c\n", "line 1, column 5: it is no YAML (mapping values are not allowed here): correct it"),
    ("rollouts: [3\n", "it is no YAML"),
    ("\trollouts: 3\n", "it is no YAML"),
    ("rollouts: 3\nrollouts: 4\n", "line 2: 'rollouts' stands twice: keep one"),
    ("batch:\n  prompts: 4\n  epochs: 1\n  prompts: 8\n", "line 4: 'prompts' stands twice"),
    ("task:\n  options: {a: 1, a: 2}\n", "'a' stands twice"),
    ("batch: null\n", "line 1: batch is empty, but it is a group of options: leave it out, or set batch.<option>"),
    ("rollouts: 3\nbatch:\n", "line 2: batch is empty"),
    ("log: {scores: }\n", "log.scores is empty"),
    ("output: null\n", "output is null: give it a value, or leave it out"),
    ("output: ''\n", "output is ''"),
    ('output: "a\\0b"\n', "output is 'a\\x00b'"),
    ("task: {options: &a {x: *a}}\n", "line 1: a value refers to itself by its anchor: write it out"),
    ("task: &a [*a]\n", "refers to itself"),
    ("batch: 3\n", "batch is 3, but it is a group of options"),
    ("batch: [3]\n", "batch is [3], but it is a group of options"),
    ("seed: 1e99\n", "seed"),
    ("seed: 2020-01-01\n", "seed"),
    ("? [1, 2]\n: 3\n", "a name is no text"),
    ("1: 2\n", "'1' names no option: write NAME: VALUE"),
    ("rollouts: 3\n---\nrollouts: 4\n", "it is no YAML"),
    ("rollouts: !!python/object:os.system 3\n", "is not read: write a plain value"),
    ("x: " + "[" * 3000, "nested too deeply"),
    ("rolouts: 3\n", "did you mean 'rollouts'"),
    ("optim: {learning_rate: .inf}\n", "optim.learning_rate is inf"),
    ("config: other.yaml\n", "config"),
]


@pytest.mark.parametrize(("text", "message"), FILES, ids=[text[:30] for text, _ in FILES])
def test_refused_files(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert message in refused(train.main, ["--config", str(file)], tmp_path, capsys)
    assert message in refused(plan.main, [f"--config={file}"], tmp_path, capsys)
    assert file.read_text() == text


def test_a_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00rollouts")
    assert "is no text in UTF-8" in refused(train.main, ["--config", str(tmp_path / "run.yaml")], tmp_path, capsys)


EVALUATE = [
    (["--seed", str(2**70)], "seed is"),
    (["--temperature", ".nan"], "temperature is nan"),
    (["--temperature", ".inf"], "temperature is inf"),
    (["--samples", "0"], "samples is 0: use 1 or more"),
    (["--batch_size", "0"], "batch_size is 0"),
    (["--max_new_tokens", "-1"], "max_new_tokens is -1"),
    (["--max_prompt_tokens", "0"], "max_prompt_tokens is 0"),
    (["--dtype", "float16"], "unknown dtype 'float16'"),
    (["--engine", "fsat"], "did you mean 'fast'"),
    (["--output", ""], "is empty"),
    ([""], "is empty"),
    (["--benchmarks", "math500@²"], "write NAME@K"),
    (["--benchmarks", "math500@" + "9" * 50], "write NAME@K"),
    (["--benchmarks", ""], "--benchmarks is empty"),
    (["--texts", "perhaps"], "texts"),
    (["--no-such", "1"], "no-such"),
]


@pytest.mark.parametrize(("words", "message"), EVALUATE, ids=[" ".join(words)[:40] for words, _ in EVALUATE])
def test_refused_evaluations(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [] if "--benchmarks" in words else ["--benchmarks", "math500"]
    model = [] if words == [""] else ["m"]
    assert message in refused(evaluate.main, [*model, *words, *given], tmp_path, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machine.gpus", str(10**9)], "machine.gpus is 1000000000: use 1000000 or less"),
        (["--machine.memory", ".nan"], "machine.memory is nan: use a number above 0"),
        (["--machine", "null"], "machine"),
    ],
)
def test_refused_plans(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(plan.main, words, tmp_path, capsys)
