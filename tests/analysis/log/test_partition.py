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
from fspo.stats.bins import Bins, make_bins, quantile_bins


def write(run, columns=None, rollouts=3, prompts=8, group=4, **extra):
    """A log of one minibatch after an update; ``user.kind`` is text, ``user.hard`` a number."""
    rng = np.random.default_rng(0)
    rule = preset("fspo").rule
    writer = GradLogWriter(run, metadata={"rule": rule.to_dict()}, user_columns={"kind": "string", "hard": "float64"})
    n = prompts * group
    for rollout in range(rollouts):
        prompt = np.repeat(np.arange(prompts), group)
        writer.append(
            {
                "rollout": rollout,
                "step": rollout * 2 + 1,
                "updates_since_rollout": 1,
                "times_used": 0,
                "phase": "train",
                "prompt_id": prompt,
                "response_id": rollout * n + np.arange(n),
                "length": rng.integers(4, 200, n),
                "log_ratio": 0.03 * rng.standard_normal(n),
                "entropy": rng.random(n),
                "reward": (np.arange(n) % group < prompt % 5).astype(float),
                "advantage": rng.standard_normal(n),
                "user.kind": [("algebra", "words")[i % 2] for i in prompt],
                "user.hard": np.where(prompt < 2, np.nan, prompt / 10),
                **extra,
            }
        )
        writer.flush(rollout)
    return run


def test_length_is_the_default_and_its_trend_is_in_doublings(tmp_path):
    rows = load_run(write(tmp_path / "r")).rows
    assert np.array_equal(rows.coordinate, rows.length)
    assert rows.trend == pytest.approx(np.log2(rows.length))


def test_missing_values_are_counted_and_a_trend_is_in_standard_deviations(tmp_path):
    run = write(tmp_path / "r")
    hard = load_run(run, find_partition("user.hard"))
    assert hard.counts["rows_without_coordinate"] == 3 * 2 * 4
    assert any("user.hard" in line for line in hard.notes.warnings)
    assert np.array_equal(hard.rows.coordinate, hard.rows.prompt / 10)
    assert hard.rows.trend == pytest.approx(hard.rows.coordinate / hard.rows.coordinate.std())


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


def test_a_partition_needs_its_column(tmp_path, capsys):
    run = write(tmp_path / "r")
    with pytest.raises(UserError, match=r"user\.colour"):
        load_run(run, find_partition("user.colour"))
    with pytest.raises(UserError, match="did you mean 'entropy'"):
        find_partition("entropi")
    for gone, fix in (("difficulty", "user.COLUMN"), ("staleness", "user.COLUMN"), ("time", "--by rollout")):
        with pytest.raises(UserError, match=f"--by {gone} is gone.*{fix}"):
            find_partition(gone)
    with pytest.raises(UserError, match=r"--by user\.kind: the column holds text"):
        load_run(run, find_partition("user.kind"))


def test_bins_of_fractions():
    bins = quantile_bins(np.linspace(0, 1, 101), 4)
    assert np.bincount(bins.index(np.linspace(0, 1, 101))).tolist() == pytest.approx([25, 25, 25, 26], abs=1)
    assert make_bins([], 3, [-1.5, 0, 2]) == Bins((-1.5, 0, 2))
    many = np.random.default_rng(0).random(50_000)
    assert np.bincount(quantile_bins(many, 5).index(many)) == pytest.approx(10_000, rel=0.01)
