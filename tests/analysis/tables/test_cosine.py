"""Cosines against brute force: products, deleted clusters, the random control."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.rules.evaluate import UNCORRECTED, Case, candidates, make_cases
from analysis.run import analyse, shared_bins
from analysis.scores.products import CosineColumns, Products, UpdateGram, collapsed, jackknife_se
from analysis.scores.sketches import ScoredWindow, ScoredWindows
from analysis.tables.columns import RunKey
from analysis.tables.cosine import CosineRow, CosineTable
from fspo.rules import Rule
from fspo.stats.bins import Bins
from tests.analysis.rows import held, records


def data(seed=0, n=24, width=7, number=3):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, width))
    bins, cluster = rng.integers(0, number, n), np.repeat(np.arange(n // 4), 4)
    left, right = rng.random((n, 2)), rng.random((n, 1))
    return vectors, bins, cluster, left, right, number


def brute(vectors, bins, left, right, number):
    out = []
    for k in range(number + 1):
        at = (bins == k) if k < number else np.ones(len(bins), bool)
        out.append((vectors[at].T @ left[at]).T @ (vectors[at].T @ right[at]))
    return np.array(out)  # (K+1, R, 1)


def test_products_are_inner_products_of_the_sums():
    vectors, bins, cluster, left, right, number = data()
    total, without = UpdateGram(vectors @ vectors.T, bins, cluster, number).products(left, right)
    assert total == pytest.approx(brute(vectors, bins, left, right, number)[..., 0])
    for c in range(6):
        keep = cluster != c
        expected = brute(vectors[keep], bins[keep], left[keep], right[keep], number)[..., 0] * (6 / 5) ** 2
        assert without[c] == pytest.approx(expected)


def test_pooled_cosine_is_the_cosine_of_the_direct_sum():
    """Two updates in unrelated spaces: stack their vectors, never add them."""
    inner, left, right = Products(), Products(), Products()
    stacked = {"c": [], "g": []}
    for seed in (0, 1):
        vectors, bins, cluster, c, w, number = data(seed)
        gram = UpdateGram(vectors @ vectors.T, bins, cluster, number)
        inner.add(*gram.products(c, w))
        left.add(*gram.products(c, c))
        right.add(*gram.products(w, w))
        stacked["c"].append(vectors.T @ c[:, 0])
        stacked["g"].append(vectors.T @ w[:, 0])
    columns = CosineColumns.of(inner, left, right, np.repeat([0, 1], 6))
    u, v = np.concatenate(stacked["c"]), np.concatenate(stacked["g"])
    assert columns.value[number, 0] == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    assert columns.value[number + 1, 0] == pytest.approx(np.min(columns.value[:number, 0]))  # the worst bin
    assert columns.replicates.shape[0] == 12


def test_updates_of_one_cluster_are_not_without_error():
    """Twenty updates with one prompt each: a mean over them is as uncertain as over one update's twenty prompts."""
    x = np.random.default_rng(0).normal(size=20)
    replicates = (x.sum() - x) / 19
    assert jackknife_se(replicates, np.arange(20)) == pytest.approx(x.std(ddof=1) / np.sqrt(20))
    lone = np.append(np.zeros(19, int), 1)
    assert jackknife_se(replicates, lone) == pytest.approx(x.std(ddof=1) / np.sqrt(20))
    assert np.isnan(jackknife_se(replicates[:1], np.zeros(1, int)))
    assert collapsed(np.array([5, 5, 5, 7, 7, 8, 9])).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_prompts_split_over_two_updates_are_one_cluster_each(simulate):
    """Two updates that share their prompts and their values say no more than one of them does."""
    run = load_run(simulate(rollouts=1, prompts=64))
    bins = Bins((1, 400))
    (window,) = (w for w in ScoredWindows(run, bins, 5) if w.use == "first")
    assert window.updates == 1
    n = len(window.rows)

    def interval(updates, apart):
        table = CosineTable(RunKey.of(run), bins, [Case(Rule("sqrt", 0.03, 0.03), "x", "given")], [], 1, 0)
        rows = window.rows.take(np.tile(np.arange(n), updates))
        if apart:
            fresh = np.repeat(np.arange(updates), n) * 1000
            rows = replace(rows, prompt=rows.prompt + fresh, cluster=rows.cluster + fresh)
        vectors, at = held(np.tile(window.vectors[:], (updates, 1))), np.tile(window.bins, updates)
        table.add(ScoredWindow(0, "first", rows, vectors, at, np.repeat(np.arange(updates), n)))
        row = next(r for r in records(CosineRow, table.rows()) if r["rule"] == "x" and r["bin"] == -1)
        z = np.arctanh([row["estimate"], row["ci_low"], row["ci_high"]])
        clusters = len(np.unique(rows.cluster))
        return z[0], (z[2] - z[1]) / 2 / sps.t.ppf(0.975, clusters - updates)

    once, twice, independent = interval(1, False), interval(2, False), interval(2, True)
    assert once[0] == pytest.approx(twice[0])
    # the replicates of two updates are half the step of one: equal but for the curvature of the ratio
    assert twice[1] == pytest.approx(once[1], rel=0.01)
    assert independent[1] == pytest.approx(once[1] / np.sqrt(2), rel=0.01)


