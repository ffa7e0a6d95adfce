"""Make the charts of the HTML report, which react to mouse and keyboard: Vega-Lite specifications of the figures.

Vega comes as one JavaScript text from the package vl-convert-python. It draws SVG, in which each point can have a name
and the focus of the keyboard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from figures import ALL_BINS
from figures.style import looks, rule_label
from figures.tables import Frame, count_words, split, view_words
from fspo.stats.intervals import PERCENT


@dataclass(frozen=True)
class Chart:
    """How the numbers of a figure become charts, with a line or a column of points for each rule.

    Attributes
    ----------
    caption : str
        What the charts show, which is less than what the printed figure shows. ``{n}`` stands for the numbers of
        responses, ``{logs}`` for the runs on whose logs rules are compared.
    y_title, x_title : str
        Words at the axes.
    x, y : str
        Columns of the coordinates; ``ends`` are the columns of the interval of y.
    kind : str
        Vega's type of the x scale: "log", "linear", or "point" for names.
    y_kind : str
        Vega's type of the y scale: "linear" or "log".
    percent : bool
        Whether y is a share, shown in per cent.
    panels : sequence of str
        Columns with a chart for each combination of their values; a bin is named by its range of lengths.
    words : mapping
        Words that replace values of the columns ``panels`` in a panel's title.
    only : mapping
        For each named column, its one value that the charts show; rows with another value are left out.
    """

    caption: str
    y_title: str
    x: str = "bin_mean"
    y: str = "estimate"
    ends: tuple[str, str] = ("ci_low", "ci_high")
    x_title: str = "length (tokens)"
    kind: str = "log"
    y_kind: str = "linear"
    percent: bool = False
    panels: Sequence[str] = ("panel",)
    words: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, str] = field(default_factory=dict)


_by_rule = partial(Chart, x="rule", x_title="rule", kind="point")
_OVER: dict[str, Any] = {"x_title": "rollout", "kind": "linear"}
_BARS = f"Bars: {PERCENT} intervals."
_DROPPED = (
    "Responses outside the band are dropped or masked; “as trained”: as each run's own rule treats them. n = {n} "
    f"scored responses with A ≠ 0. {_BARS} {{logs}}."
)
CHARTS = {
    "acceptance_by_length": Chart(
        "Share of responses whose sequence log-ratio lies in the band, by length; a fair rule is flat. Points: length "
        f"bins with cluster-aware {PERCENT} intervals (n = {{n}} responses for each point), joined by lines. {{logs}}.",
        "in the band (%)",
        percent=True,
    ),
    "clip_over_training": Chart(
        "Share of responses whose log-ratio lies outside the band of the rule that trains (docs/theory.md section 1), "
        "by rollout: a chart for each length bin, a line for each run. n = {n} responses for each point. Bars: "
        f"cluster-aware {PERCENT} intervals.",
        "out of band (%)",
        x="window",
        percent=True,
        panels=("bin",),
        **_OVER,
    ),
    "lre_by_rule": _by_rule(
        "LRE_2 (docs/theory.md section 3) of the rules that drop, bias-corrected; 0 is fair. The share in the band is "
        f"of all responses, the share not cut and the weight kept of those with A ≠ 0. {_BARS} {{logs}}.",
        "LRE_2",
        panels=("measure", "panel"),
        words={"band": "share in the band", "update": "share not cut", "weight": "weight kept"},
        only={"norm": "l2"},
    ),
    "cosine_by_rule": _by_rule(
        "Same-batch cosine of the clipped and the true update over all lengths (docs/theory.md section 5). " + _DROPPED,
        "cosine",
    ),
    "variance_scaling": Chart(
        "Variance of S in each length bin at its mean length (n = {n} responses for each point), with cluster-aware "
        f"{PERCENT} intervals, joined by lines. docs/theory.md T1 needs it to grow in proportion to the length.",
        "variance of S",
        y="var_S",
        ends=("var_S_ci_low", "var_S_ci_high"),
        y_kind="log",
    ),
    "drift_by_sign": Chart(
        "Drift of S per token, its mean over the mean length, by the rule that trained: for all responses and by the "
        f"sign of A (docs/theory.md sections 2 and 7; n = {{n}} responses for each point). Bars: cluster-aware "
        f"{PERCENT} intervals.",
        "drift per token (nats)",
        x="trained_rule",
        x_title="rule",
        y="drift_per_token",
        ends=("drift_ci_low", "drift_ci_high"),
        kind="point",
        panels=("sign",),
        words={"all": "all responses", "positive": "A > 0", "negative": "A < 0"},
    ),
    "training_curves": Chart(
        "Mean reward and response length of each rollout, and reward on held-out prompts where it was evaluated (bars: "
        "one standard error over prompts). One line a run. The theory (docs/theory.md) says nothing about these "
        "curves.",
        "mean of the rollout",
        x="rollout",
        y="value",
        ends=("low", "high"),
        **_OVER,
    ),
}
"""The figures of runs that the report also shows as charts, by the name of their module. It shows others as printed."""
MOST_POINTS = 2000
"""Largest number of points in the charts of a figure. The report shows a figure with more points as printed."""
SHAPES = {"o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "d": "diamond"}
SHAPES |= {"X": "cross", "P": "cross", "<": "triangle-left", ">": "triangle-right"}
"""Vega's names of Matplotlib's markers. A marker that is missing here is drawn as a stroke."""
AXIS = {"labelOverlap": "greedy", "labelSeparation": 8}


@cache
def library() -> str:
    """Return Vega, Vega-Lite and vegaEmbed as the text of one script."""
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;")


def charts(name: str, numbers: Frame) -> tuple[str, list[dict[str, Any]]]:
    """Return the caption of the charts of the figure ``name``, and a Vega-Lite specification with its ``title`` for
    each panel, from the figure's numbers. Both are empty if `CHARTS` lacks the figure, its numbers have no values for
    the y axis, or there are more than `MOST_POINTS` points.

    A point stands for a row with a finite y; its ``words`` say what it shows. The specification's parameter ``hidden``
    lists the rules that are not shown.
    """
    chart = CHARTS.get(name)
    if chart is None or chart.y not in numbers or numbers.empty:
        return "", []
    rows = numbers[numbers[chart.y].notna()]
    for column, value in chart.only.items():
        rows = rows[rows[column] == value]
    if chart.kind != "point" and "bin" in rows:
        rows = rows[rows["bin"] != ALL_BINS]
    elif "outside" in rows:
        plain = rows["outside"].isin(["drop", "mask"]) | rows["source"].eq("trained")
        rows = rows[plain & ~rows["rule"].eq("random")]
    if rows.empty or len(rows) > MOST_POINTS:
        return "", []
    rule = "rule" if "rule" in rows else "trained_rule"
    known, columns = looks(rows[rule]), [column for column in chart.panels if column in rows]
    titles = [", ".join(_title(row, column, chart) for column in columns) for row in rows.to_dict("records")]
    panels = split(rows.assign(title=titles), "title")
    return _caption(rows, chart), [
        _spec(panel, _points(own, chart, rule), chart, known) for panel, own in panels.items()
    ]


def _caption(rows: Frame, chart: Chart) -> str:
    logs = view_words(rows.fillna({"log": ""})) if "log" in rows else ""
    text = chart.caption.format(n=count_words(rows["count"]) if "count" in rows else "", logs=logs)
    return text.removesuffix(" .")


def _title(row: dict[str, Any], column: str, chart: Chart) -> str:
    return _lengths(row) if column == "bin" else chart.words.get(row[column], str(row[column]))


def _lengths(row: dict[str, Any]) -> str:
    return f"{row['bin_lo']:g} to {row['bin_hi']:g} tokens"


def _points(rows: Frame, chart: Chart, rule: str) -> list[dict[str, Any]]:
    scale, unit = (100, " %") if chart.percent else (1, "")
    names = list(looks(rows[rule]))
    points = []
    for row in rows.to_dict("records"):
        low, y, high = (scale * row.get(name, math.nan) for name in (chart.ends[0], chart.y, chart.ends[1]))
        interval = f" [{low:.4g}, {high:.4g}]" if low == low else ""
        at = _lengths(row) if chart.x == "bin_mean" else f"{chart.x_title} {row[chart.x]}"
        count = row.get("count", math.nan)
        of = f", {count:.0f} responses" if count == count else ""
        run = f" ({row['run']})" if "run" in row else ""
        where = f", {at}" if chart.kind != "point" else ""
        words = f"{rule_label(row[rule])}{run}{where}: {y:.4g}{unit}{interval}{of}"
        # Points of different rules stand side by side, so that no interval hides another.
        aside = 1 + 0.03 * (names.index(row[rule]) - (len(names) - 1) / 2) if chart.kind == "log" else 1
        x = rule_label(row[chart.x]) if chart.kind == "point" else row[chart.x] * aside
        ends = {"low": low, "high": high} if low == low else {}
        points.append({"rule": row[rule], "run": row.get("run", ""), "x": x, "y": y, **ends, "words": words})
    return points


def _spec(panel: str, points: list[dict[str, Any]], chart: Chart, known: dict[str, Any]) -> dict[str, Any]:
    number = {"type": "quantitative", "scale": {"type": chart.kind, "nice": False, "padding": 14}}
    kind = {"type": "nominal"} if chart.kind == "point" else number
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
