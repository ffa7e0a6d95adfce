"""Search for strata that refute an inequality (T7, the cosine lemma, or a variant), and combine the judgements on all
strata tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from proofs_check.frame import Outcome
from proofs_check.tools.compare import holds
from proofs_check.tools.lemma_claims import LemmaBound, Strata, Terms, float_terms, judge_exactly

UNIT = "(rho - sin)/rho"
DECADES = 12
"""The least factor by which a share or an acceptance of random strata is made smaller is 10^-DECADES."""


class Judged:
    """What was found about an inequality (T7 or a variant) on all examples of strata tried so far: the least of the
    slacks (rho - sin)/rho, how many examples have rho < 1, and an error of ``fspo.theory`` if there was one.
    """

    def __init__(self, claim: LemmaBound) -> None:
        self.claim = claim
        self.cases = self.promised = 0
        self.least = math.inf
        self.worst: Strata | None = None
        self.suite = ""

    def add(self, case: Strata, suite: bool = True) -> float | None:
        """Judge the inequality at one example of strata with many digits. Return the slack (rho - sin)/rho, with sin
        the sine of the angle between clipped and true update, or None where the inequality promises nothing.
        """
        found = judge_exactly(case, self.claim, suite)
        self.cases += 1
        self.suite = self.suite or found.suite
        if found.slack is not None:
            self.promised += 1
            if found.slack < self.least:
                self.least, self.worst = found.slack, case
        return found.slack

    def outcome(self, needed: int, note: str = "") -> Outcome:
        """Return the outcome of the check over all examples of strata that were added. It is undecided if fewer than
        ``needed`` of them have rho < 1, because T7's inequality promises nothing for the others.
        """
        counts = f"{self.promised} of {self.cases} cases with rho < 1"
        if self.suite:
            return Outcome(-1.0, UNIT, note=self.suite)
        if self.least < 0 and self.worst is not None:
            K, D = self.worst.g.shape
            return Outcome(self.least, UNIT, note=f"counterexample: {K} strata, dimension {D}; {counts}")
        if self.promised < needed:
            return Outcome(note=f"only {counts}")
        return holds(self.least, UNIT, note=f"{counts}; {note}".rstrip("; "), least_slack=self.least)


def random_strata(rng: np.random.Generator) -> Strata:
    """Draw 1 to 200 strata in dimension 1 to 64, some with shares or acceptances of 10^-12 or less."""
    sizes = np.array([1, 2, 3, rng.integers(4, 41), rng.integers(41, 201)])
    K = int(rng.choice(sizes, p=[0.05, 0.2, 0.15, 0.5, 0.1]))
    D = int(2 ** rng.integers(0, 7))
    p = rng.dirichlet(np.full(K, 10 ** rng.uniform(-1.5, 1)))
    p = np.maximum(p, 10.0**-DECADES) / np.maximum(p, 10.0**-DECADES).sum()
    a = np.exp(10 ** rng.uniform(-3, 0) * rng.standard_normal(K))
    kind = rng.integers(0, 5)
    if kind == 0:  # some strata get small shares, and acceptances between 10^-DECADES and 1
        light = rng.random(K) < 0.3
        p = np.where(light, p * 10 ** rng.uniform(-DECADES, -2, K), p)
        a = np.where(light, 10 ** rng.uniform(-DECADES, 0, K), a)
    elif kind == 1:  # examples in which some strata have acceptance 0
        a = np.where(rng.random(K) < 0.2, 0.0, a)
        a[np.argmax(p)] = 1.0
    centre = rng.standard_normal(D)
    noise = rng.standard_normal((K, D))
    if kind == 2:  # the strata get mean gradients that are nearly parallel or nearly opposed
        noise = rng.choice([-1.0, 1.0], (K, 1)) * rng.standard_normal(D) + 10 ** rng.uniform(-9, -1) * noise
    g = centre + 10 ** rng.uniform(-2, 1) * noise
    delta = 10 ** rng.uniform(-4, 0.5) * rng.standard_normal((K, D)) * (rng.random() < 0.7)
    return Strata(p, a, g, delta * (a[:, None] > 0))


Unpack = Callable[[Any], tuple[Any, Any, Any, Any]]
"""A function that turns an optimiser's parameters (..., n), real or complex, into strata: shares and acceptances
(..., K), true gradients and errors delta (..., K, D).
"""


def descend(
    unpack: Unpack, depth: Callable[[Terms], Any], x0: np.ndarray, bound: float, options: dict[str, Any]
) -> Strata:
    """Return the strata at which the optimiser L-BFGS finds the least value of ``depth``, a function of T7's quantities
    (`Terms`). It starts at the parameters ``x0`` and keeps each parameter in [-bound, bound]. ``unpack`` turns
    parameters into strata.
    """
    from scipy.optimize import minimize

    n = x0.size

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            value = depth(float_terms(*unpack(x + 1e-30j * np.eye(n))))
        if not np.all(np.isfinite(value)):
            return 1e3, np.zeros(n)
        return float(value[0].real), value.imag * 1e30

    found = minimize(objective, x0, jac=True, method="L-BFGS-B", bounds=[(-bound, bound)] * n, options=options)
    return Strata(*(np.ascontiguousarray(part) for part in unpack(np.asarray(found.x))))
