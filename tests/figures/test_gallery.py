"""The gallery: every figure stands on it, and its lines of code draw the figure."""

from __future__ import annotations

import re
import runpy
import shutil

import pytest

from figures import of_runs, of_theory
from studies.gallery import PAGE, PICTURES, page
from tests.figures.of_theory.test_theory_figures import folder as theory  # noqa: F401  (a fixture)


def blocks() -> dict[str, str]:
    """The code of each figure, by the heading above it."""
    found = re.findall(r"^### (\w+)\n.*?^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return dict(found)


def test_the_page_has_every_figure_and_is_what_the_script_writes():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m studies.gallery"
    assert list(blocks()) == [*of_runs.FIGURES, *of_theory.FIGURES]
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) < 2_500_000


def run(name, folder, monkeypatch):
    """Run the code of a figure in ``folder``, and look for its files."""
    monkeypatch.chdir(folder)
    (folder / "code.py").write_text(blocks()[name], encoding="utf-8")
    runpy.run_path(str(folder / "code.py"))
    assert {path.suffix for path in (folder / "out" / "figures").glob(f"{name}.*")} >= {".pdf", ".png"}


@pytest.fixture
def place(case_runs, tmp_path):
    """A folder in which out/none and out/fspo are analysed runs."""
    for rule in ("none", "fspo"):
        (found,) = [path for path in case_runs("usual") if path.name == f"{rule}-s0"]
        shutil.copytree(found, tmp_path / "out" / rule)
    return tmp_path


def test_the_code_of_a_figure_of_runs_draws_it(place, monkeypatch):
    run("acceptance_by_length", place, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", of_runs.FIGURES)
def test_the_code_of_every_figure_of_runs_draws_it(name, place, monkeypatch):
    run(name, place, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", of_theory.FIGURES)
def test_the_code_of_every_figure_of_the_theory_draws_it(name, theory, tmp_path, monkeypatch):  # noqa: F811
    shutil.copytree(theory, tmp_path / "out" / "proofs_check")
    run(name, tmp_path, monkeypatch)
