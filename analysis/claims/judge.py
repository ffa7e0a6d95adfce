"""Judge the claims of the catalogue by the tables of several runs, and write claims.json."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from analysis.claims.catalogue import DEVELOPMENT_SEEDS, Atom, Headline, claims_about, digest_of_catalogue
from analysis.claims.evidence import Number, Tables, Verdict, logs_of, verdict_of
from analysis.claims.quantities import Seen, number_of
from analysis.tables.files import write_json
from fspo.rules import Ratio
from fspo.stats.intervals import detectable

Status = Literal["confirmatory", "exploratory"]


@dataclass(frozen=True)
class Claim:
    """One headline or atom with its estimate, interval and verdict: an entry of the list ``claims`` in claims.json.

    The file also holds ``catalogue`` (hash of all estimands, margins and headlines), ``commit`` (the commit of the
    code) and ``seeds`` (the seeds of the runs). ``fspo analyse RUN ... --claims FILE`` writes it; docs/theory.md
    section 11 says how to read a verdict. ``fspo reproduce`` writes one more for the claims over several tasks, which
    also holds ``tasks`` (their names).
    """

    id: Annotated[str, "name of a headline (C1, ...; M1 with --on engine or behaviour) or of an atom", "text"]
    statement: Annotated[str, "what is claimed", "text"]
    estimand: Annotated[str, "what estimate is about", "text"]
    margin: Annotated[float, "margin of the deciding atom, fixed before the runs that it judges", "the estimand's"]
    estimate: Annotated[float, "mean of the estimand over seeds", "its own"]
    ci_low: Annotated[float, "lower end of its interval", "the estimand's"]
    ci_high: Annotated[float, "upper end of its interval", "the estimand's"]
    verdict: Annotated[Verdict, "supported, refuted or inconclusive", "text"]
    status: Annotated[Status, "exploratory: judged on runs that were looked at before, or with chosen bins", "text"]
    p_for: Annotated[float, "p-value of the hypothesis that the claim is false", "probability"]
    p_against: Annotated[float, "p-value of the hypothesis that the claim is true", "probability"]
    details: Annotated[
        dict[str, Any],
        "numbers: an atom's number. atoms: verdict and interval of each atom of a headline, or of the claim on "
        "each task. decides: id of the atom that decides a headline's verdict; over several tasks [task, id]. power: "
        "distance, how far from the margin the truth must lie to be seen with "
        "80 % probability (null: unknown), and the same as a sentence",
        "JSON",
    ] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain values for claims.json."""
        return asdict(self)


def evaluate_claims(tables: Tables, on: Ratio = "update", *, chosen: bool = False, unlike: str = "") -> list[Claim]:
    """Judge every headline and atom about the log-ratio ``on`` by the tables that were made of it for several runs.

    Parameters
    ----------
    chosen : bool
        Whether the tables were made with other bins or windows than the default ones. All verdicts are then
        exploratory, because bins and windows are part of the estimands: with a single bin, for example, no bin
        deviates from the mean acceptance.
    unlike : str
        In which options other than rule and seed the compared runs differ (`analysis.claims.settings.unlike`); "" if in
        none. If they differ, atoms of the arm ``published`` have no number.

    Returns
    -------
    list of Claim
        The headlines, then the atoms.
    """
    headlines, atoms = claims_about(on)
    seen = Seen(tables, unlike)
    seeds = {log.seed for log in seen.logs}
    looked_at = chosen or bool(seeds & set(DEVELOPMENT_SEEDS)) or any(np.isnan(seed) for seed in seeds)
    judged = {atom.id: judge(atom, number_of(seen, atom), looked_at) for atom in atoms}
    return [*(composed(headline, judged) for headline in headlines), *judged.values()]


def judge(atom: Atom, found: Number, looked_at: bool = False) -> Claim:
    """Return an atom as a claim: its verdict, and the estimate and interval that decide it.

    ``looked_at`` says that the runs may have been seen while the claims were made, or that other bins or windows than
    the default were chosen. The claim is then exploratory.
    """
    sees = _sees(found)
    sentence = "Too little data: these runs could not have seen any difference."
    if np.isfinite(sees):
        sentence = f"A true distance of {sees:.2g} from the margin {atom.margin:g} is seen in these runs with 80 % "
        sentence += "probability."
    power = {"distance": sees if np.isfinite(sees) else np.nan, "sentence": sentence}
    return Claim(
        atom.id,
        atom.statement,
        f"{atom.estimand}: {atom.relation} {atom.margin:g}",
        atom.margin,
        found.value,
        found.low,
        found.high,
        verdict_of(found.p_for, found.p_against),
        "exploratory" if looked_at else "confirmatory",
        found.p_for,
        found.p_against,
        {"numbers": {found.name: found.to_dict()}, "power": power},
    )


