"""Files as trainers of the field write them: their shapes, the roles of their columns, and what their tokens show."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.doctor.examine import examine
from analysis.importing.run import ImportOptions, import_run
from analysis.importing.watch import digest_of, placeholders
from analysis.log.loading import load_run
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from tests.analysis.importing.made import imported, scalars, write


def records(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def taken(tmp_path, rows, name="t.jsonl", **columns):
    report = import_run(records(tmp_path / name, rows), tmp_path / "run", ImportOptions(columns=columns))
    return report, read_log(tmp_path / "run")


def test_lists_of_one_and_a_step_in_the_files_name(tmp_path):
    one = {"rewards": [1.0], "input_lengths": [4], "token_ids": [[7, 8, 5, 6, 0]], "token_loss_mask": [[0, 0, 1, 1, 0]]}
    one |= {"generation_logprobs": [[0, 0, -1.0, -2.0, 0]], "prev_logprobs": [[0, 0, -1.5, -1.75, 0]], "idx": 3}
    report, log = taken(tmp_path, [one, {**one, "rewards": [0.0], "idx": 4}], "train_data_step7.jsonl")
    assert log.column("step").tolist() == [7, 7]
    assert log.column("length").tolist() == [2, 2]  # neither the padding nor input_lengths, which counts the prompt
    assert log.column("behaviour_log_ratio") == pytest.approx([-0.25, -0.25])
    assert log.column("reward").tolist() == [1.0, 0.0]
    assert len(set(log.column("prompt_id"))) == 1
    assert report.lines()[-1].endswith("--on behaviour")


def test_padding_without_a_mask_is_no_token(tmp_path):
    """Three responses of 4, 2 and 3 tokens, one of which has log-probability 0 in both columns, padded to 5."""
    old = [[-1.0, -2.0, 0, -1.25, 0], [-0.5, -0.75, 0, 0, 0], [-1.5, -0.25, -1.75, 0, 0]]
    new = [[-1.1, -2.1, 0, -1.35, 0], [-0.6, -0.85, 0, 0, 0], [-1.6, -0.35, -1.85, 0, 0]]
    rows = [{"step": 0, "prompt": "p", "old_logprobs": o, "new_logprobs": n} for o, n in zip(old, new, strict=True)]
    report, log = taken(tmp_path, rows)
    assert log.column("length").tolist() == [4, 2, 3]
    assert report.derived["length"] == "tokens of new_logprobs without padding"
    sound = [row | {"old_logprobs": row["old_logprobs"][:2], "new_logprobs": row["new_logprobs"][:2]} for row in rows]
    sound[0] |= {"old_logprobs": [-1.0, 0.0], "new_logprobs": [-1.0, 0.0]}  # an end token that both are sure of
    (tmp_path / "sound").mkdir()
    assert taken(tmp_path / "sound", sound)[1].column("length").tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["finish_reason", "stop_reason", "status"])
def test_a_reason_to_end_in_words_says_what_the_token_limit_cut(tmp_path, name):
    words = ["stop", "length", "completed", "TRUNCATED", None, "max_tokens", "eos_token"]
    rows = [
        {"step": 0, "qid": i // 4, "old_logprobs": [-1.0], "new_logprobs": [-1.5], name: w} for i, w in enumerate(words)
    ]
    report, log = taken(tmp_path, rows)
    assert report.columns["truncated"] == name
    assert report.columns["prompt_id"] == "qid"
    assert log.column("truncated").tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_a_placeholder_in_the_old_log_probabilities_reaches_the_doctor(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"step": i // 16, "prompt": i // 4, "reward": i % 2, "old_logprobs": old.tolist(), "new_logprobs": new.tolist()}
        for i, (old, new) in enumerate(-rng.exponential(1, (64, 2, 20)))
    ]
    rows[5]["old_logprobs"][3] = -9999.0
    taken(tmp_path, rows)
    answer = next(a for a in examine(tmp_path / "run").issues if a.id == "not_finite")
    assert (
        "a placeholder stands for them (placeholders: 1 tokens of 1 responses, largest -1e+04 at row 6"
        in answer.summary
    )


def test_a_last_token_that_carries_the_mismatch_is_named_and_the_analysis_says_so(tmp_path):
    """Noise of .01; one response in eight was cut off, and its last token is 12 nats off."""
    rng, rows = np.random.default_rng(3), []
    for i in range(160):
        old = -rng.exponential(1.0, 40)
        sampler = old + 0.01 * rng.standard_normal(40)
        sampler[-1] = -0.1 if i % 8 == 0 else sampler[-1]
        old[-1] = -12.1 if i % 8 == 0 else old[-1]
        ids = {"step": i // 40, "prompt": i // 8, "reward": i % 2, "finish_reason": ["stop", "length"][i % 8 == 0]}
        rows.append(ids | {"old_logprobs": old.tolist(), "sampler_logprobs": np.minimum(sampler, 0).tolist()})
    report, _ = taken(tmp_path, rows)
    assert report.digest.cause == "end"
    assert report.digest.ends.responses == 20
    answer = next(a for a in examine(tmp_path / "run").issues if a.id == "mismatch")
    assert "The last token of responses carries it" in answer.summary
    assert "20 tokens of 20 responses" in answer.summary
    noticed = load_run(tmp_path / "run", on="behaviour").notes.warnings
    assert any("the import noticed: the last token of responses carries it" in line for line in noticed)


def test_some_responses_that_are_shifted_are_told_apart_from_sound_ones(tmp_path):
    rng, rows = np.random.default_rng(5), []
    for i in range(80):
        old = -rng.exponential(1.0, 60)
        sampler = np.roll(old, 1) if i % 4 == 1 else old + 0.01 * rng.standard_normal(60)
        ids = {"step": i // 20, "rank": i % 4, "prompt": i // 8, "reward": i % 2}
        rows.append(ids | {"old_logprobs": old.tolist(), "sampler_logprobs": np.minimum(sampler, 0).tolist()})
    report, _ = taken(tmp_path, rows)
    assert report.digest.cause == "shift"
    assert report.digest.shifted.responses == 20
    assert report.digest.shifted.row["rank"] == 1


def test_a_sampler_at_another_temperature_shows_by_the_slope_where_its_log_probs_are_processed(tmp_path):
    """Tokens are drawn from softmax(z / .7) of ten logits z, whose log-probs are known of both temperatures."""
    rng, rows = np.random.default_rng(6), []
    for i in range(40):
        z = 1.5 * rng.standard_normal((60, 10))
        logp, hot = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (z, z / 0.7))
        at = np.array([rng.choice(10, p=np.exp(row)) for row in hot])
        of = {"old_logprobs": logp, "sampler_logprobs": hot}
        ids = {"step": i // 20, "prompt": i // 8, "reward": i % 2}
        rows.append(ids | {name: x[np.arange(60), at].tolist() for name, x in of.items()})
    assert taken(tmp_path, rows)[0].digest.cause == "temperature"
    noise = 0.15 * rng.standard_normal((40, 60))
    for row, e in zip(rows, noise, strict=True):
        row["sampler_logprobs"] = np.minimum(np.array(row["old_logprobs"]) + e, 0).tolist()
    (tmp_path / "noise").mkdir()
    assert taken(tmp_path / "noise", rows)[0].digest.cause == ""


def test_openrlhfs_new_and_old_log_probs_and_its_epochs(tmp_path):
    row = {"step": 0, "prompt": "p", "action_log_probs": [-1.0, -2.0], "old_action_log_probs": [-1.5, -2.0]}
    _, log = taken(tmp_path, [row | {"ppo_epoch": epoch} for epoch in (0, 1)])
    assert log.column("log_ratio") == pytest.approx([0.5, 0.5])
    assert log.column("times_used").tolist() == [0, 1]


def test_tokens_that_are_objects_of_several_numbers(tmp_path):
    tokens = [{"trainer_logprob": -1.0 - i, "inference_logprob": -1.5 - i, "loss_mask": i > 0} for i in range(3)]
    _, log = taken(tmp_path, [{"step": 0, "tokens": tokens}])
    assert log.column("length").tolist() == [2]
    assert log.column("behaviour_log_ratio") == pytest.approx([1.0])


def test_a_renamed_state_of_a_hugging_face_trainer_is_read(tmp_path):
    state = {"log_history": [{"step": i, "reward": 0.1 * i} for i in (1, 2)]}
    (tmp_path / "trl-trainer-state (1).json").write_text(json.dumps(state))
    report = import_run(tmp_path / "trl-trainer-state (1).json", tmp_path / "run")
    assert report.metric_lines == 2


def test_of_two_masks_that_of_the_loss_counts(tmp_path):
    row = {"step": 0, "prompt": "p", "old_logprobs": [-1.0, -2.0, -3.0], "sampler_logprobs": [-1.0, 0.0, -2.5]}
    for name in ("loss_mask", "loss_masks"):
        (tmp_path / name).mkdir()
        _, log = taken(tmp_path / name, [row | {"response_mask": [1, 1, 1], name: [1, 0, 1]}])
        assert log.column("length").tolist() == [2]


def test_scalars_alone_lead_to_the_doctor(tmp_path):
    import_run(records(tmp_path / "m.jsonl", [{"step": i, "reward": 0.1 * i} for i in range(3)]), tmp_path / "run")
    with pytest.raises(UserError, match="holds scalars, and no row for a response: `fspo doctor"):
        read_log(tmp_path / "run")


def test_a_batch_in_a_line_and_a_step_in_other_names_of_files(tmp_path):
    batch = {"rewards": [1.0, 0.0], "generation_logprobs": [[-1.0, -2.0, 0], [-0.5, 0, 0]], "idx": [3, 4]}
    batch |= {"prev_logprobs": [[-1.5, -1.75, 0], [-1.0, 0, 0]], "token_loss_mask": [[1, 1, 0], [1, 0, 0]]}
    for step in (9, 10):
        (tmp_path / "dumps").mkdir(exist_ok=True)
        records(tmp_path / "dumps" / f"rollout_{step}.jsonl", [batch])
    import_run(tmp_path / "dumps", tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert log.column("step").tolist() == [9, 9, 10, 10]
    assert log.column("length").tolist() == [2, 1, 2, 1]
    assert log.column("behaviour_log_ratio") == pytest.approx([-0.25, -0.5] * 2)
    assert log.column("reward").tolist() == [1.0, 0.0] * 2


def test_lists_of_other_sizes_are_of_one_response(tmp_path):
    row = {"step": 0, "prompt": "p", "old_logprobs": [-1.0, -2.0, -3.0], "sampler_logprobs": [-1.0, -2.0, -2.5]}
    _, log = taken(tmp_path, [row | {"tools": [["a"], ["b"]]}])
    assert (log.column("length").tolist(), log.column("behaviour_log_ratio").tolist()) == ([3], [-0.5])


def test_objects_in_a_line_are_columns(tmp_path):
    one = {"episode": {"group": "a", "reward": 1.0, "step": 3}, "logprobs": {"trainer": [-1.0], "generator": [-1.5]}}
    report, log = taken(tmp_path, [one, {**one, "episode": {"group": "a", "reward": 0.0, "step": 3}}])
    assert (report.columns["new"], report.columns["sampler"]) == ("logprobs.trainer", "logprobs.generator")
    assert log.column("behaviour_log_ratio").tolist() == [0.5, 0.5]
    assert (log.column("step").tolist(), log.column("reward").tolist()) == ([3, 3], [1.0, 0.0])
    table = pa.table({"out": [{"log_ratio": 0.25, "length": 7}], "step": [1]})
    pq.write_table(table, tmp_path / "s.parquet")
    import_run(tmp_path / "s.parquet", tmp_path / "struct", ImportOptions(columns={"length": "out.length"}))
    assert read_log(tmp_path / "struct").column("log_ratio").tolist() == [0.25]


def test_scalars_in_objects_are_no_responses(tmp_path):
    row = {"train": {"step": 3, "advantages": 0.5, "mask": 1.0, "reward": 0.25}}
    import_run(records(tmp_path / "s.jsonl", [row]), tmp_path / "run")
    assert scalars(tmp_path / "run") == [
        {"rollout": 3, "step": 3, "phase": "train", "imported/advantages": 0.5, "imported/mask": 1.0, "reward": 0.25}
    ]
    with pytest.raises(UserError, match=r"many lines for each step.*new=COLUMN.*; it has now, then"):
        import_run(records(tmp_path / "r.jsonl", [{"step": 3, "now": -2.0, "then": -1.5}] * 3), tmp_path / "two")


def test_scalars_that_weights_and_biases_exported(tmp_path):
    head = "_step,mine - critic/score/mean,mine - critic/score/mean__MIN,mine - x,"
    (tmp_path / "w.csv").write_text(head.rstrip(",") + "\n4,0.5,0.1,2\n")
    import_run(tmp_path / "w.csv", tmp_path / "run")
    assert scalars(tmp_path / "run") == [{"rollout": 4, "step": 4, "phase": "train", "reward": 0.5, "imported/x": 2.0}]
    (tmp_path / "w.csv").write_text("_step,mine - x,other - x\n4,0.5,0.1\n")
    with pytest.raises(UserError, match=r"scalars of 2 runs \(mine, other\): export one run"):
        import_run(tmp_path / "w.csv", tmp_path / "two")


def test_versions_within_a_response_and_a_rollout_of_ten_digits(tmp_path):
    row = {"step": 2_147_000_000, "prompt": "p", "weight_versions": ["3", "4"], "log_probs": [-1.0, -2.0]}
    row["rollout_log_probs"] = [-1.5, -2.0]
    report, _ = taken(tmp_path, [row, {**row, "step": 99_999_999}])
    assert "2 of 2 responses were sampled by several versions of the weights" in report.notes
    assert read_log(tmp_path / "run").column("rollout").tolist() == [99_999_999, 2_147_000_000]


@pytest.mark.parametrize("name", ["logprobs", "per_token_logps"])
def test_logprobs_beside_old_ones_may_be_the_samplers(tmp_path, name):
    """rLLM's logprobs are the sampler's, TRL's per_token_logps the trainer's."""
    row = {"step": 1, "prompt": "p", "old_log_probs": [-1.0, -2.0], name: [-1.5, -2.0]}
    report, _ = taken(tmp_path, [row])
    assert any("whose log-probabilities are these? logprobs" in note for note in report.notes) == (name == "logprobs")
    assert ("new" in report.columns) == (name != "logprobs")


@pytest.mark.parametrize(
    ("versions", "mask", "last"),
    [(["17"], [1, 1, 1], 17), (["17", "18"], [1, 1, 0], 18), (["17", "18", "99"], [1, 1, 0], 18)],
)
def test_versions_of_each_call_and_of_each_token(tmp_path, versions, mask, last):
    """slime writes one version for each call of the sampler, others one for each token, of which the mask leaves out
    the third."""
    row = {"global_steps": 4, "prompt": "p", "weight_versions": versions, "loss_mask": mask}
    row |= {"log_probs": [-1.0, -2.0, -1.0], "rollout_log_probs": [-1.5, -2.0, -1.0]}
    taken(tmp_path, [row])
    log = read_log(tmp_path / "run")
    assert [log.column(name).tolist() for name in ("behaviour_version", "behaviour_version_last")] == [[17], [last]]
    assert log.column("rollout").tolist() == [4]
    assert log.column("response_id").tolist() == [1]  # rows count from 1


def test_steps_with_a_prefix_on_alternating_lines(tmp_path):
    rows = [{"rollout/step": 4, "rollout/raw_reward": 0.5}, {"train/step": 4, "train/ois": 0.9}]
    report = import_run(records(tmp_path / "s.jsonl", rows), tmp_path / "run")
    (line,) = scalars(tmp_path / "run")
    assert (line["step"], line["reward"], line["imported/ois"]) == (4, 0.5, 0.9)
    assert report.lines()[-1] == f"next: fspo doctor {tmp_path / 'run'}"


def test_nested_metrics_and_columns_that_reach_scalars(tmp_path):
    rows = [{"tick": 3, "who": "x", "metrics": {"mine": 0.25, "actor": {"kl": 0.5}}}]
    source = records(tmp_path / "s.jsonl", rows)
    with pytest.raises(UserError, match="no column of steps"):
        import_run(source, tmp_path / "run")
    with pytest.raises(UserError, match="no line has a number as its step"):
        import_run(source, tmp_path / "run", ImportOptions(columns={"step": "who"}))
    import_run(source, tmp_path / "run", ImportOptions(columns={"step": "tick", "reward": "mine"}))
    (line,) = scalars(tmp_path / "run")
    assert (line["step"], line["reward"], line["imported/actor/kl"]) == (3, 0.25, 0.5)


def test_verls_console_text_and_hugging_faces(tmp_path):
    text = (
        "(TaskRunner pid=1) step:1 - actor/lr:2e-06 - critic/score/mean:np.float64(0.5)\n(Worker pid=2) INFO: saved\n"
    )
    (tmp_path / "out.txt").write_text(text + "(TaskRunner pid=1) step:2 - actor/lr:1e-06 - critic/score/mean:-0.5\n")
    import_run(tmp_path / "out.txt", tmp_path / "run")
    assert [(x["step"], x["learning_rate"], x["reward"]) for x in scalars(tmp_path / "run")] == [
        (1, 2e-6, 0.5),
        (2, 1e-6, -0.5),
    ]
    (tmp_path / "hf.txt").write_text("{'loss': 0.01, 'grad_norm': 0.2,\n 'epoch': 0.5}\n")
    with pytest.raises(UserError, match=r"trainer_state\.json of the same run"):
        import_run(tmp_path / "hf.txt", tmp_path / "other")


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (("prev_logprobs", "generation_logprobs"), ("old", "sampler")),  # NeMo-RL
        (("action_log_probs", "rollout_log_probs"), ("old", "sampler")),  # OpenRLHF
        (("prox_logp", "logprobs"), ("old", "sampler")),  # AReaL
        (("log_probs", "rollout_log_probs", "weight_versions"), ("old", "sampler")),  # slime
        (("old_logprobs", "behavior_logprobs"), ("old", "sampler")),  # torchforge
        (("logprobs_previous_step", "my_vllm_logps"), ("old", "sampler")),  # by words
        (("current_policy_logp", "logp_from_engine_side"), ("new", "sampler")),
    ],
)
def test_roles_of_log_probs(tmp_path, names, roles):
    row = {"step": 0, "prompt": "p", names[0]: [-1.0, -2.0], names[1]: [-1.5, -2.0]}
    row |= {name: ["3", "4"] for name in names[2:]}
    report, log = taken(tmp_path, [row])
    assert tuple(report.columns[role] for role in roles) == names[:2]
    assert not {"old", "new"} - {roles[0]} & report.columns.keys()
    assert log.column("behaviour_log_ratio").item() == 0.5
    if len(names) > 2:
        assert (log.column("behaviour_version").item(), log.column("behaviour_version_last").item()) == (3, 4)


def test_pairs_of_sglang_and_a_reference_are_told_apart(tmp_path):
    row = {"step": 0, "prompt": "p", "output_token_logprobs": [[-1.5, 11, "a"], [-2.0, 12, None]]}
    report, log = taken(tmp_path, [row | {"old_logprobs": [-1.0, -2.0], "ref_log_probs": [-9.0, -9.0]}])
    assert log.column("behaviour_log_ratio").item() == 0.5
    assert report.undecided == []
    assert "ref_log_probs" not in report.columns.values()


def test_tokens_that_are_objects(tmp_path):
    row = {"step": 0, "prompt": "p", "old_logprobs": [-1.0, -2.0]}
    row["logprobs"] = {"content": [{"token": "a", "logprob": -1.5}, {"token": "b", "logprob": -2.0}]}
    _, log = taken(tmp_path, [row], sampler="logprobs.content")
    assert log.column("behaviour_log_ratio").item() == 0.5


def test_one_column_may_serve_two_of_ours(tmp_path):
    row = {"step": 5, "prompt": "p", "length": 3, "log_ratio": 0.5}
    _, log = taken(tmp_path, [row], policy_version="step")
    assert (log.column("step").item(), log.column("policy_version").item()) == (5, 5)
    row = {"step": 5, "prompt": "p", "new_logprobs": [-1.0], "rollout_log_probs": [-2.0]}
    report = import_run(
        records(tmp_path / "two.jsonl", [row]), tmp_path / "two", ImportOptions(columns={"old": "rollout_log_probs"})
    )
    assert "sampler" not in report.columns  # the log-probabilities are of one policy


def test_a_dump_without_log_probs_says_so(tmp_path):
    row = {"task_id": 8, "seqlen": 74, "prompt_len": 9, "head_version": 2, "tail_version": 3, "reward": 1.0}
    row["old_logprobs"] = None
    report, log = taken(tmp_path, [row | {"completion": "x"}, row | {"completion": "y", "seqlen": 20, "reward": 0.0}])
    assert log.column("length").tolist() == [65, 11]
    assert log.column("behaviour_version_last").tolist() == [3, 3]
    assert any("no log-probabilities, so no ratio can be made" in note for note in report.notes)
    assert report.lines()[-1] == f"next: fspo doctor {tmp_path / 'run'}"


def pairs(noise=0.01, responses=40, length=30, seed=0):
    """Old and sampler's log-probs of tokens (responses, length), which differ by noise alone; a third are uncertain."""
    rng = np.random.default_rng(seed)
    sampler = -np.where(rng.random((responses, length)) < 0.35, rng.exponential(1.0, (responses, length)) + 0.3, 0.0)
    sampler -= rng.exponential(0.02, sampler.shape) + 1e-4
    return np.minimum(sampler + noise * rng.standard_normal(sampler.shape), -1e-6), sampler


