"""Compute, before any run, what the claims could show in a planned reproduction of given sizes (the *design*).

For each atom two things are computed: the probability that the atom is supported if its estimand is 0, and the true
value of the estimand at which the atom is supported (if it says that something is near 0: refuted) with 80 %
probability.

Standard errors follow from the numbers of responses, logs and seeds, and from planning values measured on earlier runs
of the embedded task (chain-add). Logs count as independent, which understates the probability that all of them support
an atom. For cosines and the law of S (the keys of `OF_TWENTY_ROLLOUTS`) there is no such formula: their standard error
was measured on logs of 20 rollouts, and is scaled to the planned number of rollouts. A headline is supported with at
most the probability of the atom that is supported least often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, special

from analysis.claims.catalogue import ATOMS, HEADLINES, Atom
from analysis.claims.evidence import ALPHA, MIN_SEEDS, NAN, Relation
from fspo.stats.bins import DEFAULT_BINS

LENGTH_SPREAD = 1.4
"""Standard deviation of log2(L), the length in doublings, on the embedded task (chain-add)."""
NONZERO = 0.6
"""Assumed share of the responses with A != 0."""
OWN_ACCEPTANCE, SEED_SPREAD = 0.8, 0.005
"""Assumed for a rule with its published range: its acceptance, and the standard deviation over seeds of the trend of
the acceptance over length.
"""
LRE_SIZE = 0.05
"""True LRE_2 that is assumed where the standard error of its square is computed."""
FINAL_REWARD, REWARD_SPREAD, FALL_SPREAD = 0.9, 0.02, 0.03
"""Assumed of training runs: the final held-out reward, its standard deviation over seeds, and the standard deviation
over seeds of the deepest fall of the training reward below its running maximum."""
OF_TWENTY_ROLLOUTS = {
    "lead in cosine": 0.014,
    "lead in worst bin's cosine": 0.064,
    "gain in cosine": 0.058,
    "2H - 1": 0.19,
    "distance from normal": 0.030,
    "drift error": 0.036,
}
"""Standard errors on a log of 20 rollouts: of each quantity the median over the logs with the seeds 11 to 15, on the
task where this median is largest."""
SEEN = 0.8


@dataclass(frozen=True)
class PlannedRuns:
    """Sizes of a planned reproduction: the numbers of logs, of seeds, of rollouts in a log, of first-use responses with
    S != 0 in a log, and of prompts in the held-out evaluation."""

    logs: int
    seeds: int
    rollouts: int
    responses: int
    held_out: int


def chance(truth: float, error: float, df: float, relation: Relation, margin: float, alpha: float = ALPHA) -> float:
    """Return the probability that one estimate supports an atom, if the true value of the estimand is ``truth``.

    The estimate (from one log, or a mean over seeds) is normal with mean ``truth`` and standard error ``error``. The
    test does not know ``error`` but estimates it on ``df`` degrees of freedom, so the probability is averaged over the
    law of that estimated standard error.
    """
    t = -float(special.stdtrit(df, alpha))
    levels = (np.arange(2000) + 0.5) / 2000
    root = np.ones(1) if np.isinf(df) else np.sqrt(2 * special.gammaincinv(df / 2, levels) / df)
    if relation == "above":
        return float(np.mean(special.ndtr((truth - margin) / error - t * root)))
    if relation == "below":
        return chance(-truth, error, df, "above", -margin, alpha)
    inside = special.ndtr((margin - truth) / error - t * root) - special.ndtr((-margin - truth) / error + t * root)
    return float(np.mean(np.maximum(inside, 0.0)))


def error_of(atom: Atom, design: PlannedRuns) -> float:
    """Return the standard error of one of the numbers that judge an atom (of one log, or of the mean over seeds) at the
    planned sizes; NaN if unknown."""
    share = OWN_ACCEPTANCE if np.isnan(atom.target) else atom.target
    if atom.responses == "nonzero":
        design = replace(design, responses=round(NONZERO * design.responses))
    trend = np.sqrt(share * (1 - share) / design.responses) / LENGTH_SPREAD
    relative = np.sqrt((1 - share) / share / design.responses)
    seeds = np.sqrt(max(design.seeds, 1))
    own, two = atom.arm == "published", np.sqrt(2)
    reward = np.hypot(np.sqrt(FINAL_REWARD * (1 - FINAL_REWARD) / design.held_out), REWARD_SPREAD)
    found: dict[str, float] = {
        "trend": np.hypot(trend, SEED_SPREAD) / seeds if own else trend,
        "lead in trend": two * (np.hypot(trend, SEED_SPREAD) / seeds if own else trend),
        "LRE_inf": relative * np.sqrt(DEFAULT_BINS),
        "lead in LRE_2^2": 4 * LRE_SIZE * (relative * two / seeds if own else 2 * relative),
        "reward": two * reward / seeds,
        "fall": two * FALL_SPREAD / seeds,
    }
    if atom.quantity in OF_TWENTY_ROLLOUTS:
        return OF_TWENTY_ROLLOUTS[atom.quantity] * float(np.sqrt(20 / design.rollouts))
    return float(found.get(atom.quantity, NAN))


def power_of(atom: Atom, design: PlannedRuns) -> dict[str, Any]:
    """Return what an atom could show with a design, as a row of `power_table`.

    Its columns are: how many numbers judge the atom, the standard error of one number, the probability that the atom is
    supported if its estimand is 0 in every log, and the true value of the estimand at which the atom is supported with
    80 % probability if no number is missing. For an atom that says that a trend, 2H - 1 (with Var(S|L) ~ L^2H) or
    LRE_inf is near 0, the last column is instead the true value at which one number refutes the atom with 80 %
    probability.
    """
    seeds = atom.arm == "published" and atom.quantity not in ("LRE_inf", "rollouts missed")
    units = 1 if seeds else design.seeds if atom.arm == "published" else design.logs
    df, error = (design.seeds - 1.0 if seeds else np.inf), error_of(atom, design)
    row = {"atom": atom.id, "numbers": units, "error": error, "supported if equal": NAN, "seen with 80 %": NAN}
    if seeds and design.seeds < MIN_SEEDS:
        return row | {"supported if equal": 0.0}
    if atom.quantity == "rollouts missed":  # the missed rollouts are counted: no standard error
        return row | {"error": 0.0, "supported if equal": 1.0, "seen with 80 %": 1.0}
    alpha = ALPHA / 2 if atom.quantity == "lead in trend" else ALPHA
    if atom.quantity == "LRE_inf":
        # Half-width of the interval of a bin's acceptance less the mean, over the mean. All bins' intervals together
        # hold with the probability CONFIDENCE (Bonferroni).
        wide = -float(special.ndtri(ALPHA / DEFAULT_BINS)) * error
        bin_ = max(2 * float(special.ndtr((atom.margin - wide) / error)) - 1, 0.0)
        equal, seen = bin_ ** (DEFAULT_BINS * units), atom.margin + wide + float(special.ndtri(SEEN)) * error
        return row | {"supported if equal": equal, "seen with 80 %": seen}
    equal = chance(0.0, error, df, atom.relation, atom.margin, alpha) ** units
    if atom.relation == "within":
        # The atom is refuted if a single number lies significantly above the upper or below the lower margin.
        seen = _truth(lambda x: chance(x, error, df, "above", atom.margin, ALPHA / 2 / units), error, atom.margin)
    else:
        sign = 1 if atom.relation == "above" else -1
        seen = sign * _truth(lambda x: chance(x, error, df, "above", sign * atom.margin, alpha) ** units, error)
    return row | {"supported if equal": equal, "seen with 80 %": seen}


def _truth(found: Any, error: float, start: float = 0.0) -> float:
    at: Any = optimize.brentq(lambda x: found(x) - SEEN, start - 60 * error - 1, start + 60 * error + 1)
    return float(at)


def power_table(design: PlannedRuns) -> pd.DataFrame:
    """Return a table with one row (:func:`power_of`) for each atom about S (`ATOMS`), not for atoms about D or E."""
    return pd.DataFrame([power_of(atom, design) for atom in ATOMS])


def headline_power(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each headline the atom that a `power_table` supports least often if its estimand is 0.

    The headline is supported with at most this probability. Atoms that say that a number is on one side of 0 are left
    out, because they are false where their estimand is 0.
    """
    sure = table.set_index("atom")["supported if equal"]
    near = [atom.id for atom in ATOMS if atom.relation == "within" or atom.margin != 0]
    rows = []
    for headline in HEADLINES:
        some = {name: float(sure.loc[name]) for name in headline.atoms if name in near}
        if some:
            weakest = min(some, key=lambda name: some[name])
            rows.append({"headline": headline.id, "atom": weakest, "supported if equal at most": some[weakest]})
    return pd.DataFrame(rows)
