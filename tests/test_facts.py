"""Each fact stands once: read from the sources, so that a second copy is found where it is written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.doctor import admit
from analysis.importing import convert, names
from analysis.log import usable
from fspo.gradlog.schema import LOG_COLUMNS
from fspo.rules import COMPARED, PRESETS
from proofs_check.tools import log_rows as checked

ROOT = Path(__file__).parents[1]
ROOMS = ("fspo", "analysis", "proofs_check", "figures", "studies", "benchmarks")
QUANTILE_CALLS = ("ppf", "isf", "ndtri", "stdtrit", "quantile", "proportion_ci", "interval", "confint")
LEVEL_NAMES = re.compile(r"level|confidence|sure|coverage_wanted", re.IGNORECASE)
LEVEL_WORDS = re.compile(r"\b95 ?%(?! (kept|of A|and 85))")


def sources() -> list[Path]:
    """The modules outside the tests."""
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))] + [ROOT / "paper_repro.py"]


def test_a_class_name_stands_for_one_thing() -> None:
    """The doctor reads rows of its own kind, and one of its checks is about the mismatch."""
    named: dict[str, list[str]] = {}
    for path in sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    twice = {name: paths for name, paths in named.items() if len(paths) > 1}
    assert {name: sorted(paths) for name, paths in twice.items()} == {
        "Rows": ["analysis/doctor/patient.py", "analysis/log/rows.py"],
        "Mismatch": ["analysis/doctor/mismatch.py", "fspo/objective/ratios.py"],
    }


def is_level(node: ast.AST, *values: float) -> bool:
    return isinstance(node, ast.Constant) and node.value in (values or (0.95, 0.025, 0.05))


def levels(tree: ast.AST) -> Iterator[int]:
    """Lines on which an interval's level stands as a number or in words.

    1.96 and 0.975 are nothing else. 0.95 also is an acceptance, a decay or a control's factor: it is a level as the
    default or argument of a parameter named so, under such a name, or in a quantile. Docstrings may name the level of
    a formula that they explain.
    """
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if is_level(node, 1.96, 0.975):
            yield node.lineno
        text = node.value if isinstance(node, ast.Constant) and id(node) not in explained else None
        if isinstance(text, str) and LEVEL_WORDS.search(text):
            yield node.lineno
        if isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args]
            pairs = [*zip(named[len(named) - len(node.defaults) :], node.defaults, strict=True)]
            pairs += [(a, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d is not None]
            yield from (value.lineno for name, value in pairs if LEVEL_NAMES.search(name.arg) and is_level(value))
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            inside = [n for a in node.args for n in ast.walk(a)] if called in QUANTILE_CALLS else []
            inside += [k.value for k in node.keywords if k.arg and LEVEL_NAMES.search(k.arg)]
            yield from (n.lineno for n in inside if is_level(n))
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and is_level(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(LEVEL_NAMES.search(ast.unparse(target)) for target in targets):
                yield node.value.lineno


def test_the_confidence_level_stands_once():
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        for line in levels(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert [place.rsplit(":")[0] for place in found] == ["fspo/stats/intervals.py"], sorted(found)


@pytest.mark.parametrize(
    "line",
    [
        "half = sps.t.ppf(0.975, n - 1) * se",
        "half = 1.96 * se",
        "def f(x, level: float = 0.95): ...",
        "def f(x, *, level=0.95): ...",
        "f(x, level=0.95)",
        "CONFIDENCE = 0.95",
        "sps.binomtest(k, n).proportion_ci(0.95)",
        "rank = sps.binom.ppf(0.025, n, 0.5)",
        "CAPTION = 'Bars: 95 % intervals.'",
        "CAPTION = f'{a} Bars: 95% intervals.'",
    ],
)
def test_a_second_level_is_found(line: str):
    assert list(levels(ast.parse(line)))


@pytest.mark.parametrize(
    "line", ["target = 0.95", "TARGETS = (0.95, 0.85)", "beta2: float = 0.95", "'95 % of A != 0 kept'", "f(x, 0.95)"]
)
def test_other_uses_of_the_number_are_no_level(line: str):
    assert not list(levels(ast.parse(line)))


def literals(tree: ast.AST) -> set[str]:
    """Texts that the code uses, docstrings left out."""
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explained
    }


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "gradlog", "import.json", "summary.json"])
def test_names_in_a_run_folder_stand_once(name: str):
    found = [path for path in sources() if name in literals(ast.parse(path.read_text(encoding="utf-8")))]
    assert [str(path.relative_to(ROOT)) for path in found] == ["fspo/gradlog/run_folder.py"]


def test_files_are_renamed_into_place_and_hashed_in_one_module():
    calls: dict[str, set[str]] = {"sha256": set(), "replace": set()}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.replace", "hashlib.sha256"):
                calls[node.attr].add(str(path.relative_to(ROOT)))
    # hashes of many parts are fed piece by piece; a superseded run folder is put aside, not written
    pieces = {"fspo/models/warmup.py", "fspo/repro/stages.py", "fspo/sampling/vllm.py"}
    assert calls["sha256"] == {"fspo/base/files.py"} | pieces
    # a vLLM server reads a folder that must stay in place, so its files are replaced one by one
    assert calls["replace"] == {"fspo/base/files.py", "fspo/repro/stages.py", "fspo/sampling/vllm.py"}


def lists(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Line and texts of each tuple, list, set and dict (its keys) that is written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            spread = [e.value for e in node.elts if isinstance(e, ast.Starred) and isinstance(e.value, ast.Tuple)]
            inner = [*node.elts, *(element for part in spread for element in part.elts)]
        elif isinstance(node, ast.Dict):
            inner = [key for key in node.keys if key]
        else:
            continue
        yield node.lineno, [e.value for e in inner if isinstance(e, ast.Constant) and isinstance(e.value, str)]


def test_lists_of_rules_name_presets_and_repeat_none_that_has_a_name():
    others = {
        "fspo/rules/presets.py": {"dr_grpo"},  # estimators of the advantage
        "fspo/rules/rule.py": {"fixed", "linear", "sqrt", "token", "prefix"},  # shapes
        "figures/style.py": {"random"},  # the control
        "figures/of_theory/fairness_map.py": {"fixed", "linear", "power-0.25", "power-0.75"},  # bands of the map
    }
    found, named = 0, (set(COMPARED), set(PRESETS))
    for path in sources():
        name = str(path.relative_to(ROOT))
        for line, texts in lists(ast.parse(path.read_text(encoding="utf-8"))):
            if len(set(texts) & set(PRESETS)) > 1:
                found += 1
                assert set(texts) <= set(PRESETS) | others.get(name, set()), f"{name}:{line}"
                assert set(texts) not in named or name == "fspo/rules/presets.py", f"{name}:{line}: import it"
    assert found > 5


def test_lists_of_log_columns_name_columns_of_the_schema():
    others = {"prompt", "response", "tokens", "new", "old", "sampler", "mask"}  # what an import makes columns of
    for listed in (admit.READ, admit.IDS, usable.ROW_COLUMNS, usable.LEARNT, checked.NEEDED):
        assert set(listed) <= set(LOG_COLUMNS)
    assert set(convert.COPIED) <= set(names.COLUMNS) & set(LOG_COLUMNS)
    assert set(names.COLUMNS) - set(LOG_COLUMNS) == others
    numbers = [LOG_COLUMNS[name].kind for name in convert.COPIED]
    assert all(kind.startswith(("int", "float", "bool")) for kind in numbers)


def test_no_metric_is_named_where_it_is_counted():
    """The names stand in fspo/gradlog/metric_names.py; `Counts.add` is given one of them."""
    calls = [
        (path, node)
        for path in sorted((ROOT / "fspo").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "counts.add"
    ]
    assert len(calls) > 20
    assert [
        f"{path}:{node.lineno}" for path, node in calls if isinstance(node.args[0], ast.Constant | ast.JoinedStr)
    ] == []