def test_intervals_cover_where_prompts_are_split_over_updates():
    """Four pairs of updates of the same 16 prompts; a prompt is kept whole or cut whole, in both alike."""
    rng = np.random.default_rng(7)
    width, pairs, prompts, group = 12, 4, 16, 4
    update = np.repeat(np.arange(2 * pairs), prompts)
    shared = np.concatenate([np.tile(pair * prompts + np.arange(prompts), 2) for pair in range(pairs)])
    pooled = np.zeros(3)
    found: dict[str, list[tuple[float, float, float]]] = {"clustered": [], "independent": []}
    for _ in range(400):
        products = Products(), Products(), Products()
        for _ in range(pairs):
            effect = np.repeat(rng.normal(size=(prompts, width)), group, axis=0)
            keep = np.repeat((rng.random(prompts) < 0.7).astype(float), group)[:, None]
            for _ in range(2):
                vectors = 0.7 + effect + 0.3 * rng.normal(size=effect.shape)
                gram = UpdateGram(
                    vectors @ vectors.T, np.zeros(len(vectors), int), np.repeat(np.arange(prompts), group), 1
                )
                ones = np.ones_like(keep)
                for product, sides in zip(products, ((keep, ones), (keep, keep), (ones, ones)), strict=True):
                    product.add(*gram.products(*sides))
        pooled += [np.sum(p.total, axis=0)[1, 0] for p in products]
        for name, cluster in (("clustered", shared), ("independent", None)):
            found[name].append(CosineColumns.of(*products, update, cluster=cluster).interval(1, [0]))
    truth = pooled[0] / np.sqrt(pooled[1] * pooled[2])
    hits = {name: np.mean([low <= truth <= high for _, low, high in some]) for name, some in found.items()}
    assert hits["clustered"] > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 400)
    assert hits["independent"] < 0.92


@pytest.fixture(scope="module")
def analysed(fspo_run):
    run = load_run(fspo_run)
    options = Options(bins=4, draws=16)
    bins = shared_bins([run], options)
    tables, summary = analyse(run, bins, options)
    return run, bins, tables, summary


def test_table_against_brute_force_for_a_given_rule(analysed):
    run, bins, tables, _ = analysed
    rule = Rule("sqrt", 0.03, 0.03)
    inner = np.zeros(5)
    left, right = np.zeros(5), np.zeros(5)
    for window in ScoredWindows(run, bins, 5):
        for u in range(window.updates):
            at = window.update == u
            S, L, A = window.rows.S[at], window.rows.length[at], window.rows.A[at]
            w = np.exp(S)
            cut = ((A > 0) & (0.03 * np.sqrt(L) < S)) | ((A < 0) & (-0.03 * np.sqrt(L) > S))
            k = window.bins[at]
            assert rule.apply(S, L, A).side.astype(bool).tolist() == cut.tolist()
            for b in range(5):
                here = (k == b) if b < 4 else np.ones(len(k), bool)
                g = (w[here, None] * window.vectors[at][here]).sum(0)
                clipped = ((w * ~cut)[here, None] * window.vectors[at][here]).sum(0)
                inner[b] += g @ clipped
                left[b] += clipped @ clipped
                right[b] += g @ g
    table = tables["cosine"]
    mine = table[(table["rule"] == "fspo") & (table["outside"] == "drop") & (table["source"] == "given")]
    mine = mine.set_index("bin")["estimate"]
    assert [mine[k] for k in (0, 1, 2, 3, -1)] == pytest.approx(inner / np.sqrt(left * right))


