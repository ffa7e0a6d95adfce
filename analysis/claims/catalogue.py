"""The catalogue of claims lists every atom with its estimand and margin, and every headline with its atoms.

The catalogue is frozen before data is judged. Its hash (`digest_of_catalogue`) is printed with the verdicts and written
to claims.json; a change of an estimand, a margin or a headline changes the hash.

Each atom is judged on one of three sets of logs (its ``arm``).

- ``matched``: every analysed log, whichever rule trained it. In each window of the log, each rule's range is set so
  that its band has the same acceptance (``target``). So all rules are compared on the same responses.
- ``published``: for each rule the runs that it trained, with the range of its preset. A run with another range yields
  no number for the atom. Two rules are compared by the difference of their runs with the same seed.
- ``logs``: every analysed log. These atoms are about the law of S, for which no band is needed.

Seeds are the units: an atom's number is a mean over seeds, and the value of a seed is the mean over its logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from analysis.claims.evidence import ALPHA, MIN_SEEDS, NAN, Relation
from analysis.log.ratio import CORRECTED
from analysis.rules.evaluate import TARGETS
from fspo.base.files import digest_of
from fspo.rules import RIVALS, Ratio

FAIR = "fspo"
LEARNT = ("fspo-adaptive",)
"""Rules whose bands learn from earlier updates."""
TREND_MARGIN = 0.01
"""Change of the acceptance for each doubling of the length that counts as none."""
LRE_MARGIN = 0.05
"""Largest LRE_inf that counts as 0: no bin of lengths has an acceptance more than 5 % above or below the mean."""
REWARD_MARGIN = 0.02
EXPONENT_TOLERANCE = 0.05
"""Largest distance from 1/2 of the exponent H, in Var(S|L) ~ L^(2H), at which T1's assumption H = 1/2 counts as met."""
LAW_TOLERANCE = 0.05
"""Largest difference of two distribution functions, over 19 points, at which two laws count as equal."""
DRIFT_TOLERANCE = 0.2
"""Largest difference x of two drifts, in standard deviations of S, at which the drifts count as equal. A drift error of
x changes the acceptance of a symmetric band by at most x^2 times the normal density at 1, which is 0.01 (T3)."""
DEVELOPMENT_SEEDS = (0, 1, 2, 3, 4, 11, 12, 13, 14, 15, 21, 22, 23, 24, 25)
"""Seeds of runs that were looked at while the claims were made. If a judged run has one of these seeds, all verdicts
are exploratory."""

Quantity = Literal[
    "trend", "lead in trend", "LRE_inf", "lead in LRE_2^2", "lead in cosine", "lead in worst bin's cosine",
    "gain in cosine", "2H - 1", "distance from normal", "drift error", "reward", "fall", "rollouts missed",
]  # fmt: skip
Arm = Literal["matched", "published", "logs"]
Responses = Literal["all", "nonzero"]
ACCEPTANCE: dict[Responses, str] = {"all": "a_band", "nonzero": "a_upd"}
ROWS: dict[Responses, str] = {"all": "first-use rows", "nonzero": "first-use rows with A != 0"}

ESTIMANDS: dict[Quantity, str] = {
    "trend": "change of {acceptance} for each doubling of L, {rows}",
    "lead in trend": "|rival's trend| - |rule's trend|, trend: change of {acceptance} for each doubling of L, {rows}",
    "LRE_inf": "LRE_inf of {acceptance}, the relative deviation of the bin of lengths that deviates most, {rows}",
    "lead in LRE_2^2": "rival's LRE_2^2 less the rule's, of {acceptance}, bias-corrected, {rows}",
    "lead in cosine": "fspo's cosine of clipped and true update less the rival's, same batch, drop, first-use rows",
    "lead in worst bin's cosine": "fspo's least such cosine over the bins of lengths less the rival's",
    "gain in cosine": "cosine of clipped and true update less that of drop, fspo's band, each at its own matched range",
    "2H - 1": "exponent of Var(S|L) ~ L^2H less 1, {rows}",
    "distance from normal": "largest distance of the law of S given L from the normal law, over bins, {rows}",
    "drift error": "largest |E[S|L] + L KL| / sd(S) over bins, KL one number for the log, {rows}",
    "reward": "final held-out reward (mean of the last fifth of the evaluations), the rule's less the rival's",
    "fall": "deepest fall of the training reward below its running maximum, the rule's less the rival's",
    "rollouts missed": "rollouts by which the rule's run ended before the longest run of the comparison",
}