def noticed(tmp_path, old, sampler):
    rows = [
        {"step": 2, "uid": f"u{i}", "old_log_probs": list(o), "rollout_log_probs": list(s)}
        for i, (o, s) in enumerate(zip(old, sampler, strict=True))
    ]
    report, log = taken(tmp_path, rows)
    found = digest_of(tmp_path / "run")
    assert found == report.digest
    return found, " ".join(report.notes), log


def test_noise_alone_has_no_cause(tmp_path):
    found, notes, _ = noticed(tmp_path, *pairs())
    assert (found.tokens, found.responses, found.cause) == (1200, 40, "")
    assert found.rms == pytest.approx(0.01, rel=0.1)
    counts = [one.count for one in (found.placeholder, found.zeros, found.confident, found.overflow, found.above_zero)]
    assert counts == [0] * 5
    assert "left out" not in notes
    assert "mask them" not in notes


@pytest.mark.parametrize(("value", "count"), [(-9999.0, 2), (-23.5, 6)])
def test_placeholders_are_left_out(tmp_path, value, count):
    old, sampler = pairs()
    for i in range(count):
        sampler[2 * i + 3, i] = value
    found, notes, log = noticed(tmp_path, old, sampler)
    assert (found.placeholder.count, found.placeholder.largest, found.cause) == (count, value, "placeholder")
    assert found.placeholder.first == {"row": 4, "step": 2, "uid": "u3"}
    assert "log-probabilities are missing" in notes
    assert log.column("length").sum() == 1200 - count
    assert np.abs(log.column("behaviour_log_ratio")).max() < 1


