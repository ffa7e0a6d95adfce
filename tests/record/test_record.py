"""The code computes what the frozen record holds; ``make_record --compare`` compares far more than these tests."""

import numpy as np
import pytest

from tests.record import make_record as record


@pytest.fixture(scope="module")
def recorded():
    return record.load()


def part(recorded, *starts):
    return {place: kept for place, kept in recorded["values"].items() if place.startswith(starts)}


def check(recorded, values):
    assert recorded
    differences = record.compare(recorded, values)
    assert not differences, f"{len(differences)} of {len(recorded)} differ:\n" + "\n".join(differences[:20])


def test_analysis_of_the_committed_logs(recorded, tmp_path):
    record.analyse(tmp_path)
    check(part(recorded, "logs/"), record.read(tmp_path))


def test_short_training_runs(recorded, tmp_path):
    """Bit for bit; only where fixed forward and backward passes of many sizes give the record's bits."""
    found = record.kernels(tmp_path)
    if found != recorded["kernels"]:
        pytest.skip(f"other float kernels: {found}, not {recorded['kernels']}; a sampled token may differ")
    record.train(tmp_path)
    check(part(recorded, "training/"), record.read(tmp_path))


COLUMN = np.array([0.5, np.nan, -2.0, np.inf])


def test_summary_by_hand():
    names = dict(zip(record.NAMES, record.summary(COLUMN), strict=True))
    wanted = {"n": 4, "NaN": 1, "+inf": 1, "-inf": 0, "min": -2.0, "max": 0.5}
    assert {k: names[k] for k in wanted} == wanted
    assert (names["sum"], names["sum of |x|"], names["sum of squares"]) == (-1.5, 2.5, 4.25)
    assert names["sum by place"] == 0.5 * 1 / 4 - 2.0 * 3 / 4
    assert names["digest"] == record.summary(COLUMN.copy())[0]


TABLE, LOG = "logs/fspo/numbers/estimate", "training/fspo/log/log_ratio"


@pytest.mark.parametrize(
    ("place", "old", "new", "told"),
    [
        (TABLE, COLUMN, COLUMN.copy(), 0),
        *((TABLE, COLUMN, other, 1) for other in (COLUMN[:3], -COLUMN, COLUMN[[2, 1, 0, 3]], COLUMN * (1 + 1e-8))),
        (TABLE, COLUMN, np.array([0.5, 0.0, -2.0, np.inf]), 1),  # NaN filled
        (TABLE, COLUMN, COLUMN * (1 + 1e-15), 0),  # rounding is tolerated in tables
        (LOG, COLUMN, COLUMN * (1 + 1e-15), 1),
        (TABLE, np.array(["a", "b"]), np.array(["a", "b"]), 0),
        (TABLE, np.array(["a", "b"]), np.array(["a", "c"]), 1),
        (TABLE, np.array(["a"]), np.array(["c"]), 1),
    ],
)
def test_a_difference_is_told_beside_its_place(place, old, new, told):
    lines = record.compare({place: record.summary(old)}, {place: new})
    assert [line.startswith(f"{place}: ") for line in lines] == [True] * told


def test_what_is_missing_or_new_is_told():
    old = {"logs/a/b/c": record.summary(COLUMN)}
    assert record.compare(old, {"logs/a/b/d": COLUMN}) == ["logs/a/b/c: missing", "logs/a/b/d: new"]


def test_the_committed_logs_name_no_machine():
    for path in record.LOGS.glob("*/config.yaml"):
        assert "output: runs/" in path.read_text()
