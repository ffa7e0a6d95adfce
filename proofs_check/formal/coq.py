"""Compile the Coq scripts of this folder with the coqc that is on the PATH, and let Coq print what they prove.

What Coq prints, the statement of each theorem, all definitions and the axioms on which all rest, is kept in
``statements.txt``. A review sees there what is proved: a change of a statement must change that file, which
``python -m proofs_check.formal.coq`` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from filelock import FileLock

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.base.files import cache_folder, digest, write_text
from fspo.base.processes import end_with_parent

SCRIPTS = Path(__file__).parent
PRINTED = SCRIPTS / "statements.txt"
"""What Coq printed when the statements were last reviewed."""
DEFINITIONS, AXIOMS = "definitions", "axioms"
"""Names under which all definitions, and the axioms of all theorems, stand among the printed statements."""
SECONDS = 300.0
"""Most seconds that coqc may take for one script; the slowest needs a few."""
_MARK = "== "
_DEFINED = re.compile(r"^(?:Definition|Fixpoint|Record) (\w+)", re.M)
_PROVED = re.compile(r"^(?:Theorem|Lemma) (T\d\w*|LRE_\w+)", re.M)


class CoqMissing(Exception):
    """Raised if there is no coqc on the PATH."""


class CoqRefused(Exception):
    """Raised if coqc does not accept a script; the message holds its first error."""


def scripts(folder: Path = SCRIPTS) -> Mapping[str, str]:
    """Return the text of every Coq script of ``folder`` by name, each script after those that it imports."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.v"))}
    needs = {name: re.findall(r"From FSPO Require Import ([^.]*)\.", text) for name, text in texts.items()}
    order = TopologicalSorter({name: " ".join(found).split() for name, found in needs.items()})
    return {name: texts[name] for name in order.static_order()}


def theorems(texts: Mapping[str, str]) -> list[str]:
    """Return the names of the theorems in the texts of all scripts: those that start with a statement's id or LRE."""
    return [name for text in texts.values() for name in _PROVED.findall(text)]


def printed(folder: Path = SCRIPTS) -> dict[str, str]:
    """Return what Coq prints of each theorem of the scripts, by name, of all definitions (name `DEFINITIONS`), and of
    the axioms on which all rest (`AXIOMS`). The answer is cached under the scripts' text and Coq's version.

    Raises
    ------
    CoqMissing
        If there is no coqc on the PATH.
    CoqRefused
        If coqc does not accept a script."""
    return blocks(answered(folder))


def answered(folder: Path = SCRIPTS) -> str:
    """Return what Coq prints of the scripts of ``folder`` as one text; raises CoqMissing or CoqRefused."""
    program = shutil.which("coqc")
    if program is None:
        raise CoqMissing("install coq (Debian, Ubuntu: apt-get install coq), so that coqc is on the PATH")
    return _printed(program, tuple(scripts(folder).items()))


@cache
def _printed(program: str, texts: tuple[tuple[str, str], ...]) -> str:
    version = _run([program, "--print-version"], SCRIPTS)
    asked = {**dict(texts), "Ask": _questions(dict(texts))}
    kept = cache_folder() / "coq" / f"{digest(repr((version, asked)))}.txt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{kept}.lock"):
        if not kept.is_file():
            write_text(kept, _answer(program, asked))
        return kept.read_text(encoding="utf-8")


def _questions(texts: Mapping[str, str]) -> str:
    names = theorems(texts)
    lines = [f"From FSPO Require Import {' '.join(texts)}.", "From Coq Require Import List Reals."]
    lines += ["Open Scope R_scope.", "Set Printing Width 116.", "Set Printing Depth 1000."]
    for name in names:
        lines += [_mark(name), f"Check @{name}."]
    lines += [_mark(DEFINITIONS), *(f"Print {name}." for text in texts.values() for name in _DEFINED.findall(text))]
    lines += [_mark(AXIOMS), f"Definition all := ({', '.join(f'@{name}' for name in names)})."]
    return "\n".join([*lines, "Print Assumptions all.", ""])


def _answer(program: str, texts: Mapping[str, str]) -> str:
    """Compile scripts in their order, and return what the last one prints."""
    said = ""
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in texts.items():
            (Path(scratch) / f"{name}.v").write_text(text, encoding="utf-8")
            said = _run([program, "-q", "-Q", ".", "FSPO", f"{name}.v"], Path(scratch))
    return said


def _mark(name: str) -> str:
    return f'Goal True. idtac "{_MARK}{name}". Abort.'


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, preexec_fn=end_with_parent
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CoqRefused(f"{command[-1]}: {error}") from error
    if done.returncode:
        raise CoqRefused(f"{command[-1]}: {' '.join(done.stderr.split())[:300] or f'status {done.returncode}'}")
    return done.stdout


def blocks(text: str) -> dict[str, str]:
    """Return what Coq printed of each theorem, by name, from its whole text; blanks and line ends become one blank."""
    parts = text.split(f"{_MARK}")[1:]
    return {name: " ".join(rest.split()) for name, _, rest in (part.partition("\n") for part in parts)}


def reviewed() -> dict[str, str]:
    """Return the statements that Coq had printed at the last review, by theorem, from ``statements.txt``."""
    return blocks(PRINTED.read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, write what Coq prints to ``statements.txt`` and return the exit status."""
    words = "Write what Coq prints of the scripts to statements.txt, for a review of the statements."
    CommandParser(prog="python -m proofs_check.formal.coq", description=words).parse_args(arguments)
    try:
        answer = answered()
    except (CoqMissing, CoqRefused) as error:
        raise UserError(str(error)) from error
    write_text(PRINTED, answer)
    print(f"wrote {PRINTED}")
    return 0


if __name__ == "__main__":
    run_cli(main)
