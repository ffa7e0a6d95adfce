"""Tokens kept by token and prefix rules, by position and by length, against loops over the log."""

import numpy as np
import pandas as pd
import pytest

from analysis.options import Options
from analysis.run import analyse_runs
from analysis.tables.files import read_tables
from fspo.gradlog import GradLogWriter
from fspo.rules import correction, preset
from tests.analysis.conftest import Plan, write_log


def kept_by_loop(log, rule, column):
    """By the rule's definition, token by token: (position, length, kept, log-ratio, cluster) of each token."""
    out = []
    lo, hi = -np.log1p(-rule.range_lo) if rule.range_lo < 1 else np.inf, np.log1p(rule.range_hi)
    for row in log.to_dict("records"):
        total = 0.0
        for t, x in enumerate(row[column].astype(float), 1):
            total += x
            if rule.level == "prefix":
                above, below = total > rule.range_hi * np.sqrt(t), total < -rule.range_lo * np.sqrt(t)
            else:
                above, below = x > hi, x < -lo
            if rule.outside == "mask":
                cut = above or below
            elif rule.outside == "cap":
                cut = above
            else:
                cut = (above and row["advantage"] > 0) or (below and row["advantage"] < 0)
            out.append((t, row["length"], not cut, x, (row["rollout"], row["prompt_id"])))
    return pd.DataFrame(out, columns=["t", "length", "kept", "x", "cluster"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    plan = Plan(engine=0.3, sigma=0.15, rollouts=2, prompts=24, group=4, minibatches=2, epochs=1, width=0, tokens=True)
    return write_log(tmp_path_factory.mktemp("logs") / "run", plan)


@pytest.mark.parametrize(
    ("on", "column", "names"),
    [("update", "token_log_ratio", ("grpo", "ctpo")), ("engine", "token_behaviour_log_ratio", ("tis", "icepop"))],
)
def test_kept_tokens_by_position_and_by_length(run, on, column, names):
    analyse_runs([run], Options(rules=(), targets=(), edges=(2, 40, 301), on=on))
    table = read_tables([run], on=on)["positions"].query("bin >= 0")
    table = table.set_index(["rule", "by", "bin_lo"]).sort_index()
    log = pd.read_parquet(run / "gradlog").query("times_used == 0 and advantage != 0")
    log = log[log["updates_since_rollout"] > 0] if on == "update" else log
    assert set(table.index.get_level_values("rule")) == set(names)
    for name in names:
        rule = preset(name).rule if on == "update" else correction(name)
        tokens = kept_by_loop(log, rule, column)
        tokens["position"] = 2.0 ** np.floor(np.log2(tokens["t"]))
        tokens["response"] = np.where(tokens["length"] >= 40, 40.0, 2.0)
        assert 0.02 < tokens["kept"].mean() < 0.999
        for by in ("position", "response"):
            for place, part in tokens.groupby(by):
                row = table.loc[(name, by, place)]
                assert row["count"] == len(part)
                assert row["clusters"] == part["cluster"].nunique()
                if row["reason"] == "":
                    assert row["estimate"] == pytest.approx(part["kept"].mean())
                    assert row["mean_log_ratio"] == pytest.approx(part["x"].mean(), abs=1e-5)
                    assert row["sd_log_ratio"] == pytest.approx(part["x"].std(ddof=0), rel=1e-4)
                    assert row["ci_low"] <= row["estimate"] <= row["ci_high"]


def test_the_engine_ratio_of_tokens_needs_staleness_0_and_whole_lists(tmp_path):
    writer = GradLogWriter(tmp_path, metadata={"rule": preset("fspo").rule.to_dict()})
    n = 20
    lists = [np.zeros(3, np.float32)] * 18 + [None, np.zeros(2, np.float32)]
    writer.append(
        {"rollout": 0, "step": 0, "updates_since_rollout": 0, "times_used": 0, "prompt_id": np.arange(n)}
        | {"response_id": np.arange(n), "length": 3, "log_ratio": np.zeros(n), "advantage": 1.0}
        | {"engine_log_ratio": 0.1, "staleness_log_ratio": np.where(np.arange(n) < 8, 0.5, 0.0)}
        | {"behaviour_log_ratio": 0.2, "token_behaviour_log_ratio": lists}
    )
    writer.flush(0)
    summary = analyse_runs([tmp_path], Options(rules=(), targets=(), edges=(1, 10), on="engine"))[tmp_path]
    table = read_tables([tmp_path], on="engine")["positions"]
    assert set(table.loc[table["bin"] < 0, "count"]) == {10 * 3}
    assert "2 lists of token log-ratios left out: missing, not finite, or not L long" in summary["warnings"]
