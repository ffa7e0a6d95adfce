"""Files as trainers of the field write them: their shapes, and the roles of their columns."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.importing.run import ImportOptions, import_run
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from tests.analysis.importing.made import imported, records, scalars, taken, write


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
    [(["-1", "17"], [1, 1, 1], 17), (["17", "18"], [1, 1, 0], 18), (["-1", "17", "99"], [1, 1, 0], 17)],
)
def test_versions_of_each_call_and_of_each_token(tmp_path, versions, mask, last):
    """slime writes one version for each call of the sampler, others one for each token, of which the mask leaves out
    the third. -1 says that none sampled."""
    row = {"global_steps": 4, "prompt": "p", "weight_versions": versions, "loss_mask": mask}
    row |= {"log_probs": [-1.0, -2.0, -1.0], "rollout_log_probs": [-1.5, -2.0, -1.0]}
    taken(tmp_path, [row])
    log = read_log(tmp_path / "run")
    assert [log.column(name).tolist() for name in ("behaviour_version", "behaviour_version_last")] == [[17], [last]]
    assert log.column("rollout").tolist() == [4]
    assert log.column("response_id").tolist() == [1]  # rows count from 1


def test_steps_with_a_prefix_on_alternating_lines(tmp_path):
    rows = [{"rollout/step": 4, "rollout/raw_reward": 0.5, "rollout/log_probs": 0}, {"train/step": 4, "train/ois": 0.9}]
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
    text = "(TaskRunner pid=1) step:1 - actor/lr:2e-06 - critic/score/mean:np.float64(0.5)\n(Worker pid=2) INFO: me\n"
    (tmp_path / "out.txt").write_text(text + "(TaskRunner pid=1) step:2 - actor/lr:1e-06 - critic/score/mean:-0.5\n")
    import_run(tmp_path / "out.txt", tmp_path / "run")
    told = [(x["step"], x["learning_rate"], x["reward"]) for x in scalars(tmp_path / "run")]
    assert told == [(1, 2e-6, 0.5), (2, 1e-6, -0.5)]
    (tmp_path / "hf.txt").write_text("{'loss': 0.01, 'grad_norm': 0.2,\n 'epoch': 0.5}\n")
    with pytest.raises(UserError, match=r"trainer_state\.json of that run"):
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
    two = records(tmp_path / "two.jsonl", [row])
    report = import_run(two, tmp_path / "two", ImportOptions(columns={"old": "rollout_log_probs"}))
    assert "sampler" not in report.columns  # the log-probabilities are of one policy


def test_a_dump_without_log_probs_says_so(tmp_path):
    row = {"task_id": 8, "seqlen": 74, "prompt_len": 9, "head_version": 2, "tail_version": 3, "reward": 1.0}
    row["old_logprobs"] = None
    report, log = taken(tmp_path, [row | {"completion": "x"}, row | {"completion": "y", "seqlen": 20, "reward": 0.0}])
    assert log.column("length").tolist() == [65, 11]
    assert log.column("behaviour_version_last").tolist() == [3, 3]
    assert any("no log-probabilities, so no ratio can be made" in note for note in report.notes)


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
