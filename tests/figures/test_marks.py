"""Tables of one's own are drawn: points, intervals and rows stand where the table says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from figures import marks
from figures.of_runs.acceptance_by_length import plot_acceptance
from figures.style import LOOKS
from tests.figures.looking import bars, marked


@pytest.fixture
def table() -> pd.DataFrame:
    """Two rules in three bins; the last estimate has no interval, another row no estimate."""
    rows = [
        {"run": "a", "rule": rule, "bin_mean": 8.0 * 4**i, "estimate": 0.9 - 0.1 * i, "ci_low": 0.85 - 0.1 * i}
        | {"ci_high": 0.95 - 0.1 * i}
        for rule in ("mine", "fspo")
        for i in range(3)
    ]
    found = pd.DataFrame(rows)
    found.loc[5, ["ci_low", "ci_high"]] = np.nan
    found.loc[0, "estimate"] = np.nan
    return found


def test_acceptance_of_a_table_of_ones_own_on_new_axes(table):
    ax = plot_acceptance(table)
    points = marked(ax, color=LOOKS["fspo"].color, marker="o")
    np.testing.assert_array_equal(points[:, 1], table["estimate"][3:])
    np.testing.assert_allclose(points[:, 0] / table["bin_mean"][3:], 2**-0.035)  # fspo stands left of the other rule
    assert len(marked(ax)) == 5
    assert bars(ax, 1) == {(0.75, 0.85), (0.65, 0.75), (0.85, 0.95)}


def test_rows_and_what_stands_below_each_other_in_them(table):
    table["outside"] = ["drop", "cap", "cap"] * 2
    ax = marks.outside_dots(table, ["fspo", "mine"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fspo", "mine"]
    np.testing.assert_allclose(marked(ax, marker="o"), [[0.9, -0.12]])
    # two estimates share a place: they are spread around it
    np.testing.assert_allclose(marked(ax, marker="D"), [[0.8, 1.09], [0.7, 1.15], [0.8, 0.09], [0.7, 0.15]])
    assert bars(ax, 0) == {(0.75, 0.85), (0.65, 0.75), (0.85, 0.95)}
    assert len(marked(marks.dots(table, rows=["mine"], row="rule"), color="#1F77B4", marker="o")) == 2
