"""Publication figures: tables in, Figure out. One module for each figure; none computes a statistic of its own.

``MODULES`` (of runs) and ``THEORY`` (of no run) list them in the order of a paper. Each has ``NAME``, ``TITLE``,
``CAPTION``, ``caption(tables)``, ``figure(tables, style)`` and an ax-level function that takes computed arrays.
``draw_all`` writes them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from figures.tables import Tables

MODULES = (
    "acceptance_by_length",
    "clip_over_training",
    "lre_by_rule",
    "cosine_by_rule",
    "cosine_bound",
    "error_split",
    "variance_scaling",
    "training_curves",
    "drift_by_sign",
)
THEORY = (
    "acceptance_laws",
    "drift_lre",
    "tightness",
    "berry_esseen",
    "fairness_map",
    "fairness_grid",
    "mse_map",
    "mse_best",
)
"""Figures from the tables of ``python -m proofs_check.maps``."""


@dataclass(frozen=True)
class Drawn:
    """What became of one figure: its files and caption, or the reason why it was skipped."""

    name: str
    title: str
    caption: str = ""
    pdf: Path | None = None
    png: Path | None = None
    skipped: str = ""


def draw_all(
    tables: Tables,
    output: Path,
    width: str = "neurips",
    only: Sequence[str] = (),
    modules: Sequence[str] = MODULES,
) -> list[Drawn]:
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
        Figures to choose from: ``MODULES``, ``THEORY`` or both.

    Returns
    -------
    list of Drawn
        In the order of ``modules``; a figure whose input is missing or empty carries the reason.

    Raises
    ------
    UserError
        For an unknown width or figure name.
    """
    from tqdm import tqdm

    from figures.style import Style, save
    from figures.tables import NothingToDraw
    from fspo.errors import unknown_name

    style = Style(width)
    for name in only:
        if name not in modules:
            raise unknown_name("figure", name, tuple(modules))
    results = []
    for name in tqdm(
        [n for n in modules if not only or n in only], desc="figures", unit="figure", leave=False, disable=None
    ):
        module = import_module(f"figures.{name}")
        try:
            caption, picture = module.caption(tables), module.figure(tables, style)
        except NothingToDraw as reason:
            results.append(Drawn(name, module.TITLE, skipped=str(reason)))
            continue
        except KeyError as missing:  # tables of another version
            results.append(Drawn(name, module.TITLE, skipped=f"its table has no {missing}; write the tables again"))
            continue
        pdf, png = save(picture, Path(output), name, style)
        results.append(Drawn(name, module.TITLE, caption, pdf, png))
    return results