@dataclass(frozen=True)
class Atom:
    """One sentence with one estimand, one margin and one verdict.

    Attributes
    ----------
    id : str
        Name in claims.json; it begins with the target in percent, or with ``own`` (arm ``published``) or ``log``.
    arm : {"matched", "published", "logs"}
        The logs that judge the atom: all, with bands of one acceptance; each rule's own runs; or all, without bands.
    rule, rival : str
        The rule whose estimand is judged, and the rule that it is compared with ("" if none).
    target : float
        Acceptance that the bands are calibrated to; NaN outside the arm ``matched``.
    outside : str
        What happens outside the band: drop, truncate, cap or mask.
    responses : str
        Of which responses an acceptance, or the law of S, is: ``all`` (the acceptance is then a_band), or ``nonzero``,
        those with A != 0, which alone have a gradient (then it is a_upd; docs/theory.md section 1).
    """

    id: str
    statement: str
    arm: Arm
    quantity: Quantity
    relation: Relation
    margin: float
    rule: str = FAIR
    rival: str = ""
    target: float = NAN
    outside: str = "drop"
    responses: Responses = "all"

    @property
    def estimand(self) -> str:
        """The estimand in words, and from which logs or runs it is estimated."""
        share = f"{self.target:.0%}"
        kept = f"{share} of A != 0" if "cosine" in self.quantity or self.responses == "nonzero" else share
        judged = {"matched": f"every log, bands that keep {kept}", "published": "each rule's own run as published"}
        seeds = f", mean over seeds (at least {MIN_SEEDS})"
        mean = self.quantity != "rollouts missed"
        words = ESTIMANDS[self.quantity].format(acceptance=ACCEPTANCE[self.responses], rows=ROWS[self.responses])
        return f"{words}; {judged.get(self.arm, 'every log')}{seeds if mean else ''}"


@dataclass(frozen=True)
class Headline:
    """A sentence that says what all its atoms say together."""

    id: str
    statement: str
    atoms: tuple[str, ...]


def _length_atoms(arm: Arm, target: float, tag: str, where: str, responses: Responses = "all") -> Iterator[Atom]:
    same = {"target": target, "responses": responses}

    def atom(name: str, words: str, quantity: Quantity, relation: Relation, margin: float, **more: Any) -> Atom:
        return Atom(f"{tag}-{name}", f"{where}, {words}.", arm, quantity, relation, margin, **same, **more)

    margin = TREND_MARGIN
    yield atom("rloo-falls", "rloo's acceptance falls with the length", "trend", "below", 0.0, rule="rloo")
    yield atom("gspo-rises", "gspo's acceptance rises with the length", "trend", "above", 0.0, rule="gspo")
    yield atom("gspo-falls", "gspo's acceptance falls with the length", "trend", "below", 0.0, rule="gspo")
    yield atom("fspo-flat", f"fspo's acceptance has a trend within {margin:g}", "trend", "within", margin)
    bins = f"no bin of lengths has an fspo acceptance more than {LRE_MARGIN:.0%} from the mean"
    yield atom("fspo-bins", bins, "LRE_inf", "below", LRE_MARGIN)
    for rival in RIVALS:
        words = f"fspo's trend is smaller in size than {rival}'s"
        yield atom(f"trend-{rival}", words, "lead in trend", "above", 0.0, rival=rival)
        words = f"fspo's LRE_2 is smaller than {rival}'s"
        yield atom(f"lre-{rival}", words, "lead in LRE_2^2", "above", 0.0, rival=rival)


