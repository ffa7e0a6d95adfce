"""Each atom on made tables, and on logs: it can be supported, it can fail, and it knows when it cannot tell."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as sps

from analysis.claims.catalogue import ATOMS, DEVELOPMENT_SEEDS, HEADLINES, MASK_HEADLINES, digest_of_catalogue
from analysis.claims.judge import commit, evaluate_claims, write_claims
from analysis.log.loading import load_run
from analysis.options import Options
from analysis.rules.evaluate import Case, make_cases
from analysis.stats.lre import lre_estimates
from analysis.tables.acceptance import LreRow, TrendRow, tables_of
from analysis.tables.passes import look_through
from fspo.rules import COMPARED, RIVALS, Rule, preset
from fspo.stats.bins import make_bins
from fspo.stats.clusters import ratios
from fspo.stats.slopes import cluster_slope
from tests.analysis.claims.made import NAN, interval, on, own, slope, tables, training
from tests.analysis.rows import records

ROOT = Path(__file__).parents[3]
LOGS = ("rloo-11", "gspo-11", "fspo-11")


def judged(**found):
    return {c.id: c for c in evaluate_claims(tables(**found))}


def verdict(name, **found):
    return judged(**found)[name].verdict


@pytest.mark.parametrize(
    ("name", "rule", "values", "found"),
    [
        ("85-rloo-falls", "rloo", (-0.08, -0.05, -0.02), "supported"),
        ("85-rloo-falls", "rloo", (-0.08, -0.05, 0.0), "inconclusive"),
        ("85-rloo-falls", "rloo", (-0.08, -0.05, 0.01), "refuted"),
        ("85-gspo-rises", "gspo", (0.02, 0.02, 0.02), "supported"),
        ("85-gspo-rises", "gspo", (0.02, -0.02, 0.02), "refuted"),
        ("85-gspo-falls", "gspo", (-0.02, -0.02, -0.02), "supported"),
        ("85-fspo-flat", "fspo", (0.004, -0.004, 0.0), "supported"),
        ("85-fspo-flat", "fspo", (0.004, -0.004, 0.009), "inconclusive"),
        ("85-fspo-flat", "fspo", (0.004, -0.004, 0.02), "refuted"),
        ("85-fspo-adaptive-flat", "fspo-adaptive", (0.004, -0.004, 0.0), "supported"),
    ],
)
def test_a_trend_is_judged_on_every_log(name, rule, values, found):
    rows = [on(log, rule) | slope(x) for log, x in zip(LOGS, values, strict=True)]
    other = [on(log, rule, 0.95) | slope(0.5) for log in LOGS]  # the other target is another atom's
    claim = judged(trend=[*rows, *other])[name]
    assert claim.verdict == found
    assert [n["value"] for n in claim.details["numbers"].values()] == list(values)
    assert claim.estimate in values


def test_responses_with_a_gradient_are_judged_by_their_own_acceptance():
    """All responses say the contrary, and so do those with A != 0 by whether S is in the band."""
    of_update = {"measure": "update", "subset": "nonzero"}
    rows = [on(log, "rloo") | of_update | slope(-0.08) for log in LOGS]
    against = [on(log, "rloo") | other | slope(0.08) for log in LOGS for other in ({}, {"subset": "nonzero"})]
    claims = judged(trend=[*rows, *against])
    assert claims["85-update-rloo-falls"].verdict == "supported"
    assert claims["85-rloo-falls"].verdict == "refuted"
    ends = {"l2_squared": (0.01, 0.03), "inf": (0.02, 0.2), "l2": (0.01, 0.2)}
    fspo, gspo = (
        [on(log, rule) | of_update | interval(ends[norm][i], 0.002) | {"norm": norm} for log in LOGS for norm in ends]
        for i, rule in enumerate(("fspo", "gspo"))
    )
    claims = judged(trend=rows, lre=[*fspo, *gspo])
    assert claims["85-update-lre-gspo"].verdict == claims["85-update-fspo-bins"].verdict == "supported"
    assert claims["85-lre-gspo"].verdict == claims["85-fspo-bins"].verdict == "inconclusive"
    assert claims["C1u"].verdict == claims["C2u"].verdict == "inconclusive"  # other atoms have no number


def test_a_log_without_its_row_or_number_leaves_no_support():
    rows = [on(log, "rloo") | slope(-0.08) for log in LOGS]
    assert verdict("85-rloo-falls", trend=rows) == "supported"
    assert verdict("85-rloo-falls", trend=rows[1:], lre=[own("rloo")]) == "inconclusive"
    blank = [*rows[1:], on(LOGS[0], "rloo") | slope(NAN, NAN)]
    claim = judged(trend=blank)["85-rloo-falls"]
    assert claim.verdict == "inconclusive"
    assert np.isnan(claim.estimate)
    assert verdict("85-rloo-falls", trend=[*rows, rows[0]]) == "inconclusive"  # two logs of one name


@pytest.mark.parametrize(
    ("fspo", "gspo", "found"),
    [
        (-0.01, -0.04, "supported"),
        (-0.045, -0.007, "refuted"),
        (-0.045, 0.007, "refuted"),
        (0.01, -0.012, "inconclusive"),
    ],
)
def test_sizes_of_trends_are_compared_on_one_log(fspo, gspo, found):
    rows = [on(log, rule) | slope(x) for log in LOGS for rule, x in (("fspo", fspo), ("gspo", gspo))]
    claim = judged(trend=rows)["85-trend-gspo"]
    assert claim.verdict == found
    assert claim.estimate == pytest.approx(abs(gspo) - abs(fspo))


def test_lre_of_every_log():
    def rows(fspo, rloo, worst):
        some = [on(log, "fspo") | interval(fspo, 0.002) | {"norm": "l2_squared"} for log in LOGS]
        some += [on(log, "rloo") | interval(rloo, 0.003) | {"norm": "l2_squared"} for log in LOGS]
        some += [on(log, "fspo") | interval(x, 0.01) | {"norm": "inf"} for log, x in zip(LOGS, worst, strict=True)]
        return some + [on(log, "fspo") | interval(0.02, 0.01) | {"norm": "l2"} for log in LOGS]

    found = judged(lre=rows(0.01, 0.03, (0.02, 0.03, 0.02)))
    assert found["85-lre-rloo"].verdict == found["85-fspo-bins"].verdict == "supported"
    assert found["85-lre-rloo"].ci_low == pytest.approx(0.02 - 0.005)  # widths are added
    found = judged(lre=rows(0.01, 0.014, (0.02, 0.045, 0.02)))
    assert found["85-lre-rloo"].verdict == found["85-fspo-bins"].verdict == "inconclusive"
    found = judged(lre=rows(0.02, 0.01, (0.02, 0.08, 0.02)))
    assert found["85-lre-rloo"].verdict == found["85-fspo-bins"].verdict == "refuted"


def test_a_hump_without_a_trend_is_not_fair():
    """Accepted more often at middle lengths, drawn and estimated as on a log: the trend alone would call it flat."""
    rng = np.random.default_rng(3)
    place = rng.uniform(-1, 1, 40_000)
    cluster, length, bins = np.arange(40_000) // 8, 2 ** (6 + 2 * place), np.floor((place + 1) * 3).astype(int)
    accept = rng.random(40_000) < 0.85 + 0.1 * (1 - 3 * place**2)
    fit = cluster_slope(accept, np.log2(length), cluster)
    trend = {"slope": fit.slope, "se": fit.se, "clusters": fit.clusters}
    bent, flat = (
        [e.__dict__ for e in lre_estimates(ratios(x, cluster, bins, 6, binary=True))]
        for x in (accept, rng.random(40_000) < 0.85)
    )
    for curve, found in ((bent, "refuted"), (flat, "supported")):
        rows = [on("fspo-11", "fspo") | e for e in curve]
        claims = judged(trend=[on("fspo-11", "fspo") | trend], lre=rows)
        assert claims["85-fspo-flat"].verdict == "supported"
        assert claims["85-fspo-bins"].verdict == found


def test_the_p_value_of_a_trend_is_students_with_a_degree_less_than_clusters():
    """Five clusters: P(t > 3) is .01997 with 4 degrees of freedom, and .01505 with 5."""
    rows = [on("rloo-11", "rloo") | slope(-0.03, 0.01, clusters=5)]
    claim = judged(trend=rows)["85-rloo-falls"]
    assert claim.p_for == pytest.approx(sps.t.sf(3, 4), rel=1e-6)


def test_on_a_log_the_sqrt_band_is_flat_and_a_wider_one_called_fspo_is_not(simulate):
    """The control: the same code must refuse the atoms for a band that grows like L^.75."""
    run = load_run(simulate("none-11", rule=Rule("none"), rollouts=20, width=0, sigma=0.015))
    wider = Case(preset("fspo", shape="power", gamma=0.75).rule, "power", "matched", 0.85)
    cases = [*make_cases([*RIVALS, "fspo-kl"], (0.85,)), wider]
    made = tables_of(run, look_through(run, make_bins(run.rows.length, 6), cases, 5)[0])
    found = {"trend": records(TrendRow, made.trend), "lre": records(LreRow, made.lre)}

    def claims(called_fspo):
        renamed = {called_fspo: "fspo"}
        return judged(
            **{n: [r | {"rule": renamed.get(r["rule"], r["rule"])} for r in rows] for n, rows in found.items()}
        )

    fair, unfair = claims("fspo-kl"), claims("power")
    for name in ("85-fspo-flat", "85-rloo-falls", "85-gspo-rises", "85-trend-rloo", "85-trend-gspo", "85-lre-rloo"):
        assert fair[name].verdict == "supported", name
    assert unfair["85-fspo-flat"].verdict == "refuted"
    assert fair["85-gspo-falls"].verdict == "refuted"


SEEDS = (11, 12, 13, 14, 15)
RUNS = [(rule, seed) for rule in COMPARED for seed in SEEDS]


def test_trends_of_own_runs_are_means_over_seeds_paired_and_as_published():
    values = {"rloo": -0.08, "gspo": 0.04, "fspo": -0.045}
    rows = [own(r, s) | slope(values[r] + (0.001 if r == "fspo" else 0.002) * (s - 13)) for r, s in RUNS]
    found = judged(trend=rows)
    assert found["own-rloo-falls"].verdict == found["own-gspo-rises"].verdict == "supported"
    assert found["own-fspo-flat"].verdict == "refuted"
    assert found["own-trend-rloo"].verdict == "supported"
    assert found["own-trend-rloo"].estimate == pytest.approx(0.035)
    # the difference is .035 + .001 (s - 13): error .001 * sqrt(2.5 / 5), Student's t of 4 degrees at .0125 is 3.4954
    assert found["own-trend-rloo"].ci_low == pytest.approx(0.035 - 3.4954e-3 * np.sqrt(0.5), abs=1e-7)
    assert found["own-trend-gspo"].verdict == "inconclusive"
    claims = evaluate_claims(tables(trend=rows), unlike="one learns faster")
    assert next(c for c in claims if c.id == "own-rloo-falls").details["numbers"]["mean over seeds"]["reason"]
    assert {c.verdict for c in claims} == {"inconclusive"}
    lost = [r for r in rows if r["run"] != "rloo-13"]
    assert verdict("own-rloo-falls", trend=lost) == "inconclusive"
    few = [r for r in rows if r["seed"] < 13]
    assert verdict("own-rloo-falls", trend=few) == "inconclusive"


def cosine(log, rule, outside, target, **columns):
    row = on(log, rule, target) | {"outside": outside, "bin": -1, "subset": "nonzero"}
    for name, (value, half) in columns.items():
        row |= {name: value, f"{name}_ci_low": value - half, f"{name}_ci_high": value + half}
    return row


@pytest.mark.parametrize(
    ("last", "found"), [(-0.04, "supported"), (0.04, "refuted"), (-0.005, "inconclusive"), (NAN, "inconclusive")]
)
def test_the_cosine_s_lead_is_judged_in_every_log(last, found):
    """fspo is ahead in two logs by .2: their mean hides the third."""
    rows = [
        cosine(log, "rloo", "drop", 0.95, diff_fspo=(x, 0.01), diff_fspo_worst=(-0.2, 0.01))
        for log, x in zip(LOGS, (-0.2, -0.2, last), strict=True)
    ]
    claims = judged(cosine=rows)
    assert claims["95-cosine-rloo"].verdict == found
    assert claims["95-worst-rloo"].verdict == "supported"
    assert claims["C3"].verdict == ("refuted" if found == "refuted" else "inconclusive")  # gspo has no rows


@pytest.mark.parametrize(
    ("others", "found"),
    [
        (((0.2, 0.01), (0.2, 0.01)), "inconclusive"),  # fspo is ahead on all other logs
        (((0.0, 0.0), (0.0, 0.0)), "inconclusive"),  # the rules cut alike on every log
        (((-0.2, 0.01), (0.2, 0.01)), "refuted"),  # by the log on which fspo is behind
    ],
)
def test_where_two_rules_cut_alike_a_lead_is_neither_supported_nor_refuted(others, found):
    """Two rules that cut the same responses of a log have one and the same cosine: a lead of exactly 0 in an interval
    of width 0. "fspo's cosine is higher" is not supported by it, as 0 is not above 0; nor is it refuted, as a lead that
    is not below 0 is no sign against it."""
    leads = [(0.0, 0.0), *others]
    rows = [
        cosine(log, "rloo", "drop", 0.95, diff_fspo=(-lead, half))
        for log, (lead, half) in zip(LOGS, leads, strict=True)
    ]
    claim = judged(cosine=rows)["95-cosine-rloo"]
    assert claim.verdict == found
    alike = claim.details["numbers"][LOGS[0]]
    assert (alike["value"], alike["low"], alike["high"], alike["reason"]) == (0, 0, 0, "")
    assert (alike["p for"], alike["p against"]) == (1, 1)


def test_rules_that_cut_alike_have_leads_of_0_in_trend_and_lre_with_both_rules_errors():
    """Their errors are added, so these leads do not have an interval of width 0."""
    both = ("fspo", "gspo")
    trends = [on(log, rule) | slope(0.02) for log in LOGS for rule in both]
    lres = [on(log, rule) | interval(0.02, 0.003) | {"norm": "l2_squared"} for log in LOGS for rule in both]
    claims = judged(trend=trends, lre=lres)
    for name in ("85-trend-gspo", "85-lre-gspo"):
        assert (claims[name].verdict, claims[name].estimate) == ("inconclusive", 0)
        assert claims[name].ci_low < 0 < claims[name].ci_high


@pytest.mark.parametrize(("last", "found"), [(0.05, "supported"), (-0.05, "refuted"), (0.005, "inconclusive")])
def test_the_gain_of_the_edge_is_judged_in_every_log(last, found):
    rows = [
        cosine(log, "fspo", outside, target, diff_drop=(last if (log, outside) == (LOGS[2], "cap") else 0.1, 0.01))
        for log in LOGS
        for outside in ("truncate", "cap")
        for target in (0.95, 0.85)
    ]
    claims = judged(cosine=rows)
    assert claims["C6"].verdict == claims["85-cap"].verdict == found
    assert claims["85-truncate"].verdict == "supported"


def law(value=0.0, distance=0.01, drift=0.0, half=0.01, run="fspo-11", k3=1e-4):
    key = {"run": run, "trained_rule": "fspo", "seed": 11, "subset": "all", "use": "first"}
    scaling = {**key, "sign": "all", "slope_2H": 1 + value, "ci_low": 0.95 + value, "ci_high": 1.05 + value}
    moments = {**key, "bin": 0, "count": 100, "bin_mean": 100.0, "var_S": 0.04, "k3_per_token": 1e-4}
    moments |= {"mean_S": -0.01 + drift * 0.2}
    moments |= {"mean_S_ci_low": moments["mean_S"] - 0.002, "mean_S_ci_high": moments["mean_S"] + 0.002}
    moments |= {"ks_distance": distance, "ks_ci_low": distance - half, "ks_ci_high": distance + half}
    moments["k3_per_token"] = k3
    return {"scaling": [scaling], "moments": [moments, moments | {"bin": -1, "k3_per_token": 1e-4}]}


@pytest.mark.parametrize(
    ("changes", "atom", "found"),
    [
        ({}, "", "supported"),
        ({"value": 0.4}, "log-variance", "refuted"),
        ({"value": 0.08}, "log-variance", "inconclusive"),
        ({"distance": 0.2}, "log-normal", "refuted"),
        ({"distance": 0.045}, "log-normal", "inconclusive"),
        ({"drift": 0.5}, "log-drift", "refuted"),
        ({"drift": -0.5}, "log-drift", "refuted"),
        ({"drift": -0.5, "k3": 1.1e-3}, "log-drift", "refuted"),  # a k3 of the bin's own would make up for it
    ],
)
def test_the_gaussian_model(changes, atom, found):
    claims = judged(**law(**changes))
    assert claims["C4"].verdict == found
    for name in ("log-variance", "log-normal", "log-drift"):
        assert claims[name].verdict == (found if name == atom else "supported")


def test_the_law_of_responses_with_a_gradient_is_judged_by_their_rows():
    every, moved = law(value=0.4, distance=0.2), law()
    rows = {name: every[name] + [row | {"subset": "nonzero"} for row in moved[name]] for name in every}
    claims = judged(**rows)
    assert (claims["C4"].verdict, claims["C4u"].verdict) == ("refuted", "supported")
    rows = {name: moved[name] + [row | {"subset": "nonzero"} for row in every[name]] for name in every}
    claims = judged(**rows)
    assert (claims["C4"].verdict, claims["C4u"].verdict) == ("supported", "refuted")


def test_the_gaussian_model_says_nothing_of_bins_or_logs_that_it_did_not_see():
    """Half of the rows in a bin of too few prompts: the other bin alone does not support "in every bin"."""
    one = law()
    blank = dict.fromkeys(("var_S", "mean_S", "mean_S_ci_low", "mean_S_ci_high", "ks_distance", "ks_ci_low"), NAN)
    for count, found in ((100, "inconclusive"), (5, "supported")):
        unseen = one["moments"][0] | blank | {"bin": 1, "ks_ci_high": NAN, "count": count}
        assert verdict("C4", scaling=one["scaling"], moments=[*one["moments"], unseen]) == found
    constant = one["moments"][0] | blank | {"bin": 1, "ks_ci_high": NAN, "var_S": 0.0, "count": 100}
    assert verdict("log-normal", scaling=one["scaling"], moments=[*one["moments"], constant]) == "inconclusive"
    other = law(run="rloo-11")
    both = {"scaling": one["scaling"] + other["scaling"], "moments": one["moments"]}
    assert verdict("log-normal", **both) == "inconclusive"


def test_rows_of_responses_that_were_trained_on_decide_nothing():
    """Every log has such rows too, and they say the contrary."""

    def both(rows, **contrary):
        return [found for row in rows for found in (row, row | {"use": "reused"} | contrary)]

    trend = both([on(log, "rloo") | slope(-0.08) for log in LOGS], **slope(0.08))
    trend += both([on(log, "fspo-adaptive") | slope(0.0) for log in LOGS], **slope(0.5))
    lead = [cosine(log, "rloo", "drop", 0.95, diff_fspo=(-0.2, 0.01)) for log in LOGS]
    against = {"diff_fspo": 0.2, "diff_fspo_ci_low": 0.19, "diff_fspo_ci_high": 0.21}
    claims = judged(trend=trend, cosine=both(lead, **against))
    for name in ("85-rloo-falls", "85-fspo-adaptive-flat", "95-cosine-rloo"):
        assert claims[name].verdict == "supported", name
    found = law()
    bent = {"ks_distance": 0.5, "ks_ci_low": 0.4, "ks_ci_high": 0.6}
    assert (
        verdict("C4", scaling=both(found["scaling"], slope_2H=3), moments=both(found["moments"], **bent)) == "supported"
    )


def runs(seeds=SEEDS, fspo=0.8, fall=0.0):
    rows = []
    for seed in seeds:
        shift = 0.001 * (seed - seeds[0])
        rows += training("fspo", seed, fspo + shift, fall + shift)
        rows += training("rloo", seed, 0.8 - shift) + training("gspo", seed, 0.8 + 2 * shift)
    return rows


@pytest.mark.parametrize(
    ("seeds", "fspo", "fall", "found"),
    [
        (SEEDS, 0.8, 0.0, "supported"),
        (SEEDS[:2], 0.8, 0.0, "inconclusive"),
        (SEEDS, 0.7, 0.0, "refuted"),
        (SEEDS, 0.8, 0.2, "refuted"),
    ],
)
def test_training_is_paired_by_seed(seeds, fspo, fall, found):
    assert verdict("C5", training=runs(seeds, fspo, fall)) == found


@pytest.mark.parametrize(
    ("reward", "lre", "found"), [(0.8, 0.001, "supported"), (0.7, 0.001, "refuted"), (0.8, 0.02, "refuted")]
)
def test_learnt_bands_are_compared_with_fspo_in_their_own_runs(reward, lre, found):
    rows, lres = runs(), []
    for seed in SEEDS:
        shift = 0.0001 * (seed - 13)
        lres.append(own("fspo", seed) | interval(0.01 + shift, NAN) | {"norm": "l2_squared"})
        rows += training("fspo-adaptive", seed, reward + 2 * shift)
        lres.append(own("fspo-adaptive", seed) | interval(lre - shift, NAN) | {"norm": "l2_squared"})
    claims = judged(training=rows, lre=lres)
    assert claims["C9"].verdict == found
    assert claims["own-fspo-adaptive-lre"].estimate == pytest.approx(0.01 - lre)
    assert claims["own-fspo-adaptive-reward"].estimate == pytest.approx(reward - 0.8 - 0.002, abs=1e-9)
    short = [row for row in rows if row["run"] != "fspo-adaptive-13"]
    short += training("fspo-adaptive", 13, 0.8, rollouts=2)
    claims = judged(training=short, lre=lres)
    assert claims["own-fspo-adaptive-reward"].verdict == claims["own-fspo-adaptive-fall"].verdict == "inconclusive"


def test_a_run_that_stopped_itself_is_not_forgotten():
    """One of fspo's five runs collapses and stops: its missing rewards once left four good pairs."""
    rows = [row for row in runs() if row["run"] != "fspo-13"]
    stopped = rows + training("fspo", 13, 0.1, rollouts=2)
    claims = judged(training=stopped)
    assert claims["own-reward-rloo"].verdict == "inconclusive"
    assert claims["own-ends"].verdict == claims["C5"].verdict == "refuted"
    assert claims["own-ends"].estimate == 3
    gone = judged(training=rows)  # without any line
    assert gone["own-reward-rloo"].verdict == gone["own-ends"].verdict == gone["C5"].verdict == "inconclusive"
    short = [row for row in runs() if row["run"] != "rloo-13"] + training("rloo", 13, 0.1, rollouts=2)
    claims = judged(training=short)
    assert (claims["own-ends"].verdict, claims["own-reward-rloo"].verdict) == ("supported", "inconclusive")
    assert (claims["own-ends-rloo"].verdict, claims["own-ends-rloo"].estimate) == ("refuted", 3)


