"""The assumption report: verdicts by hand, and logs in which one assumption is broken on purpose."""

import math

import numpy as np
import pytest
from scipy import special
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.tables.assumptions import AssumptionRow, assumption_table, eta_of, judge, law_distances
from analysis.tables.lemma import LemmaRow
from analysis.tables.moments import GRID
from fspo.rules import Rule, preset
from fspo.stats.bins import Bins, make_bins
from tests.analysis.rows import made, records

KL = preset("fspo-kl").rule


def test_verdicts_by_hand():
    assert judge((0.5, 0.46, 0.54), 0.45, 0.55, 100) == ("holds", 0.0)
    assert judge((0.7, 0.6, 0.8), 0.45, 0.55, 100) == ("fails", 0.0)
    # half-width 0.1 must shrink to 0.05: a factor of 4 in rows, so 300 more
    verdict, missing = judge((0.5, 0.4, 0.6), 0.45, 0.55, 100)
    assert verdict == "too little data"
    assert missing == pytest.approx(300, abs=1)
    # outside at 0.65, must shrink from 0.2 to 0.1 to fail
    assert judge((0.65, 0.45, 0.85), 0.45, 0.55, 100)[1] == pytest.approx(300, abs=1)
    assert judge((0.02, 0.0, 0.08), -math.inf, 0.05, 100)[1] == pytest.approx(300, abs=1)
    verdict, missing = judge((0.55, 0.5, 0.6), 0.45, 0.55, 100)
    assert verdict == "too little data"
    assert math.isnan(missing)  # on the edge no number decides
    assert judge((math.nan,) * 3, 0, 1, 5)[0] == "too little data"


def report(path, **changes):
    run = load_run(path)
    rows = run.rows.__class__(**(run.rows.__dict__ | {k: f(run.rows) for k, f in changes.items()}))
    run = run.__class__(**(run.__dict__ | {"rows": rows}))
    table = assumption_table(run, make_bins(rows.length, 4), 5, [])
    return {(row["subset"], row["name"]): row for row in records(AssumptionRow, table)}


def test_a_log_made_to_the_model_breaks_nothing(simulate):
    found = report(simulate(rule=KL, rollouts=16, width=0))
    assert found["all", "exponent H"]["verdict"] == "holds"
    assert found["all", "drift by sign of A"]["verdict"] == "holds"
    assert found["all", "token dependence"]["verdict"] == "holds"
    assert found["all", "mean weight"]["verdict"] == "holds"
    assert not [row["name"] for row in found.values() if row["verdict"] == "fails"]
    assert all(row["sentence"].split(":")[0] in ("Holds", "Fails", "Too little data") for row in found.values())
    assert {s for s, _ in found} == {"all", "nonzero"}


