"""Recomputed columns: a sound log differs nowhere, and each rewritten column is named."""

from itertools import cycle

import numpy as np
import pandas as pd
import pytest

from analysis.log.rows import appearances
from analysis.rules.estimator_fit import BIASED, PERMUTED, WRONG, estimator_fit
from analysis.rules.recompute import FOLLOWS_FROM, recompute
from fspo.advantages import ESTIMATORS, advantages
from fspo.rules import correction, preset, token_k3

N, GROUP = 512, 8
CORRECTIONS = [correction(name) for name in ("mis", "geo-mask", "engine-sqrt")]
FOLLOWED = preset("fspo", adapt="range", target=0.8).rule


def test_a_response_appears_at_each_earlier_step_once():
    assert appearances(*map(np.array, ([0] * 6, [1, 1, 2, 1, 2, 1], [3, 3, 3, 5, 6, 5]))).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.fixture
def log(simulate):
    """Columns of two rollouts of two steps each; the second step of a rollout uses its responses again."""

    def make(rule, correct=None):
        plan = {"rollouts": 2, "prompts": 32, "minibatches": 1, "engine": 0.02, "sigma": 0.03, "width": 0}
        run = simulate(rule=rule, correction=correct, **plan)
        table = pd.read_parquet(run / "gradlog").select_dtypes(["number", "bool"])
        wide = {name: np.int64 if name in ("rollout", "step", "response_id") else np.float64 for name in table}
        return {name: column.to_numpy(wide[name]) for name, column in table.items()}

    return make


def wrong(columns, rule, correct=None):
    return {name: int(c.wrong.sum()) for name, c in recompute(columns, rule, correct).items() if c.wrong.any()}


RULES = [
    *(preset(name).rule for name in ("none", "rloo", "gspo", "fspo", "fspo-kl")),
    *(preset("fspo", **change).rule for change in ({"drift": "gaussian"}, {"outside": "cap"})),
    preset("fspo", shape="power", gamma=0.75).rule,
]


@pytest.mark.parametrize(("rule", "correct"), zip(RULES, cycle(CORRECTIONS), strict=False))
def test_a_sound_log_differs_nowhere(log, rule, correct):
    columns = log(rule, correct)
    assert wrong(columns, rule, correct) == {}
    assert set(FOLLOWS_FROM) - set(recompute(columns, rule, correct)) <= ({"drift"} if rule.drift == "none" else set())


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("multiplier", lambda x: np.ones_like(x)),
        ("weight", lambda x: x * 1.01),
        ("side", lambda x: np.zeros_like(x)),
        ("band_accept", lambda x: 1 - x),
        ("lo", lambda x: 1.001 * x),
        ("hi", lambda x: 2 * x),
        ("drift", lambda x: 1.1 * x),
        ("sum_sq_log_ratio", lambda x: x * 1e-3),
        ("k3_sum", lambda x: -x),
        ("k3_sum", lambda x: 10 * x),
        ("engine_k3_sum", lambda x: x + 1),
        ("behaviour_log_ratio", lambda x: x + 1e-3),
        ("correction_weight", lambda x: np.ones_like(x)),
        ("correction_side", lambda x: np.zeros_like(x)),
        ("times_used", lambda x: np.zeros_like(x)),
        ("updates_since_rollout", lambda x: x + 1),
        ("updates_since_rollout", lambda x: np.zeros_like(x)),
    ],
)
def test_a_rewritten_column_is_named(log, column, change):
    rule, correct = preset("fspo-kl", range_lo=0.01, range_hi=0.01).rule, correction("engine-sqrt", range_lo=0.01)
    columns = log(rule, correct)
    columns[column] = change(columns[column])
    assert column in wrong(columns, rule, correct)


