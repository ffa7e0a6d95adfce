"""The repository stays small enough to hold in the head: a ceiling for each of its dimensions.

Whoever adds an ability pays for it by removing what it replaces. A ceiling is raised only with a reason in the commit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from analysis.tables.files import TABLES
from analysis.tables.typed_rows import names
from figures.of_runs import FIGURES as OF_RUNS
from figures.of_theory import FIGURES as OF_THEORY
from fspo.__main__ import COMMANDS
from fspo.rules import CORRECTIONS, PRESETS
from proofs_check.catalogue import CHECKS

ROOT = Path(__file__).parents[1]

LINES = {
    "fspo": 16_182,
    "analysis": 7_809,
    "analysis/claims": 538,
    "analysis/doctor": 2_300,
    "analysis/importing": 1_700,
    "figures": 2_813,
    "figures/page": 451,
    "proofs_check": 4_983,
    "studies": 1_197,
    "benchmarks": 900,
    "docs": 198,
    "examples": 201,
    "paper_repro.py": 179,
}
"""Ceiling of the lines of Python by folder; a folder within another one counts for itself alone. These are the sizes of
today, and they may only fall."""
PYTHON_LINES, TEST_LINES = 39_447, 22_648
"""Ceilings of all Python outside tests, and of tests, which fall to 20,000."""
WORDS = 29_187
"""Ceiling of the words in all Markdown files."""
PAGES = {"README.md": 900, "docs/findings.md": 2_500, "docs/theory.md": 4_500, "docs/proofs.md": 4_000}
"""Ceilings of the words of single pages, words that hold a letter or a digit, without blocks of code and formulas."""
CODE = re.compile(r"^```.*?^```$", re.M | re.S)
SENTENCE, PARAGRAPH, DECIMALS = 20, 80, 5
"""Ceilings of a page's prose, what is outside tables and code: words of a sentence on average, words of its longest
paragraph, and decimal numbers, which belong into tables."""
MORE_DECIMALS = {"docs/theory.md": 31, "docs/findings.md": 118, "docs/studies.md": 19, "docs/other_trainers.md": 13}
"""Pages with more decimal numbers."""
OPTIONS, TABLE_COUNT, COLUMNS, FIGURE_COUNT, PRESET_COUNT, CHECK_COUNT = 144, 11, 212, 14, 12, 73


def tracked(pattern: str) -> list[str]:
    """Files of the repository that match a git pattern, new ones too; those that are deleted do not count."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", pattern]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in listed if (ROOT / name).is_file()]


def lines(name: str) -> int:
    return (ROOT / name).read_text(encoding="utf-8").count("\n")


def folder_of(name: str) -> str:
    """The longest folder of LINES that holds a file; "" if none does."""
    return max((folder for folder in LINES if name == folder or name.startswith(f"{folder}/")), key=len, default="")


def code_lines() -> dict[str, int]:
    counts = dict.fromkeys(LINES, 0)
    for name in tracked("*.py"):
        if not name.startswith("tests/"):
            counts[folder_of(name)] += lines(name)
    return counts


@pytest.mark.parametrize("folder", LINES)
def test_a_folder_keeps_to_its_lines(folder: str) -> None:
    assert code_lines()[folder] <= LINES[folder]


def test_all_code_keeps_to_its_lines() -> None:
    assert sum(code_lines().values()) <= PYTHON_LINES


def test_tests_keep_to_their_lines() -> None:
    assert sum(lines(name) for name in tracked("tests/*.py")) <= TEST_LINES


def count(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.split())


def paragraphs(text: str) -> list[str]:
    """The paragraphs and items of a page without headings, tables and code; a formula or a name in code is one word."""
    text = re.sub(r"^[|#].*", "", re.sub(CODE, "", text), flags=re.M)
    text = re.sub(r"\$`.*?`\$|`[^`]*`", "x", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|<[^>]*>", r"\1", text)
    return [part for part in re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. ))", text) if part.strip()]


@pytest.mark.parametrize(("name", "most"), PAGES.items())
def test_a_page_keeps_to_its_words(name: str, most: int) -> None:
    assert count(re.sub(CODE, "", (ROOT / name).read_text(encoding="utf-8"))) <= most


@pytest.mark.parametrize("name", [name for name in tracked("*.md") if name.startswith(("README", "CONTR", "docs/"))])
def test_a_page_keeps_its_sentences_short_and_its_numbers_in_tables(name: str) -> None:
    found = paragraphs((ROOT / name).read_text(encoding="utf-8"))
    sentences = [
        one for part in found for one in re.split(r"(?<=[.!?:;])[*)\"]*\s+(?=[A-Z*(`x])", part) if count(one) > 1
    ]
    assert sum(map(count, sentences)) / len(sentences) <= SENTENCE
    assert max(map(count, found)) <= PARAGRAPH
    assert sum(len(re.findall(r"\d*\.\d+", part)) for part in found) <= MORE_DECIMALS.get(name, DECIMALS)


def test_documents_keep_to_their_words() -> None:
    assert sum(len((ROOT / name).read_text(encoding="utf-8").split()) for name in tracked("*.md")) <= WORDS


def options() -> set[str]:
    """Names of all options of all commands, each once."""
    found: set[str] = set()
    for command in COMMANDS.values():
        for action in import_module(command.module).build_parser()._actions:
            if action.help != argparse.SUPPRESS and type(action).__name__ != "_ActionConfigLoad":
                found |= {name.replace("_", "-") for name in action.option_strings if name.startswith("--")}
    return found


def test_commands_keep_to_their_options() -> None:
    assert len(options()) <= OPTIONS


def test_tables_figures_presets_and_checks_keep_to_their_number() -> None:
    assert len(TABLES) <= TABLE_COUNT
    assert sum(len(names(row)) for row in TABLES.values()) <= COLUMNS
    assert len(OF_RUNS) + len(OF_THEORY) <= FIGURE_COUNT
    assert len(PRESETS) + len(CORRECTIONS) <= PRESET_COUNT
    assert len(CHECKS) <= CHECK_COUNT
