"""T7, the inequality of the cosine lemma, and false variants of it, computed in float64 to search for counterexamples
and with 80 digits to judge them (docs/theory.md section 5).

A search computes T7's quantities with float64, and their gradient with complex numbers (the complex step, which loses
no digits). What the search finds is judged in decimal numbers on the same inputs, taken as exact numbers: what float64
rounds can neither make a counterexample nor hide one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any, NamedTuple

import numpy as np

from fspo import theory

EXACT = Context(prec=80)
"""The precision of the verdict, in decimal digits."""
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Strata:
    """Inputs of the cosine lemma for K strata (lengths): shares p and acceptances a (K,), true gradients g and errors
    delta (K, D). The clipped gradient of a stratum is a (g + delta).
    """

    p: np.ndarray
    a: np.ndarray
    g: np.ndarray
    delta: np.ndarray

    @classmethod
    def of_gradients(cls, p: np.ndarray, g: np.ndarray, clipped: np.ndarray, a: np.ndarray) -> Strata:
        """Return strata with the given mean true and mean clipped gradients, g and clipped (K, D). Their errors delta
        are clipped/a - g, and 0 where the acceptance a is 0.
        """
        positive = (a > 0)[:, None]
        return cls(p, a, g, np.where(positive, clipped / np.where(positive, a[:, None], 1.0) - g, 0.0))

    @property
    def clipped(self) -> np.ndarray:
        """Return the clipped gradient of each stratum, a (g + delta), in float64."""
        return self.a[:, None] * (self.g + self.delta)

    def lemma(self) -> theory.CosineLemma:
        """Return what ``fspo.theory`` computes for these strata: T7's rho and lower bound of the cosine, and the two
        parts into which T8 divides the clipped update's error.
        """
        return theory.cosine_lemma(self.p, self.a, self.g, self.clipped)

    def terms(self) -> Terms:
        """Return the quantities of which T7's rho consists, and the sine of the angle between true and clipped update,
        in float64, computed without ``fspo.theory``.
        """
        return float_terms(self.p, self.a, self.g, self.delta)

    def sine(self) -> tuple[float, bool]:
        """Return the sine of the angle between true and clipped update, and whether their cosine is positive."""
        found = self.terms()
        return float(found.sine), bool(found.forward)


def sharp_strata(rho: float, eps: float = 0.5, orthogonal: bool = True) -> Strata:
    """Return T7s's two strata, whose clipped and true update have the cosine sqrt(1 - rho^2), T7's lower bound.

    The true update g is (1, 0), and LRE_inf is ``eps``. All of the clipped update's error comes from unequal
    acceptances; its norm is rho. The error is orthogonal to the clipped update, or to g if ``orthogonal`` is False (a
    control: the cosine is then larger than the bound).
    """
    e_len = [-rho * rho, rho * math.sqrt((1 - rho) * (1 + rho))] if orthogonal else [0.0, rho]
    g, v = np.array([1.0, 0.0]), np.array(e_len) / eps
    return Strata(np.array([0.5, 0.5]), np.array([1 + eps, 1 - eps]), np.stack([g + v, g - v]), np.zeros((2, 2)))


class Terms(NamedTuple):
    """The LREs, kappas and eta of which T7's rho consists (docs/theory.md section 5), and the sine of the angle between
    true and clipped update, as float or complex arrays (B,) for a batch of B examples of strata, or as decimal
    numbers for one example.
    """

    lre_inf: Any
    lre_2: Any
    kappa: Any
    kappa_c: Any
    kappa_c2: Any
    eta: Any
    sine: Any
    forward: Any  # whether the cosine of clipped and true update is positive


def _norm(x: Any) -> Any:
    # No absolute values: the complex step, which gives the gradient, needs an analytic function.
    return np.sqrt((x * x).sum(axis=-1))


def float_terms(p: Any, a: Any, g: Any, delta: Any) -> Terms:
    """Return the quantities of T7 (see `Terms`) for a batch of strata: shares p and acceptances a (..., K), true
    gradients g and errors delta (..., K, D); real or complex.
    """
    p = p / p.sum(axis=-1, keepdims=True)
    mean = (p * a).sum(axis=-1, keepdims=True)
    r = (a - mean) / mean
    total = (p[..., None] * g).sum(axis=-2)
    norm = _norm(total)
    spread = _norm(g - total[..., None, :])
    share = p * (1 + r)
    update = (share[..., None] * (g + delta)).sum(axis=-2)
    along = (total * update).sum(axis=-1) / norm**2
    across = update - along[..., None] * total
    size = np.where(r.real < 0, -r, r)
    largest = np.argmax(np.where(p.real > 0, size.real, -1.0), axis=-1)
    return Terms(
        np.take_along_axis(size, largest[..., None], axis=-1)[..., 0],
        np.sqrt((p * r * r).sum(axis=-1)),
        (p * _norm(g)).sum(axis=-1) / norm,
        (p * spread).sum(axis=-1) / norm,
        np.sqrt((p * spread * spread).sum(axis=-1)) / norm,
        (share * _norm(delta)).sum(axis=-1) / norm,
        _norm(across) / _norm(update),
        along.real > 0,
    )


def exact_terms(case: Strata) -> Terms:
    """Return the quantities of T7 (see `Terms`), by the definitions of docs/theory.md section 5, as decimal numbers."""
    with localcontext(EXACT):
        p, a = ([Decimal(x) for x in numbers.tolist()] for numbers in (case.p, case.a))
        g, clipped = ([[Decimal(x) for x in row] for row in rows.tolist()] for rows in (case.g, case.clipped))
        mass = sum(p)
        p = [x / mass for x in p]
        mean = _dot(p, a)
        total, update = ([_dot(p, column) for column in zip(*rows, strict=True)] for rows in (g, clipped))
        norm = _length(total)
        along = _dot(total, update)
        # With true update x and clipped update y, |x|^2 |y|^2 - <x, y>^2 cancels digits; many more are left.
        across = max(_dot(total, total) * _dot(update, update) - along * along, Decimal(0))
        kappa = kappa_c = kappa_c2 = eta = lre_2 = lre_inf = Decimal(0)
        for k, row in enumerate(g):
            r = a[k] / mean - 1
            spread = _length([x - y for x, y in zip(row, total, strict=True)])
            kappa += p[k] * _length(row)
            kappa_c += p[k] * spread
            kappa_c2 += p[k] * spread * spread
            lre_2 += p[k] * r * r
            if a[k] > 0:
                inner = [x / a[k] - y for x, y in zip(clipped[k], row, strict=True)]
                eta += p[k] * a[k] / mean * _length(inner)
            if p[k] > 0:
                lre_inf = max(lre_inf, abs(r))
        return Terms(
            lre_inf,
            lre_2.sqrt(),
            kappa / norm,
            kappa_c / norm,
            kappa_c2.sqrt() / norm,
            eta / norm,
            across.sqrt() / (norm * _length(update)) if any(update) else Decimal(0),
            along > 0,
        )


def _dot(x: Sequence[Decimal], y: Sequence[Decimal]) -> Decimal:
    return sum((u * v for u, v in zip(x, y, strict=True)), Decimal(0))


def _length(x: Sequence[Decimal]) -> Decimal:
    return _dot(x, x).sqrt()


@dataclass(frozen=True)
class LemmaBound:
    """T7's inequality or a variant of it: if rho < 1, the cosine of clipped and true update is at least
    (1 - rho^2)^``exponent``.

    In T7 the exponent is 1/2, so that the sine of the angle is at most rho. rho is ``factor`` times the sum of eta and
    the least of ``products`` (each an LRE times a kappa, as in theory.md section 5); eta is left out unless
    ``with_eta``.
    """

    name: str
    products: tuple[Callable[[Terms], Any], ...]
    factor: float = 1.0
    with_eta: bool = True
    exponent: float = 0.5

    def floats(self, terms: Terms) -> Any:
        """Return the largest sine of the angle between clipped and true update that this inequality (T7's or a variant)
        allows, for each example in a batch of T7's quantities: a float64 array, or a complex one if ``terms`` is.
        """
        stacked: Any = np.stack(np.broadcast_arrays(*(product(terms) for product in self.products)))
        rho = np.take_along_axis(stacked, np.argmin(stacked.real, axis=0)[None], axis=0)[0]
        return self._bound(self.factor * (rho + terms.eta if self.with_eta else rho))

    def exact(self, terms: Terms) -> Any:
        """Return, as a decimal number, the largest sine of the angle from true to clipped update that this inequality
        (T7's or a variant of it) allows for the quantities ``terms``."""
        rho = min(product(terms) for product in self.products)
        return self._bound(Decimal(self.factor) * (rho + terms.eta if self.with_eta else rho))

    def _bound(self, rho: Any) -> Any:
        """Return, for a value of rho, the largest sine of the angle between true and clipped update that T7's
        inequality allows, or the variant of it that this object describes.
        """
        if self.exponent == 0.5:
            return rho
        if isinstance(rho, Decimal):
            return (1 - (1 - rho * rho) ** Decimal(2 * self.exponent)).sqrt() if rho < 1 else rho
        safe = np.where(rho.real < 1, rho, 0.5)
        return np.where(rho.real < 1, np.sqrt(1 - (1 - safe * safe) ** (2 * self.exponent)), rho)


def _inf_kappa(t: Terms) -> Any:
    return t.lre_inf * t.kappa


def _inf_kappa_c(t: Terms) -> Any:
    return t.lre_inf * t.kappa_c


def _two_kappa_c2(t: Terms) -> Any:
    return t.lre_2 * t.kappa_c2


STATED = LemmaBound("rho of T7", (_inf_kappa, _inf_kappa_c, _two_kappa_c2))
"""T7 with simple constants, the trace and the centres 0 and g, of which decimal numbers are cheap: its rho contains the
least of three products. T7's own rho, which the code computes, is at most this one (`suite_departure`). Each inequality
of `TERMS` has one of the products in place of the least; all three are true too and are checked one by one.
"""
TERMS = {
    "LRE_inf kappa": LemmaBound("LRE_inf kappa + eta", (_inf_kappa,)),
    "LRE_inf kappa_c": LemmaBound("LRE_inf kappa_c + eta", (_inf_kappa_c,)),
    "LRE_2 kappa_c2": LemmaBound("LRE_2 kappa_c2 + eta", (_two_kappa_c2,)),
}
WITHOUT_KAPPA = LemmaBound("LRE without kappa", (lambda t: t.lre_inf,))
WITHOUT_ETA = LemmaBound("eta left out", STATED.products, with_eta=False)
WRONG_EXPONENT = LemmaBound("exponent .49 for 1/2", STATED.products, exponent=0.49)
SMALLER_KAPPA_C = LemmaBound("kappa_c / 1.05", (_inf_kappa, lambda t: t.lre_inf * t.kappa_c * 20 / 21, _two_kappa_c2))
CROSSED = LemmaBound("LRE_2 kappa_c in the minimum", (*STATED.products, lambda t: t.lre_2 * t.kappa_c))


def shrunk(claim: LemmaBound, factor: float) -> LemmaBound:
    """Return a false variant of the inequality ``claim``: its rho is multiplied by ``factor`` < 1 (a control)."""
    return LemmaBound(f"{claim.name} x {factor:g}", claim.products, factor, claim.with_eta, claim.exponent)


@dataclass(frozen=True)
class Judgement:
    """The judgement on an inequality (T7 or a variant) at one example of strata.

    Attributes
    ----------
    slack : float or None
        (rho - sin)/rho, with sin the sine of the angle between clipped and true update; -1 if the cosine is <= 0. None
        if rho >= 1, where the inequality promises nothing, or if rho and the sine are both 0.
    suite : str
        Empty, or a sentence on how ``fspo.theory`` differs from the exact values by more than rounding.
    """

    slack: float | None
    suite: str = ""


def judge_exactly(case: Strata, claim: LemmaBound = STATED, suite: bool = True) -> Judgement:
    """Judge the inequality ``claim`` (T7 or a variant) at one example of strata in decimal numbers. With ``suite``
    also compare the rho and the bound that ``theory.cosine_lemma`` returns with the exact values.
    """
    terms = exact_terms(case)
    with localcontext(EXACT):
        rho = claim.exact(terms)
        if not rho < 1:
            slack = None
        elif not terms.forward:
            slack = -1.0
        elif rho < 1e-54:
            slack = None if terms.sine < 1e-18 else -1.0
        else:
            slack = float((rho - terms.sine) / rho)
            slack = 0.0 if abs(slack) < 1e-30 else slack  # equal to 30 digits, as in the example T7s
        return Judgement(slack, suite_departure(case, terms) if suite else "")


def suite_departure(case: Strata, terms: Terms) -> str:
    """Say how the constants, rho and bound of ``theory.cosine_lemma`` differ from T7's, or that its rho is exceeded by
    the sine; return "" if only by rounding.

    The constants must be at most those with the trace in the place of the eigenvalue, and with c = 0 or c = g in the
    place of the best centre, which `STATED` has.
    """
    lemma = case.lemma()
    kappa, reach = float(terms.kappa), float(terms.lre_inf)
    largest = max(float(terms.kappa_c2), 1.0)
    p = case.p / case.p.sum()
    spread = np.sqrt(p)[:, None] * (case.g - p @ case.g)
    norm = float(np.linalg.norm(p @ case.g))
    sharp = math.sqrt(max(float(np.linalg.eigvalsh(spread @ spread.T)[-1]), 0.0)) / norm
    unit = 4 * _EPS * sum(case.g.shape) * (1 + kappa)
    if not abs(lemma.kappa_2 - sharp) <= 1e-7 * sharp + unit * largest:
        return f"theory gives kappa_2 {lemma.kappa_2!r} for {sharp!r}"
    trace, centre = float(terms.kappa_c2), min(float(terms.kappa), float(terms.kappa_c))
    if not lemma.kappa_2 <= trace + unit * largest or not lemma.kappa_inf <= centre + unit * largest:
        return f"theory gives constants {lemma.kappa_2!r}, {lemma.kappa_inf!r} above {trace!r}, {centre!r}"
    exact = min(reach * lemma.kappa_inf, float(terms.lre_2) * lemma.kappa_2) + float(terms.eta)
    allowed = unit * (1 + reach) * (1 + kappa) + 16 * _EPS * exact
    if not abs(lemma.rho - exact) <= allowed:
        return f"theory gives rho {lemma.rho!r} for {exact!r}; rounding allows {allowed:.0e}"
    sine = float(terms.sine)
    if lemma.bound is not None and not (terms.forward and sine <= lemma.rho * (1 + 1e-9) + allowed):
        return f"the sine is {sine!r} at rho {lemma.rho!r}"
    if lemma.bound is None:
        return "" if exact >= 1 - allowed else f"theory gives no bound at rho {exact!r}"
    if not abs(lemma.bound - math.sqrt(max((1 - lemma.rho) * (1 + lemma.rho), 0.0))) <= 4 * _EPS:
        return f"theory gives the bound {lemma.bound!r} at rho {lemma.rho!r}"
    return ""
