"""The gradient log: what is written comes back; other versions are refused; damage is counted, never hidden."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fspo.base.errors import UserError
from fspo.gradlog import GradLog, GradLogWriter, discard_from, read_log
from fspo.gradlog.files import file_name
from fspo.gradlog.schema import LOG_COLUMNS, REQUIRED
from fspo.rules import preset

WIDTH = 4


SUMS = (
    *("engine_sum_sq", "engine_k3_sum", "staleness_log_ratio", "behaviour_log_ratio", "behaviour_sum_sq"),
    *("behaviour_k3_sum", "behaviour_k2_max", "behaviour_k3_max"),
    *("total_sum_sq", "total_k3_sum", "correction_lo", "correction_hi", "correction_drift"),
    "correction_weight",
)


def rows(n, rollout=0, seed=0):
    rng = np.random.default_rng(seed)
    unit = rng.normal(size=(n, WIDTH))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return (
        {"rollout": rollout, "step": np.repeat([4 * rollout, 4 * rollout + 1], [n // 2, n - n // 2])}
        | {"updates_since_rollout": 1, "times_used": np.arange(n) % 2, "phase": "train", "policy_version": 3}
        | {"behaviour_version": 2, "prompt_id": np.arange(n) // 2, "response_id": np.arange(n) + 1000 * rollout}
        | {"length": rng.integers(1, 500, n), "truncated": rng.random(n) < 0.5, "entropy": rng.random(n)}
        | {"log_ratio": rng.normal(size=n), "engine_log_ratio": rng.normal(size=n), "sum_sq_log_ratio": rng.random(n)}
        | {"k3_sum": rng.random(n), "reward": rng.random(n), "advantage": rng.normal(size=n), "rule": "fspo"}
        | {"lo": -0.1, "hi": np.full(n, 0.1), "drift": 0.0, "drift_source": "none"}
        | {"band_accept": rng.random(n) < 0.9, "side": rng.integers(-1, 3, n), "multiplier": 1.0}
        | {"weight": rng.random(n), "score_status": ["ok" if i % 3 else "not_taken" for i in range(n)]}
        | {"score_norm": rng.random(n) + 1, "score_unit": unit, "behaviour_version_last": 2}
        | {**{name: rng.normal(size=n) for name in SUMS}, "correction_side": rng.integers(-1, 2, n)}
    )


def write(run, *rollouts, n=6, rank=0, **options):
    writer = GradLogWriter(run, width=WIDTH, rank=rank, metadata={"rule": preset("fspo").rule.to_dict()}, **options)
    given_ = {}
    for rollout in rollouts:
        given_[rollout] = rows(n, rollout, seed=10 * rollout + rank)
        writer.append(given_[rollout])
        writer.flush(rollout)
    return given_


def test_round_trip_of_every_column(tmp_path):
    given_ = write(tmp_path, 0)[0]
    assert set(given_) == set(LOG_COLUMNS)
    log = read_log(tmp_path)
    assert not log.damage
    for name in LOG_COLUMNS.keys() - {"score_unit"}:
        kind, expected = LOG_COLUMNS[name].kind, np.full(6, given_[name])
        expected = expected.astype(kind) if kind.startswith("float") else expected
        np.testing.assert_array_equal(log.column(name), expected, err_msg=name)
    np.testing.assert_array_equal(log.column("log_ratio"), given_["log_ratio"])  # to the last bit, in float64
    assert log.rule == preset("fspo").rule


@pytest.mark.parametrize(("exact", "near"), [(False, {"rtol": 2**-10, "atol": 1e-6}), (True, {"rtol": 1e-6})])
def test_scores_come_back_for_the_rows_that_have_one(tmp_path, exact, near):
    given_ = write(tmp_path, 0, exact=exact)[0]
    log = read_log(tmp_path)
    index, psi = log.scores()
    assert index.tolist() == [1, 2, 4, 5]
    assert log.table["score_unit"].null_count == 2  # a missing sketch is null, never zeros
    expected = given_["score_unit"] * given_["score_norm"][:, None]
    np.testing.assert_allclose(psi, expected[index], **near)
    part = log.where(np.arange(6) >= 2)  # indices are those of the part
    index, psi_part = part.scores()
    assert index.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(psi_part, psi[1:])
    index, psi_part = log.where(log.column("score_status") == "ok").scores()  # every row has one
    assert index.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(psi_part, psi)
    for none in (GradLog(log.table.drop_columns(["score_unit"])), log.where(np.arange(6) == 0)):
        assert [len(found) for found in none.scores()] == [0, 0]


def test_required_columns_are_enough(tmp_path):
    given_ = rows(6)
    writer = GradLogWriter(tmp_path)
    writer.append({name: given_[name] for name in REQUIRED})
    writer.flush(0)
    log = read_log(tmp_path)
    assert "entropy" not in log  # all null: as good as missing
    assert "log_ratio" in log
    assert np.isnan(log.column("entropy")).all()
    assert not log.column("band_accept").any()
    assert (log.column("rule") == "").all()
    with pytest.raises(UserError, match="names no rule"):
        _ = log.rule
    with pytest.raises(UserError, match="no column 'score_unit'"):
        log.column("score_unit")
    with pytest.raises(UserError, match="'sequence_length'"):
        writer.append(given_ | {"sequence_length": 3})
    with pytest.raises(UserError, match=r"missing columns .*'length'"):
        writer.append({name: given_[name] for name in REQUIRED if name != "length"})


def test_user_columns(tmp_path):
    writer = GradLogWriter(tmp_path, width=WIDTH, user_columns={"difficulty": "int32", "source": "string"})
    writer.append(rows(2) | {"user.difficulty": [7, 8], "user.source": ["a", "b"]})
    writer.append(rows(2, seed=1))  # left out: null
    writer.flush(0)
    log = read_log(tmp_path)
    assert log.column("user.difficulty").tolist() == [7, 8, 0, 0]
    assert log.column("user.source").tolist() == ["a", "b", "", ""]


def test_phases_and_columns(tmp_path):
    writer = GradLogWriter(tmp_path, width=WIDTH)
    writer.append(rows(4))
    writer.append(rows(3, seed=1) | {"phase": "audit"})
    writer.append({k: v for k, v in rows(2, seed=2).items() if k != "phase"})  # another trainer's: null counts as train
    writer.flush(0)
    assert len(read_log(tmp_path)) == 6
    assert len(read_log(tmp_path, phases=("audit",))) == 3
    assert len(read_log(tmp_path, phases=None)) == 9
    log = read_log(tmp_path, columns=("log_ratio",))
    assert set(log.table.column_names) == {"log_ratio", "phase"}


def test_columns_of_later_and_of_older_minors_and_of_other_types_are_read(tmp_path):
    write(tmp_path, 0, 1)
    novelty, token = np.arange(6.0), [[0.5, -1.0]] * 6  # 1.0 and 1.1 had the log-ratios of tokens
    words = [f"{x}" for x in range(6)]
    path = tmp_path / "gradlog" / file_name(1, 0)
    rewrite(path, b"1.9", novelty=novelty, token_log_ratio=token, length=words)
    log = read_log(tmp_path)
    assert len(log) == 12
    assert len(read_log(tmp_path, rollouts=(1, 1))) == 6
    assert np.isnan(log.column("novelty")[:6]).all()
    assert log.column("novelty")[6:].tolist() == log.column("length")[6:].tolist() == [0, 1, 2, 3, 4, 5]
    assert log.table["token_log_ratio"].to_pylist() == [None] * 6 + token


def rewrite(path, version=b"1.0", **columns):
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.drop_columns([name] if name in table.column_names else [])
        table = table.append_column(name, pa.array(values))
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {b"fspo.schema": version}), path)


DAMAGE = {
    "no bytes": ("", lambda path: path.write_bytes(b"")),
    "cut": ("", lambda path: path.write_bytes(path.read_bytes()[:-20])),
    "no log": ("no gradient log", lambda path: pq.write_table(pa.table({"x": [1]}), path)),
    "another version": ("schema 3.0", lambda path: rewrite(path, version=b"3.0")),
    "words for numbers": ("6 rows lost", lambda path: rewrite(path, length=["many"] * 6)),
}
"""What is done to a file of a log, and what is said of it beside its name."""


@pytest.mark.parametrize(("says", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_counted_and_the_others_read(tmp_path, says, damage):
    write(tmp_path, 0, 1, 2)
    path = tmp_path / "gradlog" / file_name(1, 0)
    damage(path)
    log = read_log(tmp_path)
    assert len(log) == 12
    (line,) = log.damage
    assert file_name(1, 0) in line
    assert says in line
    for other in (0, 2):
        (tmp_path / "gradlog" / file_name(other, 0)).unlink()
    with pytest.raises(UserError, match="no readable file"):
        read_log(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"no gradient log under .*`fspo import"):
        read_log(tmp_path)


def test_sound_row_groups_of_a_damaged_file_are_read(tmp_path):
    write(tmp_path, 0, n=400)
    path = tmp_path / "gradlog" / file_name(0, 0)
    whole = pq.read_table(path)
    pq.write_table(whole, path, row_group_size=100, write_page_checksum=True)
    group = pq.read_metadata(path).row_group(2)
    start = group.column(whole.column_names.index("log_ratio")).data_page_offset
    data = bytearray(path.read_bytes())
    data[start + 400] ^= 0xFF
    path.write_bytes(data)
    log = read_log(tmp_path)
    assert log.column("response_id").tolist() == whole["response_id"].to_numpy()[np.r_[:200, 300:400]].tolist()
    (line,) = log.damage
    assert "row group 2, 100 rows lost" in line


def test_sketches_of_two_widths_are_one_line(tmp_path):
    for rollout, width in ((0, 8), (1, 4)):
        writer = GradLogWriter(tmp_path, width=width)
        writer.append(dict.fromkeys(REQUIRED, 1) | {"rollout": rollout, "log_ratio": np.zeros(6)})
        writer.flush(rollout)
    with pytest.raises(UserError, match="sketches of several widths"):
        read_log(tmp_path)


def test_half_files_are_neither_read_nor_kept(tmp_path):
    write(tmp_path, 0, 1, 2)
    folder = tmp_path / "gradlog"
    (folder / ".part-77-rollout-00000003-rank-0000.parquet").write_bytes(b"PAR1")
    log = read_log(tmp_path)
    assert (len(log), log.damage) == (18, [])
    assert discard_from(tmp_path, 2) == 2
    assert sorted(p.name for p in folder.iterdir()) == [file_name(0, 0), file_name(1, 0)]
    assert discard_from(tmp_path / "nowhere", 0) == 0