def test_matched_rules_cut_alike_and_the_trained_rule_is_its_own_counterfactual(analysed):
    _, _, tables, _ = analysed
    table = tables["cosine"]
    overall = table[(table["bin"] == -1) & (table["rule"] != "random")]
    trained = overall[overall["source"] == "trained"].iloc[0]
    given = overall[(overall["rule"] == "fspo") & (overall["source"] == "given") & (overall["outside"] == "drop")]
    assert trained["estimate"] == pytest.approx(given["estimate"].iloc[0])
    assert (overall["ci_low"] <= overall["estimate"]).all()
    assert (overall["worst_bin"] <= table[table["bin"] >= 0]["estimate"].max()).all()
    same = overall[(overall["rule"] == "fspo") & (overall["source"] == "matched")]
    assert same["diff_fspo"].tolist() == pytest.approx([0.0] * len(same))


def test_random_control_drops_the_target_share_and_keeps_less_than_nothing_cut(analysed):
    _, _, tables, _ = analysed
    control = (
        tables["cosine"].query("rule == 'random' and bin == -1 and source == 'matched'").set_index("target")["estimate"]
    )
    assert control[0.85] < control[0.95] < 1


def test_nothing_cut_is_cosine_one_and_too_few_prompts_are_nan(simulate):
    run = load_run(simulate(rollouts=1, prompts=16, group=4))
    bins = Bins((1, 400))
    table = CosineTable(RunKey.of(run), bins, [Case(Rule("fixed", 0.999999, 1e6), "wide", "given")], [0.9], 4, 0)
    for window in ScoredWindows(run, bins, 5):
        table.add(window)
    rows = {r["rule"]: r for r in records(CosineRow, table.rows()) if r["bin"] == -1}
    assert rows["wide"]["reason"] == "fewer than 5 clusters"
    assert np.isnan(rows["wide"]["estimate"])
    wide = CosineTable(RunKey.of(run), bins, [Case(Rule("fixed", 0.999999, 1e6), "wide", "given")], [0.9], 4, 0)
    more = load_run(simulate("more", rollouts=2))
    for window in ScoredWindows(more, bins, 5):
        wide.add(window)
    overall = next(r for r in records(CosineRow, wide.rows()) if r["bin"] == -1 and r["rule"] == "wide")
    assert overall["estimate"] == pytest.approx(1.0)
    assert overall["ci_low"] == pytest.approx(1.0)


def test_one_prompt_keeps_all_that_is_kept(simulate):
    """Its cosine exists; its interval does not, for without that prompt nothing is left. The norm is not 0."""
    run = load_run(simulate("one_prompt", rollouts=2, rule=Rule("none")))
    window = next(w for w in ScoredWindows(run, Bins((1, 400)), 5) if w.use == "first")
    rows = window.rows
    kept = np.isin(rows.cluster, rows.cluster[0])  # every response of one prompt
    keeping = replace(rows, S=np.where(kept, 0.0, np.where(rows.A > 0, 1.0, -1.0)))
    window = replace(window, rows=keeping, _outcomes={})
    table = CosineTable(RunKey.of(run), Bins((1, 400)), [Case(Rule("fixed", 0.1, 0.1), "narrow", "given")], [], 1, 0)
    table.add(window)
    row = next(r for r in records(CosineRow, table.rows()) if r["bin"] == -1 and r["rule"] == "narrow")
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
    key, bins = RunKey.of(run), Bins((2, 301))
    mis = Case(Rule("fixed", 2 / 3, 2.0, outside="mask", on="engine"), "mis", "given")
    geo = Case(Rule("linear", 0.05, 0.05, outside="mask", weight="none", on="engine"), "geo-mask", "given")
    table = CosineTable(key, bins, [mis, geo, Case(candidates("engine")[UNCORRECTED], UNCORRECTED, "given")], (), 1, 0)
    for window in ScoredWindows(run, bins, 5):
        table.add(window)
    found = {row.case.band.rule: row.estimate.value for row in table.rows() if row.place.bin == -1}
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
