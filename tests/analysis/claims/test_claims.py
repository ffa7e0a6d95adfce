"""Each atom on made tables, and on logs: it can be supported, it can fail, and it knows when it cannot tell."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.claims.catalogue import ATOMS, DEVELOPMENT_SEEDS, HEADLINES, MASK_HEADLINES, digest_of_catalogue
from analysis.claims.judge import commit, evaluate_claims, write_claims
from analysis.options import Options
from fspo.rules import COMPARED
from fspo.stats.intervals import sample_interval
from tests.analysis.claims.made import NAN, interval, on, own, slope, tables, training

ROOT = Path(__file__).parents[3]


def judged(**found):
    return {c.id: c for c in evaluate_claims(tables(**found))}


def verdict(name, **found):
    return judged(**found)[name].verdict


UNITS = (41, 42, 43)
LOGS = tuple(f"{rule}-{seed}" for seed in UNITS for rule in ("rloo", "fspo"))


def by_log(*values):
    """A value for each log: of each seed, its value less and more .004."""
    return dict(zip(LOGS, (x + shift for x in values for shift in (-0.004, 0.004)), strict=True))


def trends(rule, *values, **columns):
    return [on(log, rule) | columns | slope(x) for log, x in by_log(*values).items()]


@pytest.mark.parametrize(
    ("name", "rule", "values", "found"),
    [
        ("85-rloo-falls", "rloo", (-0.08, -0.06, -0.05), "supported"),
        ("85-rloo-falls", "rloo", (-0.08, -0.05, 0.0), "inconclusive"),
        ("85-rloo-falls", "rloo", (0.08, 0.06, 0.05), "refuted"),
        ("85-gspo-rises", "gspo", (0.02, 0.021, 0.02), "supported"),
        ("85-gspo-falls", "gspo", (-0.02, -0.021, -0.02), "supported"),
        ("85-fspo-flat", "fspo", (0.002, -0.001, 0.0), "supported"),
        ("85-fspo-flat", "fspo", (0.009, -0.009, 0.009), "inconclusive"),
        ("85-fspo-flat", "fspo", (0.02, 0.021, 0.022), "refuted"),
        ("85-fspo-adaptive-flat", "fspo-adaptive", (0.002, -0.001, 0.0), "supported"),
    ],
)
def test_a_trend_is_judged_by_its_mean_over_seeds(name, rule, values, found):
    """The value of a seed is the mean over its logs, and seeds are the units: three, with Student's t of 2 degrees."""
    other = [on(log, rule, 0.95) | slope(0.5) for log in LOGS]  # the other target is another atom's
    claim = judged(trend=[*trends(rule, *values), *other])[name]
    assert claim.verdict == found
    mean, low, high = sample_interval(values)
    assert (claim.estimate, claim.ci_low, claim.ci_high) == pytest.approx((mean, low, high))


def test_responses_with_a_gradient_are_judged_by_their_own_acceptance():
    """All responses say the contrary, and so do those with A != 0 by whether S is in the band."""
    of_update = {"measure": "update", "subset": "nonzero"}
    rows = trends("rloo", -0.08, -0.07, -0.08, **of_update)
    against = [row for other in ({}, {"subset": "nonzero"}) for row in trends("rloo", 0.08, 0.07, 0.08, **other)]
    claims = judged(trend=[*rows, *against])
    assert claims["85-update-rloo-falls"].verdict == "supported"
    assert claims["85-rloo-falls"].verdict == "refuted"


def test_a_log_without_its_row_or_number_leaves_no_support():
    rows = trends("rloo", -0.08, -0.07, -0.08)
    assert verdict("85-rloo-falls", trend=rows) == "supported"
    assert verdict("85-rloo-falls", trend=rows[1:], lre=[on(LOGS[0], "rloo")]) == "inconclusive"
    blank = [*rows[1:], on(LOGS[0], "rloo") | slope(NAN, NAN)]
    claim = judged(trend=blank)["85-rloo-falls"]
    assert claim.verdict == "inconclusive"
    assert np.isnan(claim.estimate)
    assert "seed 41" in claim.details["numbers"]["mean over seeds"]["reason"]
    assert verdict("85-rloo-falls", trend=[*rows, rows[0]]) == "inconclusive"  # two logs of one name


