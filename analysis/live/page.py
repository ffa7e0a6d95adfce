"""The page of ``fspo watch``: panels (plots) of runs that a Bokeh server fills, and the findings of ``fspo doctor``."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.models import ColumnDataSource, CustomJS, Div, HoverTool, RadioButtonGroup, Whisker
from bokeh.palettes import Category10
from bokeh.plotting import figure
from bokeh.server.server import Server
from jinja2 import Template
from tornado.ioloop import PeriodicCallback
from tornado.web import RequestHandler

from analysis.live.follow import Follower
from analysis.log.ratio import WORDS
from analysis.tables.acceptance import AcceptanceRow
from fspo.base.errors import UserError
from fspo.stats.bins import Bins

ADDRESS = "127.0.0.1"
EVERY = 1000
"""Milliseconds between two looks at the logs, and between two updates of an open page."""
ALL_COLOUR, EDGE_COLOUR = "#e8590c", "#868e96"
"""Colours of the line for all lengths together and of a band's edges, visible on light and on dark pages."""


class Panel(NamedTuple):
    """Texts of a panel with a line over time for each bin of lengths.

    They are the title, the label of the vertical axis, and the reason that the page gives if the panel has no data.
    """

    title: str
    axis: str
    empty: str


PANELS = {
    "clip": Panel("Clip rate", "share of rows cut", "the log does not say what was cut"),
    "spread": Panel("Spread of S at first use", "sd of S, nats", "no row after an update"),
    "reward": Panel("Reward", "mean reward", "the log has no rewards"),
    "behaviour": Panel(
        f"Mismatch with staleness, {WORDS['behaviour'].text}",
        f"sd of {WORDS['behaviour'].text}, nats",
        "no log-probabilities of the sampler",
    ),
    "engine": Panel(
        f"Mismatch of the engine, {WORDS['engine'].text}",
        f"sd of {WORDS['engine'].text}, nats",
        "the log does not tell E from D",
    ),
    "staleness": Panel("Staleness", "updates since sampling", "the log names no versions of the weights"),
    "cosine": Panel("Clipped and unclipped update", "cosine of the two", "too few responses have a score"),
}
"""The panels whose horizontal axis is the rollout, by name. docs/watch.md names the table that each panel shows."""
ACCEPTANCE, LAW = "acceptance", "law"
COLOURS = ("#7b6fd6", "#4c8fe0", "#2aa5b8", "#3fae6a", "#9aa82e", "#d19a1c")
"""A colour for each bin of lengths, the shortest lengths first, visible on light and on dark pages."""
ALL = "all"
COLUMNS = ("rollout", *map(str, range(len(COLOURS))), ALL)
"""Columns of the data of a panel over time: the rollout's number, the value in each bin, the value over all lengths."""
UNKNOWN = np.array([np.nan])
ABOVE = ("choice", "state", "doctor", "key")
HIDDEN = "hidden"
"""Name of the page's text that says which panels are not shown, and why."""
PAINT = """
const scheme = window.matchMedia('(prefers-color-scheme: dark)');
const paint = (dark) => {
  const ink = dark ? '#e4e6eb' : '#22262c', faint = dark ? '#33383f' : '#e3e6ea';
  for (const f of figures) {
    f.title.text_color = ink;
    for (const axis of [...f.below, ...f.left])
      for (const part of ['axis_label_text', 'major_label_text', 'axis_line', 'major_tick_line'])
        axis[part + '_color'] = ink;
    for (const part of f.center) if (part.grid_line_width !== undefined) part.grid_line_color = faint;
  }
};
paint(scheme.matches);
scheme.addEventListener('change', (event) => paint(event.matches));
"""
CSS = """
:host { width: 100%; color: var(--ink); font: inherit; }
.bk-btn { background: var(--card); color: var(--ink); border-color: var(--line); }
.bk-btn.bk-active { background: var(--ink); color: var(--paper); }
.bk-clearfix, .bk-clearfix > div { width: 100%; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px;
  overflow-wrap: anywhere; }
.faint { color: var(--faint); } .critical { color: var(--critical); } .warning { color: var(--warning); }
.info { color: var(--info); } ul { margin: 4px 0 0; padding-left: 20px; } li { margin: 2px 0; }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; }
.key i { display: inline-block; width: 18px; height: 4px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; }
"""