@pytest.mark.parametrize("token", [0.5, 25.0, -25.0])
def test_sums_of_equal_tokens_keep_their_bounds_beyond_the_cap_of_the_exponent(token):
    """Of two tokens above the cap, k3_sum is more than k3 of the root of their squares: no bound is known there."""
    sums = {"log_ratio": 2 * token, "sum_sq_log_ratio": 2 * token**2, "k3_sum": 2 * float(token_k3(np.array(token)))}
    columns = {name: np.full(1, x) for name, x in {**sums, "length": 2}.items()}
    ids = {name: np.zeros(1, np.int64) for name in ("rollout", "step", "response_id")}
    assert wrong(columns | ids, None) == {}


def test_an_edge_at_s_is_left_to_rounding(log):
    rule = preset("fspo").rule
    columns = log(rule)
    columns["hi"] = columns["log_ratio"] * (1 - 1e-9)
    assert "side" not in wrong({**columns, "multiplier": 0 * columns["weight"] + np.nan}, rule)


@pytest.mark.parametrize("rule", [FOLLOWED, preset("fspo-adaptive").rule], ids=lambda rule: rule.adapt)
def test_a_band_that_follows_a_target_keeps_its_form(log, rule):
    """Edges that are a multiple of the header's agree; edges of one row that are not differ. The sides of a band that
    learns an exponent have ranges and exponents of their own, those of one that learns a range have not."""
    columns = log(rule)
    assert "hi" not in wrong(columns | {edge: columns[edge] * 1.7 for edge in ("lo", "hi")}, rule)
    bent = np.where(np.arange(len(columns["hi"])) % 7 == 0, 2 * columns["hi"], columns["hi"])
    assert wrong(columns | {"hi": bent}, rule)["hi"] > 100
    L = columns["length"].astype(float)
    own = wrong(columns | {"lo": -0.02 * L**0.3, "hi": 0.05 * L**0.8}, rule)
    expected = 0 if rule.adapt == "exponent" else len(L)
    assert [own.get(edge, 0) for edge in ("lo", "hi")] == [expected] * 2


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
    assert not any(fits[other].all() for other in ESTIMATORS if other != estimator)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("not centred in the group", lambda A, L, rng: A + 0.3),
        ("the same for all responses of the group although their rewards differ", lambda A, L, rng: 0 * A + 0.7),
        ("times the length", lambda A, L, rng: A * L),
        ("over the length", lambda A, L, rng: A / L),
        ("of the opposite sign", lambda A, L, rng: -A),
        ("0 for some responses that are not at the group's mean", lambda A, L, rng: A * (rng.random(N) < 0.7)),
        ("0 for some responses that are not at the group's mean", lambda A, L, rng: 0 * A),
        ("no line in the reward, and does not follow it", lambda A, L, rng: rng.permutation(A)),
        ("no line in the reward of the group", lambda A, L, rng: A + 0.5 * rng.standard_normal(N)),
        (PERMUTED, lambda A, L, rng: rng.permuted(A.reshape(-1, GROUP), axis=1).ravel()),
        (BIASED, lambda A, L, rng: A * np.sqrt(GROUP / (GROUP - 1))),
    ],
)
def test_advantages_that_no_estimator_makes_are_named(name, change):
    r, columns = rewards("continuous")
    A = change(advantages(r, columns["prompt_id"], "grpo")[0], columns["length"], np.random.default_rng(7))
    fits = estimator_fit(columns | {"advantage": A}).fits
    assert fits[name].mean() > 0.9
    assert all(fits[other].mean() < 0.1 for other in ("rloo", "grpo", "dr_grpo"))


def test_groups_of_equal_rewards_and_truncated_responses_need_no_advantage():
    r, columns = rewards("continuous")
    equal = np.where(columns["prompt_id"] % 2, 0.3, r)
    A = advantages(equal, columns["prompt_id"], "grpo")[0]
    fit = estimator_fit(columns | {"reward": equal, "advantage": A})
    assert len(fit.rollout) == N // GROUP // 2
    assert fit.fits["grpo"].all()
    cut = np.arange(N) % 5 == 0
    A = np.where(cut, 0.0, advantages(r, columns["prompt_id"], "grpo")[0])
    assert estimator_fit(columns | {"advantage": A, "truncated": cut * 1.0}).fits["grpo"].all()
