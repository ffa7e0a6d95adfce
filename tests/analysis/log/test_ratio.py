"""Which log-ratio an analysis is about: its columns, its rows and its drift."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.__main__ import main
from analysis.log.loading import load_run
from analysis.log.ratio import LoggedRatio
from analysis.options import Options
from analysis.rules.evaluate import make_cases
from analysis.run import analyse_runs
from analysis.tables.files import read_tables
from fspo.base.errors import UserError
from fspo.rules import CORRECTIONS, correction, preset
from tests.analysis.conftest import Plan, rewrite, write_log


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    """A log with an engine mismatch, staleness and a correction, and its table of all rows."""
    rule = correction("engine-sqrt", range_lo=0.1, range_hi=0.1)
    plan = Plan(engine=0.05, staleness=0.02, sigma=0.03, prompts=64, rollouts=3, correction=rule)
    run = write_log(tmp_path_factory.mktemp("logs") / "stale", plan)
    return run, pd.read_parquet(run / "gradlog")


@pytest.mark.parametrize("on", ["engine", "behaviour"])
def test_each_response_counts_once_with_its_ratio_and_drift(stale, on):
    run, log = stale
    rows = load_run(run, on=on).rows
    first = log[log["times_used"] == 0].sort_values("response_id")
    assert len(rows) == len(first) == 3 * 512  # the first minibatch too, before any update
    order = np.argsort(rows.response)
    assert rows.S[order] == pytest.approx(first[f"{on}_log_ratio"].to_numpy())
    by_step = log.groupby("step")
    tokens = by_step["length"].sum()
    k3, square = by_step[f"{on}_k3_sum"].sum() / tokens, by_step[f"{on}_sum_sq"].sum() / tokens
    assert rows.k3 == pytest.approx(k3[rows.step].to_numpy())
    assert rows.sigma2 == pytest.approx(square[rows.step].to_numpy())
    later = rows.step > 0
    assert rows.k3_lagged[later] == pytest.approx(k3[rows.step[later] - 1].to_numpy())


def test_the_runs_own_rule_is_that_on_the_ratio(stale):
    run, log = stale
    first = log[log["times_used"] == 0]
    assert [load_run(run, on=on).rule.label for on in ("update", "engine")] == ["fspo", "engine-sqrt"]
    assert load_run(run, on="behaviour").rule is None
    assert "'engine-sqrt' acts on another ratio: --on engine" in load_run(run, on="behaviour").notes.warnings[0]
    analyse_runs([run], Options(rules=("geo-mask",), targets=(0.9,), draws=2, bins=3, on="engine"))
    tables = read_tables([run], on="engine")
    whole = tables["acceptance"].query("source == 'trained' and bin == -1").set_index("measure")["estimate"]
    acting = first[first["advantage"] != 0]
    assert whole["update"] == pytest.approx((acting["correction_side"] == 0).mean())
    weight = np.exp(acting["engine_log_ratio"])
    assert whole["weight"] == pytest.approx(acting["correction_weight"].sum() / weight.sum())
    assert not (run / "analysis").exists()


def test_masks_at_matched_acceptance_cut_as_t2_says(simulate):
    """E | L is N(-L s^2/2, L s^2): the sqrt mask around -KL is flat, the product falls, the geometric rises."""
    run = simulate(engine=0.05, prompts=128, epochs=1, width=0)
    assert main([str(run), "--bins", "4", "--on", "engine"]) == 0
    tables = read_tables([run], on="engine")
    trend = tables["trend"].query("target == 0.85 and measure == 'band' and subset == 'all' and reason == ''")
    trend = trend.set_index("rule")
    assert trend.loc["mis", "ci_high"] < -0.05
    assert trend.loc["geo-mask", "ci_low"] > 0.05
    assert trend.loc["engine-sqrt", "ci_low"] < 0 < trend.loc["engine-sqrt", "ci_high"]
    assert trend.loc["engine-sqrt", "ci_high"] - trend.loc["engine-sqrt", "ci_low"] < 0.02
    assert set(trend["clusters"]) == {6 * 128}
    assert np.all(tables["acceptance"].query("bin == -1 and subset == 'all' and reason == ''")["count"] == 6 * 1024)
    weight = tables["moments"].query("subset == 'all' and bin >= 0")
    assert np.all((weight["mean_weight_ci_low"] < 1.03) & (weight["mean_weight_ci_high"] > 0.97))
    assert set(tables["scaling"]["use"]) == {"first"}


def test_the_corrections_are_cases_as_published_and_matched():
    cases = make_cases(targets=(0.9,), on="behaviour")
    given = {case.name: case.rule for case in cases if case.source == "given"}
    assert list(given) == ["none", "mis", "geo-mask", "engine-sqrt"]
    assert (given["geo-mask"].weight, given["mis"].range_hi) == ("none", 2.0)
    assert {case.rule.on for case in cases} == {"behaviour"}
    matched = [(case.name, case.rule.outside) for case in cases if case.source == "matched"]
    assert matched == [(name, "mask") for name in ("mis", "geo-mask", "engine-sqrt")]


def test_a_correction_on_tokens_has_mean_factors_and_no_share_of_responses(simulate):
    """The logged factor of tis exceeds 1, so it is no acceptance; a warning names the table that tokens have."""
    run = simulate(engine=0.02, rollouts=2)
    rewrite(run, correction_weight=lambda _, table: 1.5 - 0.01 * np.log2(table["length"].to_numpy()))
    header = {"rule": preset("fspo").rule.to_dict(), "correction": CORRECTIONS["tis"].to_dict()}
    for path in (run / "gradlog").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"fspo.run": json.dumps(header)}), path)
    assert main([str(run), "--on", "behaviour", "--draws", "2"]) == 0
    found = pd.read_parquet(run / "analysis-on-behaviour" / "acceptance.parquet")
    own = found["source"] == "trained"
    assert set(found["measure"][own]) == {"factor"}
    assert found["estimate"][~own].dropna().max() <= 1
    summary = json.loads((run / "analysis-on-behaviour" / "summary.json").read_text())
    assert any("'tis' acts on tokens" in line for line in summary["warnings"])
    own = found[own].set_index("bin")
    log = pd.read_parquet(run / "gradlog")
    first = log[log["times_used"] == 0]
    assert set(own["rule"]) == {"tis"}
    for number, row in own.iterrows():
        ends = "both" if number in (-1, own.index.max()) else "left"
        inside = first[first["length"].between(row["bin_lo"], row["bin_hi"], inclusive=ends)]
        assert row["count"] == len(inside) > 0
        factor = 1.5 - 0.01 * np.log2(inside["length"])
        assert row["estimate"] == pytest.approx(factor.mean(), rel=1e-6)
        assert row["ci_low"] < factor.mean() < row["ci_high"]
        assert row["ess_share"] == pytest.approx(factor.mean() ** 2 / (factor**2).mean(), rel=1e-6)


def test_without_versions_the_engine_ratio_is_not_known(simulate):
    assert LoggedRatio.find("behaviour", {"engine_log_ratio"}, {}).column == "engine_log_ratio"  # schema 1.0
    run = simulate(engine=0.05, rollouts=1, width=0)
    for path in (run / "gradlog").iterdir():
        pq.write_table(pq.read_table(path).drop_columns(["engine_log_ratio"]), path)
    with pytest.raises(UserError, match=r"^--on engine: the log has D \+ E and not E alone.*--on behaviour"):
        load_run(run, on="engine")


@pytest.mark.parametrize(("gone", "told"), [([], "share of a response's tokens"), (["multiplier"], "it has no row")])
def test_a_rule_on_tokens_says_what_its_row_counts(simulate, gone, told):
    run = simulate(rollouts=1)
    (path,) = (run / "gradlog").iterdir()
    table = pq.read_table(path).drop_columns(gone)
    header = json.dumps({"rule": preset("grpo").rule.to_dict()})
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"fspo.run": header}), path)
    (line,) = load_run(run).notes.warnings
    assert line.startswith("rule grpo acts on tokens: ")
    assert told in line
