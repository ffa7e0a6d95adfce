import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import stats

from fspo.base.errors import UserError
from fspo.rules import scaled
from fspo.theory import lre
from proofs_check.maps.fairness import RULES, TARGETS, acceptance, rows_of, with_asymmetry
from proofs_check.maps.settings import FACTORS, SIGMA, Point, points, setting
from proofs_check.maps.tables import MAP_COLUMNS, to_frame
from proofs_check.tools.lre_interval import simulated_lre

BASE = to_frame("fairness_map", rows_of(setting("exponent", 0.5), tuple(TARGETS), np.random.default_rng(0), 0))


def value(rule, measure, target=0.85, column="lre_inf", frame=BASE):
    part = frame[(frame.rule == rule) & (frame.measure == measure) & (frame.target == target)]
    assert len(part) == 1
    return part[column].iloc[0]


def test_the_right_centre_is_fair_in_counts_and_the_tilted_one_in_weight():
    for rule in ("fspo-kl", "fspo-gaussian"):  # gaussian misses the drift by sigma^4/8 per token
        assert value(rule, "band") < 1e-6
        assert value(rule, "update") < 1e-4
        assert value(rule, "weight") > 0.1
    assert value("fspo-tilted", "weight") < 1e-6
    assert value("fspo-tilted", "band") > 0.1
    assert value("fspo", "band") == pytest.approx(value("fspo", "weight"), rel=1e-9)  # a = b (T13)


@pytest.mark.parametrize("measure", list(TARGETS))
def test_calibration_hits_its_target(measure):
    for target in TARGETS[measure]:
        part = BASE[(BASE.measure == measure) & (BASE.target == target) & ~BASE.rule.isin(["none"])]
        reached = part[part.lre_inf.notna()]
        np.testing.assert_allclose(reached.acceptance, target, atol=1e-8)
        assert set(part[part.lre_inf.isna()].note) <= {"no range reaches the target"}
    assert value("none", measure, column="acceptance") == 1
    assert value("random", measure) == 0


def test_a_linear_band_against_its_own_closed_form():
    # T2 by hand: S ~ N(-sigma^2 l/2, sigma^2 l), band +-eps l, eps solved here by bisection
    lengths = setting("exponent", 0.5).lengths

    def rate(eps):
        mean, scale = -(SIGMA**2) * lengths / 2, SIGMA * np.sqrt(lengths)
        return stats.norm.cdf((eps * lengths - mean) / scale) - stats.norm.cdf((-eps * lengths - mean) / scale)

    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle).mean() < 0.85 else (low, middle)
    a = rate(low)
    assert value("linear", "band") == pytest.approx(np.abs(a / a.mean() - 1).max(), rel=1e-6)


@hypothesis_settings(max_examples=15)
@given(
    st.sampled_from(["drift_error", "exponent", "asymmetry", "sign_share", "sign_drift", "switching"]),
    st.integers(0, 4),
    st.sampled_from(RULES),
    st.floats(0.3, 3),
)
def test_closed_rates_are_what_the_rule_does(factor, index, rule, width):
    values = FACTORS[factor][0]
    point = setting(factor, values[index % len(values)])
    rule = with_asymmetry(scaled(rule, width), point.asymmetry)
    rng, n = np.random.default_rng(index), 2000
    positive = rng.random((n, point.lengths.size)) < point.share
    S = np.where(positive, point.positive.sample(rng, n), point.negative.sample(rng, n))
    applied = rule.apply(S, point.lengths, np.where(positive, 1.0, -1.0), rule.centre(point.means))
    for measure, kept in (("band", applied.in_band), ("update", applied.side == 0)):
        exact = acceptance(point, rule, measure)
        error = kept.mean(axis=0) - exact
        scale = np.sqrt(np.maximum(exact * (1 - exact), 1e-4) / n)
        assert np.abs(error / scale).max() < 5.5


def test_symmetric_ranges_keep_fairness_when_the_sign_share_varies_and_others_do_not():
    rows = {
        ratio: to_frame("fairness_map", rows_of(setting("asymmetry", ratio), ("update",), np.random.default_rng(0), 0))
        for ratio in (1.0, 2.0)
    }
    assert value("fspo-kl", "update", frame=rows[1.0]) < 1e-6
    assert value("fspo-kl", "update", frame=rows[2.0]) > 0.01


def test_wrong_growth_is_unfair_and_the_matching_power_is_fair():
    part = to_frame("fairness_map", rows_of(setting("exponent", 0.75), ("band",), np.random.default_rng(0), 0))
    assert value("fspo", "band", frame=part) > 0.1
    assert value("power-0.75", "band", frame=part) < value("fspo", "band", frame=part) / 2


def test_infinite_means_are_said_not_computed():
    part = to_frame("fairness_map", rows_of(setting("tail", 0.5), ("band", "weight"), np.random.default_rng(0), 0))
    assert math.isnan(value("fspo-kl", "band", frame=part))
    assert "no finite mean" in value("fspo-kl", "band", column="note", frame=part)
    assert value("fspo", "weight", column="note", frame=part) == "the mean weight is infinite"
    assert value("fspo", "band", frame=part) > 0


def test_simulated_interval_covers_the_truth():
    rng = np.random.default_rng(3)
    p, a = np.array([0.5, 0.3, 0.2]), np.array([0.9, 0.8, 0.7])
    truth = lre(p, a)
    covered = 0
    for _ in range(200):
        kept = (rng.random((2000, 3)) < a).astype(float)
        row = simulated_lre(p, kept, np.ones_like(kept))
        assert row["lre_inf_low"] <= row["lre_inf"] <= row["lre_inf_high"]
        inf = row["lre_inf_low"] <= truth.inf <= row["lre_inf_high"]
        covered += inf and row["lre_2_low"] <= truth.l2 <= row["lre_2_high"]
    assert covered >= 184  # 95 % of 200 less 2.5 standard deviations
    # and it is not vacuous: a difference of this size is seen
    assert row["lre_inf_low"] > 0.05


def test_simulated_rows_stand_beside_closed_ones():
    frame = to_frame(
        "fairness_map", rows_of(setting("exponent", 0.7, simulate=True), ("band",), np.random.default_rng(5), 20_000)
    )
    simulated = frame[frame.method == "simulated"].set_index("rule")
    closed = frame[(frame.method == "closed") & (frame.target == 0.85)].set_index("rule")
    assert len(simulated) == len(RULES)
    for rule, row in simulated.iterrows():
        assert row.lre_inf_low - 0.01 <= closed.lre_inf[rule] <= row.lre_inf_high + 0.01


def test_every_point_is_shown_once():
    keys = [(p.factor, p.value, p.factor_2, p.value_2 if p.factor_2 else None) for p in points()]
    assert len(set(keys)) == len(keys)
    assert {p.factor for p in points()} == set(FACTORS)
    assert Point("exponent", 0.5).setting().model == "gaussian"


def test_bad_input():
    with pytest.raises(UserError, match="unknown factor 'exponant': did you mean 'exponent'"):
        setting("exponant", 0.5)
    with pytest.raises(UserError, match="no column 'lre'"):
        to_frame("fairness_map", [{"lre": 1.0}])
    with pytest.raises(UserError, match="no rows"):
        to_frame("fairness_map", [])
    assert list(BASE) == list(MAP_COLUMNS["fairness_map"])
