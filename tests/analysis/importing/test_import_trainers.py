"""What trainers really write: a TRL run made here, verl's formats, and others' files."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.doctor.examine import examine
from analysis.importing.run import ImportOptions, import_run
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from tests.analysis.importing.made import scalars as lines


@pytest.fixture(scope="module")
def trl_output(tmp_path_factory):
    """The output folder of a real GRPOTrainer after three steps on the CPU."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from fspo.models.load import build_embedded_model, load_tokenizer

    out = tmp_path_factory.mktemp("trl")

    def odd_length(completions, completion_ids, **_):
        return [float(len(ids) % 2) for ids in completion_ids]

    trainer = GRPOTrainer(
        model=build_embedded_model(3),
        reward_funcs=odd_length,
        args=GRPOConfig(
            output_dir=str(out), report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=8, num_generations=4, max_completion_length=12, max_steps=3,
            logging_steps=1, save_strategy="no", log_completions=True, num_completions_to_print=0, seed=1,
        ),
        train_dataset=Dataset.from_list([{"prompt": c} for c in "12345678"]),
        processing_class=load_tokenizer("embedded"),
    )  # fmt: skip
    trainer.train()
    trainer.save_state()
    return out


def test_a_real_trl_run(trl_output, tmp_path, capsys):
    assert main(["import", str(trl_output), "--out", str(tmp_path / "run"), "--columns", "reward=odd_length"]) == 0
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
    assert "no log-probabilities, so no ratio can be made" in printed
    assert "update 0, engine 0, behaviour 0, total 0" in printed


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
    (line,) = report.damage
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
    assert report.foreign_metrics == ["actor/pg_clipfrac", "critic/rewards/mean", "timing_s/gen"]
    first = lines(tmp_path / "run")[0]
    assert (first["reward"], first["completions/mean_length"]) == (0.4, 81.0)
    assert "grad_norm" not in first
    assert report.unknown_columns == ["gts.answer"]


def test_trls_and_verls_names_of_log_probs(tmp_path):
    """One response of two tokens: s = (.25, -.5), d + e = (.5, 0)."""
    names = {
        "trl": ("per_token_logps", "old_per_token_logps", "sampling_per_token_logps", "completion_mask"),
        "verl": ("log_probs", "old_log_probs", "rollout_log_probs", "response_mask"),
    }
    tokens = ([-1.0, -2.0, 0.0], [-1.25, -1.5, 0.0], [-1.75, -1.5, 0.0], [1, 1, 0])
    for trainer, columns in names.items():
        row = dict(zip(columns, tokens, strict=True)) | {"step": 0, "prompt": "p", "advantages": [2.0, 2.0, 0.0]}
        (tmp_path / f"{trainer}.jsonl").write_text(json.dumps(row | {"min_global_steps": 0, "max_global_steps": 1}))
        import_run(tmp_path / f"{trainer}.jsonl", tmp_path / trainer, ImportOptions(updates_per_rollout=4))
        log = read_log(tmp_path / trainer)
        for name, value in (("length", 2), ("advantage", 2.0), ("log_ratio", -0.25), ("behaviour_log_ratio", 0.5),
                            ("behaviour_version", 0), ("behaviour_version_last", 4)):  # fmt: skip
            assert log.column(name).item() == pytest.approx(value)


def prime_record(step, prompt, response, trainer, engine, advantage):
    """A line of prime-rl's token_exports/step_N/rank_R.jsonl (src/prime_rl/trainer/rl/token_export.py, schema 1)."""
    n, p = len(response), len(prompt)
    ratios = [a - b for a, b in zip(trainer, engine, strict=True)]
    return {
        "schema_version": 1, "step": step, "rank": 0, "micro_step": 0, "micro_sequence_idx": 0,
        "export_sequence_idx": 0, "env_name": "math", "token_ids": prompt + response,
        "position_ids": list(range(n + p)), "loss_mask": [False] * p + [True] * n,
        "advantages": [advantage] * (n + p), "inference_logprobs": [0.0] * p + engine,
        "trainer_logprobs": [-11.9] * p + trainer, "entropy": [11.9] * p + [0.5] * n, "mismatch_kl": [0.1] * (n + p),
        "log_importance_ratio": [-11.9] * p + ratios, "importance_ratio": [1.0] * (n + p),
        "prob_delta": [0.0] * (n + p), "is_masked": [False] * (n + p), "is_masked_high": [False] * (n + p),
        "is_masked_low": [False] * (n + p), "rl_weights": [None] * (n + p), "ce_weights": [None] * (n + p),
        "ref_kl_weights": [None] * (n + p),
    }  # fmt: skip