@pytest.mark.parametrize(
    ("fspo", "gspo", "found"),
    [
        ((-0.01, -0.011, -0.01), (-0.04, -0.041, -0.04), "supported"),
        ((-0.045, -0.044, -0.045), (-0.007, -0.009, -0.006), "refuted"),
        ((-0.045, -0.044, -0.045), (0.007, 0.009, 0.006), "refuted"),
        ((0.01, 0.013, 0.008), (-0.012, -0.008, -0.011), "inconclusive"),
    ],
)
def test_sizes_of_trends_are_compared(fspo, gspo, found):
    claim = judged(trend=[*trends("fspo", *fspo), *trends("gspo", *gspo)])["85-trend-gspo"]
    assert claim.verdict == found
    assert claim.estimate == pytest.approx(abs(np.mean(gspo)) - abs(np.mean(fspo)))


def test_lre_by_seed():
    def rows(rule, norm, *values):
        return [on(log, rule) | interval(x, NAN) | {"norm": norm} for log, x in by_log(*values).items()]

    both = rows("fspo", "l2_squared", 0.01, 0.011, 0.01), rows("rloo", "l2_squared", 0.03, 0.031, 0.03)
    found = judged(lre=[*both[0], *both[1], *rows("fspo", "inf", 0.02, 0.021, 0.02)])
    assert found["85-lre-rloo"].verdict == found["85-fspo-bins"].verdict == "supported"
    assert found["85-lre-rloo"].estimate == pytest.approx(0.02)
    found = judged(lre=[*rows("rloo", "l2_squared", 0.01, 0.012, 0.011), *both[0]])
    assert found["85-lre-rloo"].verdict == found["85-fspo-bins"].verdict == "inconclusive"
    found = judged(lre=rows("fspo", "inf", 0.08, 0.081, 0.08))
    assert found["85-fspo-bins"].verdict == "refuted"


def cosines(rule, outside, target, column, *values):
    where = {"outside": outside, "bin": -1, "subset": "nonzero"}
    return [on(log, rule, target) | where | {column: x} for log, x in by_log(*values).items()]


@pytest.mark.parametrize(
    ("values", "found"),
    [((-0.2, -0.21, -0.2), "supported"), ((0.04, 0.05, 0.04), "refuted"), ((-0.2, -0.2, 0.04), "inconclusive")],
)
def test_the_cosine_s_lead_by_seed(values, found):
    lead = cosines("rloo", "drop", 0.95, "diff_fspo", *values)
    claims = judged(cosine=[row | {"diff_fspo_worst": -0.2 - 0.01 * i} for i, row in enumerate(lead)])
    assert claims["95-cosine-rloo"].verdict == found
    assert claims["95-worst-rloo"].verdict == "supported"
    assert claims["C3"].verdict == ("refuted" if found == "refuted" else "inconclusive")  # gspo has no rows


def test_the_gain_of_the_edge_by_seed():
    gains = {"truncate": (0.1, 0.11, 0.1), "cap": (-0.1, -0.11, -0.1)}
    rows = [row for way, x in gains.items() for t in (0.95, 0.85) for row in cosines("fspo", way, t, "diff_drop", *x)]
    claims = judged(cosine=rows)
    assert (claims["85-truncate"].verdict, claims["85-cap"].verdict) == ("supported", "refuted")
    assert claims["C6"].verdict == "refuted"


