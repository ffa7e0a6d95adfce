"""Apply each small wrong change of ``mutants.toml`` in a copy of the repository and see that a named test fails.

    python -m tests.mutants.run               # all; goes on where an interrupted run stopped
    python -m tests.mutants.run --only drift  # those with this text in their name
    make mutants

A mutant is killed if one of its tests fails or runs out of time. Exit status 1: a mutant survived. The state is kept in
``out/mutants.json``; a verdict counts until the changed file or a file of its tests is another one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from tqdm import tqdm

from fspo.base.files import digest_of, write_text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TABLE = HERE / "mutants.toml"
STATE = ROOT / "out" / "mutants.json"
LIMIT = 600
"""Seconds after which the tests of one mutant are stopped; a change that makes a test run for ever is noticed."""


@dataclass(frozen=True)
class Mutant:
    """A change of one file, and the tests of which at least one must fail under it (pytest's node ids)."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def of(self, source: str) -> str:
        """The file's text with the change; ``old`` must stand in it exactly once."""
        if (found := source.count(self.old)) != 1:
            raise SystemExit(f"{TABLE.name}: {self.name!r}: the old text stands {found} times in {self.file}, not once")
        return source.replace(self.old, self.new)


def read_mutants(path: Path = TABLE) -> list[Mutant]:
    """The mutants of a table."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def sources(root: Path) -> list[str]:
    """The repository's files, without those that git ignores, as paths under ``root``."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    return sorted(name for name in listed.stdout.split("\0") if (root / name).is_file())


@contextmanager
def copied(root: Path, files: Sequence[str]) -> Iterator[Path]:
    """A temporary copy of the repository."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in files:
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, target)
        yield Path(folder)


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "hypothesis"])
PRELOADED = ["pytest", "hypothesis", "pandas", "scipy.stats", "statsmodels.api", "torch"]
"""Packages that each test process has loaded when it begins; to load them takes longer than most tests."""


def fails(tests: Sequence[str], copy: Path) -> str:
    """The first test that fails in the copy; "" if all pass."""
    out = copy / "mutant.out"
    child = PROCESSES.Process(target=_pytest, args=(tests, copy, out))
    child.start()
    child.join(LIMIT)
    if child.exitcode is None:
        child.kill()
        child.join()
        return f"out of time ({LIMIT} s)"
    if child.exitcode == 0:
        return ""
    text = out.read_text(encoding="utf-8", errors="replace")
    failed = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if child.exitcode not in (1, 2) or not failed:  # 2: a file of tests could not be imported
        raise SystemExit(f"pytest ended with {child.exitcode}:\n{text[-6000:]}")
    return failed[0].split(" ", 1)[1].split(" - ")[0]


def _pytest(tests: Sequence[str], copy: Path, out: Path) -> None:
    """Run pytest in the copy, whose packages take the place of those that this process has loaded."""
    with out.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    loaded = {path.stem for path in copy.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in loaded]:
        del sys.modules[name]
    os.chdir(copy)
    os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
    # without bytecode: Python takes a changed file of equal size and second for the old one
    os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
    import pytest

    sys.exit(pytest.main(["-x", "-rfE", "--no-header", "-p", "no:cacheprovider", *tests]))


def run(mutants: Sequence[Mutant], root: Path, state: Path, jobs: int = 1) -> dict[str, str]:
    """Return by mutant the test that killed it ("" if it survived).

    Parameters
    ----------
    mutants : sequence of Mutant
    root : Path
        The repository; each of the ``jobs`` processes works in a copy of it.
    state : Path
        JSON file of the verdicts found so far, which are not found again.
    jobs : int
        Mutants tested at the same time.
    """
    files = sources(root)
    found: dict[str, list[str]] = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {}
    digests = {mutant.name: _digest(mutant, root, files) for mutant in mutants}
    left = [mutant for mutant in mutants if found.get(mutant.name, [""])[0] != digests[mutant.name]]
    sound: set[tuple[str, ...]] = set()
    os.environ["OMP_NUM_THREADS"] = "1"
    state.parent.mkdir(parents=True, exist_ok=True)

    def judge(mutant: Mutant) -> str:
        copy = copies.get()
        path = copy / mutant.file
        source = path.read_text(encoding="utf-8")
        try:
            if mutant.tests not in sound and (broken := fails(mutant.tests, copy)):
                raise SystemExit(f"{broken} fails without any mutant")
            sound.add(mutant.tests)
            path.write_text(mutant.of(source), encoding="utf-8")
            return fails(mutant.tests, copy)
        finally:
            path.write_text(source, encoding="utf-8")
            copies.put(copy)

    with ExitStack() as stack:
        copies: Queue[Path] = Queue()
        for _ in range(jobs):
            copies.put(stack.enter_context(copied(root, files)))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)  # after a failure the waiting mutants are not begun
        verdicts = pool.map(judge, left)
        for mutant, verdict in zip(left, tqdm(verdicts, unit="mutant", total=len(left)), strict=True):
            found[mutant.name] = [digests[mutant.name], verdict]
            write_text(state, json.dumps(found, indent=2) + "\n")
    return {mutant.name: found[mutant.name][1] for mutant in mutants}


def _digest(mutant: Mutant, root: Path, files: Sequence[str]) -> str:
    """Hash of the mutant, the file that it changes and the files of its tests (a test may be a folder)."""
    tests = {test.partition("::")[0] for test in mutant.tests}
    read = [name for name in files if name == mutant.file or any(name == t or name.startswith(f"{t}/") for t in tests)]
    texts = (mutant.old, mutant.new, *mutant.tests, *((root / name).read_text(encoding="utf-8") for name in read))
    return digest_of(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table's mutants; print each with the test that noticed it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants with this text in their name")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in read_mutants() if options.only in mutant.name]
    PROCESSES.set_forkserver_preload(PRELOADED)
    if not chosen:
        parser.error(f"no mutant's name contains {options.only!r}")
    found = run(chosen, ROOT, STATE)
    for name, test in found.items():
        print(f"{'killed  ' if test else 'SURVIVED'}  {name}" + (f"\n            {test}" if test else ""))
    survived = sum(not test for test in found.values())
    print(f"{len(found) - survived} of {len(found)} killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
