"""Other partitions than length: coordinates by hand, tables named by them, the same machinery behind."""

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.log.loading import load_run
from analysis.log.partition import find_partition
from analysis.tables.files import read_tables
from fspo.base.errors import UserError
from fspo.gradlog import GradLogWriter
from fspo.rules import preset
from fspo.stats.bins import make_bins


def write(run, rollouts=3, prompts=8, group=4):
    """A log of one minibatch after an update; ``user.kind`` is text, ``user.hard`` a number."""
    rng = np.random.default_rng(0)
    user = {"kind": "string", "hard": "float64"}
    writer = GradLogWriter(run, metadata={"rule": preset("fspo").rule.to_dict()}, user_columns=user)
    n, prompt = prompts * group, np.repeat(np.arange(prompts), group)
    for rollout in range(rollouts):
        rows = {"rollout": rollout, "step": rollout * 2 + 1, "updates_since_rollout": 1, "times_used": 0}
        rows |= {"prompt_id": prompt, "response_id": rollout * n + np.arange(n), "length": rng.integers(4, 200, n)}
        rows |= {"log_ratio": 0.03 * rng.standard_normal(n), "entropy": rng.random(n), "phase": "train"}
        rows |= {"advantage": rng.standard_normal(n), "user.kind": ["words"] * n}
        writer.append(rows | {"user.hard": np.where(prompt < 2, np.nan, prompt / 10)})
        writer.flush(rollout)
    return run


def test_trends_are_in_doublings_or_standard_deviations_and_missing_values_are_counted(tmp_path):
    run = write(tmp_path / "r")
    rows = load_run(run).rows
    assert np.array_equal(rows.coordinate, rows.length)
    assert rows.trend == pytest.approx(np.log2(rows.length))
    hard = load_run(run, find_partition("user.hard"))
    assert hard.counts["rows_without_coordinate"] == 3 * 2 * 4
    assert any("user.hard" in line for line in hard.notes.warnings)
    assert np.array_equal(hard.rows.coordinate, hard.rows.prompt / 10)
    assert hard.rows.trend == pytest.approx(hard.rows.coordinate / hard.rows.coordinate.std())
    with pytest.raises(UserError, match=r"--by user\.kind: the column holds text"):
        load_run(run, find_partition("user.kind"))


@pytest.mark.parametrize("name", ["entropy", "rollout", "user.hard"])
def test_tables_of_any_partition_have_the_same_columns(tmp_path, name):
    run = write(tmp_path / "r")
    assert main([str(run), "--by", name, "--bins", "2", "--draws", "2"]) == 0
    slug = name.replace(".", "_")
    folder = run / f"analysis-by-{slug}"
    for path in folder.glob("*.csv"):
        assert not any("length" in column or "doubling" in column for column in pd.read_csv(path)), path
    back = read_tables([run], find_partition(name))["acceptance"]
    whole = back[back["bin"] == -1].iloc[0]
    edges = make_bins(load_run(run, find_partition(name)).rows.coordinate, 2).edges
    assert (whole["bin_lo"], whole["bin_hi"]) == (edges[0], edges[-1])
    assert edges[0] <= whole["bin_mean"] <= edges[-1]
    by_bin = back[(back["bin"] >= 0) & (back["rule"] == "fspo") & (back["source"] == "given")]
    assert by_bin.groupby(["subset", "use", "measure", "outside"])["count"].sum().nunique() <= 2  # all, A != 0
