"""Strata for the cosine lemma (T7, T8): random, degenerate, and those that reach its bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fspo import theory
from fspo.theory import Floats


@dataclass(frozen=True)
class Strata:
    """Inputs of the cosine lemma (T7) for K strata: shares ``p`` (K,), mean gradients without the rule, ``g``, and with
    it, ``clipped``, (K, D) both, and acceptances ``a`` (K,)."""

    p: Floats
    g: Floats
    clipped: Floats
    a: Floats

    def lemma(self) -> theory.CosineLemma:
        """Return the cosine of clipped and unclipped gradient, its bound and the error's parts, as fspo.theory does."""
        return theory.cosine_lemma(self.p, self.a, self.g, self.clipped)

    def sine(self) -> float:
        """Return the sine of the angle between unclipped and clipped gradient, 1 if it is 90 degrees or more. It is
        computed from the part of the clipped gradient orthogonal to the unclipped one, as 1 - cosine^2 loses digits."""
        true, update = self.p @ self.g, self.p @ self.clipped
        along = float(true @ update) / float(true @ true)
        if not along > 0:
            return 1.0
        return float(np.linalg.norm(update - along * true) / np.linalg.norm(update))


def sharp_strata(rho: float, eps: float = 0.5, inside: float = 0.0, orthogonal: bool = True) -> Strata:
    """Return T7s's two strata, whose clipped and unclipped gradient have the cosine sqrt(1 - rho^2). The unclipped
    gradient is g = (1, 0), LRE_inf is ``eps``, and the error e, clipped less unclipped gradient, has the norm rho and
    is orthogonal to g + e, or to g if ``orthogonal`` is False (a near miss). Of e the part ``inside`` (0 to 1) is lost
    inside the strata, the rest by their unequal acceptances."""
    e = rho * (np.array([-rho, math.sqrt((1 - rho) * (1 + rho))]) if orthogonal else np.array([0.0, 1.0]))
    v, a = (1 - inside) * e / eps, np.array([1 + eps, 1 - eps])
    g = np.array([1.0, 0.0]) + np.stack([v, -v])
    return Strata(np.array([0.5, 0.5]), g, a[:, None] * (g + inside * e), a)


def random_strata(rng: np.random.Generator) -> Strata:
    """Draw 1 to 200 strata in dimension 1 to 64; some have shares or acceptances of 10^-12 or 0, some have gradients
    that are nearly parallel or small whole numbers that repeat."""
    sizes = np.array([1, 2, 3, rng.integers(4, 41), rng.integers(41, 201)])
    K = int(rng.choice(sizes, p=[0.05, 0.2, 0.15, 0.5, 0.1]))
    D = int(2 ** rng.integers(0, 7))
    p = np.maximum(rng.dirichlet(np.full(K, 10 ** rng.uniform(-1.5, 1))), 1e-12)
    a = np.exp(10 ** rng.uniform(-3, 0) * rng.standard_normal(K))
    kind = rng.integers(0, 6)
    if kind == 0:  # small shares and rates
        light = rng.random(K) < 0.3
        p = np.where(light, p * 10 ** rng.uniform(-12, -2, K), p)
        a = np.where(light, 10 ** rng.uniform(-12, 0, K), a)
    elif kind == 1:  # rates of 0
        a = np.where(rng.random(K) < 0.2, 0.0, a)
        a[np.argmax(p)] = 1.0
    centre, noise = rng.standard_normal(D), rng.standard_normal((K, D))
    if kind == 2:  # gradients nearly parallel or nearly opposed
        noise = rng.choice([-1.0, 1.0], (K, 1)) * rng.standard_normal(D) + 10 ** rng.uniform(-9, -1) * noise
    elif kind == 3:  # few values
        centre, noise = np.sign(centre), rng.integers(-2, 3, (K, D)).astype(float)
        p, a = np.ones(K), 1 + rng.integers(-2, 3, K) / 10
    g = centre + 10 ** rng.uniform(-2, 1) * noise
    lost = 10 ** rng.uniform(-4, 0.5) * rng.standard_normal((K, D)) * (rng.random() < 0.7)
    beside = np.where(a > 0, a, 0.1 * p @ a * (rng.random() < 0.5))  # a rate of 0 allows a clipped gradient
    return Strata(p / p.sum(), g, a[:, None] * g + beside[:, None] * lost, a)
