"""Widths, fonts, colours, markers and line styles of all figures, and saving with reproducible bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from figures.widths import WIDTHS
from fspo.base.errors import unknown_name
from fspo.base.files import whole_file

SMALLEST_FONT = 6.5
"""Size in points of the smallest text in a figure at its printed width."""
DPI = 300


@dataclass(frozen=True)
class Look:
    """How a rule is drawn in every figure: colour, marker and the lengths of dashes and gaps (none: a solid line)."""

    color: str
    marker: str
    dashes: tuple[float, ...] = ()

    @property
    def linestyle(self) -> Any:
        """The rule's line style, as Matplotlib's argument ``linestyle`` takes it."""
        return (0, self.dashes) if self.dashes else "-"


_SHORT_DASH, _DASH, _LONG_DASH = (2.5, 1.2), (4.0, 1.6), (7.0, 2.0)
_DOTS, _DASH_DOT, _DASH_DOT_DOT = (1.0, 1.6), (5.0, 1.5, 1.0, 1.5), (5.0, 1.5, 1.0, 1.5, 1.0, 1.5)

# Okabe and Ito's palette and Tol's muted one, which remain distinct under the common colour-vision deficiencies. Marker
# and line style differ as well, so that a grey print can be read.
LOOKS: dict[str, Look] = {
    "none": Look("#000000", "X", _DOTS),
    "rloo": Look("#D55E00", "s", _DASH),
    "gspo": Look("#009E73", "^", _DASH_DOT),
    "fspo": Look("#0072B2", "o"),
    "fspo-kl": Look("#56B4E9", "D", _LONG_DASH),
    "fspo-adaptive": Look("#AA4499", "^"),
    "grpo": Look("#E69F00", "p", _SHORT_DASH),
    "random": Look("#7F7F7F", "*", _DOTS),
}
_SPARE = (
    Look("#DDAA33", "8", _DASH),
    Look("#BB5566", "H", _DASH_DOT),
    Look("#999933", ">", _LONG_DASH),
    Look("#004488", "<", _SHORT_DASH),
    Look("#661100", "d", _DOTS),
    Look("#6699CC", "p"),
)
OF_SHAPES = {"exact": "none", "mis": "rloo", "geo-mask": "gspo", "engine-sqrt": "fspo-kl"}
"""Corrections, each with the preset whose band has the same shape. Figures draw the correction in that preset's look.
"""
OUTSIDE_MARKERS = {"drop": "o", "mask": "o", "truncate": "s", "cap": "D"}
OUTSIDE_COLORS = {"drop": "#0072B2", "mask": "#0072B2", "truncate": "#D55E00", "cap": "#882255"}
RANDOM_LABEL = "random drop"
GREY, PALE = "#6a6a6a", "#9a9a9a"
"""Two greys: the first for numerical noise and for words in a panel, the second for reference lines."""


def looks(rules: Iterable[str]) -> dict[str, Look]:
    """Return the look (colour, marker, line style) of each rule by name, in the order in which figures list rules:
    those of ``LOOKS`` first.

    Another rule gets a spare look that depends on its name alone, unless a rule of the same figure has it already."""
    found: dict[str, Look] = {}
    names = set(rules)
    known = LOOKS | {name: LOOKS[alike] for name, alike in OF_SHAPES.items()}
    for name in [*[n for n in known if n in names], *sorted(names - set(known))]:
        if name in known:
            found[name] = known[name]
            continue
        start = zlib.crc32(name.encode()) % len(_SPARE)
        turn = [_SPARE[(start + i) % len(_SPARE)] for i in range(len(_SPARE))]
        found[name] = next((look for look in turn if look not in found.values()), turn[0])
    return found


def rule_label(rule: str) -> str:
    """Return the name under which a rule is printed in a figure."""
    return RANDOM_LABEL if rule == "random" else rule


_RC: dict[str, Any] = {
    "mathtext.fontset": "stix",
    "axes.formatter.useoffset": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 4.0,
    "axes.labelpad": 2.5,
    "axes.grid": True,
    "grid.color": "#e9e9e9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.8,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.3,
    "savefig.dpi": DPI,
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
    "figure.constrained_layout.hspace": 0.03,
    "figure.constrained_layout.wspace": 0.03,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fspo",
} | {
    f"{axis}tick.{name}": value
    for axis in "xy"
    for name, value in {"major.width": 0.6, "major.size": 2.5, "major.pad": 2.0, "color": "#555555"}.items()
}
"""Matplotlib settings that replace those of seaborn's theme."""


@dataclass(frozen=True)
class Style:
    """A venue's width (``venue`` is a key of ``WIDTHS``) and the fonts that go with it."""

    venue: str = "neurips"

    def __post_init__(self) -> None:
        if self.venue not in WIDTHS:
            raise unknown_name("width", self.venue, tuple(WIDTHS))

    @property
    def width(self) -> float:
        """Figure width in inches."""
        return WIDTHS[self.venue]

    @property
    def narrow(self) -> bool:
        """Whether figures of this width fill one column of a page with two columns."""
        return self.width < 4.5

    def columns(self, panels: int, most: int = 4) -> int:
        """Return the number of columns in which ``panels`` panels stand: at most ``most``. If there are several
        columns, each is at least 1.45 inches wide."""
        return max(1, min(panels, most, int(self.width / 1.45)))

    @contextmanager
    def context(self) -> Iterator[None]:
        """Within a ``with`` block, draw with seaborn's theme for papers, whatever the user's settings are: no text
        below 6.5 points, fonts that ship with Matplotlib, embedded as TrueType."""
        import seaborn as sns

        with mpl.rc_context():
            mpl.rcdefaults()
            sns.set_theme("paper", "ticks", font="STIXGeneral", font_scale=0.83, color_codes=False, rc=_RC)
            yield


def styled(figure: Callable[[Any, Style], Figure]) -> Callable[[Any, Style], Figure]:
    """Decorate a function ``figure(data, style)`` so that it draws inside ``style.context()``."""

    @wraps(figure)
    def drawn(data: Any, style: Style) -> Figure:
        with style.context():
            return figure(data, style)

    return drawn


def save(figure: Figure, folder: Path, name: str, style: Style) -> list[Path]:
    """Write ``name.pdf`` and ``name.png`` (300 dpi) into ``folder``, and return their paths. The same figure gives the
    same bytes; a file appears only when it is complete."""
    metadata: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
    paths = {kind: folder / f"{name}.{kind}" for kind in metadata}
    with style.context():
        figure.set_dpi(DPI)
        if engine := figure.get_layout_engine():  # it runs once for both: savefig would draw the figure to run it
            engine.execute(figure)
        figure.set_layout_engine(None)
        for kind, path in paths.items():
            with whole_file(path) as part:
                figure.savefig(part, format=kind, dpi=DPI, metadata=metadata[kind])
    return list(paths.values())
