"""Packages import downwards only, lazy imports included: read from the sources, so that no path is left unwalked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("fspo", "analysis", "proofs_check", "figures", "paper_repro", "tests", "benchmarks", "studies", "examples")
GROUND_FLOOR = (
    *("fspo.base", "fspo.stats", "fspo.rules", "fspo.theory", "fspo.gradlog", "fspo.config"),
    "fspo.advantages",
)
"""The parts of fspo that need neither torch nor pandas; analysis, proofs_check and figures import them."""
NO_TORCH = ("torch", "transformers", "accelerate", "trl", "peft", "datasets", "verl")
TRAINING = [path for path in sorted((ROOT / "fspo").iterdir()) if (path / "__init__.py").is_file()]
TRAINING.remove(ROOT / "fspo" / "evaluate")
GROUND = [ROOT.joinpath(*name.split(".")) for name in GROUND_FLOOR]


def when_loaded(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when a module is loaded: outside functions and outside ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not lazy and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            yield node
            yield from when_loaded(node)


def imported(path: Path, nodes: Callable[[ast.AST], Iterable[ast.AST]] = ast.walk) -> set[str]:
    """Dotted names that a file imports anywhere; of our packages, modules and not what they define."""
    found = set()
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module)
            below = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name for name in below if is_module(name)} or {module}
    return found


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return name.split(".")[0] in OURS and (path.is_dir() or path.with_suffix(".py").is_file())


def sources(*folders: Path) -> list[Path]:
    """Files of packages, and of modules named without their suffix."""
    return [
        path
        for folder in folders
        for path in (folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")])
    ]


def within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == a or name.startswith(a + ".") for a in allowed)


def breaches(paths: list[Path], allowed: tuple[str, ...], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in sorted(imported(path))
        if within(name, forbidden) or (within(name, OURS) and not within(name, allowed))
    ]


NUMBERS = ROOT / "figures" / "of_theory" / "numbers"
DRAWING = [path.with_suffix("") for path in sources(ROOT / "figures") if path.with_suffix("") != NUMBERS]
FLOORS = {
    "fspo": (
        ("base",),
        ("rules", "stats"),
        ("theory", "gradlog"),
        ("config",),
        ("objective", "advantages", "sampling", "tasks"),
        ("models", "distributed"),
        ("policy",),
        ("rollouts",),
        ("train",),
        ("evaluate", "plan", "integrations", "repro"),
    ),
    "proofs_check": (("frame", "models"), ("tools", "report"), ("checks", "formal"), ("catalogue",), ("run",)),
}
"""Rooms of packages from the ground up. A room may import the floors below it and itself, but a check no other check.
Above the rooms of proofs_check stand the commands, each ``__main__``."""


@pytest.mark.parametrize(
    ("folders", "allowed", "forbidden"),
    [
        (GROUND, GROUND_FLOOR, (*NO_TORCH, "pandas", "matplotlib")),
        ([ROOT / "analysis"], (*GROUND_FLOOR, "analysis"), (*NO_TORCH, "matplotlib")),
        ([ROOT / "proofs_check"], (*GROUND_FLOOR, "proofs_check"), (*NO_TORCH, "matplotlib")),
        ([ROOT / "fspo"], ("fspo",), ("matplotlib",)),
        (TRAINING, ("fspo",), ("pandas",)),  # evaluate writes its tables with pandas
        (DRAWING, (*GROUND_FLOOR, "figures", "analysis"), (*NO_TORCH, "scipy", "mpmath")),  # no statistics
        ([NUMBERS], (*GROUND_FLOOR, "figures", "proofs_check"), (*NO_TORCH, "matplotlib")),
    ],
    ids=["ground floor", "analysis", "proofs_check", "fspo", "training", "figures", "numbers of the theory's figures"],
)
def test_imports_go_downwards(folders: list[Path], allowed: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    files = sources(*folders)
    assert files
    assert breaches(files, allowed, forbidden) == []


@pytest.mark.parametrize(("package", "floor"), [(name, i) for name, of in FLOORS.items() for i in range(len(of))])
def test_rooms_import_downwards(package: str, floor: int) -> None:
    ground = GROUND_FLOOR if package == "proofs_check" else ()
    below = tuple(f"{package}.{room}" for rooms in FLOORS[package][:floor] for room in rooms)
    for room in FLOORS[package][floor]:
        own = () if room == "checks" else (f"{package}.{room}",)
        files = [path for path in sources(ROOT / package / room) if package == "fspo" or path.stem != "__main__"]
        assert files
        found = breaches(files, (*ground, *below, *own), ())
        version = " imports fspo" if package == "fspo" else "nothing"  # rooms of fspo may ask it for its version
        assert [line for line in found if not line.endswith(version)] == []


@pytest.mark.parametrize("package", FLOORS)
def test_every_room_stands_on_a_floor(package: str) -> None:
    rooms = {path.stem for path in (ROOT / package).iterdir() if path.stem.islower() and "__" not in path.stem}
    assert rooms - {"presets"} == {room for rooms in FLOORS[package] for room in rooms}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circle(modules: dict[str, set[str]]) -> list[str]:
    """Modules of one circle of imports, empty where there is none."""
    try:
        TopologicalSorter({name: others & modules.keys() for name, others in modules.items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_modules_import_in_no_circle() -> None:
    packages = ("fspo", "analysis", "proofs_check", "figures", "studies", "paper_repro")
    files = sources(*(ROOT / name for name in packages))
    modules = {module_name(path): imported(path, when_loaded) for path in files}
    assert len(modules) > 200
    assert circle(modules) == []


def test_modules_import_in_no_circle_inside_functions_either() -> None:
    # a package's __init__ may import its modules inside a function (registries do), and they may ask the package
    files = [path for path in sources(ROOT / "fspo", ROOT / "analysis", ROOT / "figures") if path.stem != "__init__"]
    assert circle({module_name(path): imported(path) for path in files}) == []