class Session:
    """One open page of ``fspo watch``: panels of the run chosen on the page, and acceptance of every followed run."""

    def __init__(self, document: Document, followers: Sequence[Follower]) -> None:
        self.followers, self.document = followers, document
        self.chosen = 0
        self.shown: tuple[Any, ...] = ()
        self.sent = 0
        choice = RadioButtonGroup(
            labels=[f.path.name for f in followers], active=0, visible=len(followers) > 1, stylesheets=[CSS]
        )
        choice.on_change("active", lambda _attribute, _old, new: self._choose(new))
        self.texts = {name: Div(text="", stylesheets=[CSS]) for name in (*ABOVE[1:], HIDDEN)}
        self.figures: dict[str, Any] = {}
        self.sources: dict[str, ColumnDataSource] = {}
        for name, panel in PANELS.items():
            self._line(name, panel)
        self._acceptance()
        self._law()
        for name, root in {"choice": choice, **self.texts, **self.figures}.items():
            root.name = name
            document.add_root(root)
        panels = ["clip", ACCEPTANCE, LAW, *(name for name in PANELS if name != "clip")]
        document.template = Template((Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8"))
        document.template_variables.update(above=ABOVE, panels=panels, below=HIDDEN)
        document.title = "fspo watch: " + ", ".join(f.path.name for f in followers)
        document.js_on_event("document_ready", CustomJS(args={"figures": list(self.figures.values())}, code=PAINT))
        self.update()
        document.add_periodic_callback(self.update, EVERY)

    def update(self) -> None:
        """Send the browser what changed in the panels and texts since the last call."""
        follower = self.followers[self.chosen]
        self._say("state", _state(follower))
        now = (self.chosen, *((f.starts, len(f.seen), f.asked) for f in self.followers))
        if now == self.shown:
            return
        if follower.bins is not None:
            self._key(follower.bins)
        if self.shown[:1] != now[:1] or self.shown[1 + self.chosen][0] != follower.starts:
            self.sent = 0
        self.shown = now
        self._over_time(follower)
        self._fill_acceptance()
        self._fill_law(follower)
        self._say("doctor", _doctor(follower))

    def _choose(self, which: int) -> None:
        self.chosen = which
        self.update()

    def _say(self, name: str, text: str) -> None:
        if self.texts[name].text != text:
            self.texts[name].text = text

    def _line(self, name: str, panel: Panel) -> None:
        """Make a panel of the page of ``fspo watch`` that plots a quantity against the rollout, still without data: a
        line for each bin of lengths, and one for all lengths.
        """
        plot = _figure(panel.title, "rollout", panel.axis)
        plot.xaxis[0].ticker.min_interval = 1  # no tick at a fraction of a rollout
        source = ColumnDataSource({n: [] for n in COLUMNS})
        for column, colour in zip(COLUMNS[1:], (*COLOURS, ALL_COLOUR), strict=True):
            thick = column == ALL
            plot.line("rollout", column, source=source, color=colour, line_width=2.5 if thick else 1.4)
            dots = plot.scatter("rollout", column, source=source, size=5 if thick else 3, color=colour)
            if thick:
                tips = [("rollout", "@rollout"), ("all lengths", "@all{0.0000}")]
                plot.add_tools(HoverTool(renderers=[dots], tooltips=tips, mode="vline"))
        self.figures[name], self.sources[name] = plot, source

    def _key(self, bins: Bins) -> None:
        """Show which colour stands for which bin of lengths and, if there are several runs, for which run."""
        ends = [bins.limits(k) for k in range(len(bins))]
        lines = {"length in tokens": [(c, f"{lo:g} to {hi:g}") for c, (lo, hi) in zip(COLOURS, ends, strict=False)]}
        lines["length in tokens"].append((ALL_COLOUR, "all lengths"))
        if len(self.followers) > 1:
            lines["acceptance of"] = [(_colour(i), f.path.name) for i, f in enumerate(self.followers)]
        text = ""
        for name, items in lines.items():
            spans = "".join(f'<span><i style="background:{c}"></i>{escape(t)}</span>' for c, t in items)
            text += f'<div class="key"><span class="faint">{name}:</span>{spans}</div>'
        self._say("key", text)

    def _over_time(self, follower: Follower) -> None:
        """Add a followed run's new rollouts to those panels of the live page whose axis is the rollout, and hide panels
        without data."""
        new, hidden = follower.seen[self.sent :], []
        for name, panel in PANELS.items():
            data: dict[str, Any] = {"rollout": [seen.rollout for seen in new]}
            rows = [seen.panels.get(name, UNKNOWN) for seen in new]
            for k, column in enumerate(COLUMNS[1:-1]):
                data[column] = [float(row[k]) if k < len(row) - 1 else np.nan for row in rows]
            data[ALL] = [float(row[-1]) for row in rows]
            if self.sent:
                self.sources[name].stream(data)
            else:
                self.sources[name].data = data
            empty = bool(follower.seen) and not np.isfinite(self.sources[name].data[ALL]).any()
            if self.figures[name].visible == empty:
                self.figures[name].visible = not empty
            if empty:
                hidden.append(f"{panel.title}: {panel.empty}")
        self.sent = len(follower.seen)
        self._say(HIDDEN, f'<div class="faint">Not shown. {escape("; ".join(hidden))}.</div>' if hidden else "")

    def _acceptance(self) -> None:
        plot = _figure("Acceptance by length, at first use", "length, tokens", "share kept, all rollouts", log=True)
        for i in range(len(self.followers)):
            source = self.sources[f"{ACCEPTANCE}-{i}"] = ColumnDataSource({n: [] for n in ("x", "y", "low", "high")})
            colour = _colour(i)
            whisker: Any = Whisker(base="x", lower="low", upper="high", source=source, line_color=colour)
            whisker.upper_head.line_color = whisker.lower_head.line_color = colour
            plot.add_layout(whisker)
            plot.line("x", "y", source=source, color=colour)
            dots = plot.scatter("x", "y", source=source, size=7, color=colour)
            for end in ("low", "high"):  # Bokeh fits an axis to points only: put invisible ones here
                plot.scatter("x", end, source=source, size=1, alpha=0)
            tips = [("length", "@x{0.0}"), ("kept", "@y{0.000} [@low{0.000}, @high{0.000}]")]
            plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))
        self.figures[ACCEPTANCE] = plot

    def _fill_acceptance(self) -> None:
        for i, follower in enumerate(self.followers):
            rows = _accepted(follower.acceptance())
            self.sources[f"{ACCEPTANCE}-{i}"].data = {
                "x": [row.place.bin_mean for row in rows],
                "y": [float(row.estimate.value) for row in rows],
                "low": [float(row.estimate.low) for row in rows],
                "high": [float(row.estimate.high) for row in rows],
            }

    def _law(self) -> None:
        plot = _figure("Law of S in the newest rollout", "length, tokens", "S, nats (red: cut; grey: band)", log=True)
        band = self.sources["band"] = ColumnDataSource({"x": [], "y": []})
        points = self.sources[LAW] = ColumnDataSource({"x": [], "y": [], "colour": []})
        plot.scatter("x", "y", source=band, size=3, color=EDGE_COLOUR)
        plot.scatter("x", "y", source=points, size=5, color="colour", alpha=0.65)
        self.figures[LAW] = plot

    def _fill_law(self, follower: Follower) -> None:
        found = follower.points()
        if found is None:
            return
        colour = np.where(found.cut, "#d1495b", "#2e86ab")
        self.sources[LAW].data = {"x": found.length, "y": found.S, "colour": colour}
        ends = np.concatenate([found.lo, found.hi])
        known = np.isfinite(ends)
        self.sources["band"].data = {"x": np.tile(found.length, 2)[known], "y": ends[known]}


