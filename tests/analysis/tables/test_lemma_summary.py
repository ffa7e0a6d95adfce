"""Means over updates with their intervals: by hand, by coverage, and what noise does to the plug-in values."""

import numpy as np
import pytest
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.run import analyse, shared_bins
from analysis.tables.lemma import LemmaRow
from analysis.tables.lemma_summary import NO_GUARANTEE, LemmaSummaryRow
from analysis.tables.lemma_summary import lemma_summary as summary_of
from fspo.theory import cosine_lemma
from tests.analysis.rows import made, records


def update(rollout, rho, **changes):
    held = rho < 1
    row = {"run": "r", "rule": "fspo", "outside": "drop", "source": "given", "target": float("nan"), "use": "first"}
    row |= {"window": rollout, "updates": 1, "kappa": 1.5, "kappa_c": 1.0, "eta": rho / 2, "rho": rho, "cosine": 0.9}
    return row | {"bound": np.sqrt(1 - rho**2) if held else np.nan, "guaranteed": held, "reason": ""} | changes


def lemma_summary(table):
    return records(LemmaSummaryRow, summary_of([made(LemmaRow, row) for row in table]))


def by_quantity(table):
    return {row["quantity"]: row for row in lemma_summary(table)}


def test_means_and_share_by_hand():
    rho = np.array([0.2, 0.4, 0.6, 0.8, 1.5, 2.0])
    found = by_quantity([update(i, r) for i, r in enumerate(rho)])
    half = sps.t.ppf(0.975, 5) * rho.std(ddof=1) / np.sqrt(6)
    row = found["rho"]
    assert [row[c] for c in ("estimate", "ci_low", "ci_high")] == pytest.approx(
        [rho.mean(), rho.mean() - half, rho.mean() + half]
    )
    assert (row["count"], row["updates"], row["rollouts"], row["reason"]) == (6, 6, 6, "")
    # 4 of 6 with the variance p(1-p)/5: Wilson's two ends are where |p - x| = t sqrt(x (1-x) / 5)
    p, t2 = 4 / 6, sps.t.ppf(0.975, 5) ** 2
    ends = np.roots([1 + t2 / 5, -(2 * p + t2 / 5), p**2])
    share = found["guaranteed"]
    assert [share["ci_low"], share["ci_high"]] == pytest.approx(sorted(ends))
    # the bound is averaged over the four updates that have one; four rollouts carry no interval
    bound = found["bound"]
    assert bound["estimate"] == pytest.approx(np.mean(np.sqrt(1 - rho[:4] ** 2)))
    assert (bound["count"], bound["updates"]) == (4, 6)
    assert np.isnan(bound["ci_low"])
    assert "fewer than 5 rollouts" in bound["reason"]


def test_no_interval_leaves_the_values_that_are_possible():
    found = by_quantity([update(i, 0.1, cosine=c) for i, c in enumerate((1.0, 1.0, 1.0, 1.0, 0.2))])
    assert found["cosine"]["ci_high"] == 1
    assert found["cosine"]["ci_low"] < 0.5


def test_no_update_with_a_guarantee_says_so_and_gives_no_number():
    found = by_quantity([update(i, 1.0 + i) for i in range(6)])
    assert found["bound"]["reason"] == NO_GUARANTEE
    assert np.isnan(found["bound"]["estimate"])
    assert found["guaranteed"]["estimate"] == found["guaranteed"]["ci_low"] == 0
    assert 0 < found["guaranteed"]["ci_high"] < 1


def test_an_update_of_which_nothing_is_accepted_has_no_guarantee():
    nan = float("nan")
    blank = dict.fromkeys(("kappa", "kappa_c", "eta", "rho", "bound", "cosine"), nan)
    rows = [update(i, 0.5) for i in range(5)] + [update(5, 2.0) | blank | {"reason": "nothing is accepted"}]
    found = by_quantity(rows)
    assert found["rho"]["count"] == 5
    assert found["guaranteed"]["estimate"] == pytest.approx(5 / 6)
    (lone,) = {row["reason"] for row in lemma_summary([rows[-1] | {"updates": nan, "step": -1}])}
    assert lone == "nothing is accepted"


def test_cases_and_uses_stay_apart_and_windows_are_left_out():
    rows = [update(i, 0.5) for i in range(5)] + [update(i, 0.7, use="reused") for i in range(5)]
    rows += [update(i, 0.9, target=0.9, source="matched") for i in range(5)] + [update(0, 0.1, updates=5)]
    found = {(r["source"], r["use"]): r["estimate"] for r in lemma_summary(rows) if r["quantity"] == "rho"}
    assert found == pytest.approx({("given", "first"): 0.5, ("given", "reused"): 0.7, ("matched", "first"): 0.9})


def test_updates_of_one_rollout_are_no_further_evidence():
    """Every rollout's update twice: the interval is that of the rollouts; taken as independent it would be shorter."""
    rho = np.random.default_rng(0).normal(0.5, 0.1, 8)
    once = by_quantity([update(i, r) for i, r in enumerate(rho)])["rho"]
    twice = by_quantity([update(i, r) for i, r in enumerate(rho) for _ in range(2)])["rho"]
    assert twice["count"] == 16
    assert [twice[c] for c in ("ci_low", "ci_high")] == pytest.approx([once[c] for c in ("ci_low", "ci_high")])


def test_the_interval_covers_with_rollouts_that_differ():
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(300):
        shift = rng.normal(0, 0.1, 8)
        rows = [update(i, 0.5 + shift[i] + rng.normal(0, 0.05)) for i in range(8) for _ in range(4)]
        row = by_quantity(rows)["rho"]
        covered.append(row["ci_low"] <= 0.5 <= row["ci_high"])
    # 300 draws: a standard error of 1.3 %; updates taken as independent would cover about 70 %
    assert 0.91 < np.mean(covered) < 0.99


def test_noise_raises_kappa_unless_the_bins_cancel():
    """What the docstring says of the plug-in values: bins of 25 responses with noise of 1 in each of 50 directions."""
    rng = np.random.default_rng(2)
    p, a, v, w = np.ones(4) / 4, np.ones(4), np.eye(50)[0], np.eye(50)[1]
    alike = np.tile(v, (4, 1))  # kappa = 1
    cancelling = 0.3 * alike + 3 * np.array([1, -1, 1, -1])[:, None] * w  # kappa = sqrt(0.09 + 9) / 0.3, about 10

    def kappa(g):
        noisy = [g + rng.normal(size=g.shape) / 5 for _ in range(100)]
        return np.mean([cosine_lemma(p, a, x, x).kappa for x in noisy])

    assert cosine_lemma(p, a, alike, alike).kappa == pytest.approx(1)
    assert kappa(alike) > 1.2
    assert cosine_lemma(p, a, cancelling, cancelling).kappa == pytest.approx(np.sqrt(9.09) / 0.3)
    assert kappa(cancelling) < 0.8 * np.sqrt(9.09) / 0.3


def test_a_run_has_the_table(fspo_run):
    run = load_run(fspo_run)
    options = Options(bins=3, draws=2, rules=("fspo",), targets=(0.9,))
    tables, _ = analyse(run, shared_bins([run], options), options)
    table, lemma = tables["lemma_summary"], tables["lemma"]
    own = lemma[(lemma["source"] == "trained") & (lemma["updates"] == 1) & (lemma["use"] == "first")]
    row = table[(table["source"] == "trained") & (table["quantity"] == "rho")].iloc[0]
    assert row["estimate"] == pytest.approx(own["rho"].mean())
    assert row["count"] == len(own) > 4
    assert row["ci_low"] < row["estimate"] < row["ci_high"]
