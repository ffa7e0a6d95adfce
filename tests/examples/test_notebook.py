"""The notebook of examples/ runs from its first cell to its last."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_table.ipynb"


@pytest.mark.slow
def test_from_a_dataframe_to_tables_the_doctor_and_a_figure(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "the notebook is kept without outputs"
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output["data"] for cell in book.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("acceptance" in data.get("text/plain", "") for data in shown)
    assert "image/png" in shown[-1]
