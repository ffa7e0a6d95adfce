"""Widths, looks, and files that come out the same twice."""

from typing import get_args

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from figures.of_runs.acceptance_by_length import figure
from figures.style import DPI, LOOKS, OUTSIDE_COLORS, OUTSIDE_MARKERS, WIDTHS, Style, looks, save
from fspo.base.errors import UserError
from fspo.rules import COMPARED, Outside


def test_named_widths_are_the_venues():
    assert [WIDTHS[name] for name in ("neurips", "icml-column", "icml-full")] == [5.5, 3.25, 6.75]
    assert WIDTHS["acl-column"] == pytest.approx(7.7 / 2.54, abs=0.01)  # acl.sty: 16 cm text, 0.6 cm between columns
    with pytest.raises(UserError, match="did you mean 'icml-column'"):
        Style("icml-colum")


def test_every_rule_and_every_way_outside_its_band_are_told_apart():
    names = {*COMPARED, "none", "fspo-kl", "fspo-adaptive", "grpo", "random"}
    assert names == set(LOOKS)
    assert len({look.color for look in LOOKS.values()}) == len(LOOKS)
    assert len({(look.marker, str(look.linestyle)) for look in LOOKS.values()}) == len(LOOKS)
    assert set(OUTSIDE_MARKERS) == set(OUTSIDE_COLORS) == set(get_args(Outside))


def test_unknown_rules_get_looks_that_do_not_change_or_clash():
    alone = looks(["power-0.3"])["power-0.3"]
    many = looks(["fspo", "power-0.3", "mine", "yours", "rloo"])
    assert list(many) == ["rloo", "fspo", "mine", "power-0.3", "yours"]
    assert len(set(many.values())) == 5
    assert looks(["power-0.3", "fspo"])["power-0.3"] == alone


def test_files_are_the_same_twice_whatever_the_users_settings(case_tables, tmp_path, monkeypatch):
    style, tables, draw, drawn = Style("icml-column"), case_tables("one"), Figure.draw, []
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: drawn.append(renderer) or draw(self, renderer))
    first = save(figure(tables, style), tmp_path / "a", "x", style)
    with mpl.rc_context({"font.size": 20, "axes.grid": False, "pdf.fonttype": 3, "savefig.dpi": 50}):
        second = save(figure(tables, style), tmp_path / "b", "x", style)
    assert len(drawn) == 4  # once for each file
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["x.pdf", "x.png"]
    pdf = first[0].read_bytes()
    assert b"CreationDate" not in pdf
    assert b"/FontFile2" in pdf  # TrueType outlines inside: type 42
    assert b"/Type3" not in pdf
    assert int.from_bytes(first[1].read_bytes()[16:20], "big") == pytest.approx(3.25 * DPI, abs=1)
