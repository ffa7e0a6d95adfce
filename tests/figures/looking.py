"""Reading a drawn figure back: markers, intervals, texts; what the tests of all figures share."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.markers import MarkerStyle
from matplotlib.text import Text

from figures.style import SMALLEST_FONT


def marked(ax, **want) -> np.ndarray:
    """(x, y) of every drawn marker of the given look, rows in drawing order."""
    rows = []
    for line in ax.get_lines():
        look = {"color": line.get_color(), "marker": line.get_marker(), "fillstyle": line.get_fillstyle()}
        if line.get_marker() not in ("None", None, "") and all(look[k] == v for k, v in want.items()):
            rows.append(np.column_stack(line.get_data()).astype(float))
    for dots in ax.collections:
        if isinstance(dots, PathCollection):
            rows.append(np.asarray(dots.get_offsets(), float)[_wanted(dots, **want)])
    return np.concatenate(rows) if rows else np.empty((0, 2))


def _wanted(dots: PathCollection, color: str = "", marker: str = "", fillstyle: str = "") -> np.ndarray:
    """Which points of a collection have the given look."""
    count = len(dots.get_offsets())
    fills, edges = (np.resize(c, (count, 4)) for c in (dots.get_facecolor(), dots.get_edgecolor()))
    full = fills[:, 3] > 0
    found = np.ones(count, bool)
    if fillstyle:
        found &= full == (fillstyle == "full")
    if color:
        found &= [to_hex(f if f[3] > 0 else e).upper() == color.upper() for f, e in zip(fills, edges, strict=True)]
    if marker:
        style = MarkerStyle(marker)
        shape, paths = style.get_path().transformed(style.get_transform()), dots.get_paths()
        same = [p.vertices.shape == shape.vertices.shape and np.allclose(p.vertices, shape.vertices) for p in paths]
        found &= np.resize(same, count)
    return found


def bars(ax, axis: int) -> set[tuple[float, float]]:
    """Ends of the intervals along one axis, rounded."""
    found = set()
    for collection in ax.collections:
        if isinstance(collection, LineCollection):
            for segment in collection.get_segments():
                low, high = np.asarray(segment)[:, axis]
                found.add((round(float(low), 9), round(float(high), 9)))
    return found


def titled(fig, title: str):
    return next(ax for ax in fig.axes if ax.get_title(loc="left").startswith(title))


def in_row(fig, label: str) -> list:
    """The axes of the row of panels that is named at its left, from left to right."""
    first = next(ax for ax in fig.axes if ax.get_ylabel() == label)
    row = first.get_subplotspec().rowspan.start
    return [ax for ax in fig.axes if ax.get_subplotspec().rowspan.start == row]


def drawn_texts(fig, monkeypatch) -> list[tuple[str, float, tuple[float, float, float, float]]]:
    """Text, size and box of all that is really drawn."""
    found = []
    draw = Text.draw

    def watched(self, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            found.append((self.get_text(), self.get_fontsize(), self.get_window_extent(renderer).extents))
        return draw(self, renderer, *args, **kwargs)

    FigureCanvasAgg(fig)
    monkeypatch.setattr(Text, "draw", watched)
    fig.draw_without_rendering()
    monkeypatch.undo()
    return found


def assert_legible(fig, style, monkeypatch) -> None:
    """The figure has its venue's width; no text is cut off, overlaps another or is too small."""
    texts = drawn_texts(fig, monkeypatch)
    assert fig.get_size_inches()[0] == pytest.approx(style.width)
    right, top = fig.bbox.width, fig.bbox.height
    assert texts
    for text, size, (x0, y0, x1, y1) in texts:
        assert size >= SMALLEST_FONT, text
        assert min(x0, y0, right - x1, top - y1) > -1, f"{text!r} sticks out: {x0, y0, x1, y1} of {right, top}"
    for i, (one, _, a) in enumerate(texts):
        for other, _, b in texts[i + 1 :]:
            wide = min(a[2], b[2]) - max(a[0], b[0])
            high = min(a[3], b[3]) - max(a[1], b[1])
            assert wide < 1 or high < 1.5, f"{one!r} overlaps {other!r}"
