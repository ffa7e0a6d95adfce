"""Charts of the report that answer to mouse and keyboard: Vega-Lite specifications from the numbers of figures.

Vega comes as one JavaScript text from the package vl-convert-python. It draws SVG, in which each point can have a name
and the focus of the keyboard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from figures.style import looks, rule_label
from figures.tables import Frame, split


@dataclass(frozen=True)
class Chart:
    """How the numbers of a figure become charts, one for each value of the column ``panel``.

    Attributes
    ----------
    x, y : str
        Columns; ``ends`` are those of the interval of y.
    x_title, y_title : str
        Words at the axes.
    kind : str
        Vega's type of the x scale: "log", or "point" for names.
    percent : bool
        Whether y is a share, shown in per cent.
    """

    x: str
    y: str
    ends: tuple[str, str]
    x_title: str
    y_title: str
    kind: str = "log"
    y_kind: str = "linear"
    percent: bool = False


CHARTS = {
    "acceptance_by_length": Chart(
        "bin_mean", "estimate", ("ci_low", "ci_high"), "length (tokens)", "in the band (%)", percent=True
    ),
    "cosine_by_rule": Chart("rule", "estimate", ("ci_low", "ci_high"), "rule", "cosine, dropping", "point"),
    "variance_scaling": Chart(
        "bin_mean", "var_S", ("var_S_ci_low", "var_S_ci_high"), "length (tokens)", "variance of S", y_kind="log"
    ),
}
"""The figures of runs that are charts too, by the name of their module."""
SHAPES = {"o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "d": "diamond"}
SHAPES |= {"X": "cross", "P": "cross", "<": "triangle-left", ">": "triangle-right"}
"""Vega's names of Matplotlib's markers; any other is a stroke."""
AXIS = {"labelOverlap": "greedy", "labelSeparation": 8}


@cache
def library() -> str:
    """Return Vega, Vega-Lite and vegaEmbed as the text of one script."""
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;")


def charts(name: str, numbers: Frame) -> list[dict[str, Any]]:
    """Return a Vega-Lite specification with its ``title`` for each panel of the figure ``name``, from its numbers; none
    for a figure that is no chart.

    A point stands for a row with a finite y; its ``words`` say what it shows. The specification's parameter ``hidden``
    lists the rules that are not shown.
    """
    chart = CHARTS.get(name)
    if chart is None or chart.y not in numbers or numbers.empty:
        return []
    rows = numbers[numbers[chart.y].notna()]
    if chart.kind == "log":
        rows = rows[rows["bin"] >= 0]
    elif "outside" in rows:
        rows = rows[rows["outside"].isin(["drop", "mask"]) & ~rows["rule"].eq("random")]
    rule = "rule" if "rule" in rows else "trained_rule"
    known = looks(rows[rule])
    panels = split(rows) if "panel" in rows else {"": rows}
    return [_spec(panel, _points(own, chart, rule), chart, known) for panel, own in panels.items()]


def _points(rows: Frame, chart: Chart, rule: str) -> list[dict[str, Any]]:
    scale, unit = (100, " %") if chart.percent else (1, "")
    names = list(looks(rows[rule]))
    points = []
    for row in rows.to_dict("records"):
        low, y, high = (scale * row[name] for name in (chart.ends[0], chart.y, chart.ends[1]))
        interval = f" [{low:.4g}, {high:.4g}]" if low == low else ""
        tokens = f", {row['bin_lo']:g} to {row['bin_hi']:g} tokens" if chart.kind == "log" else ""
        of = f", {row['count']:.0f} responses" if row.get("count") == row.get("count") else ""
        run = f" ({row['run']})" if "run" in row else ""
        words = f"{rule_label(row[rule])}{run}{tokens}: {y:.4g}{unit}{interval}{of}"
        # Points of different rules stand side by side, so that no interval hides another.
        aside = 1 + 0.03 * (names.index(row[rule]) - (len(names) - 1) / 2) if chart.kind == "log" else 1
        x = row[chart.x] * aside if chart.kind == "log" else rule_label(row[chart.x])
        ends = {"low": low, "high": high} if low == low else {}
        points.append({"rule": row[rule], "run": row.get("run", ""), "x": x, "y": y, **ends, "words": words})
    return points


def _spec(panel: str, points: list[dict[str, Any]], chart: Chart, known: dict[str, Any]) -> dict[str, Any]:
    log = {"type": "quantitative", "scale": {"type": "log", "nice": False, "padding": 14}}
    kind = log if chart.kind == "log" else {"type": "nominal"}
    domain, styles = list(known), list(known.values())

    def scale(values: list[Any]) -> dict[str, Any]:
        return {"field": "rule", "legend": None, "scale": {"domain": domain, "range": values}}

    y = {"type": "quantitative", "title": chart.y_title, "scale": {"type": chart.y_kind}, "axis": AXIS}
    if chart.y_kind != "log":
        y["scale"]["zero"] = False
    line = {
        "mark": {"type": "line", "aria": False},
        "encoding": {
            "y": {"field": "y", **y},
            "detail": {"field": "run"},
            "strokeDash": scale([list(look.dashes) or [1, 0] for look in styles]),
        },
    }
    interval = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "aria": False, "strokeWidth": 1.5},
        "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}},
    }
    point = {
        "name": "points",
        "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
        "encoding": {
            "y": {"field": "y", **y},
            "shape": scale([SHAPES.get(look.marker, "stroke") for look in styles]),
            "description": {"field": "words"},
        },
    }
    layers = [interval, point] if chart.kind == "point" else [line, interval, point]
    return {
        "title": panel,
        "spec": {
            "description": f"{chart.y_title} against {chart.x_title}{f', {panel}' if panel else ''}",
            "width": "container",
            "height": 230,
            "data": {"values": points},
            "params": [{"name": "hidden", "value": []}],
            "transform": [{"filter": "indexof(hidden, datum.rule) < 0"}],
            "encoding": {
                "x": {"field": "x", "title": chart.x_title, "axis": AXIS, **kind},
                "color": scale([look.color for look in styles]),
            },
            "layer": layers,
            "config": {"background": None, "view": {"stroke": None}, "font": "system-ui, sans-serif"},
        },
        "rules": [{"name": name, "color": look.color, "label": rule_label(name)} for name, look in known.items()],
    }
