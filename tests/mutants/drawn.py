"""Draw wrong changes that cosmic-ray makes of rules, theory and statistics; see whether a test notices each.

    python -m tests.mutants.drawn                # SAMPLE changes; goes on where an interrupted run stopped
    python -m tests.mutants.drawn --sample 400   # the same changes and further ones
    python -m tests.mutants.drawn --publish      # write the score to studies/results and docs/mutation.md
    python -m tests.mutants.drawn --page         # only write the page anew, after a reason was added
    make mutation

A change is judged first by the tests of its own file (`TESTS`), then, if they all pass, by those of whole analyses and
training runs (`WHOLE`). Tests that were written against the survivors of a draw are judged by a draw with a new seed:
after such tests, raise ``SEED``. The page keeps the scores of earlier draws.

Exit status 1: a change survived and ``harmless.toml`` does not say why no test can or need notice it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from analysis.claims.judge import commit
from fspo.base.files import digest_of, write_text
from fspo.stats.intervals import CONFIDENCE
from tests.mutants.run import HERE, PRELOADED, PROCESSES, ROOT, Mutant, run

TESTS: dict[str, tuple[str, ...]] = {
    "fspo/rules/online.py": ("tests/fspo/rules/test_online.py",),
    "fspo/rules/__init__.py": ("tests/fspo/rules/test_rules.py",),
    "fspo/rules/calibration.py": ("tests/fspo/rules/test_rules.py",),
    "fspo/rules/clip.py": ("tests/fspo/rules/test_rules.py",),
    "fspo/rules/drift.py": ("tests/fspo/rules/test_rules.py",),
    "fspo/rules/presets.py": ("tests/fspo/rules/test_rules.py",),
    "fspo/rules/rule.py": ("tests/fspo/rules/test_rules.py",),
    "fspo/theory": ("tests/fspo/theory",),
    "fspo/objective": ("tests/fspo/objective",),
    "fspo/advantages.py": ("tests/fspo/test_advantages.py",),
    "fspo/stats": ("tests/fspo/stats", "tests/analysis/tables/test_moments.py"),
    "analysis/stats/anytime.py": ("tests/analysis/doctor/test_laws.py",),
    "analysis/stats/error_law.py": ("tests/analysis/stats/test_lre.py",),
    "analysis/stats/fair_exponent.py": ("tests/analysis/stats/test_fair_exponent.py",),
    "analysis/stats/lre.py": ("tests/analysis/stats/test_lre.py",),
    "analysis/stats/smooth.py": ("tests/analysis/stats/test_smooth.py",),
    "analysis/claims": ("tests/analysis/claims",),
}
"""The tests of its own file that judge a change, by file or folder of the changed code."""
WHOLE = ("tests/record/test_record.py", "tests/analysis/tables")
"""The tests that judge a change which the tests of its own file did not notice."""
SAMPLE, SEED = 160, 7
STATE, STATE_WHOLE = (ROOT / "out" / name for name in ("mutants_drawn.json", "mutants_drawn_whole.json"))
HARMLESS = HERE / "harmless.toml"
RESULT = ROOT / "studies" / "results" / "mutation.json"
PAGE = ROOT / "docs" / "mutation.md"
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}
BITS = {"RShift", "LShift", "BitOr", "BitAnd", "BitXor"}


def operators() -> dict[str, Any]:
    """cosmic-ray's operators by name, without those that need the names of variables, and without bit operations in
    the place of arithmetic: floats refuse them, so every test that runs the line would notice."""
    from cosmic_ray.operators.provider import OperatorProvider  # pyright: ignore[reportMissingImports]

    provider = OperatorProvider()
    words = {name: name.split("_") for name in provider if not name.startswith("Variable")}
    return {
        name: provider[name]()
        for name, (_, *change) in words.items()
        if not (change and change[0] in ARITHMETIC and change[-1] in BITS)
    }


def code_of(source: str) -> str:
    """The syntax tree of a source without its annotations; two sources with the same one run alike."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def name_of(file: str, source: str, changed: str) -> str:
    """File, old lines and new lines of a change, without line numbers, which move."""
    old, new = source.splitlines(), changed.splitlines()
    parts = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    edits = [(old[a:b], new[c:d]) for kind, a, b, c, d in parts if kind != "equal"]
    was, now = (" ".join(line.strip() for edit in edits for line in edit[i]) for i in (0, 1))
    return f"{file}: {was} -> {now}"