def law(value=0.0, distance=0.01, drift=0.0, k3=1e-4, **columns):
    scaling, moments = [], []
    for i, log in enumerate(LOGS):
        key = {"run": log, "trained_rule": log[:4], "seed": int(log[5:]), "subset": "all", "use": "first"} | columns
        wave = 0.001 * (i // 2)
        scaling.append({**key, "sign": "all", "slope_2H": 1 + value + wave})
        rows = {**key, "count": 100, "bin_mean": 100.0, "var_S": 0.04, "ks_distance": distance + wave}
        rows |= {"mean_S": -0.01 + (drift + wave) * 0.2}
        moments += [rows | {"bin": 0, "k3_per_token": k3}, rows | {"bin": -1, "k3_per_token": 1e-4}]
    return {"scaling": scaling, "moments": moments}


@pytest.mark.parametrize(
    ("changes", "atom", "found"),
    [
        ({}, "", "supported"),
        ({"value": 0.4}, "log-variance", "refuted"),
        ({"distance": 0.2}, "log-normal", "refuted"),
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


def test_the_law_of_responses_with_a_gradient_and_of_first_use_is_judged_by_their_rows():
    every, moved = law(value=0.4, distance=0.2), law(subset="nonzero")
    reused = law(value=0.4, distance=0.2, use="reused", subset="nonzero")
    claims = judged(**{name: every[name] + moved[name] + reused[name] for name in every})
    assert (claims["C4"].verdict, claims["C4u"].verdict) == ("refuted", "supported")


@pytest.mark.parametrize(("count", "found"), [(100, "inconclusive"), (5, "supported")])
def test_the_gaussian_model_says_nothing_of_bins_that_it_did_not_see(count, found):
    """Half of the rows in a bin of too few prompts: the other bin alone does not support "in every bin"."""
    one = law()
    blank = dict.fromkeys(("var_S", "mean_S", "ks_distance"), NAN) | {"bin": 1, "count": count}
    unseen = [row | blank for row in one["moments"] if row["bin"] == 0]
    assert verdict("C4", scaling=one["scaling"], moments=[*one["moments"], *unseen]) == found


def test_a_headline_is_made_of_its_atoms_alone():
    ids = [atom.id for atom in ATOMS]
    assert len(set(ids)) == len(ids)
    assert {name for headline in HEADLINES for name in headline.atoms} <= set(ids)
    values = {"rloo": (-0.08, -0.07, -0.08), "gspo": (0.03, 0.031, 0.03), "fspo": (0.001, 0.0, -0.001)}
    rows = [row | {"target": t} for t in (0.85, 0.95) for rule, x in values.items() for row in trends(rule, *x)]
    inf = by_log(0.02, 0.021, 0.02).items()
    bins = [on(log, "fspo", t) | interval(x, NAN) | {"norm": "inf"} for t in (0.85, 0.95) for log, x in inf]
    claim = judged(trend=rows, lre=bins)["C1"]
    assert claim.verdict == "supported"
    assert set(claim.details["atoms"]) == set(HEADLINES[0].atoms)
    fallen = [row | {"target": 0.95} for row in trends("gspo", -0.02, -0.021, -0.02)]
    others = [row for row in rows if not (row["rule"] == "gspo" and row["target"] == 0.95)]
    claim = judged(trend=[*others, *fallen], lre=bins)["C1"]
    assert (claim.verdict, claim.estimate) == ("refuted", pytest.approx(-0.0203, abs=1e-4))
    assert "95-gspo-rises" in claim.estimand


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
    seeds = ", mean over seeds (at least 3)"
    assert estimand["85-fspo-flat"].endswith(f"; every log, bands that keep 85%{seeds}")
    assert estimand["95-cosine-rloo"].endswith(f"; every log, bands that keep 95% of A != 0{seeds}")
    assert estimand["own-fspo-flat"].endswith(f"; each rule's own run as published{seeds}")
    assert estimand["own-ends"].endswith("; each rule's own run as published")  # one number for all runs
    assert estimand["log-normal"].endswith(f"; every log{seeds}")


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
