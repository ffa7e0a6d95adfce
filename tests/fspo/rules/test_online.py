"""Bands that follow a target: against laws whose quantiles are known, and in a real trainer."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from fspo.base.errors import UserError
from fspo.rules import DriftStats, Rule, preset
from fspo.rules.online import OnlineRule, OnlineState

SIGMA = 0.03


def gaussian_rows(rng, number, exponent=0.5):
    n = np.exp(rng.uniform(np.log(4), np.log(2048), number)).round()
    return SIGMA * n**exponent * rng.standard_normal(number), n, np.where(rng.random(number) < 0.5, 1.0, -1.0)


def auto(target, **changes):
    return OnlineRule(Rule("sqrt", 0.3, 0.3, adapt="range", target=target, **{"target_rate": "band"} | changes))


def test_range_goes_to_the_quantile_of_the_gaussian_model():
    rng, online, ranges = np.random.default_rng(1), auto(0.6), []
    for _ in range(400):
        online.observe(*gaussian_rows(rng, 128))
        ranges.append(online.rule.range_hi)
    exact = SIGMA * sps.norm.ppf((1 + 0.6) / 2)  # of |N(0, sigma^2)|
    assert np.mean(np.log(ranges[50:])) == pytest.approx(math.log(exact), abs=0.02)


@pytest.mark.parametrize("exponent", [0.65, 0.35])
def test_exponent_goes_to_that_of_the_spread(exponent):
    rng = np.random.default_rng(4)
    rule = Rule("power", 0.03, 0.03, gamma=0.5, adapt="exponent", target=0.8, target_rate="band")
    online, gammas, slopes = OnlineRule(rule), [], []
    for t in range(300):
        S, n, A = gaussian_rows(rng, 256, exponent=exponent)
        now = online.rule
        if t >= 60:
            gammas.append(now.gamma)
            slopes.append(np.polyfit(np.log2(n), now.apply(S, n, A).in_band, 1)[0])
        online.observe(S, n, A)
    assert np.mean(gammas) == pytest.approx(exponent, abs=0.02)
    assert np.mean(slopes) == pytest.approx(0, abs=4 * np.std(slopes) / math.sqrt(len(slopes)) + 0.002)


def test_each_side_learns_its_range_and_its_exponent_from_its_own_sign():
    """S is spread as .06 n^.3 where A > 0 and as .01 n^.7 where A < 0: one of ten of each sign is clipped, at every
    length, though the signs differ in number, too."""
    rng = np.random.default_rng(9)
    rule = Rule("power", 0.03, 0.03, gamma=0.5, adapt="exponent", target=0.9)
    online, learnt, shares = OnlineRule(rule), [], []
    for t in range(400):
        n = np.exp(rng.uniform(np.log(4), np.log(2048), 512)).round()
        A = np.where(rng.random(512) < 0.7, 1.0, -1.0)
        S = np.where(A > 0, 0.06 * n**0.3, 0.01 * n**0.7) * rng.standard_normal(512)
        now = online.rule
        if t >= 100:
            learnt.append((now.gamma, now.gamma_hi))
            cut = now.apply(S, n, A).side != 0
            shares.append(
                [cut[(A * sign > 0) & (long == (n > 90))].mean() for sign in (1, -1) for long in (True, False)]
            )
        online.observe(S, n, A)
    assert np.mean(learnt, axis=0) == pytest.approx([0.7, 0.3], abs=0.03)
    assert np.mean(shares, axis=0) == pytest.approx([0.1] * 4, abs=0.01)
    assert set(online.state) == {"below", "above"}


def test_a_side_without_its_sign_stays_and_other_ways_outside_have_one_side():
    n = np.full(50, 16.0)
    S = np.linspace(0.01, 0.5, 50)
    online = OnlineRule(Rule("power", 0.03, 0.04, gamma=0.5, adapt="exponent", target=0.9))
    online.observe(S, n, np.ones(50))
    assert (online.rule.range_lo, online.rule.gamma) == (0.03, 0.5)
    assert online.rule.half_widths(n)[1][0] == pytest.approx(0.455)  # midway between the 45th and the 46th of 50
    learnt = Rule("power", 0.03, 0.03, gamma=0.5, adapt="exponent", target=0.9)
    assert not any(OnlineRule(replace(learnt, **other)).two_sided for other in ({"outside": "cap"}, {"dual": 3.0}))
    with pytest.raises(UserError, match="needs a gamma"):
        Rule("sqrt", 0.03, 0.03, gamma_hi=0.5)


@pytest.mark.parametrize("adapt", ["range", "exponent"])
def test_an_excess_that_is_not_finite_teaches_nothing(adapt):
    rng = np.random.default_rng(3)
    excess, lengths = np.abs(rng.standard_normal(60)), np.full(60, 4.0)
    one, two = (OnlineRule(Rule("power", 0.3, 0.3, gamma=0.5, adapt=adapt, target=0.8)) for _ in range(2))
    one.learn(excess, lengths, np.ones(60))
    two.learn(np.append(excess, [np.nan, np.inf]), np.append(lengths, [4.0, 900.0]), np.ones(62))
    assert two.state == one.state


def test_steps_shrink_like_one_over_the_root_of_their_number_down_to_the_least_gain():
    """After the first update every response is accepted, .2 more than the target: by hand, log(range) falls by .2 times
    1, 1/sqrt(2), 1/sqrt(3) and, from the fourth step on, 1/2."""
    online, steps = auto(0.8), []
    for excess in (np.ones(10), *[np.full(10, 1e-6)] * 5):
        before = online.state["log_scale"]
        online.learn(excess, np.ones(10), np.ones(10))
        steps.append(before - online.state["log_scale"])
    assert steps[1:] == pytest.approx([0.2, 0.2 / 2**0.5, 0.2 / 3**0.5, 0.1, 0.1])


def test_updates_before_anything_moved_teach_nothing():
    online = auto(0.8)
    online.observe(np.zeros(8), np.ones(8), np.ones(8))
    assert online.state == OnlineState().__dict__
    assert online.template.edges_vary
    assert not preset("fspo").rule.edges_vary
    online.observe(np.full(8, np.nan), np.ones(8), np.ones(8))
    assert online.rule == online.template


def test_exponent_stays_within_its_bounds_to_the_last_bit():
    """(bound * spread) / spread is not the bound in floating point: a rule with an exponent of -1e-16 is refused."""
    ends, rule = set(), Rule("power", 0.03, 0.03, gamma=0.75, adapt="exponent", target=0.8)
    for seed in range(40):
        rng, online = np.random.default_rng(seed), OnlineRule(rule)
        for power in (-1.5,) * 40 + (3.0,) * 40:
            n = np.exp(rng.uniform(1, 8, 64)).round()
            online.observe(0.05 * rng.standard_normal(64) * (n / 100) ** power, n, np.ones(64))
            ends.add(online.rule.gamma_hi)
    assert (min(ends), max(ends)) == (0.0, 2.0)


def test_a_first_update_of_like_lengths_does_not_make_the_exponent_swing():
    spread = 0.003
    rng, online, gammas = np.random.default_rng(8), OnlineRule(preset("fspo-adaptive").rule), []
    for t in range(200):
        n = np.exp(np.log(600) + (spread if t == 0 else 1.0) * rng.standard_normal(256)).round().clip(1)
        online.observe(SIGMA * np.sqrt(n) * rng.standard_normal(256), n, np.ones(256))
        gammas.append(online.rule.gamma_hi or 0.5)
    assert np.mean(gammas[60:]) == pytest.approx(0.5, abs=0.05)
    assert max(gammas[60:]) - min(gammas[60:]) < 0.5


def test_eps_shapes_stay_where_an_eps_can_be():
    online = OnlineRule(Rule("linear", 0.2, 0.2, adapt="range", target=0.99))
    for _ in range(50):
        online.observe(np.full(4, 1e6), np.ones(4), np.ones(4))
    assert online.rule.range_hi < math.inf
    assert online.rule.range_lo < 1


def test_centre_is_taken_off_before_the_range_is_learnt():
    online = auto(0.5, drift="kl")
    S = 10 * -0.3 + math.sqrt(10) * np.array([0.1, -0.1, 0.3, -0.3])
    online.observe(S, np.full(4, 10.0), np.ones(4), online.template.centre(DriftStats(3.0, 0.0, 10.0)))
    assert online.rule.range_hi == pytest.approx(0.2)  # between .1 and .3


@pytest.mark.parametrize(
    "changes",
    [
        {"adapt": "range"},
        {"target": 0.5},
        {"adapt": "range", "target": 1.0},
        {"adapt": "exponent", "target": 0.5},
        {"adapt": "rang", "target": 0.5},
        {"adapt": "range", "target": 0.5, "shape": "token"},
    ],
)
def test_rules_that_cannot_follow_are_refused(changes):
    with pytest.raises(UserError):
        Rule(**({"shape": "sqrt", "range_lo": 0.1, "range_hi": 0.1} | changes))


def test_a_state_of_another_version_is_refused():
    with pytest.raises(UserError, match="version"):
        OnlineRule(preset("fspo-adaptive").rule, {"nothing": 1})


@pytest.mark.parametrize(("adapt", "rate"), [("range", "update"), ("exponent", "band"), ("exponent", "update")])
def test_trainer_bands_are_those_of_a_replay_of_its_own_log(adapt, rate, tmp_path):
    import tiny_run

    from fspo.gradlog import read_log

    options = ("--rule.gamma", "0.5", "--rule.adapt", adapt, "--rule.target", "0.8", "--rule.target_rate", rate)
    run = tiny_run.trainer(tmp_path, *options, "--rollouts", "2", "--log.score_every", "0")
    run.train()
    template = Rule("power", 0.03, 0.03, gamma=0.5, adapt=adapt, target=0.8, target_rate=rate, name="fspo")
    log, online, widths = read_log(tmp_path), OnlineRule(template), set()
    for step in np.unique(log.column("step")):
        rows = log.column("step") == step
        S, n, A, moved = (
            log.column(c)[rows].astype(np.float64)
            for c in ("log_ratio", "length", "advantage", "updates_since_rollout")
        )
        lo, hi = online.rule.band(n)
        assert log.column("hi")[rows] == pytest.approx(hi, rel=1e-9)
        assert log.column("lo")[rows] == pytest.approx(lo, rel=1e-9)
        widths.add(round(float(hi[0] / math.sqrt(n[0])), 9))
        if moved[0] > 0:
            online.observe(S, n, A)
    assert len(widths) > 1  # it did move
    learnt = [pd.json_normalize(state).filter(like="updates").to_numpy() for state in (run.state.online, online.state)]
    assert np.array_equal(*learnt)
    assert learnt[0].min() > 0
