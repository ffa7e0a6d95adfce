"""Publication figures: each has a module, which takes tables and returns a matplotlib Figure and computes no
statistics.

The folders ``of_runs`` and ``of_theory`` hold these modules and list their names. Each module has ``TITLE``,
``CAPTION``, ``caption(tables)``, ``figure(tables, style)``, and functions ``plot_...`` that draw a DataFrame into one
axes. The text that ``caption`` returns may have a second paragraph, which holds details. A module of ``of_runs`` also
has ``rows(tables)``, which returns the table rows that are drawn, with the panel's title in a column ``panel``. Where
TITLE speaks of length, ``TITLE_BY`` is the title of the figure when responses are binned by another quantity;
``{label}`` in it stands for the name of that quantity. ``draw_all`` draws all figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from figures import of_runs, of_theory

if TYPE_CHECKING:
    from figures.style import Style
    from figures.tables import Frame, Tables


@dataclass(frozen=True)
class DrawnFigure:
    """What became of one figure: its files and texts, or the reason why it was not drawn (``skipped``, "" if it was).

    ``name`` is the name of the files without their endings, from `file_name`. ``details`` is the caption's second
    paragraph, ``numbers`` the path of a CSV file with the drawn rows."""

    name: str
    title: str
    caption: str = ""
    details: str = ""
    pdf: Path | None = None
    png: Path | None = None
    numbers: Path | None = None
    skipped: str = ""


ALL_BINS = "all"
"""What the column ``bin`` of a figure's CSV file says in the row of all bins together. Tables have -1 there."""


def find_module(name: str) -> ModuleType:
    """Return the module that draws the figure ``name``."""
    return import_module(f"{(of_theory if name in of_theory.FIGURES else of_runs).__name__}.{name}")


def file_name(module: str, tables: Tables) -> str:
    """Return the name, without endings, of the files of the figure ``module``, such as ``acceptance_by_length``. It is
    ``acceptance-by-entropy`` for bins of entropy, ``acceptance_by_length-on-engine`` for the engine ratio E."""
    name = module if tables.by_length else f"{module.removesuffix('_by_length')}-by-{tables.partition.slug}"
    return name if tables.on == "update" else f"{name}-on-{tables.on}"


def heading(module: ModuleType, tables: Tables) -> str:
    """Return a figure's title: TITLE of its ``module``, or TITLE_BY for bins of another quantity than length. If the
    tables are about another log-ratio than S, the title ends with the symbol of that log-ratio."""
    title = module.TITLE
    if not tables.by_length:
        title = getattr(module, "TITLE_BY", title + " (bins: {label})").format(label=tables.partition.label)
    return title if tables.on == "update" else f"{title}: {tables.symbol}"


def of_ratio(tables: Tables) -> str:
    """Return the sentence of the caption that names the log-ratio which the figure is about; "" if it is S."""
    if tables.on == "update":
        return ""
    return f" Log-ratio: {tables.symbol} ({tables.on}), each response once, in the first epoch."


def check_names(only: Sequence[str], modules: Sequence[str]) -> None:
    """Raise UserError, with the nearest known name, if ``only`` names a figure that is not among ``modules``."""
    from fspo.base.errors import unknown_name

    for name in only:
        if name not in modules:
            raise unknown_name("figure", name, tuple(modules))


def draw_all(
    tables: Tables,
    output: Path,
    width: str = "neurips",
    only: Sequence[str] = (),
    modules: Sequence[str] = of_runs.FIGURES,
    rules: Sequence[str] = (),
) -> list[DrawnFigure]:
    """Draw the figures into ``output`` as PDF and PNG.

    Parameters
    ----------
    tables : Tables
        The tables to draw, from ``figures.tables.load`` or ``figures.of_theory.numbers.theory_tables``.
    output : Path
        Folder for the files; made if missing.
    width : str
        A named venue width, a key of ``figures.style.WIDTHS``.
    only : sequence of str
        Names of the figures wanted; empty for all.
    modules : sequence of str
        Figures to choose from, of ``of_runs``, ``of_theory`` or both.
    rules : sequence of str
        Rules that are drawn; empty for all in the tables.

    Returns
    -------
    list of DrawnFigure
        In the order of ``modules``; a figure whose input is missing or empty carries the reason.

    Raises
    ------
    UserError
        For an unknown width or figure name, or a rule that no table has."""
    from tqdm import tqdm

    from figures.style import Style
    from figures.tables import NothingToDraw
    from fspo.base.processes import cores, in_processes

    style = Style(width)
    check_names(only, modules)
    own = tables.only(rules) if rules else tables
    wanted = {name: find_module(name) for name in modules if not only or name in only}

    def draw(names: Sequence[str], step: Callable[[], None]) -> dict[str, DrawnFigure]:
        """Draw the figures ``names`` in this process, call ``step`` after each, and return what became of each."""
        drawn = {}
        for name in names:
            module = wanted[name]
            stem, title = file_name(name, tables), heading(module, tables)
            try:
                drawn[name] = _draw(module, own, style, Path(output), stem, title)
            except NothingToDraw as reason:
                drawn[name] = DrawnFigure(stem, title, skipped=str(reason))
            step()
        return drawn

    number = max(min(cores(), len(wanted)), 1)
    with tqdm(total=len(wanted), desc="figures", unit="figure", leave=False, disable=None) as bar:

        def step() -> None:
            bar.update()

        parts = in_processes([partial(draw, [*wanted][k::number]) for k in range(number)], step)
    drawn = {name: figure for part in parts for name, figure in part.items()}
    return [drawn[name] for name in wanted]


def _draw(module: ModuleType, tables: Tables, style: Style, output: Path, stem: str, title: str) -> DrawnFigure:
    from figures.style import save
    from fspo.base.files import whole_file

    caption, _, details = module.caption(tables).partition("\n\n")
    pdf, png = save(module.figure(tables, style), output, stem, style)
    numbers = output / f"{stem}.csv"
    rows = module.rows(tables) if hasattr(module, "rows") else tables[module.__name__.rpartition(".")[2]]
    with whole_file(numbers) as part:
        numbers_of(rows).to_csv(part, index=False, float_format="%.6g")
    return DrawnFigure(stem, title, caption + of_ratio(tables), details, pdf, png, numbers)


def numbers_of(rows: Frame) -> Frame:
    """Return the drawn table ``rows`` for a CSV file: the column ``panel`` first, no empty column, "all" for bin -1."""
    rows = rows.dropna(axis=1, how="all")
    if "bin" in rows:
        rows = rows.assign(bin=[ALL_BINS if number < 0 else f"{number:g}" for number in rows["bin"]])
    return rows[sorted(rows, key=lambda name: name != "panel")]