def _atoms() -> Iterator[Atom]:
    for target in TARGETS:
        share, tag = f"{target:.0%}", f"{100 * target:g}"
        yield from _length_atoms("matched", target, tag, f"Where every band keeps {share} of each log")
        of_update = f"Where every rule leaves {share} of the responses with A != 0 of each log alone"
        yield from _length_atoms("matched", target, f"{tag}-update", of_update, "nonzero")
        for rule in LEARNT:
            learnt = {"rule": rule, "target": target}
            words = f"Where it keeps {share} of each log, {rule}'s acceptance has a trend within {TREND_MARGIN:g}."
            yield Atom(f"{tag}-{rule}-flat", words, "matched", "trend", "within", TREND_MARGIN, **learnt)
            words = f"Where it keeps {share} of each log, no bin of lengths has an acceptance of {rule} more than "
            words += f"{LRE_MARGIN:.0%} from the mean."
            yield Atom(f"{tag}-{rule}-bins", words, "matched", "LRE_inf", "below", LRE_MARGIN, **learnt)
        for outside in ("truncate", "cap"):
            words = f"Where fspo's band keeps {share} of A != 0, {outside} keeps more of the direction than drop."
            more = {"target": target, "outside": outside}
            yield Atom(f"{tag}-{outside}", words, "matched", "gain in cosine", "above", 0.0, **more)
    yield from _length_atoms("published", NAN, "own", "Each rule in its own run as published")
    tag, target = "95", 0.95
    for rival in RIVALS:
        kinds: dict[str, Quantity] = {"cosine": "lead in cosine", "worst": "lead in worst bin's cosine"}
        for name, quantity in kinds.items():
            worst = " in the worst bin of lengths" if name == "worst" else ""
            words = f"Where every band keeps 95% of A != 0, fspo's cosine is higher than {rival}'s{worst}."
            yield Atom(f"{tag}-{name}-{rival}", words, "matched", quantity, "above", 0.0, rival=rival, target=target)
        yield from _training_atoms(FAIR, rival, f"own-{{}}-{rival}")
    for rule in LEARNT:
        name = f"own-{rule}-{{}}"
        yield from _training_atoms(rule, FAIR, name)
        words = f"Each rule in its own run as published, {rule}'s LRE_2 is smaller than fspo's."
        yield Atom(name.format("lre"), words, "published", "lead in LRE_2^2", "above", 0.0, rule, FAIR)
    for rule, tag in ((FAIR, "own-ends"), *((rival, f"own-ends-{rival}") for rival in RIVALS)):
        words = f"No run of {rule} ends early."
        yield Atom(tag, words, "published", "rollouts missed", "below", 0.5, rule=rule)
    law = "S given L has a variance proportional to L."
    yield Atom("log-variance", law, "logs", "2H - 1", "within", 2 * EXPONENT_TOLERANCE)
    law = "S given L is normal in every bin of lengths."
    yield Atom("log-normal", law, "logs", "distance from normal", "below", LAW_TOLERANCE)
    law = "S given L has the mean -KL L in every bin of lengths."
    yield Atom("log-drift", law, "logs", "drift error", "below", DRIFT_TOLERANCE)
    moved: dict[str, Any] = {"responses": "nonzero"}
    law = "Of responses with A != 0, S given L has a variance proportional to L."
    yield Atom("log-update-variance", law, "logs", "2H - 1", "within", 2 * EXPONENT_TOLERANCE, **moved)
    law = "Of responses with A != 0, S given L is normal in every bin of lengths."
    yield Atom("log-update-normal", law, "logs", "distance from normal", "below", LAW_TOLERANCE, **moved)


def _training_atoms(rule: str, rival: str, name: str) -> Iterator[Atom]:
    """Yield two atoms that compare runs of two rules as published: by their final reward, and by how far the training
    reward fell. ``name`` is the atoms' id with {} in the place of the quantity."""
    words = f"{rule}'s final held-out reward is at most {REWARD_MARGIN:g} below {rival}'s."
    yield Atom(name.format("reward"), words, "published", "reward", "above", -REWARD_MARGIN, rule, rival)
    words = f"{rule}'s training reward falls at most {REWARD_MARGIN:g} deeper than {rival}'s."
    yield Atom(name.format("fall"), words, "published", "fall", "below", REWARD_MARGIN, rule, rival)


def _mask_atoms() -> Iterator[Atom]:
    tag, more = "85", {"target": 0.85, "outside": "mask"}
    words = "Of masks that keep 85% of each log, "
    product, linear = f"{words}a product mask cuts long responses.", f"{words}a geometric mask cuts short responses."
    yield Atom(f"{tag}-product-falls", product, "matched", "trend", "below", 0.0, "mis", **more)
    yield Atom(f"{tag}-geometric-rises", linear, "matched", "trend", "above", 0.0, "geo-mask", **more)
    flat = f"{words}a sqrt mask around -KL has a trend within {TREND_MARGIN:g}."
    yield Atom(f"{tag}-sqrt-kl-flat", flat, "matched", "trend", "within", TREND_MARGIN, "engine-sqrt", **more)
    flat = f"{words}a sqrt mask around -KL has no bin of lengths more than {LRE_MARGIN:.0%} from the mean."
    yield Atom(f"{tag}-sqrt-kl-bins", flat, "matched", "LRE_inf", "below", LRE_MARGIN, "engine-sqrt", **more)