BROKEN = {
    "exponent H": {"S": lambda r: r.S * (r.length / 64) ** 0.3},
    "drift against -KL": {"S": lambda r: r.S - 0.04 * np.sqrt(r.length)},
    "drift by sign of A": {"S": lambda r: r.S + np.sign(r.A) * 0.01 * np.sqrt(r.length)},
    "symmetry": {"S": lambda r: 0.03 * np.sqrt(r.length) * (np.random.default_rng(0).exponential(size=len(r.S)) - 1)},
    "normality": {"S": lambda r: 0.03 * np.sqrt(r.length) * np.random.default_rng(0).standard_t(3, len(r.S))},
    "one law": {
        "S": lambda r: (
            0.03
            * np.sqrt(r.length)
            * np.where(
                r.length > 64, np.random.default_rng(0).choice([-1.0, 1.0], len(r.S)), r.S / r.S.std() * 64 / r.length
            )
        )
    },
    "token dependence": {"k3_sum": lambda r: r.k3_sum / 2},
    "mean weight": {"S": lambda r: r.S + 0.2},
    "weight by length": {"S": lambda r: r.S + 0.3 * (r.length > 100)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_on_purpose_fails(fspo_run, name):
    found = report(fspo_run, **BROKEN[name])
    assert found["all", name]["verdict"] == "fails", found["all", name]["sentence"]


@pytest.mark.parametrize(("rule", "verdict"), [(Rule("sqrt", 0.03, 0.03, name="fspo"), "fails"), (KL, "holds")])
def test_the_law_of_s_is_measured_from_the_centre_of_the_band(simulate, rule, verdict):
    """S given L is N(-.002 L, .03^2 L): a band around 0 accepts long responses less, one around -.002 L does not."""
    normal = np.random.default_rng(0).normal

    def law(rows):
        return 0.03 * np.sqrt(rows.length) * normal(size=len(rows)) - 0.002 * rows.length

    run = load_run(simulate(rule=rule, rollouts=20, prompts=256, epochs=1, width=0))
    changes = {"S": law(run.rows), "drift": np.full(len(run.rows), -0.002)}
    rows = run.rows.__class__(**(run.rows.__dict__ | changes))
    run = run.__class__(**(run.__dict__ | {"rows": rows}))
    table = records(AssumptionRow, assumption_table(run, make_bins(rows.length, 4), 5, []))
    found = {row["name"]: row["verdict"] for row in table if row["subset"] == "all"}
    assert (found["one law"], found["symmetry"], found["normality"]) == (verdict, verdict, "holds")


def test_the_drift_is_compared_with_one_k(simulate):
    """KL per token rises with the length, and E[S|L] is minus its sum, as T9 says: no band with one k is centred."""
    run = load_run(simulate(rule=KL, rollouts=16, width=0))
    each = 0.002 * (run.rows.length > 60)
    S = run.rows.S - run.rows.S.mean() - each * run.rows.length
    k3 = np.full(len(S), float(np.sum(each * run.rows.length) / run.rows.length.sum()))
    rows = run.rows.__class__(**(run.rows.__dict__ | {"S": S, "k3": k3, "k3_sum": each * run.rows.length}))
    run = run.__class__(**(run.__dict__ | {"rows": rows}))
    table = records(AssumptionRow, assumption_table(run, make_bins(rows.length, 4), 5, []))
    found = {row["name"]: row["verdict"] for row in table if row["subset"] == "all"}
    assert found["drift against -KL"] == "fails"


def test_distances_of_a_known_law():
    rng = np.random.default_rng(0)
    z = rng.exponential(size=60_000) - 1
    found = law_distances(z, z, np.zeros(len(z), int), np.arange(len(z)) // 8, 1)
    exact = sps.expon.cdf(GRID + 1)
    assert found["normality"][0] == pytest.approx(np.max(np.abs(exact - special.ndtr(GRID))), abs=0.01)
    assert found["symmetry"][0] == pytest.approx(np.max(np.abs(exact - sps.expon.sf(1 - GRID))), abs=0.01)
    assert math.isnan(found["one law"][0])  # one bin says nothing of other lengths
    found = law_distances(z, z, np.arange(len(z)) % 2, np.arange(len(z)) // 8, 2)
    assert found["one law"][0] == pytest.approx(0, abs=0.01)


def eta(rows):
    return eta_of([made(LemmaRow, row) for row in rows])


def test_eta_over_units_by_hand():
    update = {"use": "first", "source": "trained", "weight": "sequence", "updates": 1, "window": 0}
    rows = [update | {"step": i, "eta": e} for i, e in enumerate((0.1, 0.2, 0.3, 0.4, 0.5))]
    rows.append(update | {"use": "reused", "step": 5, "eta": 9.0})
    (value, low, high), number = eta(rows)
    half = sps.t.ppf(0.975, 4) * np.std([0.1, 0.2, 0.3, 0.4, 0.5], ddof=1) / np.sqrt(5)
    assert (value, low, high, number) == pytest.approx((0.3, 0.3 - half, 0.3 + half, 5))
    assert math.isnan(eta(rows[:3])[0][0])
    # a window of these updates, and other rules on them, say nothing more
    again = [*rows, update | {"updates": 5, "step": -1, "eta": 7.0}]
    assert eta(again) == eta(rows)
    rules = [row | {"source": "matched", "rule": rule} for row in rows for rule in ("a", "b")]
    assert eta(rules) == eta(rows)


def test_no_verdict_without_information(simulate):
    """Nothing moved, or one length alone: an interval of no width would call the assumption true."""
    still = report(simulate("still"), S=lambda r: np.zeros(len(r.S)), k3_sum=lambda r: np.zeros(len(r.S)))
    assert {row["verdict"] for row in still.values()} == {"too little data"}
    one = report(
        simulate("one", width=0), length=lambda r: np.full(len(r.S), 9.0), coordinate=lambda r: r.length * 0 + 9
    )
    assert one["all", "one law"]["verdict"] == "too little data"
    assert one["all", "exponent H"]["verdict"] == "too little data"


def test_every_bin_is_not_said_where_bins_are_unseen(simulate):
    """Half of the rows in bins of too few prompts: what the others show is not every length."""
    run = load_run(simulate(rollouts=1, prompts=16, width=0))
    rows = run.rows
    # one half in a bin of many prompts, the other half spread over bins of three prompts each
    length = np.where(rows.cluster % 2 == 0, 8.0, 20.0 + 10 * (rows.cluster // 6))
    changes = {"length": length, "coordinate": length, "S": rows.S / np.sqrt(rows.length) * np.sqrt(length)}
    run = run.__class__(**(run.__dict__ | {"rows": rows.__class__(**(rows.__dict__ | changes))}))
    bins = Bins((1, *sorted({int(x) for x in length})[1:], 101))
    found = {r["name"]: r for r in records(AssumptionRow, assumption_table(run, bins, 5, [])) if r["subset"] == "all"}
    for name in ("drift against -KL", "weight by length", "normality", "one law", "symmetry"):
        assert found[name]["verdict"] == "too little data", name
        assert math.isnan(found[name]["estimate"]), name
