"""Intervals of weight and multiplier acceptance where nothing is cut, or nearly nothing."""

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.rules.evaluate import trained_case
from analysis.tables.acceptance import AcceptanceRow, Means, acceptance_rows, tables_of
from analysis.tables.passes import look_through
from analysis.tables.typed_rows import CaseKey
from fspo.rules import Rule
from fspo.stats.bins import Bins
from fspo.stats.clusters import ratios
from fspo.stats.intervals import proportion_interval
from tests.analysis.rows import made, records


def rows_of(y, weight, clusters=40):
    cluster = np.arange(len(y)) // (len(y) // clusters)
    found = ratios(y * weight, cluster, np.zeros(len(y), int), 1, weight)
    rows = acceptance_rows(made(CaseKey, {}), "weight", found, Means(np.ones(2)), Bins((1, 10)))
    return records(AcceptanceRow, rows)[-1], found


def test_weights_that_are_all_kept_are_no_more_certain_than_rows(simulate):
    run = load_run(simulate(rule=Rule("sqrt", 0.5, 0.5), rollouts=2, width=0))  # nothing is cut
    trained = trained_case(run)
    assert trained is not None
    tables = tables_of(run, look_through(run, Bins((1, 301)), [trained], 5)[0])
    table = records(AcceptanceRow, tables.acceptance)
    found = {r["measure"]: r for r in table if r["subset"] == "nonzero" and r["use"] == "first" and r["bin"] == -1}
    assert found["weight"]["estimate"] == pytest.approx(1)
    low, _ = proportion_interval(1.0, 0.0, found["weight"]["count"], found["weight"]["clusters"])
    assert found["weight"]["ci_low"] == pytest.approx(float(low)) == found["update"]["ci_low"]
    assert found["weight"]["ci_low"] < 0.98
    assert found["weight"]["ci_high"] == 1


def test_a_share_of_weight_may_exceed_1():
    """Holding weights at a lower edge adds weight: the interval of a mean, not of a share."""
    rng = np.random.default_rng(1)
    row, found = rows_of(1 + 0.3 * rng.random(320), np.ones(320))
    assert 1 < row["ci_low"] < row["estimate"] < row["ci_high"]
    assert row["ci_high"] - row["estimate"] == pytest.approx(2.02 * np.sqrt(found.variance[-1]), rel=0.01)
