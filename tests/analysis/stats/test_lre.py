"""LRE estimates: hand-worked plug-in, bias correction, and coverage by simulation, at exact fairness too."""

import numpy as np
import pytest
from scipy import stats as sps

from analysis.stats.lre import NORMS, lre_estimates, number_showing
from fspo.stats.clusters import ratios
from fspo.theory import lre

BINS = 5


def draw(rng, acceptance, clusters=150, group=8, spread=0.15):
    """Prompts with their own level and length; E[accept | bin] is ``acceptance``."""
    level = np.clip(rng.normal(0, spread, clusters), -0.2, 0.2)
    home = rng.integers(0, BINS, clusters)
    bins = np.where(rng.random((clusters, group)) < 0.6, home[:, None], rng.integers(0, BINS, (clusters, group)))
    accept = rng.random((clusters, group)) < np.asarray(acceptance)[bins] + level[:, None]
    cluster = np.repeat(np.arange(clusters), group)
    return ratios(accept.ravel(), cluster, bins.ravel(), BINS, binary=True)


def by_norm(found):
    return {e.norm: e for e in lre_estimates(found)}


def ends(found):
    return np.array([(e.ci_low, e.ci_high) for e in lre_estimates(found)])


def test_plug_in_is_the_formula_of_theory():
    found = draw(np.random.default_rng(0), [0.4, 0.5, 0.6, 0.7, 0.75])
    exact = lre(found.count[:BINS], found.value[:BINS])
    mine = by_norm(found)
    assert mine["inf"].plug_in == pytest.approx(exact.inf)
    assert mine["l1"].plug_in == pytest.approx(exact.l1)
    assert mine["l2"].plug_in == pytest.approx(exact.l2)
    assert mine["l2_squared"].plug_in == pytest.approx(exact.l2**2)


@pytest.mark.parametrize("weights", [False, True])
def test_the_bias_correction_and_the_limits_are_those_of_a_jackknife_that_deletes_a_cluster(weights):
    """sum p Var(r), Var(r) from logs that lack one prompt each; a prompt's responses share their bin, so that shares of
    rows vary. The limits of LRE_inf are those of the bin that deviates most."""
    rng = np.random.default_rng(8)
    cluster = np.repeat(np.arange(120), rng.integers(2, 20, 120))
    bins = rng.integers(0, 3, 120)[cluster]
    d = rng.uniform(0.5, 2, len(cluster)) if weights else np.ones(len(cluster))
    # sums above the denominators, so no shares: their errors are as the clusters show them
    y = np.array([1.5, 2.0, 3.0])[bins] * d + 0.5 * rng.normal(size=len(bins))

    def relative(at):
        found = ratios(y[at], np.unique(cluster[at], return_inverse=True)[1], bins[at], 3, d[at])
        p = found.count[:3] / found.count[3]
        return found.value[:3] / (p @ found.value[:3]) - 1

    without = np.array([relative(cluster != c) for c in range(120)])
    covariance = (without - without.mean(0)).T @ (without - without.mean(0)) * 119 / 120
    found = ratios(y, cluster, bins, 3, d)
    p, r, mine = found.count[:3] / found.count[3], relative(cluster >= 0), by_norm(found)
    noise = mine["l2_squared"].plug_in - mine["l2_squared"].estimate
    assert noise == pytest.approx(p @ np.diag(covariance), rel=0.05)
    assert mine["l2"].estimate == pytest.approx(np.sqrt(mine["l2_squared"].estimate))
    worst = int(np.argmax(np.abs(r)))
    half = sps.t.ppf(1 - 0.025 / 3, 119) * np.sqrt(covariance[worst, worst])
    assert (mine["inf"].ci_low, mine["inf"].ci_high) == pytest.approx((r[worst] - half, r[worst] + half), rel=0.05)


@pytest.mark.parametrize(
    ("norm", "acceptance"), [("inf", (1.0, 0.7, 0.5)), ("l1", (1.0, 1.0, 0.3)), ("l2", (0.0, 0.0, 0.6))]
)
def test_intervals_hold_the_truth_where_bins_accept_everything_or_nothing(norm, acceptance):
    """Of 60 intervals at 95 %, at most 8 miss: P(more) = .004. The bins' own acceptances have no error there, but the
    mean acceptance and the bins' shares have; without these errors, 10 to 30 of the 60 intervals were too low."""
    p, rng, missed, width = np.array([0.3, 0.3, 0.4]), np.random.default_rng(2), 0, 0.0
    truth = getattr(lre(p, acceptance), norm)
    cluster = np.repeat(np.arange(100), 4)
    for _ in range(60):
        bins = rng.choice(3, 400, p=p)
        found = by_norm(ratios(rng.random(400) < np.array(acceptance)[bins], cluster, bins, 3, binary=True))[norm]
        missed += not found.ci_low <= truth <= found.ci_high
        width += (found.ci_high - found.ci_low) / 60
    assert missed <= 8
    assert width < 0.7  # they are not so wide that they say nothing: the truth is between 0.4 and 1.3


