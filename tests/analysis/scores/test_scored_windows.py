"""Windows of scored rows: what a matched range keeps of them."""

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.rules.evaluate import make_cases
from analysis.scores.sketches import ScoredWindows
from fspo.stats.bins import Bins


@pytest.mark.parametrize("target", [0.7, 0.9])
def test_a_matched_range_meets_its_target_on_the_rows_that_act(fspo_run, target):
    """Update acceptance: of a band that keeps the share ``target`` of all S, drop leaves more than that alone."""
    for window in ScoredWindows(load_run(fspo_run), Bins((1, 301)), 2):
        for case in make_cases(("rloo", "fspo"), (target,)):
            if case.source == "matched" and case.rule.outside == "drop":
                outcome = window.outcome(case)
                assert np.mean(outcome.side == 0) == pytest.approx(target, abs=1.5 / len(window.rows))
                assert np.mean(outcome.in_band) < target - 0.02
