"""Scales, ticks and labels of axes."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import ArrayLike

from analysis.log.partition import LENGTH, Partition


def plain(value: float, _: int = 0) -> str:
    """Return the number at a tick as text, with few digits and no power of ten. The second argument, which Matplotlib
    passes, is not used."""
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def fixed_ticks(axis: Any, places: ArrayLike) -> None:
    """Put ticks at ``places`` of an axis and nowhere else, with plain numbers."""
    axis.set_major_locator(FixedLocator(list(np.asarray(places, float))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(plain))


def length_axis(ax: Axes, lengths: ArrayLike, most: int = 6) -> None:
    """Make the x axis base-2 logarithmic over all ``lengths``, with plain numbers at ``most`` ticks or fewer."""
    lengths = np.asarray(lengths, float)
    ax.set_xscale("log", base=2)
    low, high = np.nanmin(lengths) / 1.25, np.nanmax(lengths) * 1.25
    ax.set_xlim(low, high)
    powers = np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1)
    step = max(1, int(np.ceil(len(powers) / most)))
    fixed_ticks(ax.xaxis, 2.0 ** powers[::step])


def bin_axis(ax: Axes, partition: Partition, values: ArrayLike, most: int = 6) -> None:
    """Format and label the x axis for bins: base-2 logarithmic for bins of length, linear for bins of another quantity.
    ``values`` are the bins' places on the axis; ``most`` limits the number of tick labels."""
    values = np.asarray(values, float)
    if partition == LENGTH:
        length_axis(ax, values, most)
    else:
        room = 0.08 * (float(np.ptp(values)) or 1.0)
        ax.set_xlim(values.min() - room, values.max() + room)
        few_ticks(ax.xaxis, min(most, 4))
    # A long label is broken into lines, because panels are narrow.
    ax.set_xlabel(partition.label if partition == LENGTH else fill(partition.label, 24))


def decade_axis(axis: Any, values: ArrayLike, most: int = 6) -> None:
    """Make an axis base-10 logarithmic over the positive ``values``, with at most ``most`` labelled powers of ten. If
    fewer than two powers are in range, 2 and 5 times a power are labelled too."""
    values = np.asarray(values, float)
    values = values[np.isfinite(values) & (values > 0)]
    low, high = values.min() / 1.4, values.max() * 1.4
    name = axis.axis_name
    getattr(axis.axes, f"set_{name}scale")("log")
    getattr(axis.axes, f"set_{name}lim")(low, high)
    powers = np.arange(np.ceil(np.log10(low)), np.floor(np.log10(high)) + 1)
    ticks = 10.0 ** powers[:: max(1, int(np.ceil(len(powers) / most)))]
    if len(powers) < 2:
        between = np.outer(10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high))), [1, 2, 5]).ravel()
        ticks = between[(between >= low) & (between <= high)]
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())


def percent_axis(axis: Any) -> None:
    """Label the ticks of an axis of shares in percent."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g}".replace("-", "\N{MINUS SIGN}")))


def from_zero(axes: Sequence[Axes]) -> None:
    """Give all axes one x range, from 0 (with room for a marker) to the largest value drawn in any of them."""
    right = max(float(ax.dataLim.x1) for ax in axes)
    right = right if np.isfinite(right) and right > 0 else 1.0
    for ax in axes:
        ax.set_xlim(-0.03 * right, 1.05 * right)


def few_ticks(axis: Any, count: int = 4) -> None:
    """Put ticks at round numbers, at most ``count`` intervals, or fewer where many digits make the labels wide."""
    axis.axes.autoscale_view()
    low, high = axis.get_view_interval()
    relative = (high - low) / max(abs(low), abs(high), 1e-300)
    locator = MaxNLocator(nbins=min(count, 2) if relative < 2e-3 else count, steps=[1, 2, 2.5, 5, 10])
    if relative < 1e-4:
        inside = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        locator = FixedLocator([inside[0], inside[-1]] if inside else [low])
    axis.set_major_locator(locator)
    axis.set_major_formatter(ScalarFormatter())