def weights_log(rng, often, kept, clusters=128, bins=8):
    """Shares of weight, fair in length: a cut takes ``1 - kept`` of a response's weight."""
    where, weight = rng.integers(0, bins, clusters * 8), np.exp(0.2 * rng.standard_normal(clusters * 8))
    y = np.where(rng.random(clusters * 8) < often, kept * weight, weight)
    return ratios(y, np.repeat(np.arange(clusters), 8), where, bins, weight)


@pytest.mark.parametrize(("often", "kept"), [(0.02, 0.0), (0.02, 0.7), (0.1, 0.7)])
def test_weight_acceptance_with_few_cuts_holds_at_fairness(often, kept):
    """Bins without a cut show no spread of their own: taken at their word, LRE_inf held 63 % of the time."""
    rng, runs = np.random.default_rng(7), 80
    found = [by_norm(weights_log(rng, often, kept)) for _ in range(runs)]
    least = 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)
    for norm in ("inf", "l2"):
        assert np.mean([f[norm].ci_low <= 0 for f in found]) > least


@pytest.mark.parametrize(("cut", "given"), [(9, False), (10, True)])
def test_ten_clusters_with_a_clipped_response_are_needed(cut, given):
    """Or, where most are clipped, ten with one that is not; the estimate is there in any case."""
    kept = np.ones(400)
    kept[: 8 * cut : 8] = 0
    for y in (kept, 1 - kept):
        found = ratios(y, np.arange(400) // 8, np.arange(400) // 2 % 4, 4, binary=True)
        assert number_showing(found) == cut
        for estimate in lre_estimates(found):
            assert np.isfinite(estimate.estimate)
            assert np.isfinite(estimate.ci_high) == given
            assert estimate.reason.startswith("too few: 9 clusters") != given


def test_everything_accepted_is_fair_and_of_unknown_error():
    weight = np.exp(0.1 * np.random.default_rng(0).standard_normal(400))
    cluster, bins = np.repeat(np.arange(50), 8), np.tile(np.arange(5), 80)
    for found in (ratios(np.ones(400), cluster, bins, 5, binary=True), ratios(weight, cluster, bins, 5, weight)):
        for estimate in lre_estimates(found):
            assert estimate.estimate == pytest.approx(0, abs=1e-12)
            assert np.isnan(estimate.ci_high)
            assert "too few: 0 clusters" in estimate.reason
    same = lre_estimates(ratios(np.full(400, 0.3), cluster, bins, 5))[0]
    assert "no cluster differs" in same.reason
    assert np.isnan(same.estimate)


def test_reasons_instead_of_numbers():
    nothing = ratios(np.zeros(80), np.repeat(np.arange(10), 8), np.tile(np.arange(2), 40), 2, binary=True)
    assert all(np.isnan(e.estimate) and "nothing is accepted" in e.reason for e in lre_estimates(nothing))
    one = ratios(np.ones(80), np.repeat(np.arange(10), 8), np.zeros(80, int), 2, binary=True)
    assert all(np.isnan(e.estimate) and "fewer than 2 bins" in e.reason for e in lre_estimates(one))
    bins = np.tile([0, 2], 160)
    bins[:4] = 1  # one cluster only
    odd = ratios(np.arange(320) // 2 % 2, np.repeat(np.arange(40), 8), bins, 3, binary=True)
    assert "left out: 1.2% of the rows" in lre_estimates(odd)[0].reason
    assert [e.norm for e in lre_estimates(odd)] == [*NORMS]
    assert np.isfinite(lre_estimates(odd)[0].estimate)
    bins[:96] = 1  # twelve clusters, then nine of them: 24 % of the rows in a bin of too few clusters
    few = ratios(np.arange(320) // 2 % 2, np.repeat(np.arange(40) % 9 + 31 * (np.arange(40) > 11), 8), bins, 3)
    assert all(np.isnan(e.ci_high) and "too little data" in e.reason for e in lre_estimates(few))


def test_no_lre_1_is_above_2():
    """Of ten bins one accepts a few rows: the limits of the r together allow more than 2, LRE_1 does not."""
    accept = np.zeros(1000)
    accept[:10] = 1
    found = by_norm(ratios(accept, np.arange(1000), np.repeat(np.arange(10), 100), 10, binary=True))
    assert found["l1"].ci_high == 2