def draw(sample: int, seed: int) -> tuple[list[Mutant], int]:
    """Draw changes from all that the operators can make in the files of `TESTS`.

    A change that only touches annotations, or leaves no Python, is passed over.

    Returns
    -------
    mutants : list of Mutant
        ``sample`` changes, fewer if there are no more; a larger sample begins with those of a smaller one.
    places : int
        Number of changes from which they were drawn, those passed over included.
    """
    from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]
    from cosmic_ray.mutating import MutationVisitor  # pyright: ignore[reportMissingImports]

    known, texts, found = operators(), {}, {}
    places: list[tuple[Path, tuple[str, ...], str, int]] = []
    for name, tests in TESTS.items():
        for path in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]:
            texts[path] = path.read_text(encoding="utf-8")
            nodes = [*ast_nodes(get_ast(texts[path]))]
            for operator, how in known.items():
                count = sum(1 for node in nodes for _ in how.mutation_positions(node))
                places += [(path, tests, operator, place) for place in range(count)]
    # by hash: the order among the changes of one file stays when other files are edited
    places.sort(key=lambda drawn: digest_of((seed, drawn[0].relative_to(ROOT).as_posix(), *drawn[2:])))
    for path, tests, operator, place in places:
        file, source = path.relative_to(ROOT).as_posix(), texts[path]
        changed = MutationVisitor.mutate_code(source, known[operator], place)
        try:
            if code_of(changed) != code_of(source):
                name = name_of(file, source, changed)
                found.setdefault(name, Mutant(name, file, source, changed, tests))
        except SyntaxError:
            continue
        if len(found) == sample:
            break
    return [*found.values()], len(places)


def reasons() -> dict[str, str]:
    """Why a change that survived is harmless, by the change's name."""
    return {entry["name"]: entry["why"] for entry in tomllib.loads(HARMLESS.read_text(encoding="utf-8"))["harmless"]}


def share(part: int, whole: int) -> str:
    """A share with its exact interval (Clopper and Pearson), as text."""
    interval = binomtest(part, whole).proportion_ci(CONFIDENCE)
    return f"{part} of {whole}: {part / whole:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def noticed(draw: Mapping[str, Any]) -> str:
    """The share of a draw's changes that a test noticed."""
    found = draw["killed_by"].values()
    return share(sum(map(bool, found)), len(found))


def but_harmless(draw: Mapping[str, Any], why: Mapping[str, str]) -> str:
    """The same share without the survivors that are harmless for a reason in ``why``, and how many these are."""
    survived = [name for name, test in draw["killed_by"].items() if not test]
    number, equal = len(draw["killed_by"]), sum(name in why for name in survived)
    return f"without {equal} harmless: {share(number - len(survived), number - equal)}"


def of_whole(test: str) -> bool:
    """Whether a test belongs to `WHOLE` alone, not to the tests of a changed file."""
    return test.startswith(WHOLE) and not test.startswith(tuple(path for own in TESTS.values() for path in own))


