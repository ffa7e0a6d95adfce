"""What trainers really write: a TRL run made here, verl's formats, TensorBoard's files."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.doctor.examine import examine
from analysis.importing.run import ImportOptions, import_run
from fspo.base.errors import UserError
from fspo.gradlog import read_log


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trl_output(tmp_path_factory):
    """The output folder of a real GRPOTrainer after three steps on the CPU."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from fspo.models.load import build_embedded_model, load_tokenizer

    out = tmp_path_factory.mktemp("trl")

    def odd_length(completions, completion_ids, **_):
        return [float(len(ids) % 2) for ids in completion_ids]

    logging = os.environ.get("TENSORBOARD_LOGGING_DIR")
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "runs")
    try:
        trainer = GRPOTrainer(
            model=build_embedded_model(3),
            reward_funcs=odd_length,
            args=GRPOConfig(
                output_dir=str(out), report_to=["tensorboard"], use_cpu=True, bf16=False, gradient_checkpointing=False,
                per_device_train_batch_size=8, num_generations=4, max_completion_length=12, max_steps=3,
                logging_steps=1, save_strategy="no", log_completions=True, num_completions_to_print=0, seed=1,
            ),
            train_dataset=Dataset.from_list([{"prompt": c} for c in "12345678"]),
            processing_class=load_tokenizer("embedded"),
        )  # fmt: skip
        trainer.train()
        trainer.save_state()
    finally:
        if logging is None:
            os.environ.pop("TENSORBOARD_LOGGING_DIR", None)
        else:
            os.environ["TENSORBOARD_LOGGING_DIR"] = logging
    return out


def test_a_real_trl_run(trl_output, tmp_path, capsys):
    assert main(["import", str(trl_output), "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    log = read_log(tmp_path / "run")
    completions = pd.concat(map(pd.read_parquet, sorted((trl_output / "completions").glob("*.parquet"))))
    assert len(log) == len(completions) == 24
    assert log.column("reward") == pytest.approx(completions["odd_length"].to_numpy())
    assert log.column("advantage") == pytest.approx(completions["advantage"].to_numpy(), rel=1e-6)
    assert log.column("step").tolist() == [1] * 8 + [2] * 8 + [3] * 8
    assert log.column("rollout").tolist() == [0] * 8 + [1] * 8 + [2] * 8
    groups = pd.Series(log.column("prompt_id")).groupby(log.column("rollout")).nunique()
    assert groups.tolist() == [2, 2, 2]
    state = json.loads((trl_output / "trainer_state.json").read_text())["log_history"]
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found] == [1, 2, 3]
    for line, entry in zip(found, state, strict=False):
        for name in ("reward", "completions/mean_length", "completions/clipped_ratio", "grad_norm", "learning_rate"):
            assert line[name] == pytest.approx(entry[name])
        assert line["imported/clip_ratio/region_mean"] == entry["clip_ratio/region_mean"]
        assert "clip_ratio/region_mean" not in line  # TRL's counts responses with A = 0
    assert "A = 0" in printed
    assert "odd_length is taken as the reward" in printed
    assert "acceptance by length, LRE, scaling of Var(S|L): no length, log_ratio" in printed
    assert "24 responses have no finite S" in printed


def test_trl_lengths_by_the_tokenizer(trl_output, tmp_path):
    from fspo.models.load import load_tokenizer

    tokenizer = load_tokenizer("embedded")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    options = ImportOptions(tokenizer=str(tmp_path / "tokenizer"), updates_per_rollout=3)
    report = import_run(trl_output, tmp_path / "run", options)
    log = read_log(tmp_path / "run")
    texts = pd.concat(map(pd.read_parquet, sorted((trl_output / "completions").glob("*.parquet"))))["completion"]
    expected = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    assert log.column("length").tolist() == expected
    assert set(log.column("rollout")) == {0}
    assert log.column("updates_since_rollout").tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert any("decoded text" in note for note in report.notes)


def test_trls_tensorboard_file_alone_says_the_same(trl_output, tmp_path):
    (events,) = trl_output.rglob("events.out.tfevents*")
    report = import_run(events, tmp_path / "tb")
    import_run(trl_output / "trainer_state.json", tmp_path / "state")
    one, other = lines(tmp_path / "tb"), lines(tmp_path / "state")
    assert [line["step"] for line in one] == [line["step"] for line in other]
    for a, b in zip(one, other, strict=True):
        for name in ("reward", "entropy", "completions/mean_length", "frac_reward_zero_std"):
            assert a[name] == pytest.approx(b[name], rel=1e-6)
    assert report.rows == 0


def test_the_newest_state_of_several_checkpoints_counts(tmp_path):
    for step in (5, 10):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        history = [{"step": s, "epoch": 0.1, "reward": s / 10} for s in range(1, step + 1)]
        history.append({"step": step, "eval_reward": 0.5, "eval_runtime": 1.0})
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
    import_run(tmp_path / "out", tmp_path / "run")
    found = lines(tmp_path / "run")
    train = [line for line in found if line["phase"] == "train"]
    assert [line["reward"] for line in train] == pytest.approx([s / 10 for s in range(1, 11)])
    (held_out,) = [line for line in found if line["phase"] == "eval"]
    assert held_out["eval/reward"] == 0.5
    assert held_out["imported/runtime"] == 1.0
    # the run was killed while it wrote the last one
    (tmp_path / "out" / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10, "log_hi')
    report = import_run(tmp_path / "out", tmp_path / "older")
    assert [line["reward"] for line in lines(tmp_path / "older") if line["phase"] == "train"] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5]
    )
    assert report.metrics == {"reward": "reward", "eval/reward": "eval/reward"}
    (line,) = report.ignored
    assert "checkpoint-10" in line


