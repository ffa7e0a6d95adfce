"""Compile the Coq scripts of this folder, once per version of scripts and Coq, and ask Coq what they prove.

A theorem counts only if coqc accepts its script, ``Print Assumptions`` lists no axiom but those of Coq's classical real
numbers, and no script has a word, such as ``Admitted``, by which a proof is left out.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from filelock import FileLock

from fspo.base.files import cache_folder, digest, whole_folder, write_text
from proofs_check.formal.coq import Compilation, Coq, run_coqc

SCRIPTS = Path(__file__).parent
ALLOWED_AXIOMS = frozenset(
    {
        "ClassicalDedekindReals.sig_forall_dec",
        "ClassicalDedekindReals.sig_not_dec",
        "FunctionalExtensionality.functional_extensionality_dep",
        "Classical_Prop.classic",
    }
)
"""The axioms of Coq's standard library of real numbers (section "Reals" of its documentation)."""
GIVEN_UP = re.compile(
    r"\b(Admitted|admit|give_up|Abort|Axioms?|Conjecture|Parameters?|bypass_check|type_in_type|"
    r"Unset\s+(?:Guard|Positivity|Universe)\s+Checking)\b"
)
_MARK = "=== theorem "
_DECLARATION = re.compile(r"^\s*(?:Theorem|Lemma|Corollary)\s+([\w']+)", re.M)


@dataclass(frozen=True)
class Proved:
    """What Coq says about some theorems: the statement of each, and all axioms on which they rest."""

    statements: Mapping[str, str]
    axioms: tuple[str, ...]

    @property
    def foreign(self) -> tuple[str, ...]:
        """Return those of the theorems' axioms that do not belong to Coq's real numbers. Coq counts a theorem without a
        proof as an axiom.
        """
        return tuple(axiom for axiom in self.axioms if axiom not in ALLOWED_AXIOMS)

    def __str__(self) -> str:
        """Return the statements and the axioms as text for the report."""
        return "\n".join([*self.statements.values(), f"Axioms: {', '.join(self.axioms) or 'none'}"])


@dataclass(frozen=True)
class Refused:
    """A script that coqc refused: the message, and in which theorem's proof coqc stopped ("" outside all proofs)."""

    error: str
    theorem: str


def scripts() -> Mapping[str, str]:
    """Return the text of every Coq script by name, in an order in which each stands after those that it imports."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SCRIPTS.glob("*.v"))}
    needs = {name: _needs(text) for name, text in texts.items()}
    return {name: texts[name] for name in TopologicalSorter(needs).static_order()}


def _needs(text: str) -> list[str]:
    return [name for names in re.findall(r"From FSPO Require Import ([^.]*)\.", text) for name in names.split()]


def without_comments(text: str) -> str:
    """Return a Coq script without its comments, which may be nested. Line breaks in comments stay, so that the other
    lines keep their numbers.
    """
    kept, depth = [], 0
    for piece in re.split(r"(\(\*|\*\))", text):
        if piece == "(*":
            depth += 1
        elif piece == "*)" and depth:
            depth -= 1
        else:
            kept.append(piece if depth == 0 else "\n" * piece.count("\n"))
    return "".join(kept)


def given_up(text: str) -> list[str]:
    """Return the words by which a Coq script assumes something unproved, such as ``Admitted``, each with its line."""
    bare = without_comments(text)
    return [f"{m[0]} in line {bare.count(chr(10), 0, m.start()) + 1}" for m in GIVEN_UP.finditer(bare)]


def theorem_at(text: str, line: int | None) -> str:
    """Return the name of the theorem in whose proof a line of a Coq script (``text``) lies.

    The name is "" if the line is in no proof.
    """
    name, inside = "", False
    for number, content in enumerate(without_comments(text).splitlines(), 1):
        found = _DECLARATION.match(content)
        if found:
            name, inside = found[1], False
        if re.search(r"\bProof\b", content):
            inside = True
        if number == line:
            return name if inside else ""
        if re.search(r"\b(Qed|Defined)\.", content):
            inside = False
    return ""


def compiled(coq: Coq) -> Path | Refused:
    """Return the cache folder of the compiled Coq scripts; compile them unless the folder exists. If coqc refuses a
    script, return that refusal.
    """
    return _compiled(coq, tuple(scripts().items()))


@cache
def _compiled(coq: Coq, named_texts: tuple[tuple[str, str], ...]) -> Path | Refused:
    texts = dict(named_texts)
    key = digest(repr((coq.version, sorted(texts.items()))))
    home = cache_folder() / "coq"
    target = home / f"proofs-{key}"
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / f"{target.name}.lock"):
        if (target / "whole").is_file():
            return target
        try:
            with whole_folder(target) as part:
                for name, text in texts.items():
                    (part / f"{name}.v").write_text(text, encoding="utf-8")
                    run = run_coqc(coq, part, name)
                    if not run.ok:
                        raise _RefusalError(Refused(run.first_error, theorem_at(text, run.error_line)))
                (part / "whole").touch()
        except _RefusalError as error:
            return error.refused
    return target


class _RefusalError(Exception):
    """Raised if coqc refuses a script of this folder. It stops the compilation before a cache folder of compiled
    scripts appears.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused)
        self.refused = refused


