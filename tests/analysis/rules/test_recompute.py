"""Recomputed columns: a sound log differs nowhere, and each rewritten column is named."""

import numpy as np
import pytest

from analysis.rules.estimator_fit import BIASED, WRONG, estimator_fit
from analysis.rules.recompute import FOLLOWS_FROM, recompute
from fspo.advantages import ESTIMATORS, advantages
from fspo.rules import DriftStats, correction, preset, token_k3

N, GROUP = 512, 8


def sums(tokens):
    """Sum, sum of squares and sum of k3 of each response's log-ratios."""
    return (np.array([f(s) for s in tokens]) for f in (np.sum, lambda s: s @ s, lambda s: token_k3(s).sum()))


def log(rule, correct=None):
    """Rows of two rollouts of two steps each, from token log-ratios; the second step uses the responses again."""
    rng = np.random.default_rng(5)
    length = rng.integers(1, 200, N)
    response = np.arange(N)
    reward = (rng.random(N) < 0.5) * 1.0
    A = advantages(reward, response // GROUP, "grpo")[0]
    engine = [0.02 * rng.standard_normal(n) for n in length]
    parts = []
    for since in range(2):
        tokens = [0.03 * since * rng.standard_normal(n) for n in length]
        S, square, k3 = (
            np.array([f(s) for s in tokens]) for f in (np.sum, lambda s: s @ s, lambda s: token_k3(s).sum())
        )
        E, e2, e3 = (np.array([f(s) for s in engine]) for f in (np.sum, lambda s: s @ s, lambda s: token_k3(s).sum()))
        L, m = length.astype(float), np.zeros(N)
        for rollout in range(2):
            at = response // (N // 2) == rollout
            m[at] = rule.centre(DriftStats.of(k3[at], square[at], L[at]))
        done = rule.apply(S, L, A, m)
        rows = {
            "rollout": response // (N // 2),
            "step": response // (N // 2) * 2 + since,
            "prompt_id": response // GROUP,
        }
        rows |= {"response_id": response, "length": length, "log_ratio": S, "sum_sq_log_ratio": square, "k3_sum": k3}
        rows |= {"reward": reward, "advantage": A, "drift": m, "lo": done.lo, "hi": done.hi, "side": done.side}
        rows |= {"band_accept": done.in_band, "multiplier": done.multiplier, "weight": done.weight}
        rows |= {"updates_since_rollout": np.full(N, since), "times_used": np.full(N, since)}
        rows |= {"engine_log_ratio": E, "engine_sum_sq": e2, "engine_k3_sum": e3, "staleness_log_ratio": np.zeros(N)}
        rows |= {"behaviour_log_ratio": E, "behaviour_sum_sq": e2, "behaviour_k3_sum": e3}
        if correct is not None:
            stats = DriftStats.of(e3, e2, L)
            found = correct.apply(E, L, A, correct.centre(stats))
            rows |= {"correction_lo": found.lo, "correction_hi": found.hi, "correction_side": found.side}
            rows |= {"correction_drift": np.full(N, correct.centre(stats)), "correction_weight": found.clipped_weight}
        parts.append(rows)
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def wrong(columns, rule, correct=None):
    return {name: int(c.wrong.sum()) for name, c in recompute(columns, rule, correct).items() if c.wrong.any()}


@pytest.mark.parametrize(
    "rule",
    [
        *(preset(name).rule for name in ("none", "rloo", "gspo", "fspo", "fspo-kl")),
        *(preset("fspo", **change).rule for change in ({"drift": "gaussian"}, {"outside": "cap"})),
        preset("fspo", shape="power", gamma=0.75).rule,
    ],
)
@pytest.mark.parametrize("correct", ["mis", "geo-mask", "engine-sqrt"])
def test_a_sound_log_differs_nowhere(rule, correct):
    correct = correction(correct)
    columns = log(rule, correct)
    found = recompute(columns, rule, correct)
    assert wrong(columns, rule, correct) == {}
    assert set(FOLLOWS_FROM) - set(found) <= ({"drift"} if rule.drift == "none" else set())


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("multiplier", lambda x: np.ones_like(x)),
        ("weight", lambda x: x * 1.01),
        ("side", lambda x: np.zeros_like(x)),
        ("band_accept", lambda x: ~x),
        ("lo", lambda x: 1.001 * x),
        ("hi", lambda x: 2 * x),
        ("drift", lambda x: 1.1 * x),
        ("sum_sq_log_ratio", lambda x: x * 1e-3),
        ("k3_sum", lambda x: -x),
        ("engine_k3_sum", lambda x: x + 1),
        ("behaviour_log_ratio", lambda x: x + 1e-3),
        ("correction_weight", lambda x: np.ones_like(x)),
        ("correction_side", lambda x: np.zeros_like(x)),
        ("times_used", lambda x: np.zeros_like(x)),
        ("updates_since_rollout", lambda x: x + 1),
        ("updates_since_rollout", lambda x: np.zeros_like(x)),
    ],
)
def test_a_rewritten_column_is_named(column, change):
    rule, correct = preset("fspo-kl", range_lo=0.01, range_hi=0.01).rule, correction("engine-sqrt", range_lo=0.01)
    columns = log(rule, correct)
    columns[column] = change(columns[column])
    assert column in wrong(columns, rule, correct)


