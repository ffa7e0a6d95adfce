"""Check T5 to T9 by a search for counterexamples with the package hypothesis, T11's mean weights by drawing responses,
and T11 over all outcomes of an update on 3 prompts (sections 4, 6).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from hypothesis import strategies as st

from fspo.rules import Rule
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.falsify import search


@st.composite
def symmetric_laws(draw: st.DrawFn) -> tuple[list[int], list[int], int, int, list[int]]:
    """Draw a symmetric law of S (a few values with integer weights), a band's range c, its drift per token, and the
    share of A > 0 at each of five lengths. All but the weights are drawn as integers that stand for eighths.
    """
    atoms = draw(st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True))
    weights = draw(st.lists(st.integers(1, 9), min_size=len(atoms), max_size=len(atoms)))
    return atoms, weights, draw(st.integers(1, 12)), draw(st.integers(0, 3)), draw(_SHARES)


_SHARES = st.lists(st.integers(0, 8), min_size=5, max_size=5)


def sign_attack(
    rng: np.random.Generator, wider: int = 0, dual: float | None = None, mirrored: bool = True, shift: int = 0
) -> Outcome:
    """Check T9: hypothesis looks for a symmetric law of S and shares of A > 0 with which the share of responses that a
    symmetric sqrt band does not clip varies with the length. It must find none. All values are multiples of 1/16 and
    lengths are powers of 4, so float64 is exact and the accepted counts are integers.
    """
    lengths = 4.0 ** np.arange(5)

    def excess(example: tuple[list[int], list[int], int, int, list[int]]) -> float:
        atoms, weights, c, k3, shares = example
        signs = (1, -1) if mirrored else (1,)
        z = np.array([sign * atom / 8 for atom in atoms for sign in signs])
        mass = np.repeat(weights, len(signs))
        half = c / 8 + 1 / 16
        rule = Rule("sqrt", half, half + wider / 8, drift="kl", dual=dual)
        kept = []
        for length, positive in zip(lengths, shares, strict=True):
            total = 0
            for sign, share in ((1.0, positive), (-1.0, 8 - positive)):
                S = (z + (shift / 8 if sign > 0 else 0.0)) * math.sqrt(length) - k3 / 8 * length
                n, A = np.full(z.size, length), np.full(z.size, sign)
                total += share * int(mass @ (rule.apply(S, n, A, -k3 / 8).multiplier == 1))
            kept.append(total)
        # Accepted counts are integers, so their spread over the lengths less 1/2 is positive only if two lengths have
        # different counts, which is a counterexample.
        return max(kept) - min(kept) - 0.5

    return search(rng, symmetric_laws(), excess, 100, "counts apart")


CHECKS = (
    Check(
        "T9",
        Method.ATTACKED,
        "hypothesis: symmetric laws and shares of A > 0, exact counts",
        sign_attack,
        {
            "c_hi > c_lo": partial(sign_attack, wider=1),
            "dual clip": partial(sign_attack, dual=2.0),
            "law not symmetric": partial(sign_attack, mirrored=False),
            "S larger where A > 0": partial(sign_attack, shift=1),
        },
    ),
)
