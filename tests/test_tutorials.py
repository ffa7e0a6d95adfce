"""The pages: what is shown as input runs as it stands, and prints what the page shows.

Input is a block of python or (in tutorials) bash, and in a block of console each line that begins with ``$``. Blocks
of ``py``, ``sh`` and elsewhere bash are of a run of the reader's own, which is not here. Three dots of an output
stand for anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

from fspo.__main__ import main

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES.remove(ROOT / "docs" / "glossary.md")  # which only explains words
TRAINS = ("train", "evaluate", "other_trainers", "reproduce", "watch")
"""Pages whose commands train a model or serve a page."""
OTHER_NUMBERS = ("train", "evaluate", "other_trainers", "reproduce")
"""Pages whose numbers depend on the machine: there a number stands for any number."""
QUICK = ("diagnose_table", "write_figure", "write_task")
"""Tutorials that take a few seconds; the others start several processes or train."""


class Page:
    """Runs the blocks of a page one after the other.

    Python blocks share their names. A block of text is what the block of code before it prints.
    """

    def __init__(self, other_numbers: bool = False) -> None:
        self.names: dict = {"__name__": "__main__"}
        self.printed, self.other_numbers = "", other_numbers

    def python(self, example: Example) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(example.parsed, example.path, "exec"), self.names)
        self.printed = out.getvalue()

    def bash(self, example: Example) -> None:
        self.command(example.parsed, (0,))

    def command(self, script: str, statuses: tuple[int, ...]) -> None:
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-ec", script], env=os.environ | {"PATH": paths}, capture_output=True, text=True, check=False
        )
        assert done.returncode in statuses, done.stdout + done.stderr
        self.printed = done.stdout

    def console(self, example: Example) -> None:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", example.parsed, re.M):
            if command.startswith("fspo watch"):  # until somebody ends it
                self.command(f"timeout --preserve-status -s INT 20 {command}", (0, 1))
            elif self.other_numbers or not command.startswith("fspo "):
                self.command(command, (0, 1))
            else:
                self.here(command)
            self.compare(shown)

    def here(self, command: str) -> None:
        """Run a command of ours in this process, which has imported most of what it needs."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(shlex.split(command)[1:]) in (0, 1)
        self.printed = out.getvalue()

    def compare(self, shown: str) -> None:
        found = ""
        for line in shown.strip().splitlines():
            words = re.escape(line.rstrip()).replace(re.escape("..."), ".*")
            if self.other_numbers:  # cells of numbers may be others, or unknown
                cells = r"(?:(?:\\ )+(?:(?:\\[-+[])*\d[\d.,\\\]]*|\\-|%))+(?=\\ |$)"
                words = re.sub(cells, lambda _: r"[-+\d.,%\[\] ]+", words)
                words = re.sub(r"\d+((\\\.|,)\d+)*", r"[\\d.,]+", re.sub(r"(\\ )+", r" +", words))
            found += r"(.*\n)*" if line == "..." else words + r" *\n"
        assert re.fullmatch(found or r"\n", self.printed.strip() + "\n"), f"shown:\n{shown}\nprinted:\n{self.printed}"

    def text(self, example: Example) -> None:
        self.compare(example.parsed)

    def run(self, path: Path, blocks: tuple[str, ...] = ("python", "bash", "text", "console")) -> int:
        """Run a page in the present folder; return its number of blocks."""
        parsers = [CodeBlockParser(name, getattr(self, name)) for name in blocks]
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
    assert "After this page you" in path.read_text(encoding="utf-8")
    assert Page().run(path) > 0


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The folder in which a reader stands: a clone of the repository without results of commands, but with the demo."""
    folder = tmp_path_factory.mktemp("clone")
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "out":
            (folder / path.name).symlink_to(path)
    with contextlib.chdir(folder):
        Page().here("fspo demo")
    return folder


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in TRAINS else []) for p in PAGES]
)
def test_a_page_shows_what_its_commands_print(path, clone, monkeypatch):
    monkeypatch.chdir(clone)
    begins = path.read_text(encoding="utf-8").split("\n## ")[0]
    assert path.name == "README.md" or "After this page you" in begins
    assert Page(path.stem in OTHER_NUMBERS).run(path, ("python", "text", "console")) > 0
