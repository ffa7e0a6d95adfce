"""Replayed bands: nothing is peeked at, and what is said of a run is what its trainer did."""

import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.rules.evaluate import Case, evaluate, make_cases, trained_case
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


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.adapt)
def test_given_applies_each_steps_rule_to_its_rows(rule, simulate):
    rows = load_run(simulate(rule=preset("fspo").rule, rollouts=3)).rows
    states = replay(rule, rows)
    found = evaluate(Case(rule, rule.name, "given", states=states), rows, np.zeros(len(rows), int), "band")
    for step, now in states.items():
        at = rows.step == step
        expected = now.apply(rows.S[at], rows.length[at], rows.A[at])
        np.testing.assert_array_equal(found.in_band[at], expected.in_band)
        np.testing.assert_array_equal(found.side[at], expected.side)


@pytest.mark.parametrize("rate", ["band", "update"])
def test_matched_accepts_the_target_in_each_window(rate, simulate):
    rows = load_run(simulate(rule=preset("fspo").rule, rollouts=4)).rows
    (case,) = [c for c in make_cases([ADAPTIVE.name], (0.85,), rows) if c.source == "matched"]
    window = rows.rollout // 2
    found = evaluate(case, rows, window, rate)
    for first in np.unique(window):
        at = window == first
        share = found.in_band[at] if rate == "band" else found.side[at & (rows.A != 0)] == 0
        assert share.mean() == pytest.approx(0.85, abs=1.5 / share.size)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.adapt)
def test_the_trained_rules_band_is_the_logs(rule, simulate):
    """The simulated trainer writes the template's edges; what counts is that the log's edges are used."""
    run = load_run(simulate(rule=preset("fspo").rule, rollouts=2))
    case = Case(rule, rule.name, "trained")
    found = evaluate(case, run.rows, np.zeros(len(run.rows), int), "band")
    inside = (run.rows.lo <= run.rows.S) & (run.rows.hi >= run.rows.S)
    np.testing.assert_array_equal(found.in_band, inside)
    assert 0 < inside.mean() < 1
    run.rows.hi[0] = np.nan
    assert "lacks the edges" in evaluate(case, run.rows, np.zeros(len(run.rows), int), "band").reason


def test_a_real_trainers_bands_are_the_replays(tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[2] / "fspo"))
    import tiny_run

    name = ADAPTIVE.name
    tiny_run.trainer(tmp_path, "--rule.preset", name, "--rollouts", "3", "--log.score_every", "0").train()
    run = load_run(tmp_path)
    trained = trained_case(run)
    assert trained is not None
    now = evaluate(trained, run.rows, np.zeros(len(run.rows), int), "band")
    (case,) = make_cases([name], (), run.rows)
    again = evaluate(case, run.rows, np.zeros(len(run.rows), int), "band")
    np.testing.assert_array_equal(now.in_band, run.rows.band_accept)
    np.testing.assert_array_equal(again.in_band, run.rows.band_accept)
