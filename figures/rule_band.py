"""A picture of one rule: its band by length, and the weight that it leaves to a response at one length."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.scales import length_axis
from figures.style import GREY, Style, looks, styled
from fspo.rules import Rule
from fspo.rules.drift import TokenMeans

TOKEN_SD = 0.03
"""Standard deviation of a token's log-ratio in the pictures, nats: the base case of the fairness map."""
MEANS = TokenMeans(TOKEN_SD**2 / 2, TOKEN_SD**2, positive=1e-3, negative=-1e-3)
"""Means over tokens (KL, squared log-ratio, drift by sign of A) from which the pictures compute a band's centre."""
LENGTHS = 2.0 ** np.linspace(3, 12, 200)
SHOWN_LENGTH = 512
"""Length at which the right panel shows the weight that a rule leaves; for a rule on tokens, the length is 1."""
SYMBOLS = {"update": "S", "engine": "E", "behaviour": "D+E", "total": "S+D+E"}
_SIGNS = {1.0: "A > 0", -1.0: "A < 0"}
_SIGN_COLORS = {1.0: "#0072B2", -1.0: "#D55E00"}


def caption(rule: Rule) -> str:
    """Return the words below the picture of a rule's band, which `figure` draws."""
    unit = {"token": "a token", "prefix": "a prefix"}.get(rule.level, "a response")
    place = "" if rule.level == "token" else f" of {SHOWN_LENGTH} tokens"
    centre = ", where it is centred as on tokens of that standard deviation" if rule.needs_stats else ""
    start = " The band is the one that training starts from." if rule.adapt != "none" else ""
    return (
        f"Left: the band{centre}; dotted: one standard deviation of a sum of independent tokens of standard deviation "
        f"{TOKEN_SD} nats, hidden where it lies on an edge. Right: the weight that the rule leaves to {unit}{place}, "
        f"by the sign of its advantage.{start}"
    )


@styled
def figure(rule: Rule, style: Style) -> Figure:
    """Draw the picture of one rule in two panels: left its band by length, right the weight that it leaves to a
    response.
    """
    drawn = style.new_figure(1.75)
    left, right = drawn.subplots(1, 2)
    plot_band(rule, left, looks([rule.label])[rule.label].color)
    plot_weight(rule, right)
    return drawn


def plot_band(rule: Rule, ax: Axes, color: str) -> None:
    """Draw a rule's band, the interval of the log-ratio between its edges, against the length (for a rule on prefixes,
    against the number of tokens of the prefix).
    """
    n = np.ones_like(LENGTHS) if rule.level == "token" else LENGTHS
    spread = TOKEN_SD * np.sqrt(n)
    bands = [rule.band(n, rule.centre(MEANS, np.array([sign]))) for sign in (_SIGNS if rule.drift == "signed" else [1])]
    finite = [edge[np.isfinite(edge)] for band in bands for edge in band]
    top = 1.15 * max(float(np.max(np.abs(np.concatenate([*finite, 1.5 * spread])))), 0.05)
    for lo, hi in bands:
        below = np.maximum(lo, -top) if rule.clip.has_lower_edge else np.full_like(lo, -top)
        ax.fill_between(LENGTHS, below, np.minimum(hi, top), color=color, alpha=0.25, linewidth=0)
        for edge in (lo, hi):
            if np.isfinite(edge).all() and (edge is hi or rule.clip.has_lower_edge):
                ax.plot(LENGTHS, edge, color=color)
    for sign in (-1, 1):
        ax.plot(LENGTHS, sign * spread, color=GREY, linestyle=":", linewidth=0.9)
    length_axis(ax, LENGTHS)
    ax.set_ylim(-top, top)
    symbol = SYMBOLS[rule.on]
    what = {"token": f"${symbol}$ of a token", "prefix": f"${symbol}$ of a prefix"}.get(rule.level, f"${symbol}$")
    ax.set(xlabel="tokens of the prefix" if rule.level == "prefix" else "length, tokens", ylabel=f"{what}, nats")
    ax.set_title("band")


def plot_weight(rule: Rule, ax: Axes) -> None:
    """Draw the weight M w that a rule leaves, against the log-ratio, for both signs of the advantage."""
    n = 1.0 if rule.level == "token" else float(SHOWN_LENGTH)
    below, above = (float(half[0]) for half in rule.half_widths(np.array([n])))
    centre = float(np.max(np.abs(rule.centre(MEANS, np.array(list(_SIGNS)))))) * n
    reach = 1.6 * (max([half for half in (below, above) if np.isfinite(half)] or [1.0]) + centre)
    S = np.linspace(-reach, reach, 801)
    for sign, label in _SIGNS.items():
        A = np.full_like(S, sign)
        left = rule.apply(S, np.full_like(S, n), A, rule.centre(MEANS, A)).clipped_weight
        ax.plot(S, left, color=_SIGN_COLORS[sign], linestyle="-" if sign > 0 else "--", label=f"${label}$")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left")
    ax.set(xlabel=f"${SYMBOLS[rule.on]}$, nats", ylabel="weight left, $M\\,w$")
    ax.set_title("weight left" if rule.level == "token" else f"weight left at {SHOWN_LENGTH} tokens")