def _both(*names: str) -> tuple[str, ...]:
    return tuple(f"{100 * target:g}-{name}" for target in TARGETS for name in names)


FAIRNESS = ("fspo-flat", "fspo-bins", "rloo-falls", "gspo-rises")
LEADS = tuple(f"{kind}-{rival}" for kind in ("trend", "lre") for rival in RIVALS)
ATOMS: tuple[Atom, ...] = tuple(_atoms())
HEADLINES: tuple[Headline, ...] = (
    Headline(
        "C1",
        "At one acceptance on common logs, fspo keeps every length alike, rloo cuts long responses, gspo short ones.",
        _both(*FAIRNESS),
    ),
    Headline(
        "C1p",
        "As published, fspo keeps every length alike, rloo cuts long responses, gspo short ones.",
        tuple(f"own-{name}" for name in FAIRNESS),
    ),
    Headline("C2", "At one acceptance on common logs, fspo depends least on the length.", _both(*LEADS)),
    Headline("C2p", "As published, fspo depends least on the length.", tuple(f"own-{name}" for name in LEADS)),
    Headline(
        "C1u",
        "Of the responses with a gradient (A != 0), at one acceptance on common logs, fspo keeps every length alike, "
        "rloo cuts long responses, gspo short ones.",
        _both(*(f"update-{name}" for name in FAIRNESS)),
    ),
    Headline(
        "C2u",
        "Of the responses with a gradient (A != 0), at one acceptance on common logs, fspo depends least on the "
        "length.",
        _both(*(f"update-{name}" for name in LEADS)),
    ),
    Headline(
        "C3",
        "fspo's band keeps the most of the update's direction, overall and in the worst bin of lengths.",
        tuple(f"95-{name}-{rival}" for rival in RIVALS for name in ("cosine", "worst")),
    ),
    Headline(
        "C4", "S given L is normal with mean -KL L and variance proportional to L.",
        ("log-variance", "log-normal", "log-drift"),
    ),
    Headline(
        "C4u",
        "Of the responses with a gradient (A != 0), S given L is normal with a variance proportional to L.",
        ("log-update-variance", "log-update-normal"),
    ),
    Headline(
        "C5",
        "fspo trains at least as stably and as well as rloo and gspo.",
        ("own-ends", *(f"own-{name}-{rival}" for rival in RIVALS for name in ("reward", "fall"))),
    ),
    Headline(
        "C6",
        "Truncating or capping at the fair edge keeps more of the update's direction than dropping.",
        _both("truncate", "cap"),
    ),
    Headline(
        "C7",
        "A band whose exponent is learnt from earlier updates keeps every length alike.",
        _both(f"{LEARNT[0]}-flat", f"{LEARNT[0]}-bins"),
    ),
    Headline(
        "C9",
        "As published, the learnt band depends less on the length than fspo's, and trains as stably and as well.",
        tuple(f"own-{rule}-{name}" for rule in LEARNT for name in ("lre", "reward", "fall")),
    ),
)  # fmt: skip
MASK_ATOMS: tuple[Atom, ...] = tuple(_mask_atoms())
MASK_HEADLINES: tuple[Headline, ...] = (
    Headline(
        "M1",
        "At one acceptance a product mask on the mismatch cuts long responses, a geometric mask short ones, and a sqrt "
        "mask around -KL every length alike.",
        tuple(atom.id for atom in MASK_ATOMS),
    ),
)
"""Claims about the mismatch of sampler and trainer, judged on the engine ratio E or the behaviour ratio D + E."""


def claims_about(on: Ratio) -> tuple[tuple[Headline, ...], tuple[Atom, ...]]:
    """Return the headlines and atoms about a log-ratio; both are empty for other ratios.

    ``on`` is "update" for S, "engine" for E, or "behaviour" for D + E.
    """
    return (HEADLINES, ATOMS) if on == "update" else (MASK_HEADLINES, MASK_ATOMS) if on in CORRECTED else ((), ())


def digest_of_catalogue() -> str:
    """Return a hash of all estimands, atoms and headlines, and of the settings that they are judged with: `ALPHA`,
    `MIN_SEEDS` and `DEVELOPMENT_SEEDS`."""
    found = [asdict(part) for part in (*ATOMS, *MASK_ATOMS, *HEADLINES, *MASK_HEADLINES)]
    rule = {"alpha": ALPHA, "least seeds": MIN_SEEDS, "development": DEVELOPMENT_SEEDS}
    return digest_of([found, dict(ESTIMANDS), rule])