def test_a_run_with_another_range_or_setting_says_nothing_about_the_rule_as_published():
    claims = evaluate_claims(tables(training=runs()), unlike="one learns faster")
    assert {c.verdict for c in claims if c.id in ("own-ends", "own-ends-rloo", "C5")} == {"inconclusive"}


def test_a_headline_is_made_of_its_atoms_alone():
    ids = [atom.id for atom in ATOMS]
    assert len(set(ids)) == len(ids)
    assert {name for headline in HEADLINES for name in headline.atoms} <= set(ids)
    rows = [on(log, r) | slope(x) for log in LOGS for r, x in (("rloo", -0.08), ("gspo", 0.03), ("fspo", 0.001))]
    rows += [row | {"target": 0.95} for row in rows]
    ends = {"inf": interval(0.02, 0.01), "l2": interval(0.01, 0.01)}
    bins = [on(log, "fspo", t) | e | {"norm": n} for log in LOGS for t in (0.85, 0.95) for n, e in ends.items()]
    claim = judged(trend=rows, lre=bins)["C1"]
    assert claim.verdict == "supported"
    assert set(claim.details["atoms"]) == set(HEADLINES[0].atoms)
    turned = [row | slope(-0.004) if row["rule"] == "gspo" and row["target"] == 0.95 else row for row in rows]
    claims = judged(trend=turned, lre=bins)  # p = .023 in each of three logs: not enough for one of eight atoms
    assert (claims["95-gspo-rises"].verdict, claims["C1"].verdict) == ("inconclusive", "inconclusive")
    turned = [row | slope(-0.02) if row["rule"] == "gspo" and row["target"] == 0.95 else row for row in rows]
    claim = judged(trend=turned, lre=bins)["C1"]
    assert (claim.verdict, claim.estimate) == ("refuted", -0.02)
    assert "95-gspo-rises" in claim.estimand


