"""List all checks of the theory in the order of the statements of docs/theory.md. They come from the modules of the
folder ``checks`` and from the Coq proofs (folder ``formal``)."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from proofs_check import checks
from proofs_check.formal import checks as formal_checks
from proofs_check.frame import MADE, Check

MODULES = [import_module(f"{checks.__name__}.{module.name}") for module in iter_modules(checks.__path__)]
"""The modules of the folder ``checks``, ordered by name; importing one makes its checks."""

CHECKS: tuple[Check, ...] = tuple(sorted([*MADE, *formal_checks.CHECKS], key=lambda check: int(check.statement[1:])))

_FIRST_LINES = [(module.__doc__ or "").splitlines()[0].rstrip(".") for module in MODULES]
TITLES = dict(line.split(": ", 1) for line in _FIRST_LINES if line.startswith("T") and ": " in line)
"""Statement in a few words, by id: the first line of its module."""

STATEMENTS = tuple(dict.fromkeys(check.statement for check in CHECKS))
"""The ids of the statements that have checks, in the order of docs/theory.md: "T1", "T2", ..."""
