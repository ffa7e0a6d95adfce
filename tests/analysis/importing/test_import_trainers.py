"""What trainers really write: a TRL run made here, verl's formats, and others' files."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.importing.run import import_run
from fspo.gradlog import read_log
from tests.analysis.importing.made import records
from tests.analysis.importing.made import scalars as lines


def test_a_real_trl_run(tmp_path, capsys):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from fspo.models.load import build_embedded_model, load_tokenizer

    def odd_length(completions, completion_ids, **_):
        return [float(len(ids) % 2) for ids in completion_ids]

    out = tmp_path / "trl"
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
    assert main(["import", str(out), "--out", str(tmp_path / "run"), "--columns", "reward=odd_length"]) == 0
    printed = capsys.readouterr().out
    log = read_log(tmp_path / "run")
    completions = pd.concat(map(pd.read_parquet, sorted((out / "completions").glob("*.parquet"))))
    assert log.column("reward") == pytest.approx(completions["odd_length"].to_numpy())
    assert log.column("advantage") == pytest.approx(completions["advantage"].to_numpy(), rel=1e-6)
    assert log.column("step").tolist() == [1] * 8 + [2] * 8 + [3] * 8
    assert log.column("rollout").tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert pd.Series(log.column("prompt_id")).groupby(log.column("rollout")).nunique().tolist() == [2, 2, 2]
    state = json.loads((out / "trainer_state.json").read_text())["log_history"]
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
    for last in (5, 10):
        history = [{"step": step, "epoch": 0.1, "reward": step / last} for step in range(1, last + 1)]
        history.append({"step": last, "eval_reward": 0.5, "eval_runtime": 1.0})
        records(tmp_path / "out" / f"checkpoint-{last}" / "trainer_state.json", [{"log_history": history}])
    import_run(tmp_path / "out", tmp_path / "run")
    *train, held_out, newest = lines(tmp_path / "run")
    assert [line["reward"] for line in [*train, newest]] == [step / 10 for step in range(1, 11)]
    assert held_out == {"rollout": 9, "step": 10, "phase": "eval", "eval/reward": 0.5, "imported/runtime": 1.0}
    # the run was killed while it wrote the last one
    (tmp_path / "out" / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10, "log_hi')
    report = import_run(tmp_path / "out", tmp_path / "older")
    older = [line["reward"] for line in lines(tmp_path / "older") if line["phase"] == "train"]
    assert older == [step / 5 for step in range(1, 6)]
    assert report.metrics == {"reward": "reward", "eval/reward": "eval/reward"}
    (line,) = report.damage
    assert "checkpoint-10" in line


def verl_dump(folder):
    """Twelve files as verl 0.9.1 writes them: {step}.jsonl by _write_generations."""
    for step in range(1, 13):
        entry = {"input": "question", "output": "text", "gts": {"answer": [1]}, "step": step}
        rows = [entry | {"score": float(i % 3 == 0), "uid": f"{step}-{i // 8}_{i % 8}_0"} for i in range(32)]
        records(folder / f"{step}.jsonl", rows)
    return folder


def test_verls_rollout_dumps_and_file_logger(tmp_path):
    source = verl_dump(tmp_path / "rollouts")
    scalars = [
        {"step": s, "data": {"critic/score/mean": 0.4, "critic/rewards/mean": 0.3, "response_length/mean": 80.0 + s,
                             "response_length/clip_ratio": 0.1, "actor/pg_clipfrac": 0.02, "actor/lr": 1e-6,
                             "actor/entropy": 0.5, "actor/grad_norm": None, "timing_s/gen": 3.0}}
        for s in range(1, 13)
    ]  # fmt: skip
    records(source / "experiment.jsonl", scalars)
    report = import_run(source, tmp_path / "run")
    log = read_log(tmp_path / "run")
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


def prime_record(step, prompt, response, trainer, engine, advantage):
    """A line of prime-rl's token_exports/step_N/rank_R.jsonl (src/prime_rl/trainer/rl/token_export.py, schema 1)."""
    n, p = len(response), len(prompt)
    others = ("mismatch_kl", "prob_delta", "is_masked", "log_importance_ratio", "importance_ratio", "rl_weights")
    return {name: [0.1] * (n + p) for name in others} | {
        "schema_version": 1, "step": step, "rank": 0, "env_name": "math", "token_ids": prompt + response,
        "position_ids": list(range(n + p)), "loss_mask": [False] * p + [True] * n, "advantages": [advantage] * (n + p),
        "inference_logprobs": [0.0] * p + engine, "trainer_logprobs": [-11.9] * p + trainer,
        "entropy": [11.9] * p + [0.5] * n, "ce_weights": [None] * (n + p),
    }  # fmt: skip


def test_prime_rls_token_exports(tmp_path, capsys):
    first = [prime_record(0, [7, 8], [1, 2, 3], [-1.0, -0.5, -2.0], [-1.5, -0.5, -1.75], 1.0)]
    second = [
        prime_record(1, [7], [8, 4], [-1.0, -1.0], [-1.0, -2.0], 0.5),
        prime_record(1, [9, 9], [8, 4], [-1.0, -1.0], [-2.0, -1.0], -0.5),
    ]
    exports = tmp_path / "token_exports"
    records(exports / "step_0" / "rank_0.jsonl", first)
    records(exports / "step_0" / "rank_1.jsonl", [prime_record(0, [7, 8], [4], [-0.25], [-0.5], -1.0)])
    records(exports / "step_1" / "rank_0.jsonl", second)
    (exports / "step_1" / "STABLE").touch()
    assert main(["import", str(exports), "--out", str(tmp_path / "run")]) == 0
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
