"""Arrays of public functions carry their shapes in their types, and the shapes hold where other tests call them."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fspo.shape_checks import MODULES

ROOT = Path(__file__).parents[2]
BARE = {"Tensor", "ndarray", "NDArray", "Array", "Floats", "Ints"}
"""Types of arrays without a shape; an `ArrayLike` may be a number or a list, so it has none."""
FILES = (
    *("objective/test_objective.py", "objective/test_corrections.py", "test_advantages.py"),
    *("rules/test_rules.py", "stats/test_clusters.py"),
    *(f"policy/test_{name}.py" for name in ("logprobs", "linear_logprobs", "sketch", "scores", "score_hooks")),
)
LEFT_OUT = (
    *("refused", "bad_input", "factors_by_length", "unbiased", "falls"),
    *("log_softmaxs", "draws", "memory", "checkpointing"),
)
"""Parts of names of tests that pass wrong values on purpose, or factors as lists (the first three), or take long."""


def sources() -> Iterator[Path]:
    for module in MODULES:
        path = ROOT.joinpath(*module.split("."))
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def annotations(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Name and annotation of each argument, result and field that a module shows to others."""
    for child in ast.iter_child_nodes(node):
        name = getattr(child, "name", "")
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and name.startswith("_"):
            continue
        if isinstance(child, ast.ClassDef):
            yield from annotations(child, f"{inside}{name}.")
        elif isinstance(child, ast.FunctionDef):
            given = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
            yield from ((f"{inside}{name}({x.arg})", x.annotation) for x in given if x.annotation)
            yield from [(f"{inside}{name} ->", child.returns)] if child.returns else []
        elif isinstance(child, ast.AnnAssign) and inside:
            yield f"{inside}{ast.unparse(child.target)}", child.annotation


def without_shape(annotation: ast.AST) -> bool:
    """Whether an annotation names an array outside ``Kind[array, "shape"]``."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        last = annotation.slice.elts[-1]
        if isinstance(last, ast.Constant) and isinstance(last.value, str):
            return False
    named = getattr(annotation, "id", getattr(annotation, "attr", ""))
    return named in BARE or any(without_shape(child) for child in ast.iter_child_nodes(annotation))


def test_every_public_array_has_a_shape_in_its_type() -> None:
    found = {path: [*annotations(ast.parse(path.read_text(encoding="utf-8")))] for path in sources()}
    bare = [f"{path.name}: {name}" for path, named in found.items() for name, x in named if without_shape(x)]
    assert bare == []
    assert sum(map(len, found.values())) > 400  # all modules were read


def run(*command: str) -> str:
    """Return what a Python process of its own prints; it must end without an error."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


@pytest.mark.slow
def test_shapes_hold_in_the_tests_of_their_modules() -> None:
    """In a process of its own: the check refuses wrong shapes before our own messages about them are made."""
    files = [str(ROOT / "tests" / "fspo" / name) for name in FILES]
    run("-m", "pytest", "-x", "-p", "tests.fspo.shape_checks", "-k", f"not ({' or '.join(LEFT_OUT)})", *files)


CALLS = {
    "objective.log_ratios(x, x, x > 0)": True,
    "objective.log_ratios(x, x, x[:1] > 0)": False,
    "objective.log_ratios(x, x, x)": False,  # a mask is bool
    "clip.Clip('drop', None, 'sequence').side(x, x, clip.Edges(x, x, x))": True,
    "clip.Clip('drop', None, 'sequence').side(x, x[:, :2], clip.Edges(x, x, x))": False,
}
"""Calls, and whether their arguments have the shapes and kinds that the types name; x is float, (2, 3)."""
TRY = """
import torch, tests.fspo.shape_checks
tests.fspo.shape_checks.pytest_configure()
from jaxtyping import TypeCheckError
from fspo import objective
from fspo.rules import clip
x = torch.ones(2, 3)
for call in %r:
    try:
        eval(call)
        print(True)
    except TypeCheckError:
        print(False)
"""


def test_the_check_refuses_wrong_shapes() -> None:
    assert run("-c", TRY % [*CALLS]).split() == [str(kept) for kept in CALLS.values()]
