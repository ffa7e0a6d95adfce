"""The page of ``fspo watch``: plots of a run that a Bokeh server fills, and the issues that ``fspo doctor`` found."""

from __future__ import annotations

import errno
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.models import ColumnDataSource, Div, HoverTool, Whisker
from bokeh.plotting import figure
from bokeh.server.server import Server
from jinja2 import Template
from tornado.ioloop import PeriodicCallback

from analysis.live.follow import Follower
from analysis.log.ratio import WORDS
from fspo.base.errors import UserError
from fspo.stats.intervals import proportion_interval

ADDRESS = "127.0.0.1"
EVERY = 1000
"""Milliseconds between two looks at the log, and between two updates of an open page."""
ALL_COLOUR = "#e8590c"
"""Colour of the line for all lengths together."""
COLOURS = ("#7b6fd6", "#4c8fe0", "#2aa5b8", "#3fae6a", "#9aa82e", "#d19a1c")
"""A colour for each bin of lengths, the shortest lengths first."""
BEHAVIOUR, ENGINE = WORDS["behaviour"].text, WORDS["engine"].text
PANELS = {
    "clip": ("Clip rate", "share of rows clipped"),
    "spread": ("Spread of S in the first epoch", "sd of S, nats"),
    "reward": ("Reward", "mean reward"),
    "behaviour": (f"Mismatch with policy lag, {BEHAVIOUR}", f"sd of {BEHAVIOUR}, nats"),
    "engine": (f"Mismatch of the engine, {ENGINE}", f"sd of {ENGINE}, nats"),
}
"""Title and vertical axis of the panels whose horizontal axis is the rollout; one without data is not shown."""
ACCEPTANCE = "acceptance"
ALL = "all"
COLUMNS = ("rollout", *map(str, range(len(COLOURS))), ALL)
"""Columns of the data of a panel over time: the rollout's number, the value in each bin, the value over all lengths."""
UNKNOWN = np.array([np.nan])
TEXTS = ("state", "doctor", "key")
CSS = """
:host, .bk-clearfix, .bk-clearfix > div { width: 100%; font: inherit; }
.card { background: #f4f6f8; border-radius: 8px; padding: 8px 12px; overflow-wrap: anywhere; }
.faint { color: #5d646d; } .critical { color: #b3261e; } .warning { color: #8a5300; } .info { color: #33658a; }
ul { margin: 4px 0 0; padding-left: 20px; } .key { display: flex; flex-wrap: wrap; gap: 4px 16px; }
.key i { display: inline-block; width: 18px; height: 4px; margin-right: 6px; vertical-align: middle; }
"""


class Session:
    """One open page of ``fspo watch``: the Bokeh document that a browser shows of one follower of a run."""

    def __init__(self, document: Document, follower: Follower) -> None:
        self.follower = follower
        self.shown: tuple[int, ...] = ()
        self.sent = 0
        self.texts = {name: Div(text="", stylesheets=[CSS]) for name in TEXTS}
        self.sources = {name: ColumnDataSource({n: [] for n in COLUMNS}) for name in PANELS}
        self.sources[ACCEPTANCE] = ColumnDataSource({n: [] for n in ("x", "y", "low", "high")})
        self.figures = {name: _over_time(*text, self.sources[name]) for name, text in PANELS.items()}
        self.figures[ACCEPTANCE] = _by_length(self.sources[ACCEPTANCE])
        for name, root in {**self.texts, **self.figures}.items():
            root.name = name
            document.add_root(root)
        panels = ["clip", ACCEPTANCE, *(name for name in PANELS if name != "clip")]
        document.template = Template((Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8"))
        document.template_variables.update(texts=TEXTS, panels=panels)
        document.title = f"fspo watch: {follower.path.name}"
        self.update()
        document.add_periodic_callback(self.update, EVERY)

    def update(self) -> None:
        """Send the browser what changed in the panels and texts since the last call."""
        follower = self.follower
        self._say("state", _state(follower))
        now = follower.starts, len(follower.seen), follower.asked
        if now == self.shown:
            return
        self.sent = self.sent if self.shown[:1] == now[:1] else 0
        self.shown = now
        if follower.bins is not None:
            ends = [follower.bins.limits(k) for k in range(len(follower.bins))]
            lines = [(c, f"{lo:g} to {hi:g}") for c, (lo, hi) in zip(COLOURS, ends, strict=False)]
            spans = [f'<i style="background:{c}"></i>{t}' for c, t in (*lines, (ALL_COLOUR, "all lengths"))]
            text = "".join(f"<span>{span}</span>" for span in ["length in tokens:", *spans])
            self._say("key", f'<div class="key">{text}</div>')
        self._fill_over_time()
        self._fill_acceptance()
        self._say("doctor", _doctor(follower))

    def _say(self, name: str, text: str) -> None:
        if self.texts[name].text != text:
            self.texts[name].text = text

    def _fill_over_time(self) -> None:
        """Add a followed run's new rollouts to the panels whose axis is the rollout, and hide panels without data."""
        seen = self.follower.seen
        for name in PANELS:
            data: dict[str, Any] = {"rollout": [view.rollout for view in seen[self.sent :]]}
            rows = [view.panels.get(name, UNKNOWN) for view in seen[self.sent :]]
            for k, column in enumerate(COLUMNS[1:-1]):
                data[column] = [float(row[k]) if k < len(row) - 1 else np.nan for row in rows]
            data[ALL] = [float(row[-1]) for row in rows]
            if self.sent:
                self.sources[name].stream(data)
            else:
                self.sources[name].data = data
            self.figures[name].visible = not seen or bool(np.isfinite(self.sources[name].data[ALL]).any())
        self.sent = len(seen)

    def _fill_acceptance(self) -> None:
        acceptance = self.follower.acceptance()
        if acceptance is None:
            return
        found, length = acceptance
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        some = found.count[:-1] > 0
        columns = {"x": length, "y": found.value[:-1], "low": low[:-1], "high": high[:-1]}
        self.sources[ACCEPTANCE].data = {name: values[some] for name, values in columns.items()}


def _over_time(title: str, axis: str, source: ColumnDataSource) -> Any:
    """Make a panel of ``source`` by rollout, one line a bin of lengths, one for all; ``axis`` labels the vertical."""
    plot = _figure(title, "rollout", axis)
    plot.xaxis[0].ticker.min_interval = 1  # no tick at a fraction of a rollout
    for column, colour in zip(COLUMNS[1:], (*COLOURS, ALL_COLOUR), strict=True):
        plot.line("rollout", column, source=source, color=colour, line_width=2.5 if column == ALL else 1.4)
    dots = plot.scatter("rollout", ALL, source=source, size=5, color=ALL_COLOUR)
    tips = [("rollout", "@rollout"), ("all lengths", "@all{0.0000}")]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=tips, mode="vline"))
    return plot