def page(draws: Sequence[Mapping[str, Any]], why: Mapping[str, str]) -> str:
    """The page docs/mutation.md: the score of the last draw, its survivors, and the scores of the draws before it."""
    last = draws[-1]
    found: dict[str, str] = last["killed_by"]
    survived = [name for name, test in found.items() if not test]
    rooms = {room: [found[name] for name in found if name.startswith(room)] for room in TESTS}
    rows = "\n".join(
        f"| `{room}` | {' '.join(f'`{test}`' for test in TESTS[room])} | "
        f"{sum(bool(test) and not of_whole(test) for test in tests)} | "
        f"{sum(map(of_whole, tests))} | {sum(not test for test in tests)} |"
        for room, tests in rooms.items()
    )
    alone = sum(bool(test) and not of_whole(test) for test in found.values())
    listed = "\n".join(f"- {_told(name)}: {why.get(name, '**not noticed**')}" for name in survived)
    earlier = "".join(
        f"- seed {draw['seed']}, commit {draw['commit'][:12]}: {noticed(draw)}; {but_harmless(draw, why)}\n"
        for draw in draws[:-1]
    )
    if earlier:
        earlier = f"""
Earlier draws, judged by the tests as these were then, the first three by those of the changed file alone. Tests were
then written against the survivors, so these changes cannot judge the tests of today:

{earlier}"""
    since = ""
    if last["seed"] < SEED:  # SEED rises when tests have been written against a draw's survivors
        since = "Tests were then written against the survivors that are not harmless, and notice them.\n\n"
    return f"""# Mutation score

Would the tests notice if a line of the rules, the theory or the statistics were wrong? cosmic-ray
{last["cosmic_ray"]} can make {last["places"]:,} small changes of these files (another operator or comparison,
a number plus or minus 1, a condition turned round, a loop left out). {len(found)} of them were drawn at random (seed
{last["seed"]}). Each was judged by the tests of its own file and, where these did not notice it, by those of whole
analyses and training runs ({" and ".join(f"`{test}`" for test in WHOLE)}), at commit
{last["commit"][:12]}:

    make mutation

- noticed: {noticed(last)}, with the exact interval
- noticed by the tests of its own file: {share(alone, len(found))}
- {but_harmless(last, why)} (the reasons stand below)
{earlier}
Changes of annotations are not drawn, nor bit operations in the place of arithmetic, which every test that runs the
line notices. What only further tests would notice counts as survived. Changes made by hand, each named after the
mistake that it stands for, are in `tests/mutants/mutants.toml` (`make mutants`).

| changed code | tests of its own file | noticed by them | by whole runs | survived |
| --- | --- | --- | --- | --- |
{rows}

## Survivors, with the reason why where one is harmless

{since}{listed}
"""


def _told(name: str) -> str:
    """What a change does, from its name "file: old line -> new line"; a line may hold an arrow itself."""
    parts = name.split(" -> ")
    half = len(parts) // 2
    return f"`{' -> '.join(parts[:half])}` became `{' -> '.join(parts[half:])}`"


def publish(*new: Mapping[str, Any]) -> None:
    """Add draws to the results, in the place of those with the same seed, and write the page."""
    seeds = [draw["seed"] for draw in new]
    before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else []
    draws = [*(draw for draw in before if draw["seed"] not in seeds), *new]
    write_text(RESULT, json.dumps(draws, indent=1) + "\n")
    write_text(PAGE, page(draws, reasons()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Test the drawn changes; print those that survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="number of changes")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the draw")
    parser.add_argument("--jobs", type=int, default=2, help="changes tested at the same time")
    parser.add_argument("--publish", action="store_true", help=f"write {PAGE.name} and {RESULT.name}")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} from {RESULT.name}; test no change")
    options = parser.parse_args(arguments)
    if options.page:
        publish()
        return 0
    from importlib.metadata import version

    PROCESSES.set_forkserver_preload(PRELOADED)
    mutants, count = draw(options.sample, options.seed)
    found = run(mutants, ROOT, STATE, options.jobs)
    why = reasons()
    left = [replace(mutant, tests=WHOLE) for mutant in mutants if not found[mutant.name] and mutant.name not in why]
    found |= run(left, ROOT, STATE_WHOLE, options.jobs)
    survived = [name for name, test in found.items() if not test]
    for name in survived:
        print(f"SURVIVED  {name}\n          {why.get(name, 'no reason is given')}")
    print(share(len(found) - len(survived), len(found)), "noticed")
    if options.publish:
        how = {"cosmic_ray": version("cosmic-ray"), "commit": commit(), "seed": options.seed, "places": count}
        publish(how | {"killed_by": found})
    return 1 if set(survived) - set(why) else 0


if __name__ == "__main__":
    sys.exit(main())
