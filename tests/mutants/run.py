"""Apply each small wrong change of ``mutants.toml`` in a copy of the repository and see that a named test fails.

    python -m tests.mutants.run               # all; goes on where an interrupted run stopped
    python -m tests.mutants.run --only drift  # those with this text in their name
    make mutants

A mutant is killed if one of its tests fails or runs out of time. Exit status 1: a mutant survived. The state is kept in
``out/mutants.json``; a verdict counts for the sources that it was found with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from fspo.base.files import write_text

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


def fails(tests: Sequence[str], copy: Path) -> str:
    """The first test that fails in the copy; "" if all pass."""
    # without bytecode: Python takes a changed file of equal size and second for the old one
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-rfE", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"out of time ({LIMIT} s)"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode != 1 or not failed:
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return failed[0].split(" ", 1)[1].split(" - ")[0]


def run(mutants: Sequence[Mutant], root: Path, state: Path) -> dict[str, str]:
    """Return by mutant the test that killed it ("" if it survived); what ``state`` knows is not run again."""
    files = sources(root)
    digest = hashlib.sha256(b"".join(name.encode() + (root / name).read_bytes() for name in files)).hexdigest()
    known = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {}
    found: dict[str, str] = known.get("killed_by", {}) if known.get("sources") == digest else {}
    left = [mutant for mutant in mutants if mutant.name not in found]
    sound: set[tuple[str, ...]] = set()
    with copied(root, files) as copy:
        for mutant in tqdm(left, unit="mutant", disable=not left):
            if mutant.tests not in sound and (broken := fails(mutant.tests, copy)):
                raise SystemExit(f"{broken} fails without any mutant")
            sound.add(mutant.tests)
            path = copy / mutant.file
            source = path.read_text(encoding="utf-8")
            path.write_text(mutant.of(source), encoding="utf-8")
            found[mutant.name] = fails(mutant.tests, copy)
            path.write_text(source, encoding="utf-8")
            state.parent.mkdir(parents=True, exist_ok=True)
            write_text(state, json.dumps({"sources": digest, "killed_by": found}, indent=2) + "\n")
    return {mutant.name: found[mutant.name] for mutant in mutants}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table's mutants; print each with the test that noticed it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants with this text in their name")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in read_mutants() if options.only in mutant.name]
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