@pytest.mark.parametrize(
    ("grid", "at", "told"),
    [
        (0, np.arange(6) * 7, True),
        (0, np.arange(6) * 30, False),  # at one place of six responses, as where they begin alike
        (1 / 32, np.arange(6) * 7, False),  # each of 64 values is there about 47 times
        (1 / 32, np.arange(400) * 7, True),
    ],
)
def test_a_repeated_value_among_like_ones_is_a_placeholder(grid, at, told):
    """-5 stands in six or 400 tokens among 3,000 from -4 to -6, exact or rounded to a grid."""
    values, row = np.random.default_rng(3).uniform(-6, -4, 3000), np.repeat(np.arange(100), 30)
    values = np.round(values / grid) * grid if grid else values
    values[at] = -5.0
    assert np.array_equal(placeholders(values, row), (values == -5.0) & told)


def test_zeros_in_runs_ask_for_a_mask_and_those_of_a_nucleus_do_not(tmp_path):
    old, sampler = pairs()
    sampler[5, 10:14] = 0.0
    old[5, 10:14] = [-2.0, -0.01, -3.0, -0.5]
    found, notes, _ = noticed(tmp_path, old, sampler)
    assert (found.zeros.count, found.zeros.responses, found.cause) == (4, 1, "mask")
    assert found.zeros.first["uid"] == "u5"
    assert "--columns mask=COLUMN" in notes
    old, sampler = pairs()
    noise = 0.06 * np.random.default_rng(5).standard_normal(old.shape)  # puts 1 token in 20 on the other side
    nucleus = np.where(old > np.log(0.9), 0.0, np.minimum(old + 0.1 + noise, 0.0))
    (tmp_path / "two").mkdir()
    found, notes, _ = noticed(tmp_path / "two", old, nucleus)
    assert (found.zeros.count, found.cause) == (0, "nucleus")
    assert "top_p 1" in notes


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shift_of_one_token(tmp_path, shift):
    old, sampler = pairs()
    found, notes, _ = noticed(tmp_path, np.roll(old, shift, axis=1), sampler)
    assert found.cause == "shift"
    assert min(found.shifts, key=lambda name: found.shifts[name]) == str(shift)
    assert "misaligned by one token" in notes