def test_prime_rls_token_exports(tmp_path, capsys):
    records = {
        "step_0/rank_0.jsonl": [prime_record(0, [7, 8], [1, 2, 3], [-1.0, -0.5, -2.0], [-1.5, -0.5, -1.75], 1.0)],
        "step_0/rank_1.jsonl": [prime_record(0, [7, 8], [4], [-0.25], [-0.5], -1.0)],
        "step_1/rank_0.jsonl": [
            prime_record(1, [7], [8, 4], [-1.0, -1.0], [-1.0, -2.0], 0.5),
            prime_record(1, [9, 9], [8, 4], [-1.0, -1.0], [-2.0, -1.0], -0.5),
        ],
    }
    for name, lines_of in records.items():
        path = tmp_path / "token_exports" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines_of))
        (path.parent / "STABLE").touch()
    assert main(["import", str(tmp_path / "token_exports"), "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "update 0, engine 0, behaviour 4, total 0" in printed
    log = read_log(tmp_path / "run")
    assert log.column("length").tolist() == [3, 1, 2, 2]
    assert log.column("rollout").tolist() == [0, 0, 1, 1]
    assert np.isnan(log.column("log_ratio")).all()  # the export has no old log-probs
    assert log.column("behaviour_log_ratio") == pytest.approx([0.25, 0.25, 1.0, 1.0])
    assert log.column("behaviour_sum_sq") == pytest.approx([0.3125, 0.0625, 1.0, 1.0])
    assert log.column("advantage") == pytest.approx([1.0, -1.0, 0.5, -0.5])
    assert log.column("entropy") == pytest.approx([0.5] * 4)  # of the response's tokens
    prompts = log.column("prompt_id")
    assert prompts[0] == prompts[1]
    assert len(set(prompts)) == 3
    assert set(log.column("user.rank")) == {0}


def test_the_doctor_says_what_a_bare_import_can_tell(tmp_path):
    source = verl_dump(tmp_path / "rollouts")
    for file in source.glob("*.jsonl"):
        rows = [json.loads(line) | {"advantage": 0.0, "score": 0.0} for line in file.read_text().splitlines()]
        file.write_text("\n".join(map(json.dumps, rows)))
    import_run(source, tmp_path / "run")
    diagnosis = examine(tmp_path / "run")
    assert "advantages_zero" in [a.id for a in diagnosis.issues]
    assert "numerics" in [a.id for a in diagnosis.answers if a.status == "not checked"]


def test_the_rest_of_a_folder_is_read_when_one_file_is_broken(tmp_path):
    source = verl_dump(tmp_path / "rollouts")
    torn = (source / "12.jsonl").read_text()
    (source / "12.jsonl").write_text(torn[:-20])  # the run was killed while it wrote
    (source / "events.out.tfevents.1.host").write_bytes(b"")
    (source / "trainer_state.json").write_text('{"log_history": [')
    report = import_run(source, tmp_path / "run")
    assert report.rows == len(read_log(tmp_path / "run")) == 12 * 32 - 1
    assert [any(word in line for line in report.damage) for word in ("12.jsonl", "trainer_state")] == [True, True]
    assert ["tfevents" in line for line in report.ignored] == [True]


def test_a_file_of_tensorboard_is_refused_in_one_line(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    with pytest.raises(UserError, match=r"TensorBoard, which is not read: name trainer_state\.json or a CSV"):
        import_run(tmp_path / "events.out.tfevents.1.host", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"), [("{", "cannot be read: Expecting"), ("{}", "no log_history"), ("[1]", "no log_history")]
)
def test_bad_states_are_one_line(tmp_path, content, message):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UserError, match=message):
        import_run(tmp_path / "trainer_state.json", tmp_path / "run")
