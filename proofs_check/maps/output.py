"""Protect files in the folder to which ``fspo check`` and ``fspo maps`` write: refuse to overwrite a file that neither
of them wrote.
"""

from __future__ import annotations

from pathlib import Path

from fspo.base.files import begins_with, json_with, refuse_foreign
from proofs_check.maps.tables import MAP_COLUMNS, file_name
from proofs_check.report import to_latex, to_markdown


def check_output(folder: Path) -> None:
    """Refuse an output folder in which ``fspo check`` or ``fspo maps`` would overwrite a file that neither of them
    wrote.

    Raises
    ------
    UserError
        If ``folder`` is such a folder, or a file.
    """
    ours = {
        "proofs_check.json": json_with("rows", "summary", "exit_status"),
        "proofs_check.md": begins_with(to_markdown([])),
        "proofs_check.tex": begins_with(to_latex([]).splitlines()[0]),
    }
    ours |= {file_name(table): begins_with(",".join(list(columns)[:2])) for table, columns in MAP_COLUMNS.items()}
    refuse_foreign(folder, ours, "fspo check", "--output")