def laws(differ, number=6000):
    """Log-probs of tokens that the second of two laws over 50 symbols drew, by each; ``differ`` makes the second."""
    rng = np.random.default_rng(3)
    logits = 2.5 * rng.standard_normal((number, 50))
    first, second = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (logits, differ(logits, rng)))
    drawn = (second + rng.gumbel(size=second.shape)).argmax(1)[:, None]
    return [np.take_along_axis(x, drawn, 1).reshape(-1, 30) for x in (first, second)]


@pytest.mark.parametrize("temperature", [0.7, 0.9, 1.2])
def test_another_temperature(tmp_path, temperature):
    found, notes, _ = noticed(tmp_path, *laws(lambda x, rng: x / temperature))
    assert found.cause == "temperature"
    assert found.temperature == pytest.approx(temperature, abs=0.05)
    assert "at the temperature of sampling" in notes


def test_a_constant_is_no_temperature(tmp_path):
    old, sampler = pairs()
    found, _, _ = noticed(tmp_path, old, np.full_like(sampler, -0.5))
    assert found.cause in ("", "weights")


@pytest.mark.parametrize("spread", [0.03, 0.3, 1.0])
def test_other_logits_are_no_temperature(tmp_path, spread):
    found, _, _ = noticed(tmp_path, *laws(lambda x, rng: x + spread * rng.standard_normal(x.shape)))
    assert found.cause in ("", "weights")


