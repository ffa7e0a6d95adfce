"""Widths of figures at venues. This module does not load matplotlib, so that the help of commands can list the widths
quickly."""

from __future__ import annotations

from tueplots import figsizes

_POINTS_PER_INCH = 72.27

WIDTHS: dict[str, float] = {
    name: preset()["figure.figsize"][0]
    for name, preset in {
        "neurips": figsizes.neurips2024,
        "icml-column": figsizes.icml2024_half,
        "icml-full": figsizes.icml2024_full,
        "iclr": figsizes.iclr2024,
        "aaai-column": figsizes.aaai2024_half,
        "aaai-full": figsizes.aaai2024_full,
        "colm": figsizes.colm2026,
        "tmlr": figsizes.tmlr2023,
        "jmlr": figsizes.jmlr2001,
    }.items()
} | {
    "acl-column": 219.09 / _POINTS_PER_INCH,  # \columnwidth and \textwidth of acl.sty; the package tueplots has no ACL
    "acl-full": 455.24 / _POINTS_PER_INCH,
}
"""Width in inches of a figure at each named venue."""
