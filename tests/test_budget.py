"""The repository stays small enough to hold in the head: a ceiling for each of its dimensions.

Whoever adds an ability pays for it by removing what it replaces. A ceiling is raised only with a reason in the commit.
"""

from __future__ import annotations

import argparse
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from analysis.tables.columns import names
from analysis.tables.files import TABLES
from figures.of_runs import FIGURES as OF_RUNS
from figures.of_theory import FIGURES as OF_THEORY
from fspo.__main__ import COMMANDS
from fspo.rules import CORRECTIONS, PRESETS
from proofs_check.catalogue import CHECKS

ROOT = Path(__file__).parents[1]

LINES = {
    "fspo": 16_500,
    "analysis": 8_000,
    "analysis/claims": 1_450,
    "analysis/doctor": 3_764,
    "analysis/importing": 1_954,
    "figures": 2_900,
    "figures/page": 1_250,
    "proofs_check": 10_200,
    "studies": 1_200,
    "benchmarks": 900,
    "examples": 210,
    "docs": 210,
    "paper_repro.py": 310,
}
"""Ceiling of the lines of Python by folder; a folder within another one counts for itself alone."""
PYTHON_LINES, TEST_LINES = 51_000, 26_000
WORDS = 45_000
"""Ceiling of the words in all Markdown files."""
OPTIONS, TABLE_COUNT, COLUMNS, FIGURE_COUNT, PRESET_COUNT, CHECK_COUNT = 190, 12, 250, 14, 12, 150


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