def test_claims_on_seeds_of_development_are_exploratory():
    rows = [on(f"rloo-{seed}", "rloo") | slope(-0.08) for seed in (41, DEVELOPMENT_SEEDS[0])]
    assert judged(trend=rows[:1])["85-rloo-falls"].status == "confirmatory"
    assert judged(trend=rows)["85-rloo-falls"].status == "exploratory"
    assert judged(trend=[rows[0] | {"seed": NAN}])["85-rloo-falls"].status == "exploratory"
    found = {claim.id: claim for claim in evaluate_claims(tables(trend=rows[:1]), chosen=True)}
    assert found["85-rloo-falls"].status == "exploratory"


def test_nothing_to_go_on_is_inconclusive_everywhere(tmp_path):
    claims = evaluate_claims(tables())
    assert [c.id for c in claims] == [*(h.id for h in HEADLINES), *(a.id for a in ATOMS)]
    assert {c.verdict for c in claims} == {"inconclusive"}
    assert next(c.id for c in evaluate_claims(tables(), "engine")) == MASK_HEADLINES[0].id
    path = tmp_path / "out" / "claims.json"
    write_claims(path, claims, tables(trend=[own("fspo", 12), own("rloo", 11)]))
    found = json.loads(path.read_text())
    assert (found["catalogue"], found["commit"], found["seeds"]) == (digest_of_catalogue(), commit(), [11, 12])
    assert found["claims"][0]["estimate"] is None


def test_an_estimand_says_by_which_numbers_it_is_judged():
    estimand = {atom.id: atom.estimand for atom in ATOMS}
    assert estimand["85-fspo-flat"].endswith("; every log, bands that keep 85%")
    assert estimand["95-cosine-rloo"].endswith("; every log, bands that keep 95% of A != 0")
    own = "; each rule's own run as published"
    assert estimand["own-fspo-flat"].endswith(f"{own}, mean over seeds (at least 3)")
    assert estimand["own-fspo-bins"].endswith(own)  # one number for each run
    assert estimand["log-normal"].endswith("; every log")


def test_the_digest_is_of_the_frozen_catalogue():
    """The day an estimand, margin or headline changes, freeze it anew before any run is judged, and say so."""
    assert digest_of_catalogue() == "e14010fba8715182"
    assert (Options.bins, Options.edges, Options.window) == (6, None, 5)


def test_published_verdicts_of_another_catalogue_make_their_seeds_seeds_of_development():
    """A margin that is changed after results were published is judged on seeds that nobody has seen."""
    published = [json.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "results").rglob("claims.json")]
    assert published
    for said in published:
        assert said["catalogue"] == digest_of_catalogue() or set(said["seeds"]) <= set(DEVELOPMENT_SEEDS)