_PER_HALF_WIDTH = detectable(1.0)
"""True distance from a margin that is found with 80 % probability if the estimate's interval has half-width 1."""


def _sees(found: Number) -> float:
    return _PER_HALF_WIDTH * max(found.high - found.value, found.value - found.low) if not found.reason else np.nan


def composed(headline: Headline, judged: dict[str, Claim]) -> Claim:
    """Return a headline as a claim: supported if all its k atoms are supported, refuted if one atom is refuted at the
    level ALPHA / k (Bonferroni). Its estimate and interval are those of the atom that decides the verdict."""
    atoms = [judged[name] for name in headline.atoms]
    p_for, p_against = max(a.p_for for a in atoms), min(len(atoms) * min(a.p_against for a in atoms), 1.0)
    verdict = verdict_of(p_for, p_against)
    first = min(atoms, key=lambda a: a.p_against) if verdict == "refuted" else max(atoms, key=lambda a: a.p_for)
    return Claim(
        headline.id,
        headline.statement,
        f"of {len(atoms)} atoms the one that decides, {first.id}: {first.estimand}",
        first.margin,
        first.estimate,
        first.ci_low,
        first.ci_high,
        verdict,
        "exploratory" if any(a.status == "exploratory" for a in atoms) else "confirmatory",
        p_for,
        p_against,
        {
            "atoms": {a.id: {"verdict": a.verdict} | _interval(a) for a in atoms},
            "decides": first.id,
            "power": first.details["power"],
        },
    )


def over_tasks(judged: Mapping[str, Sequence[Claim]]) -> list[Claim]:
    """Pool each claim over k tasks, as a headline is made from k atoms (`composed`).

    A claim is supported if it is supported on every task, and refuted if k times the smallest ``p_against`` of the
    claim on a task is at most ``ALPHA``. No task is left out: each claim's details name its verdict and interval on
    every task. They also name the task that decides, and the atom that decides there.

    Parameters
    ----------
    judged : mapping of str to sequence of Claim
        For each task the claims that `evaluate_claims` returned, in the same order for all tasks.
    """
    pooled = []
    for claims in zip(*judged.values(), strict=True):
        named = {f"{task}: {claim.id}": (task, claim) for task, claim in zip(judged, claims, strict=True)}
        headline = Headline(claims[0].id, claims[0].statement, tuple(named))
        found = composed(headline, {name: replace(claim, id=name) for name, (_, claim) in named.items()})
        details = dict(found.details)
        task, decisive = named[details.pop("decides")]
        # A headline that was judged by an older version names no atom as data.
        if part := decisive.details.get("decides", "" if "atoms" in decisive.details else decisive.id):
            details["decides"] = [task, part]
        pooled.append(replace(found, details=details))
    return pooled


def _interval(claim: Claim) -> dict[str, float]:
    return {"estimate": claim.estimate, "ci_low": claim.ci_low, "ci_high": claim.ci_high}


def write_claims(path: Path, claims: Sequence[Claim], tables: Tables) -> None:
    """Write claims.json whole or not at all: if writing crashes, the file of the last analysis is still there."""
    seeds = sorted({log.seed for log in logs_of(tables) if not np.isnan(log.seed)})
    said = {"catalogue": digest_of_catalogue(), "commit": commit(), "seeds": seeds}
    write_json(path, said | {"claims": [claim.to_dict() for claim in claims]})


def commit() -> str:
    """Return the commit of the code, with ``+`` if tracked files differ from it; "unknown" outside a git checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        # If the checkout's root is not the code's root, this is the checkout of another project, in which the code is
        # installed.
        if Path(git("rev-parse", "--show-toplevel").strip()) != root:
            return "unknown"
        changed = git("status", "--porcelain", "--untracked-files=no").strip()
        return git("rev-parse", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