def _figure(title: str, x: str, y: str, *, log: bool = False) -> Any:
    plot: Any = figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        x_axis_type="log" if log else "linear",
        height=290,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset",
        active_scroll=None,
        toolbar_location=None,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_alpha=0,
    )
    plot.title.text_font_size = "14px"
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.minor_tick_line_color = None
    return plot


def _colour(run: int) -> str:
    """Return the colour of the run at position ``run`` among the followed runs."""
    return Category10[10][run % 10]


def _accepted(rows: Sequence[AcceptanceRow]) -> list[AcceptanceRow]:
    """Return those rows of the table acceptance that hold the trained rule's update acceptance by bin, at first use."""
    return [
        row
        for row in rows
        if row.measure == "update"
        and row.case.use == "first"
        and row.place.bin >= 0
        and row.case.band.source == "trained"
        and np.isfinite(row.estimate.value)
    ]


def _state(follower: Follower) -> str:
    """Return the state of a followed run as HTML: its rule, the rollouts read and to be read, and notes."""
    name = escape(str(follower.path))
    if not follower.seen:
        return f'<div class="card"><b>{name}</b>: waits for the first rollout in its gradlog</div>'
    last = follower.seen[-1]
    rule = escape(follower.run.trained_rule) if follower.run else "unknown"
    parts = [f"<b>{name}</b>: rule {rule}", f"{len(follower.seen)} rollouts read, the newest {last.rollout}"]
    parts.append(f"{last.rows} rows in {last.seconds:.2f} s of one core")
    if follower.waiting:
        parts.append(f"{follower.waiting} more to read")
    if follower.starts > 1:
        parts.append(f"read anew {follower.starts - 1} times: the log was written again")
    notes = "".join(f"<li>{escape(note)}</li>" for note in follower.notes)
    return f'<div class="card">{"; ".join(parts)}{f"<ul>{notes}</ul>" if notes else ""}</div>'