def verl_dump(folder, steps=12):
    """Files as verl 0.9.1 writes them: {step}.jsonl by _write_generations, scalars by FileLogger."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        with (folder / f"{step}.jsonl").open("w") as file:
            for i in range(32):
                entry = {"input": f"user\nquestion {step}-{i // 8}", "output": "text", "gts": {"answer": [1]}}
                entry |= {"score": float(rng.random() < 0.5), "step": step, "uid": f"{step}-{i // 8}_{i % 8}_0"}
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    return folder


def test_verls_rollout_dumps_and_file_logger(tmp_path):
    source = verl_dump(tmp_path / "rollouts")
    scalars = [
        {"step": s, "data": {"critic/score/mean": 0.4, "critic/rewards/mean": 0.3, "response_length/mean": 80.0 + s,
                             "response_length/clip_ratio": 0.1, "actor/pg_clipfrac": 0.02, "actor/lr": 1e-6,
                             "actor/entropy": 0.5, "actor/grad_norm": float("nan"), "timing_s/gen": 3.0}}
        for s in range(1, 13)
    ]  # fmt: skip
    # orjson, which verl uses, writes NaN as null
    text = "\n".join(json.dumps(s).replace("NaN", "null") for s in scalars)
    (source / "experiment.jsonl").write_text(text)
    report = import_run(source, tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert len(log) == 12 * 32
    assert log.column("step").tolist() == np.repeat(np.arange(1, 13), 32).tolist()  # 2.jsonl before 10.jsonl
    sizes = pd.Series(log.column("prompt_id")).value_counts()
    assert len(sizes) == 48
    assert set(sizes) == {8}  # {sample}_{rollout}_{output}: the sample is the prompt
    assert set(log.column("reward")) == {0.0, 1.0}
    assert report.metrics["critic/score/mean"] == "reward"
    assert report.different_metrics["critic/rewards/mean"] == "the KL penalty is subtracted"
    assert report.unknown_metrics == ["timing_s/gen"]
    first = lines(tmp_path / "run")[0]
    assert (first["reward"], first["completions/mean_length"]) == (0.4, 81.0)
    assert "grad_norm" not in first
    assert report.user_columns == ["gts"]  # structured values are kept as their JSON


def test_the_doctor_says_what_a_bare_import_can_tell(tmp_path):
    source = verl_dump(tmp_path / "rollouts")
    for file in source.glob("*.jsonl"):
        rows = [json.loads(line) | {"advantage": 0.0, "score": 0.0} for line in file.read_text().splitlines()]
        file.write_text("\n".join(map(json.dumps, rows)))
    import_run(source, tmp_path / "run")
    diagnosis = examine(tmp_path / "run")
    assert "advantages_zero" in [a.id for a in diagnosis.findings]
    assert "numerics" in [a.id for a in diagnosis.answers if a.status == "not checked"]


def test_a_file_of_torchs_summary_writer(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "tb")) as writer:
        for step in range(5):
            writer.add_scalar("critic/score/mean", step / 4, step)
            writer.add_scalar("mine/number", 2.0 * step, step)
        writer.add_histogram("weights", np.arange(10.0), 0)
        writer.add_text("note", "hello", 0)
    report = import_run(tmp_path / "tb", tmp_path / "run")
    found = lines(tmp_path / "run")
    assert [line["reward"] for line in found] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert [line["imported/mine/number"] for line in found] == [0, 2, 4, 6, 8]
    assert report.unknown_metrics == ["mine/number"]


def test_the_rest_of_a_folder_is_read_when_one_file_is_broken(tmp_path):
    source = verl_dump(tmp_path / "rollouts")
    torn = (source / "12.jsonl").read_text()
    (source / "12.jsonl").write_text(torn[:-20])  # the run was killed while it wrote
    (source / "events.out.tfevents.1.host").write_bytes(b"this is no event file at all, only text")
    (source / "trainer_state.json").write_text('{"log_history": [')
    report = import_run(source, tmp_path / "run")
    assert report.rows == len(read_log(tmp_path / "run")) == 12 * 32 - 1
    assert [any(word in line for line in report.damage) for word in ("12.jsonl", "tfevents", "trainer_state")] == [
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"this is no event file at all, only text"])
def test_bad_event_files_are_one_line(tmp_path, content):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(content)
    with pytest.raises(UserError) as error:
        import_run(tmp_path / "events.out.tfevents.1.host", tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is no JSON"), ("{}", "no log_history"), ("[1]", "no log_history")]
)
def test_bad_states_are_one_line(tmp_path, content, message):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UserError, match=message):
        import_run(tmp_path / "trainer_state.json", tmp_path / "run")