def test_confident_disagreement_means_other_weights_and_one_row_does_not(tmp_path):
    old, sampler = pairs()
    sure = np.argwhere((sampler > -0.1) & (old < -1e-5))[::15]
    old[tuple(sure.T)] -= 3.0
    found, notes, _ = noticed(tmp_path, old, sampler)
    assert (found.confident.count, found.cause) == (len(sure), "weights")
    assert "other weights" in notes
    old, sampler = pairs()
    old[19, :3] -= 6.5
    (tmp_path / "two").mkdir()
    found, notes, _ = noticed(tmp_path / "two", old, sampler)
    assert found.cause == ""
    assert "1 of 40 responses" in notes
    assert "row 20, step 2, uid u19" in notes
    assert found.largest[0]["d"] == pytest.approx(-6.5, abs=0.1)


def test_an_overflow_is_named_by_its_row_and_what_the_mask_drops_is_not(tmp_path):
    old, sampler = pairs(responses=3)
    sampler[1, 4], sampler[2, 7] = -90.0, -95.0
    mask = np.ones(old.shape, int)
    mask[2, 7] = 0
    table = {"step": [0] * 3, "export_sequence_idx": [16, 17, 18], "old_log_probs": list(old.tolist())}
    table |= {"rollout_log_probs": sampler.tolist(), "response_mask": mask.tolist()}
    report, _ = imported(tmp_path, table)
    assert report.digest.overflow.count == 1
    assert report.digest.overflow.row == {"row": 2, "step": 0, "export_sequence_idx": 17}
    assert 89 < report.digest.overflow.largest <= 90