def _doctor(follower: Follower) -> str:
    """Return the findings of ``fspo doctor`` on a followed run as HTML."""
    diagnosis = follower.diagnosis
    if diagnosis is None:
        return '<div class="card faint">The doctor has not looked yet.</div>'
    about = f"of {follower.asked} rollouts"
    found = "".join(
        f'<li><b class="{answer.severity.label}">{answer.severity.label} {escape(answer.id)}</b>: '
        f"{escape(answer.summary)} <span class='faint'>first seen at rollout {follower.first_found[answer.id]}; cure: "
        f"{escape(answer.cure)}</span></li>"
        for answer in diagnosis.findings
        if answer.severity is not None
    )
    head = f"The doctor {about}: " + ("what is wrong, the worst first" if found else "nothing found")
    notes = "".join(f"<li class='faint'>{escape(note)}</li>" for note in diagnosis.notes)
    return f'<div class="card">{head}<ul>{found}{notes}</ul></div>'


def make_server(runs: Sequence[str | Path], port: int) -> Server:
    """Make the server of the page of ``fspo watch``, which follows the runs.

    The caller runs the server with the server's ``start`` and ``io_loop.start``.

    Raises
    ------
    UserError
        If the port is taken, or this user may not use it.
    """
    shared: list[Bins] = []
    followers = [Follower(run, shared) for run in runs]
    token = f"{time.time_ns()}"

    class Alive(RequestHandler):
        """Request handler that answers with the time at which the server started, so that an open page can tell that
        the server was started again.
        """

        def get(self) -> None:
            """Answer with the time at which the server started; if it changes, the open page sees that it restarted."""
            self.write(token)

    def open_page(document: Document) -> None:
        Session(document, followers)

    def poll() -> None:
        for follower in followers:
            follower.poll()

    hosts = [f"{ADDRESS}:{port}", f"localhost:{port}"]
    try:
        server = Server(
            {"/": Application(FunctionHandler(open_page))},
            port=port,
            address=ADDRESS,
            allow_websocket_origin=hosts,
            extra_patterns=[("/alive", Alive)],
        )
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise UserError(f"--port {port}: {error.strerror}: choose another, for example {port + 1}") from error
    PeriodicCallback(poll, EVERY).start()
    return server
