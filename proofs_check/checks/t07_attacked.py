"""Search for counterexamples to T7 (the cosine lemma) at random, by an optimiser and with the package hypothesis.

Each search draws strata: their shares, acceptances, true gradients and errors delta. It looks for strata with rho < 1
at which the sine of the angle between clipped and true update exceeds rho, the bound of T7. A counterexample counts
only after 80 digits have confirmed it (``lemma_claims``). In a control the same search must find a counterexample
to a false variant of T7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis import target

from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.falsify import counterexample
from proofs_check.tools.lemma_claims import (
    CROSSED,
    SMALLER_KAPPA_C,
    STATED,
    TERMS,
    WITHOUT_ETA,
    WITHOUT_KAPPA,
    WRONG_EXPONENT,
    LemmaBound,
    Strata,
    Terms,
    shrunk,
)
from proofs_check.tools.lemma_search import DECADES, Judged, Unpack, descend, random_strata


def random_search(rng: np.random.Generator, claim: LemmaBound = STATED, cases: int = 2_500) -> Outcome:
    """Check T7 on random strata: wherever rho < 1, the sine of the angle between clipped and true update is at most
    rho.
    """
    tally, passed = Judged(claim), 0
    for i in range(cases):
        case = random_strata(rng)
        with np.errstate(all="ignore"):
            terms = case.terms()
            rho = float(claim.floats(terms))
            near = rho < 1 and not (terms.forward and terms.sine < 0.9 * rho)
        passed += rho < 1
        if near or i % 10 == 0:
            slack = tally.add(case)
            if slack is not None and slack < 0:
                break
    if passed < cases / 20 and tally.least >= 0:
        return Outcome(note=f"only {passed} of {cases} cases have rho < 1")
    return tally.outcome(10, f"{passed} of {cases} drawn have rho < 1")


def _free(K: int, D: int, with_delta: bool, even: bool) -> tuple[Unpack, int]:
    """Return a function that makes K strata for T7 from n numbers, and n. An optimiser varies the numbers.

    The numbers give the strata's shares (with ``even`` all shares are equal instead), acceptances and true gradients,
    which are vectors of dimension D, and with ``with_delta`` also the strata's errors delta.
    """

    def unpack(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        p = np.ones_like(x[..., :K]) if even else np.exp(x[..., :K])
        a, g = np.exp(x[..., K : 2 * K]), x[..., 2 * K : 2 * K + K * D].reshape(*x.shape[:-1], K, D)
        rest = x[..., 2 * K + K * D :]
        return p, a, g, rest.reshape(g.shape) if with_delta else np.zeros_like(g)

    return unpack, 2 * K + K * D * (1 + with_delta)


def _inside(rng: np.random.Generator, n: int) -> tuple[Unpack, int]:
    """Return a function that makes 8 to 200 strata for T7 from n numbers, and n. An optimiser varies the numbers.

    Random strata and n random directions in the space of their parameters are drawn once. Each number says how far the
    strata's parameters are moved along one direction.
    """
    K, D = int(rng.integers(8, 201)), int(rng.integers(2, 65))
    unpack, size = _free(K, D, with_delta=bool(rng.random() < 0.5), even=False)
    base = 0.1 * rng.standard_normal(size)
    base[:K] *= 10 * rng.random()
    base[2 * K : 2 * K + K * D] += np.tile(rng.standard_normal(D), K)
    base[2 * K + K * D :] *= 0.01
    ways = rng.standard_normal((n, size)) * rng.choice([0.02, 0.2], (n, 1))
    ways[:, 2 * K + K * D :] *= 0.05
    return (lambda z: unpack(base + z @ ways)), n


def maximise(claim: LemmaBound, unpack: Unpack, x0: np.ndarray, steps: int) -> Strata:
    """Return strata at which an optimiser has made sin/rho largest. sin is the sine of the angle between clipped and
    true update, and rho the bound on it that ``claim`` (T7 or a false variant) states. The search starts at the strata
    that ``unpack`` makes from the numbers ``x0``.
    """

    def depth(terms: Terms) -> Any:
        rho = claim.floats(terms)
        over = np.where(rho.real > 0.98, rho - 0.98, 0.0)
        return np.log(rho) - np.log(terms.sine + 1e-30) + 10 * over**2

    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 0.0, "gtol": 1e-14, "maxcor": 20}
    return descend(unpack, depth, x0, DECADES * math.log(10), options)


def optimise(rng: np.random.Generator, claim: LemmaBound = STATED, starts: int = 12, steps: int = 250) -> Judged:
    """Look for a counterexample to ``claim``, which is T7 or a false variant: a bound on the sine of the angle between
    clipped and true update. From random starts an optimiser maximises the sine over its bound. The first counterexample
    ends the search.
    """
    tally = Judged(claim)
    for start in range(starts):
        kind = start % 4
        if kind == 3:
            unpack, n = _inside(rng, 12)
            x0 = np.zeros(n)
        else:
            K, D = (int(rng.integers(2, 7)) if kind == 1 else 2), int(rng.integers(2, 9 if kind else 4))
            unpack, n = _free(K, D, with_delta=kind == 1, even=kind == 2)
            x0 = 0.3 * rng.standard_normal(n)
            x0[2 * K : 2 * K + D * K] += np.tile(rng.standard_normal(D), K)
            x0[2 * K + K * D :] *= 0.1
            if kind == 1:
                x0[:K] *= 20
        slack = tally.add(maximise(claim, unpack, x0, steps if kind < 3 else 40))
        if slack is not None and slack < 0:
            break
    return tally


def attack(rng: np.random.Generator, claim: LemmaBound = STATED) -> Outcome:
    """Check T7 (cosine of clipped and true update): an optimiser finds no strata at which the sine of the angle exceeds
    its bound rho. The note of the outcome gives the least slack of this inequality that was reached.
    """
    tally = optimise(rng, claim)
    return tally.outcome(6, f"least slack {tally.least:.1e}")


def reached(rng: np.random.Generator, claim: LemmaBound = STATED, within: float = 1e-12) -> Outcome:
    """Check that T7's bound rho on the sine of the angle between clipped and true update cannot be lowered: an
    optimiser finds strata with sin/rho >= 1 - ``within``, and none with sin > rho.
    """
    tally = optimise(rng, claim)
    if tally.suite or not tally.least >= 0:
        return tally.outcome(1)
    margin = math.log10(within / max(tally.least, 1e-17))
    return Outcome(margin, "decades", note=f"sin/rho reaches 1 - {tally.least:.1e}")


@st.composite
def strata_strategy(draw: st.DrawFn) -> Strata:
    """Draw strata for T7: their shares, acceptances, true gradients and errors delta. The numbers are small integers
    and powers of ten. One stratum alone, dimension 1, zeros and repeated strata occur.
    """
    D = draw(st.sampled_from([1, 2, 2, 3, 8, 64]))
    tiny = draw(st.sampled_from([0.0, 0.0, 1e-9, 1e-3]))
    flat = draw(st.floats(-3, 0))  # log10 of the spread of the strata's acceptances
    # largest entry of the strata's errors delta: clipped gradient over acceptance, less the true gradient
    size = draw(st.sampled_from([0.0, 0.0, 1e-6, 1e-2, 0.1]))
    distinct = draw(st.integers(1, 6))
    # If ``even``, all strata have equal shares; otherwise shares span 12 decades and some strata repeat.
    even = draw(st.booleans())
    p, a, g, delta = [], [], [], []
    for _ in range(distinct):
        repeats = 1 if even else draw(st.sampled_from([1, 2, 33]))
        share = 1.0 if even else 10.0 ** -draw(st.sampled_from([0, 0, 1, 2, 6, DECADES]))
        extreme = None if even else draw(st.sampled_from([None, None, 0.0, 10.0**-DECADES, 10.0**DECADES]))
        accepted = 1 + 10**flat * draw(st.integers(-4, 4)) / 5 if extreme is None else extreme
        vector, inner = np.zeros(D), np.zeros(D)
        for i in range(min(D, 3)):
            vector[i] = draw(st.integers(-4, 4))
            inner[i] = draw(st.integers(-1, 1)) if size or tiny else 0
        p += [share] * repeats
        a += [accepted] * repeats
        g += [vector + tiny * inner[::-1]] * repeats
        delta += [size * inner * (accepted > 0)] * repeats
    return Strata(np.array(p), np.array(a), np.array(g), np.array(delta))


def hypothesis_search(rng: np.random.Generator, claim: LemmaBound = STATED) -> Outcome:
    """Let the package hypothesis search for strata that refute T7. It is led towards strata at which the sine of the
    angle between clipped and true update is large, relative to its bound rho.
    """
    tally, drawn = Judged(claim), [0]

    def refutes(case: Strata) -> bool:
        with np.errstate(all="ignore"):
            terms = case.terms()
            rho = float(claim.floats(terms))
        if not (np.any(case.a > 0) and np.isfinite(rho)) or float(np.linalg.norm(case.p @ case.g)) < 1e-6:
            return False  # the true update is 0 or nothing is accepted, so no angle is defined
        near = not terms.sine < 0.99 * rho and rho < 1.001
        if 0 < rho < 1 and np.isfinite(terms.sine):
            target(float(terms.sine) / rho)
        drawn[0] += 1
        slack = tally.add(case) if near or drawn[0] % 10 == 0 else None
        return bool(tally.suite) or (slack is not None and slack < 0)

    counterexample(rng, strata_strategy(), refutes)
    return tally.outcome(50)


def _each_term(search: Callable[..., Outcome], name: str) -> tuple[Check, ...]:
    return tuple(
        Check(
            "T7",
            Method.ATTACKED,
            f"{name}: {term} alone",
            partial(search, claim=claim),
            {f"{term} x .99": partial(search, claim=shrunk(claim, 0.99))},
        )
        for term, claim in TERMS.items()
    )


CHECKS = (
    Check(
        "T7",
        Method.ATTACKED,
        "random strata, dimension 1 to 64, 1 to 200 strata",
        random_search,
        {
            "LRE without kappa": partial(random_search, claim=WITHOUT_KAPPA),
            "eta left out": partial(random_search, claim=WITHOUT_ETA),
            "LRE_2 kappa_c in the minimum": partial(random_search, claim=CROSSED),
        },
    ),
    Check(
        "T7",
        Method.ATTACKED,
        "optimiser maximises sin/rho",
        attack,
        {
            claim.name: partial(attack, claim=claim)
            for claim in (
                shrunk(STATED, 0.99),
                WITHOUT_KAPPA,
                WITHOUT_ETA,
                WRONG_EXPONENT,
                SMALLER_KAPPA_C,
                CROSSED,
            )
        },
    ),
    *_each_term(attack, "optimiser"),
    Check(
        "T7",
        Method.ATTACKED,
        "optimiser reaches sin = rho to 1e-12",
        reached,
        {"a bound 1e-9 too weak": partial(reached, claim=shrunk(STATED, 1 + 1e-9))},
    ),
    Check(
        "T7",
        Method.ATTACKED,
        "hypothesis search over degenerate strata",
        hypothesis_search,
        {
            claim.name: partial(hypothesis_search, claim=claim)
            for claim in (shrunk(STATED, 0.8), WITHOUT_KAPPA, WITHOUT_ETA, CROSSED)
        },
    ),
)
