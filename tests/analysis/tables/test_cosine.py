"""The table of cosines against brute force; its clusters and its random control."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.rules.evaluate import UNCORRECTED, Case, candidates, make_cases
from analysis.run import analyse, shared_bins
from analysis.scores.sketches import ScoredWindow, ScoredWindows
from analysis.tables.cosine import CosineRow, CosineTable
from analysis.tables.typed_rows import RunKey
from fspo.rules import Rule
from fspo.stats.bins import Bins
from tests.analysis.rows import held, records


def overall(run, bins, cases, windows=None, targets=()):
    """The rows of the table over all lengths, by rule."""
    table = CosineTable(RunKey.of(run), bins, cases, targets, 1, 0)
    for window in ScoredWindows(run, bins, 5) if windows is None else windows:
        table.add(window)
    return {row["rule"]: row for row in records(CosineRow, table.rows()) if row["bin"] == -1}


def test_prompts_split_over_two_updates_are_one_cluster_each(simulate):
    """Two updates that share their prompts and their values say no more than one of them does."""
    run = load_run(simulate(rollouts=1, prompts=64))
    bins = Bins((1, 400))
    (window,) = (w for w in ScoredWindows(run, bins, 5) if w.use == "first")
    assert window.updates == 1
    n = len(window.rows)

    def interval(updates, apart):
        rows = window.rows.take(np.tile(np.arange(n), updates))
        if apart:
            fresh = np.repeat(np.arange(updates), n) * 1000
            rows = replace(rows, prompt=rows.prompt + fresh, cluster=rows.cluster + fresh)
        vectors, at = held(np.tile(window.vectors[:], (updates, 1))), np.tile(window.bins, updates)
        of = ScoredWindow(0, "first", rows, vectors, at, np.repeat(np.arange(updates), n))
        row = overall(run, bins, [Case(Rule("sqrt", 0.03, 0.03), "x", "given")], [of])["x"]
        z = np.arctanh([row["estimate"], row["ci_low"], row["ci_high"]])
        clusters = len(np.unique(rows.cluster))
        return z[0], (z[2] - z[1]) / 2 / sps.t.ppf(0.975, clusters - updates)

    once, twice, independent = interval(1, False), interval(2, False), interval(2, True)
    assert once[0] == pytest.approx(twice[0])
    # the replicates of two updates are half the step of one: equal but for the curvature of the ratio
    assert twice[1] == pytest.approx(once[1], rel=0.01)
    assert independent[1] == pytest.approx(once[1] / np.sqrt(2), rel=0.01)


def test_the_trained_rule_is_its_own_counterfactual_and_a_control_drops_at_random(fspo_run):
    run, options = load_run(fspo_run), Options(bins=4, draws=16)
    table = analyse(run, shared_bins([run], options), options)[0]["cosine"]
    of_all = table[(table["bin"] == -1) & (table["rule"] != "random")]
    trained = of_all[of_all["source"] == "trained"].iloc[0]
    given = of_all[(of_all["rule"] == "fspo") & (of_all["source"] == "given") & (of_all["outside"] == "drop")]
    assert trained["estimate"] == pytest.approx(given["estimate"].iloc[0])
    assert (of_all["ci_low"] <= of_all["estimate"]).all()
    assert (of_all["worst_bin"] <= table[table["bin"] >= 0]["estimate"].max()).all()
    control = table.query("rule == 'random' and bin == -1 and source == 'matched'").set_index("target")["estimate"]
    assert control[0.85] < control[0.95] < 1


def test_nothing_cut_is_cosine_one_and_too_few_prompts_are_nan(simulate):
    bins, wide = Bins((1, 400)), [Case(Rule("fixed", 0.999999, 1e6), "wide", "given")]
    few = load_run(simulate(rollouts=1, prompts=16, group=4))
    row = overall(few, bins, wide, targets=[0.9])["wide"]
    assert row["reason"] == "fewer than 5 clusters"
    assert np.isnan(row["estimate"])
    more = load_run(simulate("more", rollouts=2))
    row = overall(few, bins, wide, [*ScoredWindows(few, bins, 5), *ScoredWindows(more, bins, 5)])["wide"]
    assert (row["estimate"], row["ci_low"]) == (pytest.approx(1.0), pytest.approx(1.0))


def test_one_prompt_keeps_all_that_is_kept(simulate):
    """Its cosine exists; its interval does not, for without that prompt nothing is left. The norm is not 0."""
    run = load_run(simulate("one_prompt", rollouts=2, rule=Rule("none")))
    window = next(w for w in ScoredWindows(run, Bins((1, 400)), 5) if w.use == "first")
    rows = window.rows
    kept = np.isin(rows.cluster, rows.cluster[0])  # every response of one prompt
    keeping = replace(rows, S=np.where(kept, 0.0, np.where(rows.A > 0, 1.0, -1.0)))
    window = replace(window, rows=keeping, _outcomes={})
    row = overall(run, Bins((1, 400)), [Case(Rule("fixed", 0.1, 0.1), "narrow", "given")], [window])["narrow"]
    g = c = cross = 0.0
    for update in range(window.updates):
        at = window.update == update
        full = window.vectors[at].T @ np.exp(keeping.S[at])
        clipped = window.vectors[at].T @ kept[at].astype(float)
        g, c, cross = g + full @ full, c + clipped @ clipped, cross + full @ clipped
    assert row["estimate"] == pytest.approx(cross / np.sqrt(g * c))
    assert np.isnan(row["ci_low"])
    assert np.isnan(row["ci_high"])
    assert row["reason"] == "no interval: without one of the prompts nothing of these responses is kept"


def test_cases_cover_bands_outsides_and_sources():
    """The bands of theory.md, at the presets' ranges and at two clip rates; fspo also truncates and caps."""
    cases = [(c.name, c.rule.outside, c.source) for c in make_cases()]
    assert len(set(cases)) == 1 + 2 * 4 + 2 * 3
    assert len(cases) == 1 + 3 * 4 + 3 * 3
    assert {name for name, _, _ in cases} == {"none", "rloo", "gspo", "fspo", "fspo-kl", "fspo-adaptive"}
    assert {outside for name, outside, _ in cases if name == "fspo"} == {"drop", "truncate", "cap"}
    assert {outside for name, outside, _ in cases if name != "fspo"} == {"drop"}


