"""Replayed bands: nothing is peeked at, and what is said of a run is what its trainer did."""

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.rules.evaluate import Case, evaluate, make_cases, trained_case
from analysis.rules.replay import replay
from fspo.rules import PRESETS, preset

ONLINE = ("fspo-auto", "fspo-adaptive", "fspo-conformal")


@pytest.mark.parametrize("name", ONLINE)
def test_later_rows_change_no_earlier_band(name, simulate):
    rows = load_run(simulate(rule=preset("fspo").rule, rollouts=4)).rows
    whole = replay(preset(name).rule, rows)
    steps = np.unique(rows.step)
    middle = int(steps[len(steps) // 2])
    part = replay(preset(name).rule, rows.take(rows.step <= middle))
    assert part == {step: rule for step, rule in whole.items() if step <= middle}
    assert len({(r.range_hi, r.gamma, r.factors) for r in whole.values()}) > 1
    tampered = rows.take(np.arange(len(rows)))
    tampered.S[rows.step == middle] *= 100
    again = replay(preset(name).rule, tampered)
    assert {s: r for s, r in again.items() if s <= middle} == part
    if name != "fspo-conformal":  # which learns at the ends of rollouts
        assert again != whole


@pytest.mark.parametrize("name", ONLINE)
def test_given_applies_each_steps_rule_to_its_rows(name, simulate):
    rows = load_run(simulate(rule=preset("fspo").rule, rollouts=3)).rows
    (case,) = [c for c in make_cases([name], (), rows) if c.rule.outside == "drop"]
    found = evaluate(case, rows, np.zeros(len(rows), int), "band")
    for step, rule in replay(preset(name).rule, rows).items():
        at = rows.step == step
        expected = rule.apply(rows.S[at], rows.length[at], rows.A[at])
        np.testing.assert_array_equal(found.in_band[at], expected.in_band)
        np.testing.assert_array_equal(found.side[at], expected.side)


@pytest.mark.parametrize("name", ["fspo-adaptive", "fspo-conformal", "fspo-signed"])
@pytest.mark.parametrize("rate", ["band", "update"])
def test_matched_accepts_the_target_in_each_window(name, rate, simulate):
    rows = load_run(simulate(rule=preset("fspo").rule, rollouts=4)).rows
    cases = make_cases([name], (0.85,), rows)
    (case,) = [c for c in cases if c.source == "matched" and c.rule.outside == "drop"]
    window = rows.rollout // 2
    found = evaluate(case, rows, window, rate)
    for first in np.unique(window):
        at = window == first
        share = found.in_band[at] if rate == "band" else found.side[at & (rows.A != 0)] == 0
        assert share.mean() == pytest.approx(0.85, abs=1.5 / share.size)
    assert "fspo-auto" not in {c.name for c in make_cases(["fspo-auto"], (0.85,), rows) if c.source == "matched"}


@pytest.mark.parametrize("name", [*ONLINE, "fspo-signed"])
def test_the_trained_rules_band_is_the_logs(name, simulate):
    """The simulated trainer writes the template's edges; what counts is that the log's edges are used."""
    run = load_run(simulate(rule=preset("fspo").rule, rollouts=2))
    case = Case(PRESETS[name].rule, name, "trained")
    found = evaluate(case, run.rows, np.zeros(len(run.rows), int), "band")
    inside = (run.rows.lo <= run.rows.S) & (run.rows.hi >= run.rows.S)
    np.testing.assert_array_equal(found.in_band, inside)
    assert 0 < inside.mean() < 1
    run.rows.hi[0] = np.nan
    assert "lacks the edges" in evaluate(case, run.rows, np.zeros(len(run.rows), int), "band").reason


def test_signed_drift_of_rows_is_that_of_their_minibatch(simulate):
    rows = load_run(simulate(rule=preset("fspo").rule, rollouts=2)).rows
    drift = np.asarray(rows.centre(preset("fspo-signed").rule))
    for i in np.random.default_rng(0).choice(len(rows), 20):
        same = (rows.step == rows.step[i]) & (np.sign(rows.A) == np.sign(rows.A[i]))
        exact = rows.S[same].sum() / rows.length[same].sum() if rows.A[i] else 0.0
        assert drift[i] == pytest.approx(exact, rel=1e-9, abs=1e-12)


def test_a_real_trainers_bands_are_the_replays(tmp_path):
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[2] / "fspo"))
    import tiny_run

    name = "fspo-adaptive"
    tiny_run.trainer(tmp_path, "--rule.preset", name, "--rollouts", "3", "--log.score_every", "0").train()
    run = load_run(tmp_path)
    trained = trained_case(run)
    assert trained is not None
    now = evaluate(trained, run.rows, np.zeros(len(run.rows), int), "band")
    (case,) = [c for c in make_cases([name], (), run.rows) if c.rule.outside == "drop"]
    again = evaluate(case, run.rows, np.zeros(len(run.rows), int), "band")
    np.testing.assert_array_equal(now.in_band, run.rows.band_accept)
    np.testing.assert_array_equal(again.in_band, run.rows.band_accept)
