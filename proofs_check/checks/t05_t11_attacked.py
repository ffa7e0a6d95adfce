"""Check T5 to T9 by a search for counterexamples with the package hypothesis, T11's mean weights by drawing responses,
and T11 over all outcomes of an update on 3 prompts (sections 4, 6).
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from fspo import theory
from fspo.rules import MAX_EXPONENT, Rule
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import GaussianTokens, matching_means
from proofs_check.tools.compare import mean_is
from proofs_check.tools.falsify import search
from proofs_check.tools.policy import (
    calibrated,
    make_bandit,
    update_terms,
)


def edge_attack(rng: np.random.Generator, drift: str = "gaussian", share: float = 1.0) -> Outcome:
    """Check T11 (size of the weights): hypothesis looks for a scale sigma, a range u sigma and a length L at which the
    upper edge of the sqrt band around -sigma^2 L/2 is above u^2/2 nats. It must find none. ``share`` < 1 (a control) is
    a factor on the drift.
    """

    def excess(example: tuple[float, float, float]) -> float:
        log_sigma, u, log_shift = example
        sigma = 10**log_sigma
        c = u * sigma
        length = max(1.0, float(np.round((u / sigma) ** 2 * 10**log_shift)))
        rule = Rule("sqrt", c, c, drift=drift)  # type: ignore[arg-type]
        edge = float(rule.band(np.array([length]), rule.centre(theory.gaussian_means(sigma * math.sqrt(share))))[1][0])
        with mp.workdps(50):
            top = (mp.mpf(c) / mp.mpf(sigma)) ** 2 / 2
            stated = mp.log(mp.mpf(theory.upper_edge_supremum(c / sigma)))
            # The edge is the difference of two numbers of size c sqrt(L), with c the range, so the allowed rounding
            # error grows with c sqrt(L).
            rounding = 8 * mp.mpf(2) ** -53 * (mp.mpf(c) * mp.sqrt(length) + top + 1)
            return float(mp.mpf(edge) - min(stated, top) - rounding)

    near = st.one_of(st.just(0.0), st.floats(-0.3, 0.3), st.floats(-3, 2))
    strategy = st.tuples(st.floats(-4, 0), st.floats(0.05, 6), near)
    return search(rng, strategy, excess, 100, "nats below the edge's supremum")


def dual_attack(rng: np.random.Generator, dual: float | None = 3.0) -> Outcome:
    """Check T11 (size of the weights): with a dual clip no response has a clipped weight above e^d, where d is the dual
    clip's edge (the second upper edge, for A < 0).
    """

    def excess(example: tuple[float, int, float, str, float]) -> float:
        S, length, A, outside, c = example
        rule = Rule("sqrt", c, c, dual=dual, outside=outside)  # type: ignore[arg-type]
        applied = rule.apply(np.array([S]), np.array([float(length)]), np.array([A]))
        edge = min(3.0 * c * math.sqrt(length), MAX_EXPONENT)  # the dual clip's edge in nats
        return float(np.log(np.maximum(applied.clipped_weight[0], 1e-300))) - edge - 1e-12

    strategy = st.tuples(
        st.floats(-30, 30),
        st.integers(1, 100_000),
        st.sampled_from([-2.0, -1e-3, 1e-3, 1.0]),
        st.sampled_from(["drop", "truncate"]),
        st.floats(1e-3, 0.3),
    )
    return search(rng, strategy, excess, 100, "nats below the dual edge")


def weight_moments(rng: np.random.Generator, shift: float = 2.0, draws: int = 100_000) -> Outcome:
    """Check T11: the mean of w and of w^2 over responses (w counts as 0 outside the band), at each length l, for bands
    of half-width c L^gamma. The effective sample size follows from these two.

    For k = 1, 2 the mean of w^k is exp(k mu l + k^2 sigma^2 l/2) times the acceptance of S of mean (mu + k sigma^2) l,
    because weighting a normal law by exp(kS) moves its mean by k sigma^2 l. The formula is compared with the mean of
    w^k over drawn responses, with w as ``rule.apply`` gives it.
    """
    sigma, lengths = 0.04, np.array([16.0, 256, 1024])
    model = GaussianTokens(-(sigma**2) / 2, sigma)
    samples, expected = [], []
    for gamma in (0.4, 0.5, 0.6):
        rule = Rule("power", 0.05, 0.04, gamma=gamma, drift="kl")
        m = rule.centre(matching_means(model))
        n = np.broadcast_to(lengths, (draws, lengths.size))
        applied = rule.apply(model.sample(rng, n), n, np.ones_like(n), m)
        weight = np.where(applied.in_band, applied.weight, 0.0)
        for k, moved in ((1, 1.0), (2, shift)):
            scale = np.exp(k * model.mu * lengths + k**2 * sigma**2 * lengths / 2)
            expected += list(scale * theory.band_acceptance(rule, lengths, model.mu + moved * sigma**2, sigma, m))
            samples.append(weight**k)
    found = mean_is(np.concatenate(samples, axis=1), np.array(expected), wanted=0.02, draws=draws)
    first, second = np.array(expected).reshape(3, 2, 3)[1]
    ess = ", ".join(f"{x:.2f}" for x in first**2 / second)
    note = f"{found.note}; effective share of responses at gamma 1/2, l = 16, 256, 1024: {ess}"
    return Outcome(p_value=found.p_value, resolution=found.resolution, wanted=found.wanted, note=note)


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


def price_exact(
    rng: np.random.Generator, with_bias: bool = True, plug_in: bool = False, one_less: bool = False, prompts: int = 3
) -> Outcome:
    """Check T11 over every outcome of an update on 3 prompts, each weighted by its probability. The mean squared error
    of the clipped update must be |bias|^2 plus the trace of its covariance. Let d be a prompt's clipped gradient less
    its true one: the mean inner product of d of two different prompts must be |bias|^2.
    """
    for _ in range(50):  # draw policies until clipping makes the update of one policy biased enough
        bandit = make_bandit(rng, vocabulary=2, max_length=3, step=0.3)
        clipped, true = update_terms(bandit, calibrated(bandit, "fspo", 0.6))
        p, d = bandit.p_old, clipped - true
        bias = p @ d
        variance = float(p @ (clipped**2).sum(axis=1) - ((p @ clipped) ** 2).sum())
        if float(bias @ bias) > 0.01 * variance:
            break
    else:
        return Outcome(note="no policy of which the rule cuts enough")
    error = estimate = 0.0
    for rows in product(range(p.size), repeat=prompts):
        at = list(rows)
        chance = float(np.prod(p[at]))
        error += chance * float(((clipped[at].mean(axis=0) - p @ true) ** 2).sum())
        gram = d[at] @ d[at].T
        pairs = gram.mean() if plug_in else (gram.sum() - np.trace(gram)) / (prompts * (prompts - 1))
        estimate += chance * float(pairs)
    stated = (float(bias @ bias) if with_bias else 0.0) + variance / (prompts - one_less)
    gap = max(abs(error / stated - 1), abs(estimate / float(bias @ bias) - 1))
    return Outcome(math.log10(1e-11 / max(gap, 1e-17)), "decades", note=f"{p.size**prompts} outcomes, error {gap:.0e}")


CHECKS = (
    Check(
        "T11",
        Method.ATTACKED,
        "hypothesis: an upper edge above exp(u^2/2)",
        edge_attack,
        {
            "drift none": partial(edge_attack, drift="none"),
            "drift 1 % short": partial(edge_attack, share=0.99),
        },
    ),
    Check(
        "T11",
        Method.ATTACKED,
        "hypothesis: a weight above the dual edge",
        dual_attack,
        {"no dual clip": partial(dual_attack, dual=None)},
    ),
    Check(
        "T11",
        Method.SIMULATED,
        "moments of in-band weights by length and gamma",
        weight_moments,
        {"mean moved by sigma^2 for 2 sigma^2": partial(weight_moments, shift=1.0)},
    ),
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
    Check(
        "T11",
        Method.ENUMERATED,
        "every outcome of an update of 3 prompts",
        price_exact,
        {
            "bias left out": partial(price_exact, with_bias=False),
            "plug-in": partial(price_exact, plug_in=True),
            "tr Cov/(n - 1)": partial(price_exact, one_less=True),
        },
    ),
)
