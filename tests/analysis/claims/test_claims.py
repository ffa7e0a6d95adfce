"""Each claim on made tables: it can be supported, it can fail, and it knows when it cannot tell."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from analysis.claims.catalogue import evaluate_claims, write_claims
from analysis.claims.evidence import combine, combine_largest, difference, select, worst_by_run
from analysis.log.loading import load_run
from analysis.rules.evaluate import trained_case
from analysis.stats.lre import lre_estimates
from analysis.tables.acceptance import LreRow, TrendRow, tables_of
from analysis.tables.files import TABLES
from analysis.tables.passes import look_through
from fspo.rules import Rule
from fspo.stats.bins import make_bins
from fspo.stats.clusters import ratios
from fspo.stats.slopes import cluster_slope
from tests.analysis.rows import records, table

NAN = float("nan")


def tables(**found):
    return {name: table(row, found.get(name, [])) for name, row in TABLES.items()}


def verdicts(**found):
    return {c.id: c for c in evaluate_claims(tables(**found))}


def interval(value, half):
    return {"estimate": value, "ci_low": value - half, "ci_high": value + half}


def trend(rule, slope, half, seed=0):
    key = {"run": f"{rule}-{seed}", "trained_rule": rule, "seed": seed, "rule": rule, "source": "trained"}
    key |= {"outside": "drop", "target": NAN, "subset": "all", "use": "first", "measure": "band"}
    return key | {
        "slope": slope,
        "ci_low": slope - half,
        "ci_high": slope + half,
        "ci90_low": slope - 0.84 * half,
        "ci90_high": slope + 0.84 * half,
    }


def worst_bin(value, half, seed=0, **changes):
    return [lre("fspo", value, half, seed) | {"norm": n, "wald_p": 0.3, "detectable": 0.03} | changes for n in NORMS]


NORMS = ("inf", "l2")


@pytest.mark.parametrize(
    ("fspo", "rloo", "gspo", "worst", "verdict"),
    [
        (0.002, -0.04, 0.05, 0.02, "supported"),
        (0.02, -0.04, 0.05, 0.02, "not supported"),  # fspo's slope is outside the margin
        (0.009, -0.04, 0.05, 0.02, "inconclusive"),  # near the margin
        (0.002, 0.04, 0.05, 0.02, "not supported"),  # rloo's does not fall
        (0.002, -0.04, -0.05, 0.02, "not supported"),  # gspo's does not rise
        (0.002, -0.001, 0.05, 0.02, "inconclusive"),
        (0.002, -0.04, 0.05, 0.10, "not supported"),  # no trend, but a bin that is accepted less
        (0.002, -0.04, 0.05, 0.04, "inconclusive"),  # a bin that may be
    ],
)
def test_c1(fspo, rloo, gspo, worst, verdict):
    rows = [trend("fspo", fspo, 0.004), trend("rloo", rloo, 0.004), trend("gspo", gspo, 0.004)]
    claim = verdicts(trend=rows, lre=worst_bin(worst, 0.02))["C1"]
    assert claim.verdict == verdict
    assert claim.estimate == fspo
    assert claim.ci_low == pytest.approx(fspo - 0.004)
    assert "LRE_2 of 0.03" in claim.details["power"]["sentence"]


def test_c1_needs_its_rivals_and_the_whole_curve():
    fair = trend("fspo", 0.0, 0.001)
    assert verdicts(trend=[fair], lre=worst_bin(0.01, 0.01))["C1"].verdict == "inconclusive"
    rivals = [trend("rloo", -0.04, 0.004), trend("gspo", 0.05, 0.004)]
    assert verdicts(trend=[fair, *rivals])["C1"].verdict == "inconclusive"
    assert verdicts(trend=[fair, *rivals], lre=worst_bin(0.01, 0.01))["C1"].verdict == "supported"


def test_c1_and_c7_refuse_a_hump_that_has_no_trend():
    """The control of the trend alone: accepted more often at middle lengths, drawn and estimated as on a log."""
    rng = np.random.default_rng(3)
    place = rng.uniform(-1, 1, 40_000)
    cluster, length, bins = np.arange(40_000) // 8, 2 ** (6 + 2 * place), np.floor((place + 1) * 3).astype(int)
    accept = rng.random(40_000) < 0.85 + 0.1 * (1 - 3 * place**2)
    slope = cluster_slope(accept, np.log2(length), cluster, margin=0.01)
    assert -0.01 < slope.ci90_low < slope.ci90_high < 0.01  # equivalence of the trend alone would call it fair
    fields = ("ci_low", "ci_high", "ci90_low", "ci90_high")
    own = {"slope": slope.slope} | {name: getattr(slope, name) for name in fields}
    found = [e.__dict__ for e in lre_estimates(ratios(accept, cluster, bins, 6, binary=True))]
    flat = [e.__dict__ for e in lre_estimates(ratios(rng.random(40_000) < 0.85, cluster, bins, 6, binary=True))]
    rivals = [trend("rloo", -0.04, 0.004), trend("gspo", 0.05, 0.004)]
    matched = {"source": "matched", "target": 0.85}
    for bent, verdict in ((found, "not supported"), (flat, "supported")):
        rows = [trend("fspo", 0, 0) | own, *rivals, trend("fspo-adaptive", 0, 0) | own | matched]
        curves = [lre("fspo", 0, 0) | e for e in bent] + [lre("fspo-adaptive", 0, 0) | matched | e for e in bent]
        claims = verdicts(trend=rows, lre=curves)
        assert claims["C1"].verdict == claims["C7"].verdict == verdict


def test_c1_on_logs_supports_sqrt_and_fails_a_linear_band_called_fspo(simulate):
    """The control: the same code must refuse the claim for a band that grows like L."""

    def one(rule, name):
        run = load_run(simulate(name, rule=rule, rollouts=40, width=0, sigma=0.015))
        trained = trained_case(run)
        assert trained is not None
        found = tables_of(run, look_through(run, make_bins(run.rows.length, 6), [], 5)[0])
        return {"trend": records(TrendRow, found.trend), "lre": records(LreRow, found.lre)}

    def verdict(*runs):
        return verdicts(**{name: [row for run in runs for row in run[name]] for name in ("trend", "lre")})["C1"].verdict

    rloo = one(Rule("fixed", 0.2, 0.2, name="rloo"), "rloo")
    gspo = one(Rule("linear", 0.004, 0.004, name="gspo"), "gspo")
    fair = one(Rule("sqrt", 0.03, 0.03, drift="gaussian", name="fspo"), "fspo")
    unfair = one(Rule("linear", 0.004, 0.004, name="fspo"), "unfair")
    assert verdict(fair, rloo, gspo) == "supported"
    assert verdict(unfair, rloo, gspo) == "not supported"


def lre(rule, value, half, seed=0):
    key = {"run": f"{rule}-{seed}", "trained_rule": rule, "seed": seed, "rule": rule, "source": "trained"}
    key |= {"outside": "drop", "subset": "all", "use": "first", "measure": "band", "norm": "l2_squared"}
    return key | interval(value, half)


@pytest.mark.parametrize(
    ("rloo", "gspo", "verdict"),
    [(0.05, 0.04, "supported"), (0.05, -0.01, "not supported"), (0.05, 0.011, "inconclusive")],
)
def test_c2(rloo, gspo, verdict):
    claim = verdicts(lre=[lre("fspo", 0.01, 0.003), lre("rloo", rloo, 0.004), lre("gspo", gspo, 0.004)])["C2"]
    assert claim.verdict == verdict
    least = min(rloo, gspo) - 0.01
    assert claim.estimate == pytest.approx(least)
    assert claim.ci_low == pytest.approx(least - 0.005)  # MOVER: hypot(3, 4)


def cosine(rule, outside, target, **columns):
    key = {"run": "r", "trained_rule": "fspo", "seed": 0, "rule": rule, "outside": outside, "source": "matched"}
    key |= {"target": target, "weight": "sequence", "use": "first", "bin": -1, "control": False, "subset": "nonzero"}
    row = {**key, **interval(0.9, 0.01)}
    for name, (value, half) in columns.items():
        row |= {name: value, f"{name}_ci_low": value - half, f"{name}_ci_high": value + half}
    return row


@pytest.mark.parametrize(
    ("rloo", "worst", "verdict"),
    [(-0.03, -0.04, "supported"), (0.03, -0.04, "not supported"), (-0.03, 0.005, "inconclusive")],
)
def test_c3(rloo, worst, verdict):
    rows = [
        cosine("rloo", "drop", 0.95, diff_fspo=(rloo, 0.01), diff_fspo_worst=(-0.05, 0.01)),
        cosine("gspo", "drop", 0.95, diff_fspo=(-0.05, 0.01), diff_fspo_worst=(worst, 0.01)),
    ]
    lemma = [
        {"rule": "fspo", "source": "trained", "outside": "drop", "use": "first", "updates": 1, "target": NAN}
        | {"guaranteed": rho < 1, "slack": 0.1, "rho": rho, "bound": 0.5}
        for rho in (0.5, 0.8, 1.5, 2.0)
    ]
    claim = verdicts(cosine=rows, lemma=lemma)["C3"]
    assert claim.verdict == verdict
    assert claim.estimate == pytest.approx(min(-rloo, 0.05, -worst))
    assert claim.details["T7"]["fspo, trained"]["share with a promise"] == 0.5


def assumptions(slope=1.0, distance=0.01, drift=0.0, half=0.01):
    key = {"run": "r", "trained_rule": "fspo", "seed": 0, "subset": "all", "use": "first"}
    scaling = {**key, "sign": "all", "slope_2H": slope, "ci_low": slope - 0.05, "ci_high": slope + 0.05}
    scaling |= {"ci90_low": slope - 0.04, "ci90_high": slope + 0.04}
    moments = {
        **key,
        "bin": 0,
        "count": 100,
        "bin_mean": 100.0,
        "var_S": 0.04,
        "k3_per_token": 1e-4,
        "mean_S": -0.01 + drift * 0.2,
    }
    moments |= {"mean_S_ci_low": moments["mean_S"] - 0.002, "mean_S_ci_high": moments["mean_S"] + 0.002}
    moments |= {"ks_distance": distance, "ks_ci_low": distance - half, "ks_ci_high": distance + half}
    return {"scaling": [scaling], "moments": [moments]}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "supported"),
        ({"slope": 1.4}, "not supported"),
        ({"slope": 1.08}, "inconclusive"),
        ({"distance": 0.2}, "not supported"),
        ({"distance": 0.045}, "inconclusive"),
        ({"drift": 0.5}, "not supported"),
        ({"drift": -0.5}, "not supported"),
    ],
)
def test_c4(changes, verdict):
    assert verdicts(**assumptions(**changes))["C4"].verdict == verdict


def test_c4_says_nothing_of_bins_that_it_did_not_see():
    """Half of the rows in a bin of too few prompts: the other bin alone does not support "in any bin"."""
    found = assumptions()
    blank = dict.fromkeys(("var_S", "mean_S", "mean_S_ci_low", "mean_S_ci_high", "ks_distance", "ks_ci_low"), NAN)
    for count, verdict in ((100, "inconclusive"), (5, "supported")):
        unseen = found["moments"][0] | blank | {"bin": 1, "ks_ci_high": NAN, "count": count}
        claim = verdicts(scaling=found["scaling"], moments=[*found["moments"], unseen])["C4"]
        assert claim.verdict == verdict


def training(rule, seed, final, fall=0.0):
    key = {"run": f"{rule}-{seed}", "trained_rule": rule, "seed": seed}
    curve = [0.3, 0.3 - fall, final, final, final]
    rows = [
        {**key, "rollout": i, "step": i, "phase": "train", "name": "reward", "value": v} for i, v in enumerate(curve)
    ]
    evaluations = [0.3, final, final]
    where = {"phase": "eval", "name": "eval/reward"}
    return rows + [{**key, "rollout": i, "step": i, **where, "value": v} for i, v in enumerate(evaluations)]


def runs(seeds, fspo=0.8, fall=0.0):
    rows = []
    for seed in range(seeds):
        shift = 0.001 * seed
        rows += training("fspo", seed, fspo + shift, fall)
        rows += training("rloo", seed, 0.8 - shift) + training("gspo", seed, 0.8 + shift)
    return rows


@pytest.mark.parametrize(
    ("seeds", "fspo", "fall", "verdict"),
    [
        (5, 0.8, 0.0, "supported"),
        (4, 0.8, 0.0, "inconclusive"),
        (5, 0.7, 0.0, "not supported"),
        (5, 0.8, 0.2, "not supported"),
        (4, 0.5, 0.2, "inconclusive"),
    ],
)
def test_c5(seeds, fspo, fall, verdict):
    claim = verdicts(training=runs(seeds, fspo, fall))["C5"]
    assert claim.verdict == verdict
    assert claim.estimate == pytest.approx(fspo - 0.8, abs=1e-6)


@pytest.mark.parametrize(("cap", "verdict"), [(0.05, "supported"), (-0.05, "not supported"), (0.005, "inconclusive")])
def test_c6(cap, verdict):
    rows = [cosine("fspo", "truncate", t, diff_drop=(0.1, 0.01)) for t in (0.95, 0.85)]
    rows += [cosine("fspo", "cap", 0.95, diff_drop=(0.1, 0.01)), cosine("fspo", "cap", 0.85, diff_drop=(cap, 0.01))]
    claim = verdicts(cosine=rows)["C6"]
    assert claim.verdict == verdict
    assert claim.estimate == pytest.approx(min(cap, 0.1))


@pytest.mark.parametrize(
    ("slope", "half", "p", "low", "worst", "verdict"),
    [
        (0.004, 0.005, 0.3, 0.0, 0.02, "supported"),
        (-0.03, 0.01, 0.3, 0.0, 0.02, "not supported"),
        (0.004, 0.02, 0.3, 0.0, 0.02, "inconclusive"),
        (0.004, 0.005, 0.001, 0.03, 0.02, "not supported"),  # no trend, but a bend
        (0.004, 0.005, 0.03, 0.03, 0.02, "supported"),  # one of two logs: 0.06 over both
        (0.004, 0.005, 0.001, 0.005, 0.02, "supported"),  # unequal beyond doubt, by less than the margin
        (0.004, 0.005, 0.3, 0.0, 0.06, "inconclusive"),  # nothing found, but too little data to see 5 %
        (0.004, 0.005, 0.3, 0.0, NAN, "inconclusive"),
        (0.004, 0.005, NAN, NAN, NAN, "inconclusive"),
    ],
)
def test_c7(slope, half, p, low, worst, verdict):
    matched = {"source": "matched", "target": 0.85}
    rows = [trend("fspo-adaptive", slope, half) | matched, trend("fspo", -0.05, 0.01) | matched]
    equal = [lre("fspo-adaptive", 0.04, 0.04 - low) | matched | {"norm": "l2", "wald_p": p}]
    if p == p:
        equal.append(lre("fspo-adaptive", 0.01, 0.01, seed=1) | matched | {"norm": "l2", "wald_p": 0.5})
    for seed in (0, 1):
        high = worst + 0.001 * seed
        ends = {"estimate": high - 0.01, "ci_low": 0.0, "ci_high": high}
        equal.append(lre("fspo-adaptive", 0, 0, seed) | matched | ends | {"norm": "inf", "wald_p": NAN})
    claim = verdicts(trend=[*rows, trend("fspo-adaptive", 0.5, 0.01)], lre=equal)["C7"]  # its own run is not meant
    assert claim.verdict == verdict
    assert claim.estimate == pytest.approx(slope)
    assert len(claim.details["logs with unequal bins"]) == (p == 0.001 and low > 0.01)


def test_nothing_to_go_on_is_inconclusive_everywhere(tmp_path):
    claims = evaluate_claims(tables())
    assert [c.id for c in claims] == ["C1", "C2", "C3", "C4", "C5", "C6", "C7"]
    assert {c.verdict for c in claims} == {"inconclusive"}
    write_claims(tmp_path / "out" / "claims.json", claims)
    assert '"estimate": null' in (tmp_path / "out" / "claims.json").read_text()


def test_seeds_are_the_outer_unit():
    rows = pd.DataFrame([trend("fspo", s, 0.001, seed=i) for i, s in enumerate((0.0, 0.01, 0.02))])
    found = combine(rows, "slope", "ci_low", "ci_high")
    half = sps.t.ppf(0.975, 2) * 0.01 / np.sqrt(3)
    assert (found.value, found.low, found.high) == pytest.approx((0.01, 0.01 - half, 0.01 + half))
    assert found.seeds == 3


def test_runs_of_one_seed_are_averaged_and_gain_no_precision():
    """They share prompts and sampling noise: five copies of one run know no more than one."""
    rows = pd.DataFrame([trend("fspo", s, half) for s, half in ((0.0, 0.002), (0.02, 0.004))])
    found = combine(rows, "slope", "ci_low", "ci_high")
    assert (found.value, found.low, found.high) == pytest.approx((0.01, 0.007, 0.013))
    copies = pd.DataFrame([trend("fspo", 0.01, 0.003)] * 5)
    found = combine(copies, "slope", "ci_low", "ci_high")
    assert (found.low, found.high) == pytest.approx((0.007, 0.013))


@pytest.mark.parametrize("seeds", [1, 5])
def test_the_largest_of_many_noisy_magnitudes_is_covered(seeds):
    """Eight bins of two units, each estimated with unit noise; the largest truth must lie in the interval."""
    rng = np.random.default_rng(3)
    truth, missed = 2.0, 0
    for _ in range(400):
        estimates = np.abs(truth + rng.normal(size=(seeds, 8)))
        rows = pd.DataFrame(
            [
                {"run": str(s), "seed": s, "value": v, "low": max(v - 1.96, 0.0), "high": v + 1.96}
                for s, run in enumerate(estimates)
                for v in run
            ]
        )
        missed += combine_largest(worst_by_run(rows)).low > truth
    assert missed / 400 < 0.05


def test_differences_are_paired_by_seed():
    one = pd.DataFrame([lre("rloo", v, 0.5, seed=i) for i, v in enumerate((1.0, 2.0, 3.0))])
    other = pd.DataFrame([lre("fspo", v, 0.5, seed=i) for i, v in enumerate((0.9, 1.9, 2.8))])
    found = difference(one, other, "estimate", "ci_low", "ci_high")
    gaps = np.array([0.1, 0.1, 0.2])
    assert found.value == pytest.approx(gaps.mean())
    assert found.high - found.value == pytest.approx(sps.t.ppf(0.975, 2) * gaps.std(ddof=1) / np.sqrt(3))


def test_select_matches_floats_and_tells_missing_columns():
    table = pd.DataFrame({"target": [0.95, 0.85, NAN], "x": [1, 2, 3]})
    assert select(table, target=0.85)["x"].tolist() == [2]
    assert len(select(table, nowhere=1)) == 0


def test_power_is_that_of_the_interval_and_of_the_seeds():
    from analysis.claims.catalogue import with_power
    from analysis.claims.evidence import Claim

    part = {"value": 0.1, "low": -0.4, "high": 0.6, "seeds": 3, "runs": 6}
    alone = {"value": 0.0, "low": -1.96, "high": 1.96, "seeds": 1, "runs": 1}
    claim = Claim("C9", "", "", 0.2, 0.1, -0.4, 0.6, "inconclusive", {"a": {"b": part}, "c": alone, "n": 3})
    power = with_power(claim).details["power"]
    assert set(power["parts"]) == {"a: b", "c"}
    assert power["parts"]["c"] == pytest.approx(1.96 + 0.8416, rel=1e-3)
    assert power["detectable"] == power["parts"]["a: b"]
    # t on 2 degrees is in the half-width already, so the factor is below the normal law's 1.43
    assert 0.5 < power["detectable"] < 1.43 * 0.5
    assert "margin is 0.2" in power["sentence"]
    blank = Claim("C9", "", "", 0.0, float("nan"), float("nan"), float("nan"), "inconclusive", {})
    assert "Too little data" in with_power(blank).details["power"]["sentence"]