@pytest.mark.parametrize("token", [0.5, 25.0, -25.0])
def test_sums_of_equal_tokens_keep_their_bounds_beyond_the_cap_of_the_exponent(token):
    """Of two tokens above the cap, k3_sum is more than k3 of the root of their squares: no bound is known there."""
    S, square, k3 = sums([np.full(2, token)])
    columns = {"length": np.full(1, 2), "log_ratio": S, "sum_sq_log_ratio": square, "k3_sum": k3}
    ids = {name: np.zeros(1, np.int64) for name in ("rollout", "step", "response_id")}
    assert wrong(columns | ids, None) == {}


def test_an_edge_at_s_is_left_to_rounding():
    rule = preset("fspo").rule
    columns = log(rule)
    columns["hi"] = columns["log_ratio"] * (1 - 1e-9)
    assert "side" not in wrong({**columns, "multiplier": np.full(2 * N, np.nan)}, rule)


@pytest.mark.parametrize("rule", [preset("fspo", adapt="range", target=0.8).rule, preset("fspo-adaptive").rule])
def test_a_band_that_follows_a_target_keeps_its_form(rule):
    """Edges that are a multiple of the header's agree; edges of one row that are not differ."""
    columns = log(rule)
    columns = columns | {edge: columns[edge] * 1.7 for edge in ("lo", "hi")}
    assert "hi" not in recompute(columns, rule) or not recompute(columns, rule)["hi"].wrong.any()
    columns["hi"] = np.where(np.arange(2 * N) % 7 == 0, 2 * columns["hi"], columns["hi"])
    assert recompute(columns, rule)["hi"].wrong.sum() > 100


@pytest.mark.parametrize(("adapt", "wrong_rows"), [("exponent", 0), ("range", 2 * N)])
def test_the_sides_of_a_band_that_learns_an_exponent_have_ranges_and_exponents_of_their_own(adapt, wrong_rows):
    rule = preset("fspo-adaptive", adapt=adapt).rule
    columns = log(rule)
    L = columns["length"].astype(float)
    columns |= {"lo": -0.02 * L**0.3, "hi": 0.05 * L**0.8}
    wrong_of = recompute(columns, rule)
    assert [int(wrong_of[edge].wrong.sum()) for edge in ("lo", "hi")] == [wrong_rows] * 2


def rewards(kind="binary"):
    rng = np.random.default_rng(6)
    r = rng.random(N) if kind == "continuous" else (rng.random(N) < 0.4) * 1.0
    ids = {"rollout": np.arange(N) // 128, "prompt_id": np.arange(N) // GROUP, "response_id": np.arange(N)}
    return r, ids | {"reward": r, "length": rng.integers(1, 99, N)}


@pytest.mark.parametrize("kind", ["binary", "continuous"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_each_estimator_is_recognised(estimator, kind):
    r, columns = rewards(kind)
    A = advantages(r, columns["prompt_id"], estimator)[0].astype(np.float32)
    fits = estimator_fit(columns | {"advantage": A}).fits
    assert fits[estimator].all()
    assert not any(fits[name].any() for name in WRONG)
    others = [fits[other].all() for other in ESTIMATORS if other != estimator]
    assert not any(others)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("not centred in the group", lambda A, L, rng: A + 0.3),
        ("times the length", lambda A, L, rng: A * L),
        ("over the length", lambda A, L, rng: A / L),
        ("of the opposite sign", lambda A, L, rng: -A),
        ("0 for some responses that are not at the group's mean", lambda A, L, rng: A * (rng.random(N) < 0.7)),
        ("0 for some responses that are not at the group's mean", lambda A, L, rng: 0 * A),
        ("no line in the reward of the group", lambda A, L, rng: rng.permutation(A)),
    ],
)
def test_advantages_that_no_estimator_makes_are_named(name, change):
    r, columns = rewards("continuous")
    A = change(advantages(r, columns["prompt_id"], "grpo")[0], columns["length"], np.random.default_rng(7))
    fits = estimator_fit(columns | {"advantage": A}).fits
    assert fits[name].mean() > 0.9
    assert all(fits[other].mean() < 0.1 for other in ("rloo", "grpo", "dr_grpo"))


def test_the_biased_standard_deviation_is_told_from_the_other():
    r, columns = rewards("continuous")
    groups = r.reshape(-1, GROUP)
    A = ((groups - groups.mean(1, keepdims=True)) / groups.std(1, keepdims=True)).ravel()
    fits = estimator_fit(columns | {"advantage": A}).fits
    assert fits[BIASED].all()
    assert not fits["grpo"].any()


def test_groups_of_equal_rewards_need_no_advantage():
    r, columns = rewards("continuous")
    r = np.where(columns["prompt_id"] % 2, 0.3, r)
    A = advantages(r, columns["prompt_id"], "grpo")[0]
    fit = estimator_fit(columns | {"reward": r, "advantage": A})
    assert len(fit.rollout) == N // GROUP // 2
    assert fit.fits["grpo"].all()


def test_truncated_responses_may_have_no_advantage():
    r, columns = rewards("continuous")
    cut = np.arange(N) % 5 == 0
    A = np.where(cut, 0.0, advantages(r, columns["prompt_id"], "grpo")[0])
    assert estimator_fit(columns | {"advantage": A, "truncated": cut * 1.0}).fits["grpo"].all()
