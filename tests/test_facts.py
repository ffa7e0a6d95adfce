"""Each fact stands once: read from the sources, so that a second copy is found where it is written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from analysis.doctor import patient
from analysis.importing import names
from analysis.log import usable
from fspo.gradlog.schema import LOG_COLUMNS

ROOT = Path(__file__).parents[1]
ROOMS = ("fspo", "analysis", "proofs_check", "figures", "studies", "benchmarks")
SOURCES = [*(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))), ROOT / "paper_repro.py"]
LEVEL = re.compile(
    r"\b1\.96\b|\b0\.975\b|\b95 ?%(?! (kept|of A|and 85))"
    r"|(level|confidence|sure|coverage_wanted)\w*(: [^=]+)? ?= ?0\.(95|025|05)\b"
    r"|(ppf|isf|ndtri|stdtrit|quantile|proportion_ci|interval|confint)\(.*\b0\.(95|025|05)\b",
    re.IGNORECASE,
)
"""An interval's level. 0.95 may be a share: it is a level under a name that says so, or in a quantile."""


class WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


TREES = {
    path.relative_to(ROOT).as_posix(): WithoutDocstrings().visit(ast.parse(path.read_text(encoding="utf-8")))
    for path in SOURCES
}


def test_the_confidence_level_stands_once():
    lines = [(path, line) for path, tree in TREES.items() for line in ast.unparse(tree).splitlines()]
    assert [path for path, line in lines if LEVEL.search(line)] == ["fspo/stats/intervals.py"]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "gradlog", "import.json", "summary.json"])
def test_names_in_a_run_folder_stand_once(name: str):
    found = [path for path, tree in TREES.items() if any(getattr(node, "value", 0) == name for node in ast.walk(tree))]
    assert found == ["fspo/gradlog/run_folder.py"]


def test_lists_of_log_columns_name_columns_of_the_schema():
    others = {"prompt", "response", "tokens", "new", "old", "sampler", "mask"}  # what an import makes columns of
    others |= {"token_weights", "prompt_length", "total_length"}
    assert set(names.COLUMNS) - set(LOG_COLUMNS) == others
    for listed in (patient.READ, patient.IDS, usable.ROW_COLUMNS):
        assert set(listed) <= set(LOG_COLUMNS)
