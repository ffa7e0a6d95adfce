"""The notebook of examples/ runs from its first cell to its last, and shows what is stored in it."""

from pathlib import Path

import nbformat
import pytest

from tests.examples.notebook import NOTEBOOK, executed, texts


def test_the_stored_notebook_shows_tables_and_a_figure_and_is_small() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    book = nbformat.reads(text, as_version=4)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in cells[1:]), "run python -m tests.examples.notebook"
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert "image/png" in cells[-1].outputs[-1]["data"]
    assert len(text) < 300_000
    assert not [root for root in ("/home", "/tmp", "/work", "/root", "/Users", "site-packages") if root in text]


@pytest.mark.slow
def test_from_a_dataframe_to_tables_the_doctor_and_a_figure(tmp_path: Path) -> None:
    book = executed(tmp_path)
    assert any("acceptance" in text for text in texts(book))
    stored = texts(nbformat.read(NOTEBOOK, as_version=4))
    assert texts(book) == stored, "run python -m tests.examples.notebook"
    assert "image/png" in book.cells[-2].outputs[-1]["data"]