def test_weights_of_tokens_that_have_no_number_or_lie_above_the_cap(tmp_path):
    row = {"step": 0, "group": 1, "action_log_probs": [-1.0, -2.0], "rollout_log_probs": [-1.0, -2.0]}
    report, _ = taken(tmp_path, [row | {"vllm_is": [1.0, 9.5]}, row | {"group": 2, "vllm_is": [None, 1.0]}])
    assert any("1 tokens have a weight above 2" in note and "row 1, step 0, group 1" in note for note in report.notes)
    assert any("1 tokens have no number" in note and "row 2, step 0, group 2" in note for note in report.notes)


def test_log_probs_slightly_above_0_are_held_and_others_refused(tmp_path):
    old, sampler = pairs()
    old[3, 2] = 0.004
    found, notes, _ = noticed(tmp_path, old, sampler)
    assert (found.above_zero.count, found.above_zero.largest) == (1, 0.004)
    assert "held at 0" in notes
    for many, value in ((1, 0.3), (3, 0.004)):
        old[:, :many] = value if many > 1 else old[:, :1]
        old[3, 2] = value
        folder = tmp_path / str(many)
        folder.mkdir()
        with pytest.raises(UserError, match=rf"values above 0 .* the largest {value} in row \d+, step 2, uid u\d+"):
            noticed(folder, old, sampler)


