"""Bands that follow a target: against laws whose quantiles are known, exact coverage, and a real trainer."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sps

from fspo.base.errors import UserError
from fspo.rules import DriftStats, Rule, preset
from fspo.rules.online import EACH_ROLLOUT, GAIN, MEMORY, OnlineRule, OnlineState, conformal_quantile

SIGMA = 0.03


def gaussian_rows(rng, number, sigma=SIGMA, exponent=0.5):
    n = np.exp(rng.uniform(np.log(4), np.log(2048), number)).round()
    return sigma * n**exponent * rng.standard_normal(number), n, np.where(rng.random(number) < 0.5, 1.0, -1.0)


def auto(target, **changes):
    return OnlineRule(Rule("sqrt", 0.3, 0.3, adapt="range", target=target, **changes))


@pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
def test_range_goes_to_the_quantile_of_the_gaussian_model(target):
    rng, online, ranges = np.random.default_rng(1), auto(target), []
    for _ in range(400):
        online.observe(*gaussian_rows(rng, 128))
        ranges.append(online.rule.range_hi)
    exact = SIGMA * sps.norm.ppf((1 + target) / 2)  # of |N(0, sigma^2)|
    assert np.mean(np.log(ranges[50:])) == pytest.approx(math.log(exact), abs=0.02)


def test_update_rate_goes_to_the_one_sided_quantile_and_leaves_out_advantages_of_0():
    rng, online, ranges = np.random.default_rng(2), auto(0.9, target_rate="update", outside="cap"), []
    for _ in range(400):
        S, n, A = gaussian_rows(rng, 128)
        online.observe(np.where(A == 1, S, 9.0), n, np.where(A == 1, A, 0.0))
        ranges.append(online.rule.range_hi)
    assert np.mean(np.log(ranges[50:])) == pytest.approx(math.log(SIGMA * sps.norm.ppf(0.9)), abs=0.03)


def test_range_follows_a_scale_that_grows_and_falls():
    rng, online, late = np.random.default_rng(3), auto(0.8), []
    for t in range(300):
        sigma = SIGMA * (1 if t < 100 else 4 if t < 200 else 0.5)
        S, n, A = gaussian_rows(rng, 256, sigma)
        if t % 100 >= 60:
            late.append(online.rule.apply(S, n, A).in_band.mean())
        online.observe(S, n, A)
    assert np.mean(late) == pytest.approx(0.8, abs=0.01)
    assert np.array(late).reshape(3, -1).mean(1) == pytest.approx([0.8] * 3, abs=0.02)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=3, max_size=60), st.floats(0.05, 0.95))
@settings(max_examples=60)
def test_average_acceptance_is_within_the_bound_of_t14_for_any_sequence(updates, target):
    online, accepted, thetas = auto(target), [], []
    for S in updates:
        S = np.array(S)
        if online.state["updates"]:
            accepted.append(online.rule.apply(S, np.ones_like(S), np.ones_like(S)).in_band.mean())
            thetas.append(online.state["log_scale"])
        online.observe(S, np.ones_like(S), np.ones_like(S))
    if not accepted:
        return
    thetas.append(online.state["log_scale"])
    last = max(GAIN, 1 / math.sqrt(online.state["updates"] - 1))
    held = min(thetas) < -11.9 or max(thetas) > math.log(30 / 0.3) - 0.1  # the bound is for a range that is not held
    if not held:
        bound = (max(thetas) - min(thetas)) / last / len(accepted)
        assert abs(np.mean(accepted) - target) <= bound + 1e-9


@pytest.mark.parametrize(("exponent", "fair"), [(0.65, True), (0.35, True), (0.65, False)])
def test_exponent_goes_to_that_of_the_spread_and_the_plain_band_does_not(exponent, fair):
    rng = np.random.default_rng(4)
    rule = Rule("power", 0.03, 0.03, gamma=0.5, adapt="exponent" if fair else "range", target=0.8)
    online, gammas, slopes = OnlineRule(rule), [], []
    for t in range(300):
        S, n, A = gaussian_rows(rng, 256, exponent=exponent)
        now = online.rule
        if t >= 60:
            gammas.append(now.gamma)
            slopes.append(np.polyfit(np.log2(n), now.apply(S, n, A).in_band, 1)[0])
        online.observe(S, n, A)
    if fair:
        assert np.mean(gammas) == pytest.approx(exponent, abs=0.02)
        assert np.mean(slopes) == pytest.approx(0, abs=4 * np.std(slopes) / math.sqrt(len(slopes)) + 0.002)
    else:
        assert np.mean(slopes) < -0.02


@pytest.mark.parametrize(("n", "target"), [(25, 0.9), (41, 0.8), (203, 0.95)])
def test_conformal_acceptance_has_the_exact_beta_law(n, target):
    """Given the past, a new score is accepted with probability U_(k), which is Beta(k, n + 1 - k) exactly."""
    rng = np.random.default_rng(5)
    draws = np.array([conformal_quantile(rng.random(n), target) for _ in range(4000)])
    k = math.ceil((n + 1) * target - 1e-12)
    assert sps.kstest(draws, sps.beta(k, n + 1 - k).cdf).pvalue > 1e-4
    mean = draws.mean()
    half = 4 * draws.std() / math.sqrt(len(draws))
    assert target - half <= mean <= target + 1 / (n + 1) + half
    uncorrected = np.array([np.sort(rng.random(n))[math.ceil(n * target) - 1] for _ in range(4000)])
    assert sps.kstest(uncorrected, sps.beta(k, n + 1 - k).cdf).pvalue < 1e-4  # without the (n+1): the control


def test_conformal_band_holds_its_target_in_every_bin_of_an_unfair_law():
    """Counts of the rule itself in each bin against the exact law: a beta mixture of binomials."""
    rng, target, new = np.random.default_rng(6), 0.8, 400
    rule = Rule("sqrt", 0.03, 0.03, adapt="".join("bins"), target=target)  # a new string, as a file gives one
    lengths = np.repeat([5.0, 40.0, 300.0], 60)
    counts, plain = [], []
    for _ in range(300):
        online = OnlineRule(rule)
        online.observe(SIGMA * lengths**0.7 * rng.standard_normal(180), lengths, np.ones(180))
        online.end_rollout()
        n = np.repeat([5.0, 40.0, 300.0], new)
        S = SIGMA * n**0.7 * rng.standard_normal(3 * new)
        counts.append(online.rule.apply(S, n, np.ones_like(S)).in_band.reshape(3, new).sum(1))
        plain.append(rule.apply(S, n, np.ones_like(S)).in_band.reshape(3, new).sum(1))
    k = math.ceil(61 * target)
    for column in np.array(counts).T:
        law = sps.betabinom(new, k, 61 - k)
        jittered = law.cdf(column) - rng.random(len(column)) * law.pmf(column)  # uniform if the law is right
        assert sps.kstest(jittered, "uniform").pvalue > 1e-4
        assert column.mean() / new >= target - 4 * column.std() / new / math.sqrt(300)
    control = np.array(plain).mean(0) / new
    assert control.max() - control.min() > 0.2  # the plain band is far from it


def test_conformal_quantile_by_hand():
    assert conformal_quantile([3.0, 1.0, 2.0], 0.5) == 2.0  # ceil(4 * .5) = 2nd
    assert conformal_quantile([3.0, 1.0, 2.0], 0.75) == 3.0
    for target in (0.0, 1.0, 1.5):
        with pytest.raises(UserError, match="strictly between 0 and 1"):
            conformal_quantile([3.0, 1.0, 2.0], target)
    assert conformal_quantile([3.0, 1.0, 2.0], 0.76) == math.inf
    assert conformal_quantile([], 0.5) == math.inf


def test_a_bin_with_too_few_scores_takes_the_pooled_factor():
    online = OnlineRule(Rule("sqrt", 0.01, 0.01, adapt="bins", target=0.9))
    n = np.repeat([2.0, 8.0], [50, 3])
    online.observe(0.01 * np.sqrt(n) * np.concatenate([np.arange(1, 51), [90.0, 91, 92]]), n, np.ones(53))
    assert online.rule.factors == ()  # this rollout's rows are not past ones
    online.end_rollout()
    factor = dict(online.rule.factors)
    assert factor[2.0] == pytest.approx(46.0)  # ceil(51 * .9) = 46th of 1..50
    assert [factor[n] for n in (4.0, 8.0, 16.0)] == pytest.approx([49.0] * 3)  # ceil(54 * .9) = 49th of all


def test_responses_on_the_centre_leave_the_narrowest_conformal_band():
    online = OnlineRule(Rule("sqrt", 0.01, 0.01, adapt="bins", target=0.9))
    online.observe(np.zeros(50), np.full(50, 2.0), np.ones(50))
    online.end_rollout()
    assert dict(online.rule.factors)[2.0] == pytest.approx(math.exp(-12))


def test_conformal_memory_is_bounded_and_evenly_spaced():
    online = OnlineRule(Rule("sqrt", 1.0, 1.0, adapt="bins", target=0.9))
    for rollout in range(12):
        for update in range(4):
            S = np.full(100, 10.0 * rollout + update + 1)
            online.observe(S, np.ones(100), np.ones(100))
        online.end_rollout()
    kept = np.array(online.state["scores"]["0"])
    assert len(kept) == MEMORY
    newest = kept[-EACH_ROLLOUT:]
    assert [int((newest == 110 + u + 1).sum()) for u in range(4)] == [EACH_ROLLOUT // 4] * 4


def test_thinned_and_forgotten_scores_keep_the_beta_law():
    """Which scores are kept does not look at them: of 5 rollouts of 300, the last 4 times 128."""
    rng, target, kept = np.random.default_rng(9), 0.9, []
    for _ in range(400):
        online = OnlineRule(Rule("sqrt", 1.0, 1.0, adapt="bins", target=target))
        for _ in range(5):
            for _ in range(3):
                online.observe(rng.random(100), np.ones(100), np.ones(100))
            online.end_rollout()
        kept.append(dict(online.rule.factors)[1.0])
    k = math.ceil((MEMORY + 1) * target)
    assert sps.kstest(kept, sps.beta(k, MEMORY + 1 - k).cdf).pvalue > 1e-4
    assert sps.kstest(kept, sps.beta(k - 5, MEMORY + 6 - k).cdf).pvalue < 1e-4  # a hundredth of target lower


@pytest.mark.parametrize("adapt", ["range", "exponent", "bins"])
def test_state_goes_through_json_and_on(adapt):
    shape = {"shape": "power", "gamma": 0.5} if adapt == "exponent" else {"shape": "sqrt"}
    rule = Rule(**shape, range_lo=0.02, range_hi=0.04, adapt=adapt, target=0.7)
    rng, one, state = np.random.default_rng(7), OnlineRule(rule), None
    for t in range(30):
        rows = gaussian_rows(rng, 64)
        one.observe(*rows)
        two = OnlineRule(rule, state)
        two.observe(*rows)
        if t % 5 == 4:
            one.end_rollout()
            two.end_rollout()
        state = json.loads(json.dumps(two.state))
        assert two.rule == one.rule


@pytest.mark.parametrize("adapt", ["range", "bins"])
def test_an_excess_that_is_not_finite_teaches_nothing(adapt):
    rng = np.random.default_rng(3)
    excess, lengths = np.abs(rng.standard_normal(60)), np.full(60, 4.0)
    one, two = (OnlineRule(Rule("sqrt", 0.3, 0.3, adapt=adapt, target=0.8)) for _ in range(2))
    one.learn(excess, lengths)
    two.learn(np.append(excess, [np.nan, np.inf]), np.append(lengths, [4.0, 900.0]))
    assert two.state == one.state


def test_updates_before_anything_moved_teach_nothing():
    online = auto(0.8)
    online.observe(np.zeros(8), np.ones(8), np.ones(8))
    assert online.state == OnlineState().__dict__
    online.observe(np.full(8, np.nan), np.ones(8), np.ones(8))
    assert online.rule == online.template


@pytest.mark.parametrize("gamma", [0.5, 0.75])
def test_exponent_stays_within_its_bounds_to_the_last_bit(gamma):
    """(bound * spread) / spread is not the bound in floating point: a rule with an exponent of -1e-16 is refused."""
    ends, rule = set(), Rule("power", 0.03, 0.03, gamma=gamma, adapt="exponent", target=0.8)
    for seed in range(40):
        rng, online = np.random.default_rng(seed), OnlineRule(rule)
        for power in (-1.5,) * 40 + (3.0,) * 40:
            n = np.exp(rng.uniform(1, 8, 64)).round()
            online.observe(0.05 * rng.standard_normal(64) * (n / 100) ** power, n, np.ones(64))
            ends.add(online.rule.gamma)
    assert (min(ends), max(ends)) == (0.0, 2.0)


@pytest.mark.parametrize("spread", [0.003, 0.1, 0.5])
def test_a_first_update_of_like_lengths_does_not_make_the_exponent_swing(spread):
    rng, online, gammas = np.random.default_rng(8), OnlineRule(preset("fspo-adaptive").rule), []
    for t in range(200):
        n = np.exp(np.log(600) + (spread if t == 0 else 1.0) * rng.standard_normal(256)).round().clip(1)
        online.observe(SIGMA * np.sqrt(n) * rng.standard_normal(256), n, np.ones(256))
        gammas.append(online.rule.gamma)
    assert np.mean(gammas[60:]) == pytest.approx(0.5, abs=0.05)
    assert max(gammas[60:]) - min(gammas[60:]) < 0.5


def test_eps_shapes_stay_where_an_eps_can_be():
    online = OnlineRule(Rule("linear", 0.2, 0.2, adapt="range", target=0.99))
    for _ in range(50):
        online.observe(np.full(4, 1e6), np.ones(4), np.ones(4))
    assert online.rule.range_hi < math.inf
    assert online.rule.range_lo < 1


def test_centre_is_taken_off_before_the_range_is_learnt():
    stats = DriftStats(positive_sum=3.0, positive_tokens=10.0, negative_sum=-2.0, negative_tokens=10.0)
    online = auto(0.5, drift="signed")
    A = np.array([1.0, -1.0, 1.0, -1.0])
    S = 10 * np.where(A > 0, 0.3, -0.2) + math.sqrt(10) * np.array([0.1, -0.1, 0.3, -0.3])
    online.observe(S, np.full(4, 10.0), A, online.template.centre(stats, A))
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
        {"factors": ((4, 1.0), (2, 1.0))},
        {"factors": ((1, 0.0),)},
    ],
)
def test_rules_that_cannot_follow_are_refused(changes):
    with pytest.raises(UserError):
        Rule(**({"shape": "sqrt", "range_lo": 0.1, "range_hi": 0.1} | changes))
    with pytest.raises(UserError, match="version"):
        OnlineRule(preset("fspo-auto").rule, {"nothing": 1})


# -- in the trainer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fspo-auto", "fspo-adaptive", "fspo-conformal"])
def test_trainer_bands_are_those_of_a_replay_of_its_own_log(name, tmp_path):
    import tiny_run

    from fspo.gradlog import read_log

    run = tiny_run.trainer(tmp_path, "--rule.preset", name, "--rollouts", "3", "--log.score_every", "0")
    run.train()
    log, online = read_log(tmp_path), OnlineRule(preset(name).rule)
    column = {c: log.column(c) for c in ("rollout", "step", "log_ratio", "length", "advantage", "lo", "hi")}
    column["advantage"] = column["advantage"].astype(np.float64)
    widths = set()
    for rollout in np.unique(column["rollout"]):
        for step in np.unique(column["step"][column["rollout"] == rollout]):
            at = column["step"] == step
            S, n, A = column["log_ratio"][at], column["length"][at].astype(np.float64), column["advantage"][at]
            lo, hi = online.rule.band(n)
            assert column["hi"][at] == pytest.approx(hi, rel=1e-9)
            assert column["lo"][at] == pytest.approx(lo, rel=1e-9)
            widths.add(round(float(hi[0] / math.sqrt(n[0])), 9))
            if log.column("updates_since_rollout")[at][0] > 0:
                online.observe(S, n, A)
        online.end_rollout()
    assert len(widths) > 1  # it did move
    assert run.state.online["updates"] == online.state["updates"] > 0


@pytest.mark.parametrize("name", ["fspo-adaptive", "fspo-conformal"])
def test_a_resumed_run_has_the_undisturbed_runs_bands(name, tmp_path):
    import tiny_run

    from fspo.gradlog import read_log

    options = ("--rule.preset", name, "--log.score_every", "0", "--checkpoint_every", "1")
    tiny_run.trainer(tmp_path / "whole", *options, "--rollouts", "3").train()
    tiny_run.trainer(tmp_path / "cut", *options, "--rollouts", "2").train()
    tiny_run.trainer(tmp_path / "cut", *options, "--rollouts", "3", "--resume", "true").train()
    whole, cut = (read_log(tmp_path / run) for run in ("whole", "cut"))
    for c in ("hi", "log_ratio", "band_accept"):
        assert np.array_equal(whole.column(c), cut.column(c))


def test_signed_drift_is_each_signs_mean_in_the_trainer(tmp_path):
    import tiny_run

    from fspo.gradlog import read_log

    tiny_run.trainer(tmp_path, "--rule.preset", "fspo-signed", "--log.score_every", "0").train()
    log = read_log(tmp_path)
    step, S, n = log.column("step"), log.column("log_ratio"), log.column("length")
    A, drift, since = log.column("advantage"), log.column("drift"), log.column("updates_since_rollout")
    seen = 0
    for number in np.unique(step[since > 0]):
        for sign in (1, -1):
            at = (step == number) & (np.sign(A) == sign)
            if at.any():
                seen += 1
                assert drift[at] == pytest.approx(S[at].sum() / n[at].sum(), abs=1e-6)
    assert seen > 2
    assert np.all(drift[A == 0] == 0)
    centre = (log.column("lo") + log.column("hi")) / 2
    assert centre == pytest.approx(drift * n, abs=1e-9)
