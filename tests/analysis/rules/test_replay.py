"""Replayed bands: nothing is peeked at, and what is said of a run is what its trainer did."""

import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.rules.evaluate import evaluate, make_cases, trained_case
from analysis.rules.replay import replay
from fspo.rules import preset

ADAPTIVE = preset("fspo-adaptive").rule
RULES = [preset("fspo", adapt="range", target=0.8).rule, ADAPTIVE]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.adapt)
def test_later_rows_change_no_earlier_band(rule, simulate):
    rows = load_run(simulate(rule=preset("fspo").rule, rollouts=4)).rows
    whole = replay(rule, rows)
    steps = np.unique(rows.step)
    middle = int(steps[len(steps) // 2])
    part = replay(rule, rows.take(rows.step <= middle))
    assert part == {step: rule for step, rule in whole.items() if step <= middle}
    assert len({(r.range_hi, r.gamma) for r in whole.values()}) > 1
    tampered = rows.take(np.arange(len(rows)))
    tampered.S[rows.step == middle] *= 100
    again = replay(rule, tampered)
    assert {s: r for s, r in again.items() if s <= middle} == part
    assert again != whole


def test_a_real_trainers_bands_are_the_replays(tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[2] / "fspo"))
    import tiny_run

    name = ADAPTIVE.name
    tiny_run.trainer(tmp_path, "--rule.preset", name, "--rollouts", "2", "--log.score_every", "0").train()
    run = load_run(tmp_path)
    trained = trained_case(run)
    assert trained is not None
    now = evaluate(trained, run.rows, np.zeros(len(run.rows), int), "band")
    (case,) = make_cases([name], (), run.rows)
    again = evaluate(case, run.rows, np.zeros(len(run.rows), int), "band")
    np.testing.assert_array_equal(now.in_band, run.rows.band_accept)
    np.testing.assert_array_equal(again.in_band, run.rows.band_accept)