def ask(coq: Coq, module: str, theorems: Sequence[str], library: Path, changed: str | None = None) -> Proved | Refused:
    """Ask Coq for the statements of theorems of one script and for the axioms on which they rest.

    Parameters
    ----------
    module : str
        Name of the script that proves the theorems.
    library : Path
        Folder of compiled scripts, from ``compiled``.
    changed : str, optional
        A changed text of that script (for a control). It is compiled, and Coq is asked about its theorems.
    """
    # Import what the theorems' script imports, so that Coq prints the theorems in the notation of that script.
    needs = " ".join([*_needs(scripts()[module]), module])
    text = changed if changed is not None else f"From FSPO Require Import {needs}.\n"
    lines = ["", "From Coq Require Import List Rdefinitions R_sqrt.", "Open Scope R_scope.", "Set Printing Width 110."]
    for theorem in theorems:
        lines += [f'Goal True. idtac "{_MARK}{theorem}". Abort.', f"Check @{theorem}."]
    # Ask for the axioms of all theorems at once, because each request walks through Coq's library of real numbers.
    lines += [
        f'Goal True. idtac "{_MARK}". Abort.',
        f"Definition all_of_them := ({', '.join(f'@{t}' for t in theorems)}).",
    ]
    lines += ["Print Assumptions all_of_them."]
    run = _answer(coq, library, text + "\n".join(lines) + "\n")
    if not run.ok:
        return Refused(run.first_error, theorem_at(text, run.error_line))
    return parse(run.output, theorems)


def _answer(coq: Coq, library: Path, script: str) -> Compilation:
    """Run coqc on a script that asks Coq about theorems, or return the answer that an earlier run stored."""
    kept = library / "answers" / f"{digest(script)}.json"
    if kept.is_file():
        return Compilation(**json.loads(kept.read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "Ask.v").write_text(script, encoding="utf-8")
        run = run_coqc(coq, Path(scratch), "Ask", library)
    if run.ended:
        write_text(kept, json.dumps(asdict(run)))
    return run


def parse(output: str, theorems: Sequence[str]) -> Proved | Refused:
    """Read Coq's answers to ``Check`` and ``Print Assumptions``; unexpected text counts as a refusal."""
    _, *answers = output.split(_MARK)
    if not answers:
        return Refused("coqc printed nothing", "")
    statements = {name: text.rstrip() for name, _, text in (answer.partition("\n") for answer in answers[:-1])}
    if list(statements) != list(theorems) or not all(statements.values()):
        return Refused("coqc did not print every statement", "")
    last = answers[-1].strip()
    if last == "Closed under the global context":
        return Proved(statements, ())
    heading, _, rest = last.partition("\n")
    # In Coq's list of axioms a name stands at the start of a line, and the lines of the axiom's type are indented.
    axioms = tuple(line.split(" ")[0] for line in rest.splitlines() if line and not line[0].isspace())
    if heading != "Axioms:" or not axioms:
        return Refused("coqc did not answer Print Assumptions", "")
    return Proved(statements, axioms)