def _by_length(source: ColumnDataSource) -> Any:
    plot = _figure(
        "Acceptance by length, in the first epoch", "length, tokens", "share not clipped, all rollouts", log=True
    )
    plot.add_layout(Whisker(base="x", lower="low", upper="high", source=source, line_color=ALL_COLOUR))
    plot.line("x", "y", source=source, color=ALL_COLOUR)
    dots = plot.scatter("x", "y", source=source, size=7, color=ALL_COLOUR)
    for end in ("low", "high"):  # Bokeh fits an axis to points only: put invisible ones here
        plot.scatter("x", end, source=source, size=1, alpha=0)
    tips = [("length", "@x{0.0}"), ("kept", "@y{0.000} [@low{0.000}, @high{0.000}]")]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    return plot


def _figure(title: str, x: str, y: str, *, log: bool = False) -> Any:
    return figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        x_axis_type="log" if log else "linear",
        height=290,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset",
        active_scroll=None,
        toolbar_location=None,
    )


def _state(follower: Follower) -> str:
    """Return the state of a followed run as HTML: its rule, the rollouts read and to be read, and notes."""
    name = escape(str(follower.path))
    if not follower.seen:
        return f'<div class="card"><b>{name}</b>: waits for the first rollout in its gradlog</div>'
    last = follower.seen[-1]
    rule = escape(follower.run.trained_rule) if follower.run else "unknown"
    parts = [f"<b>{name}</b>: rule {rule}", f"{len(follower.seen)} rollouts read, the newest {last.rollout}"]
    parts.append(f"{last.rows} rows in it")
    if follower.waiting:
        parts.append(f"{follower.waiting} more to read")
    if follower.starts > 1:
        parts.append(f"read anew {follower.starts - 1} times: the log was written again")
    notes = "".join(f"<li>{escape(note)}</li>" for note in follower.notes)
    return f'<div class="card">{"; ".join(parts)}{f"<ul>{notes}</ul>" if notes else ""}</div>'


def _doctor(follower: Follower) -> str:
    """Return the issues that ``fspo doctor`` found on a followed run as HTML."""
    diagnosis = follower.diagnosis
    if diagnosis is None:
        return '<div class="card faint">The doctor has not looked yet.</div>'
    found = "".join(
        f'<li><b class="{answer.severity.label}">{answer.severity.label} {escape(answer.id)}</b>: '
        f"{escape(answer.summary)} <span class='faint'>first seen at rollout {follower.first_found[answer.id]}; fix: "
        f"{escape(answer.fix)}</span></li>"
        for answer in diagnosis.issues
        if answer.severity is not None
    )
    head = f"The doctor of {follower.asked} rollouts: " + ("what is wrong" if found else "no issue")
    notes = "".join(f"<li class='faint'>{escape(note)}</li>" for note in diagnosis.notes)
    return f'<div class="card">{head}<ul>{found}{notes}</ul></div>'


def make_server(run: str | Path, port: int) -> Server:
    """Make the server of the page of ``fspo watch``, which follows a run.

    The caller runs the server with the server's ``start`` and ``io_loop.start``.

    Raise UserError if the port is taken, or this user may not use it."""
    follower = Follower(run)

    def open_page(document: Document) -> None:
        Session(document, follower)

    def poll() -> None:
        follower.poll()

    hosts = [f"{ADDRESS}:{port}", f"localhost:{port}"]
    app = Application(FunctionHandler(open_page))
    try:
        server = Server({"/": app}, port=port, address=ADDRESS, allow_websocket_origin=hosts)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise UserError(f"--port {port}: {error.strerror}: choose another, for example {port + 1}") from error
    PeriodicCallback(poll, EVERY).start()
    return server
