"""Run examples/own_table.ipynb and store its outputs in it, for readers on the web.

The command is python -m tests.examples.notebook.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat

from fspo.base.files import write_text

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_table.ipynb"


def executed(folder: str | Path) -> Any:
    """Run the notebook in ``folder`` and return it with its outputs, but without progress bars and times of the run."""
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOK, as_version=4)
    metadata = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=600, resources=metadata, record_timing=False).execute()
    for cell in book.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    # The kernel that ran the notebook has written its Python version into the metadata. Remove the version.
    book.metadata["language_info"] = {"name": "python"}
    return book


def texts(book: Any) -> list[str]:
    """Return the texts that the cells of a notebook show, in order."""
    found = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output.get("text") or output["data"].get("text/plain", "") for output in found]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_text(NOTEBOOK, nbformat.writes(executed(folder)) + "\n")
