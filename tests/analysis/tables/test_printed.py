"""The lines that ``fspo analyse`` prints of the tables, from tables made by hand."""

import pandas as pd

from analysis.log.partition import LENGTH
from analysis.tables.printed import at_one_rate, printed

MATCHED = {"source": "matched", "measure": "band", "subset": "all", "use": "first"}


def rows(*found: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame([MATCHED | row for row in found])


def shares(rule: str, target: float, *kept: float) -> list[dict[str, object]]:
    spans = [(1, 10), (10, 100), (100, 200)]
    bins: list[dict[str, object]] = [
        {"rule": rule, "target": target, "bin": at, "bin_lo": low, "bin_hi": high, "estimate": value}
        for at, ((low, high), value) in enumerate(zip(spans, kept, strict=True))
    ]
    whole: dict[str, object] = {"rule": rule, "target": target, "bin": -1, "estimate": target}
    whole |= {"bin_lo": 1, "bin_hi": 200}
    return [*reversed(bins), whole, bins[0] | {"use": "reused", "estimate": 0.5}, bins[0] | {"measure": "update"}]


def test_rules_at_one_clip_rate() -> None:
    acceptance = [*shares("rloo", 0.85, 1.0, 0.9, 0.5), *shares("rloo", 0.95, 1.0, 0.99, 0.75)]
    acceptance += shares("fspo", 0.85, 0.84, 0.85, 0.86)
    trend = [
        {"rule": "rloo", "target": 0.85, "slope": -0.1234, "ci_low": -0.15, "ci_high": -0.1},
        {"rule": "fspo", "target": 0.85, "slope": 0.002, "ci_low": float("nan"), "ci_high": float("nan")},
    ]
    lre = [
        {"rule": "rloo", "target": 0.85, "norm": "l2", "estimate": 0.176, "ci_low": 0.1, "ci_high": 0.25},
        {"rule": "rloo", "target": 0.85, "norm": "l1", "estimate": 0.9, "ci_low": 0.8, "ci_high": 1.0},
        {"rule": "fspo", "target": 0.85, "norm": "l2", "estimate": float("nan")},
    ]
    tables = {"acceptance": rows(*acceptance), "trend": rows(*trend), "lre": rows(*lre)}
    first, five, of_five, heads, rloo, fspo = at_one_rate(tables, LENGTH)
    assert "first and last bin of length: 1 to 10 and 100 to 200" in first
    assert five.split()[:2] == ["5%", "clipped"]
    assert of_five.split() == ["rloo", "0.00", "0.25", "-", "-", "-", "-"]
    assert heads.split()[:2] == ["15%", "clipped"]
    assert " LRE_2 " in heads
    assert rloo.split() == ["rloo", "0.00", "0.50", "-0.123", "[-0.150,", "-0.100]", "0.176", "[0.100,", "0.250]"]
    assert fspo.split() == ["fspo", "0.16", "0.14", "0.002", "-", "-", "-"]
    nothing = {name: table.assign(source="given") for name, table in tables.items()}
    assert at_one_rate(nothing, LENGTH) == []


def test_shares_by_bin_are_of_first_uses_at_the_least_target() -> None:
    acceptance = [*shares("rloo", 0.95, 1.0, 0.99, 0.75), *shares("rloo", 0.85, 1.0, 0.9, 0.5)]
    acceptance += [
        row | {"rule": "fspo", "source": "trained", "target": None} for row in shares("", 0.8, 0.7, 0.8, 0.9)
    ]
    acceptance += [row | {"rule": "gspo", "source": "given", "target": None} for row in shares("", 0.6, 0.1, 0.2, 0.3)]
    _, heads, *lines = printed(rows(*acceptance), LENGTH, "update")
    assert heads.split() == ["length", "from", "1", "10", "100", "all"]
    assert [line.split() for line in lines] == [
        ["fspo,", "the", "run's", "own", "0.30", "0.20", "0.10", "0.20"],
        ["rloo,", "15%", "clipped", "0.00", "0.10", "0.50", "0.15"],
    ]
    lines = [line.split() for line in printed(rows(*acceptance), LENGTH, "engine")]
    assert ["gspo,", "preset", "0.90", "0.80", "0.70", "0.40"] in lines
    assert printed(rows(*acceptance).iloc[:0], LENGTH, "update") == []
