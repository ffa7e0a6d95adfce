"""Reward and response length over training, a line for every run."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures import layout, marks
from figures.style import Style, looks, styled
from figures.tables import Frame, NothingToDraw, Tables, count_words, need, split
from fspo.gradlog import metric_names as metric

TITLE = "Reward and length over training"
CAPTION = (
    "Mean reward and response length of each rollout, and reward on held-out prompts where it was evaluated "
    "({stderr}). One line a run, {seeds} for each rule; no average is drawn over seeds. The theory "
    "(docs/theory.md) says nothing about these curves."
)
PANELS = {
    metric.REWARD: "reward (training)",
    metric.HELD_OUT_REWARD: "reward (held out)",
    metric.MEAN_LENGTH: "mean length (tokens)",
}


def rows(tables: Tables) -> Frame:
    """Return the rows of table ``training`` for reward, held-out reward and response length, each named in the column
    ``panel``. Where a standard error was logged, ``low`` and ``high`` are the value less and plus one standard error.
    """
    tables.only_by_length("it has no bins: draw it without --by")
    if tables.on != "update":
        raise NothingToDraw("it is about no log-ratio: draw it without --on")
    table = tables["training"]
    table = table[table["value"].notna()].drop_duplicates(["run", "rollout", "name"], keep="last")
    found = need(table[table["name"].isin(list(PANELS))], "metrics.jsonl has neither reward nor length")
    errors = table[table["name"].str.endswith(metric.STDERR)]
    errors = errors.assign(name=errors["name"].str.removesuffix(metric.STDERR))[["run", "rollout", "name", "value"]]
    found = found.merge(errors.rename(columns={"value": "stderr"}), "left", ["run", "rollout", "name"])
    found = found.sort_values("name", key=lambda names: names.map(list(PANELS).index), kind="stable")
    ends = {"low": found["value"] - found["stderr"], "high": found["value"] + found["stderr"]}
    return found.assign(panel=found["name"].map(PANELS), **ends)


def plot_curves(data: Frame, ax: Axes | None = None) -> Axes:
    """Draw a metric (``value``) against the rollout: a thin line for each ``run`` in the look of its ``trained_rule``,
    with markers and bars of one standard error (``low``, ``high``) where logged."""
    with_marks = bool(data["low"].notna().any() or (data.groupby("run").size() == 1).any())
    ax = marks.curves(
        data, ax, x="rollout", y="value", hue="trained_rule", units="run", ends=("low", "high"), marks=with_marks,
        linewidth=0.8, alpha=0.9, markersize=2.8,
    )  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    ax.set_xlabel("rollout")
    return ax


def caption(tables: Tables) -> str:
    """Return the caption of the training curves, with the number of seeds."""
    found = rows(tables)
    words = count_words(found.groupby("trained_rule")["run"].nunique())
    bars = "bars: one standard error over prompts" if found["stderr"].notna().any() else "no intervals"
    return CAPTION.format(stderr=bars, seeds=f"{words} run" if words == "1" else f"{words} runs")


@styled
def figure(tables: Tables, style: Style) -> Figure:
    """Draw the training curves, one panel for each metric that was logged."""
    found = rows(tables)
    return layout.facets(style, split(found), plot_curves, 1.55, layout.rule_keys(looks(found["trained_rule"])))
