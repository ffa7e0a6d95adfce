"""Windows in which no range gives a target: their rows alone are left out, with the reason that is true."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.log.loading import Run, load_run
from analysis.options import Options
from analysis.run import analyse
from fspo.stats.bins import Bins

OPTIONS = Options(rules=("fspo", "gspo"), targets=(0.9,), draws=1, window=2)
BINS = Bins((2, 40, 300))
KEYS = ["rule", "outside", "source", "target", "subset", "use", "measure", "bin"]
NUMBERS = ["count", "clusters", "bin_mean", "estimate", "ci_low", "ci_high"]


@pytest.fixture
def run(simulate) -> Run:
    return load_run(simulate(rollouts=6, prompts=32, width=0))


def tables(run: Run) -> tuple[dict[str, pd.DataFrame], dict]:
    return analyse(run, BINS, OPTIONS)


def without(run: Run, rollouts: tuple[int, ...]) -> Run:
    """The same run without some rollouts."""
    return replace(run, rows=run.rows.take(~np.isin(run.rows.rollout, rollouts)))


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Equal but for the order of sums."""
    pair = [table.set_index(KEYS)[NUMBERS].sort_index().astype(float) for table in (one, other)]
    pd.testing.assert_frame_equal(*pair, rtol=1e-9)


def test_a_window_of_equal_rewards_takes_no_number_from_the_others(run: Run) -> None:
    """Rollouts 2 and 3 have A = 0 throughout: nothing of them counts for an update acceptance."""
    rows = run.rows
    equal = replace(run, rows=replace(rows, A=np.where(np.isin(rows.rollout, (2, 3)), 0.0, rows.A)))
    found, summary = tables(equal)
    expected, _ = tables(without(run, (2, 3)))
    for measure in ("update", "weight"):
        where = f"measure == '{measure}' and source == 'matched'"
        got = found["acceptance"].query(where)
        assert len(got) == 4 * 2 * 3  # fspo with three outsides and gspo; uses; two bins and all
        assert np.isfinite(got["estimate"]).all()
        assert (got["reason"] == "").all()
        same(got, expected["acceptance"].query(where))
    assert summary["counts"]["windows_without_a_range"] == 1
    assert any("1 block of rollouts: no range at the clip rate" in line for line in summary["warnings"])


def test_a_window_without_a_range_is_left_out_alone(run: Run) -> None:
    """S is 0 in rollouts 2 and 3: any range accepts all of them, and no range 90 %."""
    rows = run.rows
    still = replace(run, rows=replace(rows, S=np.where(np.isin(rows.rollout, (2, 3)), 0.0, rows.S)))
    found, summary = tables(still)
    expected, _ = tables(without(run, (2, 3)))
    matched = found["acceptance"].query("source == 'matched'")
    told = matched["reason"].str
    assert told.contains("of the rows left out, where no range gives the target; block of rollouts 2: ").all()
    assert told.contains("accepts more than 90% at any range").all()
    same(matched, expected["acceptance"].query("source == 'matched'"))
    given = found["acceptance"].query("source == 'given'")
    assert (given["reason"] == "").all()
    for name in ("lre", "trend"):
        assert found[name].query("source == 'matched'")["reason"].str.contains("left out").all()
    assert summary["counts"]["windows_without_a_range"] == 1


def test_every_window_without_a_range_has_no_number_and_says_why(run: Run) -> None:
    found, _ = tables(replace(run, rows=replace(run.rows, S=np.zeros(len(run.rows)))))
    matched = found["acceptance"].query("source == 'matched'")
    assert matched["estimate"].isna().all()
    assert matched["reason"].str.contains("100.0% of the rows left out").all()
