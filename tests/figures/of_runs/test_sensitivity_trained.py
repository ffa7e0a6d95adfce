"""The figure and the report's rows of a trained sweep: every number stands where its row says."""

import json

import numpy as np
import pandas as pd
import pytest

from figures.__main__ import main
from figures.of_runs import sensitivity_trained
from figures.page import contents
from figures.style import Style, looks
from figures.tables import NothingToDraw, load_trained_sweep
from fspo.base.errors import UserError
from tests.figures.looking import bars, marked

PLACES = [("base", "as calibrated"), ("range", "half"), ("range", "double"), ("dual", "2")]


@pytest.fixture
def file(tmp_path):
    rows = []
    for i, rule in enumerate(("fspo", "rloo")):
        for j, (setting, value) in enumerate(PLACES):
            row = {"setting": setting, "value": value, "rule": rule, "changed": "rule.dual=2", "runs": "r", "seeds": 2}
            for k, name in enumerate(sensitivity_trained.QUANTITIES):
                x = 0.1 * j + 0.01 * i + 0.001 * k + 0.2
                lost = (name, value) == ("cosine", "2") or (rule, value) == ("rloo", "double")
                x = np.nan if lost else x
                row |= {name: x, f"{name}_ci_low": x - 0.05, f"{name}_ci_high": x + 0.07}
            rows.append(row | {"note": "told" if value == "double" else ""})
    path = tmp_path / "trained_sweep.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_points_and_bars_stand_at_the_tables_numbers(file):
    tables = load_trained_sweep(file)
    fig = sensitivity_trained.figure(tables, Style())
    table = pd.read_csv(file)
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == [
        "base", "range: half", "range: double", "dual: 2",
    ]  # fmt: skip
    assert len(fig.axes) == 5
    for ax, name in zip(fig.axes, sensitivity_trained.QUANTITIES, strict=True):
        for rule, look in looks(["fspo", "rloo"]).items():
            points = marked(ax, color=look.color, marker=look.marker)
            own = table[(table["rule"] == rule) & table[name].notna()]
            np.testing.assert_array_equal(points[:, 0], own[name])
            places = [PLACES.index((s, v)) for s, v in zip(own["setting"], own["value"], strict=True)]
            assert np.round(points[:, 1]).astype(int).tolist() == places
        known = table[table[name].notna()][[f"{name}_ci_low", f"{name}_ci_high"]]
        assert bars(ax, 0) == {tuple(pair) for pair in known.round(9).to_numpy()}
    assert [text.get_text() for text in fig.axes[4].texts] == ["too little data"]  # dual of both rules
    assert "Seeds of each row: 2." in sensitivity_trained.caption(tables)
    assert "missing" in sensitivity_trained.caption(tables)


def test_the_command_draws_it_beside_its_numbers(file, capsys):
    assert main(["--trained-sweep", str(file)]) == 0
    folder = file.parent / "figures"
    assert {p.suffix for p in folder.glob("sensitivity_trained.*")} == {".pdf", ".png", ".csv"}
    (caption,) = json.loads((folder / "captions.json").read_text())
    assert caption["name"] == "sensitivity_trained"
    with pytest.raises(UserError, match="--sweep true first"):
        main(["--trained-sweep", str(file.parent / "other.csv")])


def test_the_page_shows_every_row_and_says_where_nothing_was_trained(file):
    section = contents.sensitivity(file)
    ((_, rows),) = section.tables
    assert len(rows) == 8
    assert rows[0]["acceptance"] == "0.201 [0.151, 0.271]"
    assert rows[3]["cosine"] is None
    assert rows[6]["note"] == "told"
    assert any("“sequence”" in note for note in section.notes)
    assert "--sweep true" in contents.sensitivity(None).notes[0]


def test_a_table_without_numbers_is_not_drawn(file):
    table = pd.read_csv(file).assign(reward=np.nan)
    table.to_csv(file, index=False)
    with pytest.raises(NothingToDraw):
        sensitivity_trained.figure(load_trained_sweep(file), Style())