BIG = [2**63 + 1, 2**63 + 2, 2**63 + 3]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
@pytest.mark.parametrize("ids", [BIG, [2**62 + 1, 2**62 + 2, 2**62 + 3], [*BIG[:2], 7]])
def test_ids_of_64_bits_stay_apart_and_are_the_same_in_every_format(tmp_path, name, ids):
    table = {"prompt_id": np.array(ids, np.uint64), "length": [3, 4, 5], "log_ratio": [0.1, 0.2, 0.3]}
    _, log = imported(tmp_path, table, name)
    assert log.column("prompt_id").astype(np.uint64).tolist() == ids


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 7.5, 2], r"length is 7\.5 in row 2 \(1 of 3 rows"),
        ([3, 4, None], r"length is null in row 3 \(1 of 3 rows"),
        ([-1, 4, -2], r"length is -1 in row 1 \(2 of 3 rows"),
        ([3, 4, 2**31], r"length is 2147483648 in row 3 \(1 of 3 rows hold no whole number from 0 to 2147483647"),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
def test_lengths_that_are_none_are_refused(tmp_path, name, lengths, message):
    table = {"prompt_id": [0, 1, 2], "length": pd.Series(lengths), "log_ratio": [0.1, 0.2, 0.3]}
    with pytest.raises(UserError, match=message):
        import_run(write(tmp_path / name, table), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_decimals_are_numbers_and_a_step_of_19_digits_is_refused(tmp_path):
    table = {"step": pa.array([0, 1]), "length": pa.array([3, 4]).cast(pa.decimal128(20, 0)), "log_ratio": [0.1, 0.2]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    import_run(tmp_path / "t.parquet", tmp_path / "run")
    assert read_log(tmp_path / "run").column("length").tolist() == [3, 4]
    pq.write_table(pa.table(table | {"step": pa.array([0, 10**18])}), tmp_path / "u.parquet")
    with pytest.raises(UserError, match="step is 1000000000000000000 in row 2"):
        import_run(tmp_path / "u.parquet", tmp_path / "other")
