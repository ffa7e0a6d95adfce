"""The primary claims: each a sentence, the hypotheses that it consists of, and the tasks on which all must hold.

The margins were fixed before the runs that judge them. The margin of claims 3 and 5 was chosen when fspo's
slopes in an earlier design of runs were known (.03, .05, .02 in size at a clip rate of 5 %; .08, .10, .27 at 15 %)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis.claims.estimands import CLIP_RATES, LEARNT, TIMES, Estimand
from fspo.rules import COMPARED, RIVALS

EVEN = 0.10
"""Largest size of the slope of the log clip rate that counts as even over lengths: a factor of 1.1 a doubling."""
EVEN_SIGNS = 0.2231435513142097
"""Largest log ratio of the two signs' clip rates that counts as even: log(1.25)."""
GAIN = 0.05
"""Least difference of rewards by which one rule trains better: the gain of claim 9, the margin of claims 6 and 7b."""
TASKS = ("chain-add", "chain-add-64", "products")

Relation = Literal["above", "within", "smaller in size"]


@dataclass(frozen=True)
class Hypothesis:
    """What is claimed of a number's mean over seeds: above or within a margin, or smaller in size than a rival's mean.

    Attributes
    ----------
    estimand, runs, clip_rate
        Name of the number (such as slope), set of runs, and clip rate set on their logs (NaN for rules that trained).
    rule, rival : str
        The estimate is the rule's, or the rule's less the rival's of the same seed where a rival is named.
    sign : {1, -1}
        Factor on the estimate: -1 turns "above" into "below".
    relation : {"above", "within", "smaller in size"}
        The mean lies above ``margin``; within -margin..margin; or the rule's mean is smaller in size than the rival's.
    """

    estimand: Estimand
    runs: str
    rule: str
    relation: Relation
    margin: float = 0.0
    rival: str = ""
    clip_rate: float = float("nan")
    sign: int = 1

    @property
    def words(self) -> str:
        """The hypothesis as text: of which number it takes the mean over seeds, and whether that mean is to lie above
        the margin, within it, or nearer to 0 than the rival's."""
        at = "" if self.clip_rate != self.clip_rate else f" at {self.clip_rate:.0%} clipped"
        if self.relation == "smaller in size":
            return f"{self.estimand} of {self.rule}{at}: smaller in size than that of {self.rival}"
        of = f"{self.rule} less {self.rival}" if self.rival else self.rule
        relation = "below" if self.sign < 0 else self.relation
        return f"{self.estimand} of {of}{at}: {relation} {self.sign * self.margin + 0.0:.3g}"


@dataclass(frozen=True)
class Claim:
    """A sentence, with an id, that holds if each of its hypotheses holds on each of its tasks."""

    id: str
    sentence: str
    hypotheses: tuple[Hypothesis, ...]
    tasks: tuple[str, ...] = TASKS


def _slope(rule: str, clip_rate: float, relation: Relation, margin: float = 0.0, **more: object) -> Hypothesis:
    return Hypothesis("slope", "unclipped", rule, relation, margin, clip_rate=clip_rate, **more)  # type: ignore[arg-type]


def _least(clip_rate: float) -> tuple[Hypothesis, ...]:
    return tuple(_slope("fspo", clip_rate, "smaller in size", rival=rival) for rival in RIVALS)


LOW, HIGH = CLIP_RATES
STRESSED = ("chain-add",)
WIDE = {"fspo-default": "fspo-wide-above", "rloo-default": "rloo-wide-above"}
"""Claim 9: by arm of the stress runs with a default range, the arm with an upper range five times as wide."""

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "1",
        f"At a clip rate of {LOW:.0%}, rloo clips long responses more often and gspo short ones.",
        (_slope("rloo", LOW, "above"), _slope("gspo", LOW, "above", sign=-1)),
    ),
    Claim("2", f"At {LOW:.0%}, fspo's clip rate depends less on the length than rloo's and gspo's.", _least(LOW)),
    Claim(
        "3",
        f"At {LOW:.0%}, fspo clips every length alike: its clip rate changes by a factor within 1.1 a doubling.",
        (_slope("fspo", LOW, "within", EVEN),),
    ),
    Claim("4", f"At {HIGH:.0%}, fspo's clip rate depends less on the length than rloo's and gspo's.", _least(HIGH)),
    Claim(
        "5",
        f"At {HIGH:.0%}, fspo clips every length alike: its clip rate changes by a factor within 1.1 a doubling.",
        (_slope("fspo", HIGH, "within", EVEN),),
    ),
    Claim(
        "6",
        "At an equal clip rate fspo trains as well as rloo and gspo.",
        tuple(Hypothesis("mean reward", "equal", "fspo", "above", -GAIN, rival) for rival in RIVALS),
    ),
    Claim(
        "7a",
        "Where a rollout has many updates, training with half of the responses clipped ends above training without a "
        "clip.",
        tuple(Hypothesis("final reward", "stress", rule, "above", 0.0, "none") for rule in COMPARED),
        STRESSED,
    ),
    Claim(
        "7b",
        "Where a rollout has many updates, fspo ends at least as high as rloo and gspo, each with half of the "
        "responses clipped.",
        tuple(Hypothesis("final reward", "stress", "fspo", "above", -GAIN, rival) for rival in RIVALS),
        STRESSED,
    ),
    Claim(
        "8",
        f"At {LOW:.0%}, each symmetric band clips A < 0 at least {TIMES:.0f} times as often as A > 0.",
        tuple(Hypothesis("sign gap", "unclipped", rule, "above", clip_rate=LOW) for rule in COMPARED),
    ),
    Claim(
        "9",
        "Where a rollout has many updates, an upper range five times as wide trains faster, with fspo and with rloo.",
        tuple(Hypothesis("mean reward", "stress", wide, "above", GAIN, rule) for rule, wide in WIDE.items()),
        STRESSED,
    ),
    Claim(
        "10",
        "A band with a range and an exponent for each side, learnt from earlier updates, clips both signs and every "
        "length alike.",
        tuple(
            hypothesis
            for rate in CLIP_RATES
            for hypothesis in (
                Hypothesis("log sign ratio", "unclipped", LEARNT, "within", EVEN_SIGNS, clip_rate=rate),
                _slope(LEARNT, rate, "within", EVEN),
            )
        ),
    ),
)
"""The claims whose verdicts are corrected together (Holm)."""
