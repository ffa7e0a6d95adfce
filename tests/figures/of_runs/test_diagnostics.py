"""The noise floor in figures, and figures of bins of another quantity than length."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from analysis.log.partition import find_partition
from analysis.tables.files import TABLES, folder_name
from figures import find_module
from figures.__main__ import main
from figures.style import Style
from figures.tables import load
from tests.figures.conftest import write_run
from tests.figures.looking import assert_legible, titled


def test_the_noise_floor_beside_the_points(case_tables):
    tables = case_tables("one")
    ax = titled(find_module("acceptance_by_length").figure(tables, Style()), "as trained")
    floor = tables["noise_floor"].query("bin >= 0")
    grey = [np.asarray(x.get_ydata(), float) for x in ax.get_lines() if x.get_marker() == "_"]
    assert [list(y) for y in grey] == [
        [1.0] * 5,  # both quiet sources as one
        list(1 - floor[floor["source"] == "bfloat16"]["out_of_band"]),
    ]
    spans = [(round(float(p.get_y()), 9), round(float(p.get_y() + p.get_height()), 9)) for p in ax.patches]
    whole = tables["noise_floor"].query("bin < 0 and source != 'padding'")
    assert spans == [(round(1 - x.out_of_band_ci_high, 9), 1 - x.out_of_band_ci_low) for x in whole.itertuples()]
    text = find_module("acceptance_by_length").caption(tables)
    assert "fspo, other sources; fspo, bfloat16" in text


@pytest.fixture(scope="module")
def by_entropy(case_tables, tmp_path_factory):
    """Two runs whose tables are binned by entropy, under the analysis' own names."""
    partition = find_partition("entropy")
    runs = []
    for rule in ("fspo", "rloo"):
        run = tmp_path_factory.mktemp("by") / rule
        frames = {}
        for name in TABLES:
            frame = case_tables("usual").frames.get(name)
            if frame is not None and name in ("acceptance", "lre", "cosine", "lemma", "over_time", "noise_floor"):
                own = frame[frame["run"] == f"{rule}-s0"].drop(columns=["bin_lo", "bin_hi"], errors="ignore")
                if "bin_mean" in own:
                    own = own.assign(bin_mean=own["bin_mean"] / 200)
                if "bin" in own:
                    own = own.assign(bin_lo=own["bin"] / 5, bin_hi=(own["bin"] + 1) / 5)
                frames[name] = own
        runs.append(write_run(run, frames, folder_name(partition)))
    return runs


@pytest.mark.usefixtures("no_pixels")
def test_other_partitions_have_names_of_their_own(by_entropy, tmp_path, capsys):
    assert main([*map(str, by_entropy), "--by", "entropy", "--output", str(tmp_path)]) == 0
    captions = json.loads((tmp_path / "captions-by-entropy.json").read_text())
    drawn = {c["name"]: c for c in captions if not c["skipped"]}
    assert set(drawn) == {
        "acceptance-by-entropy", "clip_over_training-by-entropy", "lre_by_rule-by-entropy",
        "cosine_by_rule-by-entropy", "cosine_bound-by-entropy", "error_split-by-entropy",
    }  # fmt: skip
    assert all((tmp_path / f"{name}.pdf").is_file() for name in drawn)
    label = find_partition("entropy").label
    assert label in drawn["acceptance-by-entropy"]["caption"]
    assert f"(bins: {label})" in drawn["lre_by_rule-by-entropy"]["title"]
    assert "length" not in drawn["acceptance-by-entropy"]["title"].lower()
    numbers = pd.read_csv(tmp_path / "acceptance-by-entropy.csv")
    assert {"bin_mean", "bin_lo"} <= set(numbers)
    left_out = " ".join(c["skipped"] for c in captions)
    assert "without --by" in left_out  # what is about length alone says so


@pytest.mark.parametrize("name", ["acceptance_by_length", "clip_over_training"])
def test_figures_of_another_partition_are_legible(by_entropy, monkeypatch, name):
    style = Style("acl-column")
    with style.context():
        assert_legible(find_module(name).figure(load(by_entropy, "entropy"), style), style, monkeypatch)
