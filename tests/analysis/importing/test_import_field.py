"""Files as trainers of the field write them: their shapes, and the roles of their columns."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.importing.run import ImportOptions, import_run
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from tests.analysis.importing.made import imported, records, scalars, taken, write

ONE = {"step": 0, "prompt": "p"}
FIRST, SECOND, THREE = [-1.0, -2.0], [-1.5, -2.0], [-1.0, -2.0, -3.0]
OBJECTS = [{"trainer_logprob": -1.0 - i, "inference_logprob": -1.5 - i, "loss_mask": i > 0} for i in range(3)]
CONTENT = {"content": [{"token": "a", "logprob": -1.5}, {"token": "b", "logprob": -2.0}]}
SGLANG = {"output_token_logprobs": [[-1.5, 11, "a"], [-2.0, 12]], "ref_log_probs": [-9.0, -9.0]}
MASKED = {"old_logprobs": THREE, "sampler_logprobs": [-1.0, 0.0, -2.5], "response_mask": [1, 1, 1]}
VERSIONS = {"old_logprobs": THREE, "policy_versions": [1, 2, 3], "response_mask": [1, 1, 0]}
AREAL = {"seqlen": 74, "prompt_len": 9, "head_version": 2, "tail_version": 3, "old_logprobs": None, "output": "x"}
PADDED = [-1.0, -2.0, 0.0], [-1.25, -1.5, 0.0], [-1.75, -1.5, 0.0], [1, 1, 0], [2.0, 2.0, 0.0]
TRL = "per_token_logps", "old_per_token_logps", "sampling_per_token_logps", "completion_mask", "advantages"
VERL = "log_probs", "old_log_probs", "rollout_log_probs", "response_mask", "advantages"
BOTH = {"length": 2, "log_ratio": -0.25, "behaviour_log_ratio": 0.5, "advantage": 2.0}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"action_log_probs": FIRST, "old_action_log_probs": SECOND}, {"log_ratio": 0.5}),  # OpenRLHF
        ({"old_logprobs": SECOND, "new_logprobs": FIRST, "ppo_epoch": 1}, {"log_ratio": 0.5, "times_used": 1}),
        ({"tokens": OBJECTS}, {"length": 2, "behaviour_log_ratio": 1.0}),
        ({"old_logprobs": FIRST, "sampler_logprobs": CONTENT}, {"behaviour_log_ratio": 0.5}),  # OpenAI
        (SGLANG | {"old_logprobs": FIRST}, {"behaviour_log_ratio": 0.5}),
        (MASKED | {"loss_mask": [1, 0, 1]}, {"length": 2, "behaviour_log_ratio": -0.5}),  # that of the loss counts
        (MASKED | {"loss_masks": [1, 0, 1]}, {"length": 2}),
        (MASKED | {"tools": [["a"], ["b"]]}, {"length": 3}),  # lists of other sizes are of one response
        (AREAL, {"length": 65, "behaviour_version": 2, "behaviour_version_last": 3}),
        (VERSIONS, {"behaviour_version": 1, "behaviour_version_last": 2}),
        ({"old_logprobs": FIRST, "mask": [1, 0], "rewards": [0.5, 1.0]}, {"length": 1, "reward": 1.5}),
        ({"old_logprobs": [], "new_logprobs": []}, {"length": 0}),
        (dict(zip(TRL, PADDED, strict=True)), BOTH),
        (dict(zip(VERL, PADDED, strict=True)), BOTH),
        ({"old_log_probs": FIRST, "per_token_logps": SECOND}, {"log_ratio": -0.5}),  # TRL's are the trainer's
        ({"old_log_probs": FIRST, "logprobs": SECOND, "rollout_log_probs": FIRST}, {"log_ratio": -0.5}),
    ],
)
def test_a_row_as_trainers_write_it(tmp_path, row, expected):
    report, log = taken(tmp_path, [ONE | row])
    assert {name: log.column(name).item() for name in expected} == pytest.approx(expected)
    assert not report.undecided


def test_a_batch_in_a_line_and_a_step_in_the_files_name(tmp_path):
    """NeMo-RL's files: lists of one or of a batch, padded, with the prompt's tokens in front."""
    batch = {"rewards": [1.0, 0.0], "input_lengths": [4, 3], "token_loss_mask": [[0, 0, 1, 1, 0], [0, 0, 1, 0, 0]]}
    batch |= {"generation_logprobs": [[0, 0, -1.0, -2.0, 0], [0, 0, -0.5, 0, 0]], "idx": [3, 4]}
    batch |= {"prev_logprobs": [[0, 0, -1.5, -1.75, 0], [0, 0, -1.0, 0, 0]]}
    batch |= {"token_ids": [[7, 8, 5, 6, 0], [7, 8, 5, 0, 0]]}
    one = {name: values[:1] for name, values in batch.items()} | {"rewards": [0.5]}
    records(tmp_path / "dumps" / "rollout_9.jsonl", [batch])
    records(tmp_path / "dumps" / "rollout_2_step10.jsonl", [one])
    report = import_run(tmp_path / "dumps", tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert log.column("step").tolist() == [9, 9, 10]
    assert log.column("length").tolist() == [2, 1, 2]  # neither the padding nor input_lengths, which counts the prompt
    assert log.column("behaviour_log_ratio") == pytest.approx([-0.25, -0.5, -0.25])
    assert log.column("reward").tolist() == [1.0, 0.0, 0.5]
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
    report, log = taken(tmp_path, [{"step": 0, "qid": 1, "old_logprobs": [-1.0], name: word} for word in words])
    assert report.columns["prompt_id"] == "qid"
    assert log.column("truncated").tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_objects_in_a_line_are_columns(tmp_path):
    one = {"episode": {"group": "a", "reward": 1.0, "step": 3}, "logprobs": {"trainer": [-1.0], "generator": [-1.5]}}
    report, log = taken(tmp_path, [one, {**one, "episode": {"group": "a", "reward": 0.0, "step": 3}}])
    assert (report.columns["new"], report.columns["sampler"]) == ("logprobs.trainer", "logprobs.generator")
    assert log.column("behaviour_log_ratio").tolist() == [0.5, 0.5]
    assert (log.column("step").tolist(), log.column("reward").tolist()) == ([3, 3], [1.0, 0.0])
    pq.write_table(pa.table({"out": [{"log_ratio": 0.25, "length": 7}], "step": [1]}), tmp_path / "s.parquet")
    import_run(tmp_path / "s.parquet", tmp_path / "struct", ImportOptions(columns={"length": "out.length"}))
    assert read_log(tmp_path / "struct").column("log_ratio").tolist() == [0.25]


VERL_TEXT = """(TaskRunner pid=1) step:1 - actor/lr:2e-06 - critic/score/mean:np.float64(0.5)
(Worker pid=2) INFO: me
(TaskRunner pid=1) step:2 - actor/lr:1e-06 - critic/score/mean:-0.5
"""


@pytest.mark.parametrize(
    ("name", "text", "columns", "expected"),
    [
        ("a-Trainer-state (1).json", '{"log_history": [{"step": 1, "reward": 0.5}]}', {},
         [{"rollout": 0, "step": 1, "reward": 0.5}]),
        ("w.csv", "_step,a - critic/score/mean,a - critic/score/mean__MIN,a - x\n4,0.5,0.1,2\n", {},
         [{"step": 4, "reward": 0.5, "imported/x": 2.0}]),  # Weights & Biases
        ("out.txt", VERL_TEXT, {},
         [{"step": 1, "reward": 0.5, "learning_rate": 2e-6}, {"step": 2, "reward": -0.5, "learning_rate": 1e-6}]),
        ("s.jsonl", '{"tick": 3, "who": "x", "metrics": {"mine": 0.25, "actor": {"kl": 0.5}}}',
         {"step": "tick", "reward": "mine"}, [{"step": 3, "reward": 0.25, "imported/actor/kl": 0.5}]),
        ("o.jsonl", '{"train": {"step": 3, "advantages": 0.5, "mask": 1.0, "reward": 0.25}}', {},
         [{"step": 3, "reward": 0.25, "imported/advantages": 0.5, "imported/mask": 1.0}]),  # no responses
    ],
)  # fmt: skip
def test_scalars_of_the_field(tmp_path, name, text, columns, expected):
    (tmp_path / name).write_text(text)
    import_run(tmp_path / name, tmp_path / "run", ImportOptions(columns=columns))
    assert scalars(tmp_path / "run") == [{"rollout": one["step"], "phase": "train"} | one for one in expected]
    with pytest.raises(UserError, match="holds scalars, and no row for a response: `fspo doctor"):
        read_log(tmp_path / "run")


def test_versions_within_a_response_and_a_rollout_of_ten_digits(tmp_path):
    row = {"step": 2_147_000_000, "prompt": "p", "weight_versions": ["3", "4"], "log_probs": FIRST}
    report, log = taken(tmp_path, [row, {**row, "step": 99_999_999}])
    assert "2 of 2 responses were sampled by several versions of the weights" in report.notes
    assert log.column("rollout").tolist() == [99_999_999, 2_147_000_000]


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
    row = ONE | {names[0]: FIRST, names[1]: SECOND} | {name: ["3", "4"] for name in names[2:]}
    report, log = taken(tmp_path, [row])
    assert tuple(report.columns[role] for role in roles) == names[:2]
    assert not {"old", "new"} - {roles[0]} & report.columns.keys()
    assert log.column("behaviour_log_ratio").item() == 0.5


def test_logprobs_beside_old_ones_may_be_the_samplers(tmp_path):
    report, _ = taken(tmp_path, [ONE | {"old_log_probs": FIRST, "logprobs": SECOND}])  # rLLM's are
    assert any("whose log-probabilities are these? logprobs" in note for note in report.notes)


def test_one_column_may_serve_two_of_ours(tmp_path):
    _, log = taken(tmp_path, [ONE | {"length": 3, "log_ratio": 0.5, "step": 5}], policy_version="step")
    assert (log.column("step").item(), log.column("policy_version").item()) == (5, 5)
    two = records(tmp_path / "two.jsonl", [ONE | {"new_logprobs": FIRST, "rollout_log_probs": SECOND}])
    report = import_run(two, tmp_path / "two", ImportOptions(columns={"old": "rollout_log_probs"}))
    assert "sampler" not in report.columns  # the log-probabilities are of one policy


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