def test_the_true_update_of_a_mismatch_has_both_weights_and_no_correction_has_weight_1(simulate):
    path = simulate(rollouts=1, engine=0.2, sigma=0.05, rule=Rule("none"))
    run = load_run(path, on="engine")
    mis = Case(Rule("fixed", 2 / 3, 2.0, outside="mask", on="engine"), "mis", "given")
    geo = Case(Rule("linear", 0.05, 0.05, outside="mask", weight="none", on="engine"), "geo-mask", "given")
    uncut = Case(candidates("engine")[UNCORRECTED], UNCORRECTED, "given")
    found = {name: row["estimate"] for name, row in overall(run, Bins((2, 301)), [mis, geo, uncut]).items()}
    log = pd.read_parquet(path / "gradlog").query("score_status == 'ok' and advantage != 0")
    psi = np.stack(log["score_unit"].to_list()).astype(float) * log["score_norm"].to_numpy()[:, None]
    S, E, L = (log[c].to_numpy() for c in ("log_ratio", "engine_log_ratio", "length"))
    vectors = psi * (log["advantage"].to_numpy() * np.exp(S))[:, None]
    true = np.exp(E) @ vectors
    factors = {
        "none": np.ones(len(E)),
        "mis": np.exp(E) * (np.abs(E) <= np.log(3)),
        "geo-mask": (np.log1p(0.05) * L >= E) * (np.log1p(-0.05) * L <= E),
    }
    for name, factor in factors.items():
        used = factor @ vectors
        expected = used @ true / np.linalg.norm(used) / np.linalg.norm(true)
        assert found[name] == pytest.approx(expected, rel=1e-3), name
        assert found[name] < 0.999
