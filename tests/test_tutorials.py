"""The tutorials: each block of python and bash runs as it stands on the page, and prints what the page shows.

Blocks of ``py`` and ``sh`` are of a run of the reader's own, which is not here.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
QUICK = ("diagnose_table", "write_figure", "write_task")
"""Tutorials that take a few seconds; the others start several processes or train."""


class Page:
    """Runs the blocks of a page one after the other.

    Python blocks share their names. A block of text is what the block of code before it prints.
    """

    def __init__(self) -> None:
        self.names: dict = {"__name__": "__main__"}
        self.printed = ""

    def python(self, example: Example) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(example.parsed, example.path, "exec"), self.names)
        self.printed = out.getvalue()

    def bash(self, example: Example) -> None:
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-ec", example.parsed],
            env=os.environ | {"PATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.printed = done.stdout

    def text(self, example: Example) -> None:
        assert example.parsed.strip() == self.printed.strip()

    def run(self, path: Path) -> int:
        """Run a page in the present folder; return its number of blocks."""
        parsers = [CodeBlockParser(name, getattr(self, name)) for name in ("python", "bash", "text")]
        examples = list(Sybil(parsers, path=str(path.parent), pattern=path.name).parse(path).examples())
        for example in examples:
            example.evaluate()
        return len(examples)


def case(path: Path):
    marks = [] if path.stem in QUICK else [pytest.mark.slow]
    if path.stem == "diagnose_verl":
        marks.append(pytest.mark.skipif(find_spec("verl") is None, reason="make test-verl fetches verl"))
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
@pytest.mark.parametrize("path", map(case, sorted(TUTORIALS.glob("*.md"))))
def test_the_blocks_of_a_page_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(TUTORIALS.parents[1] / "examples")  # of the clone, where the reader stands
    assert Page().run(path) > 0
