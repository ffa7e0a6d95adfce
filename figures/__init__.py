"""Publication figures: a module for each takes tables and returns a matplotlib Figure, without computing statistics.

The folders ``of_runs`` and ``of_theory`` hold these modules and list their names. Each has ``TITLE``, ``CAPTION``,
``caption(tables)``, ``figure(tables, style)`` and a function that draws given arrays into one axes. Where TITLE speaks
of length, ``TITLE_BY`` is the title for bins of another quantity, with ``{label}`` for its name. ``draw_all`` draws all
figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from figures import of_runs, of_theory

if TYPE_CHECKING:
    from figures.tables import Tables


@dataclass(frozen=True)
class DrawnFigure:
    """What became of one figure: its files and caption, or the reason why it was not drawn.

    ``name`` is the name of the files, from `file_name`. ``numbers`` is a CSV file of the drawn rows; figures of the
    theory have none, because their tables are CSV files already.
    """

    name: str
    title: str
    caption: str = ""
    pdf: Path | None = None
    png: Path | None = None
    numbers: Path | None = None
    skipped: str = ""


def find_module(name: str) -> ModuleType:
    """Return the module that draws the figure ``name``, from the folder (``of_runs`` or ``of_theory``) that lists
    it.
    """
    return import_module(f"{(of_theory if name in of_theory.FIGURES else of_runs).__name__}.{name}")


def file_name(module: str, tables: Tables) -> str:
    """Return a figure's file name: ``acceptance_by_length``, ``acceptance-by-entropy`` if the bins are of entropy, and
    ``acceptance_by_length-on-engine`` if the log-ratio is the engine's."""
    name = module if tables.by_length else f"{module.removesuffix('_by_length')}-by-{tables.partition.slug}"
    return name if tables.on == "update" else f"{name}-on-{tables.on}"


def heading(module: ModuleType, tables: Tables) -> str:
    """Return a figure's title: the module's TITLE, or for bins of another quantity than length its TITLE_BY, or TITLE
    with that quantity's label. It names the log-ratio where this is not the update's, S.
    """
    title = module.TITLE
    if not tables.by_length:
        title = getattr(module, "TITLE_BY", title + " (bins: {label})").format(label=tables.partition.label)
    return title if tables.on == "update" else f"{title}: {tables.symbol}"


def of_ratio(tables: Tables) -> str:
    """Return the caption's sentence on the log-ratio that the figure is about; "" for the update's, S."""
    if tables.on == "update":
        return ""
    return f" Log-ratio: {tables.symbol} ({tables.on}), each response once, at first use."


def draw_all(
    tables: Tables,
    output: Path,
    width: str = "neurips",
    only: Sequence[str] = (),
    modules: Sequence[str] = of_runs.FIGURES,
) -> list[DrawnFigure]:
    """Draw the figures into ``output`` as PDF and PNG.

    Parameters
    ----------
    tables : Tables
        From ``figures.tables.load`` or ``load_theory``.
    output : Path
        Folder for the files; made if missing.
    width : str
        A named venue width, a key of ``figures.style.WIDTHS``.
    only : sequence of str
        Names of the figures wanted; empty for all.
    modules : sequence of str
        Figures to choose from, of ``of_runs``, ``of_theory`` or both.

    Returns
    -------
    list of DrawnFigure
        In the order of ``modules``; a figure whose input is missing or empty carries the reason.

    Raises
    ------
    UserError
        For an unknown width or figure name.
    """
    from tqdm import tqdm

    from figures.numbers import numbers
    from figures.style import Style, save
    from figures.tables import NothingToDraw
    from fspo.base.errors import unknown_name
    from fspo.base.files import whole_file

    style = Style(width)
    for name in only:
        if name not in modules:
            raise unknown_name("figure", name, tuple(modules))
    results = []
    for name in tqdm(
        [n for n in modules if not only or n in only], desc="figures", unit="figure", leave=False, disable=None
    ):
        module = find_module(name)
        stem, title = file_name(name, tables), heading(module, tables)
        try:
            caption, picture = module.caption(tables) + of_ratio(tables), module.figure(tables, style)
            drawn = None if name in of_theory.FIGURES else numbers(module, tables)
        except NothingToDraw as reason:
            results.append(DrawnFigure(stem, title, skipped=str(reason)))
            continue
        # An older version of the analysis wrote the tables, without a column that the figure needs.
        except KeyError as missing:
            results.append(DrawnFigure(stem, title, skipped=f"its table has no {missing}; write the tables again"))
            continue
        pdf, png = save(picture, Path(output), stem, style)
        table = None if drawn is None else Path(output) / f"{stem}.csv"
        if table is not None and drawn is not None:
            with whole_file(table) as part:
                drawn.to_csv(part, index=False, float_format="%.6g")
        results.append(DrawnFigure(stem, title, caption, pdf, png, table))
    return results
