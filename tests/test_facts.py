"""Each fact stands once: read from the sources, so that a second copy is found where it is written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.doctor import patient
from analysis.importing import convert, names
from analysis.log import usable
from fspo.gradlog.schema import LOG_COLUMNS

ROOT = Path(__file__).parents[1]
ROOMS = ("fspo", "analysis", "proofs_check", "figures", "studies", "benchmarks")
SOURCES = [*(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))), ROOT / "paper_repro.py"]
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
QUANTILE_CALLS = ("ppf", "isf", "ndtri", "stdtrit", "quantile", "proportion_ci", "interval", "confint")
LEVEL_NAMES = re.compile(r"level|confidence|sure|coverage_wanted", re.IGNORECASE)
LEVEL_WORDS = re.compile(r"\b95 ?%(?! (kept|of A|and 85))")


def is_level(node: ast.AST | None, *values: float) -> bool:
    return isinstance(node, ast.Constant) and node.value in (values or (0.95, 0.025, 0.05))


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that the code uses, docstrings left out."""
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explained:
            yield node


def levels(tree: ast.AST) -> Iterator[int]:
    """Lines on which an interval's level stands as a number or in words.

    1.96 and 0.975 are nothing else. 0.95 also is a share: it is a level under a name that says so, or in a quantile.
    """
    yield from (node.lineno for node in literals(tree) if LEVEL_WORDS.search(str(node.value)))
    for node in ast.walk(tree):
        if is_level(node, 1.96, 0.975):
            yield node.lineno
        if isinstance(node, ast.arguments):
            pairs = [*zip(reversed(node.args), reversed(node.defaults), strict=False)]
            pairs += zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from (value.lineno for name, value in pairs if LEVEL_NAMES.search(name.arg) and is_level(value))
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rsplit(".")[-1]
            inside = [n for a in node.args for n in ast.walk(a)] if called in QUANTILE_CALLS else []
            inside += [k.value for k in node.keywords if k.arg and LEVEL_NAMES.search(k.arg)]
            yield from (n.lineno for n in inside if is_level(n))
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_level(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (node.lineno for target in targets if LEVEL_NAMES.search(ast.unparse(target)))


TEXTS = {path: {text.value for text in literals(tree)} for path, tree in TREES.items()}


def test_the_confidence_level_stands_once():
    assert [path for path, tree in TREES.items() for _ in levels(tree)] == ["fspo/stats/intervals.py"]
    for line in ("t.ppf(0.975, n)", "def f(x, *, level=0.95): ...", "CONFIDENCE = 0.95", "A = 'Bars: 95 % intervals.'"):
        assert list(levels(ast.parse(line))), line
    for line in ("TARGETS = (0.95, 0.85)", "beta2: float = 0.95", "'95 % of A != 0 kept'", "f(x, 0.95)"):
        assert not list(levels(ast.parse(line))), line


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "gradlog", "import.json", "summary.json"])
def test_names_in_a_run_folder_stand_once(name: str):
    assert [path for path, texts in TEXTS.items() if name in texts] == ["fspo/gradlog/run_folder.py"]


def test_lists_of_log_columns_name_columns_of_the_schema():
    others = {"prompt", "response", "tokens", "new", "old", "sampler", "mask"}  # what an import makes columns of
    others |= {"token_weights", "prompt_length", "total_length"}
    for listed in (patient.READ, patient.IDS, usable.ROW_COLUMNS):
        assert set(listed) <= set(LOG_COLUMNS)
    assert set(convert.COPIED) <= set(names.COLUMNS) & set(LOG_COLUMNS)
    assert set(names.COLUMNS) - set(LOG_COLUMNS) == others
    assert all(LOG_COLUMNS[name].kind.startswith(("int", "float", "bool")) for name in convert.COPIED)
