"""Check T13: the bias of an update that leaves a part of the log-ratio out of the importance weight, and the variance
of a log-ratio that is a sum of parts (section 6).
"""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations_with_replacement

import mpmath as mp
import numpy as np

from fspo.rules import correction, preset
from fspo.theory import Floats
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.chain import SAMPLERS, Chain, make_chain
from proofs_check.tools.compare import close, holds, mean_is, worst
from proofs_check.tools.policy import next_symbol
from proofs_check.tools.settings import DIGITS

RANGES = {"mis": (0.2, 0.25), "geo-mask": (0.1, 0.1), "engine-sqrt": (0.15, 0.2)}
"""Lower and upper range of each correction that treats a response as a whole. With these ranges each correction changes
the factor of some responses of a small policy.
"""


def kept_factor(chain: Chain, name: str) -> Floats:
    """Return the factor by which the correction ``name`` on D + E multiplies each response's gradient, (N,); 1 if
    ``name`` is "none".
    """
    R = chain.staleness + chain.engine
    if name == "none":
        return np.ones_like(R)
    lo, hi = RANGES[name]
    rule = correction(name, on="behaviour", drift="none", range_lo=lo, range_hi=hi)
    assert rule is not None
    return rule.apply(R, chain.lengths.astype(np.float64), np.ones_like(R)).clipped_weight


def bias_parts(p: Floats, lengths: np.ndarray, c: Floats, u: Floats) -> tuple[Floats, Floats, float]:
    """Return the bias of an update that multiplies gradients by a wrong factor, split as in T13: the part between
    lengths (D,), the part inside lengths (D,), and T13's bound on the norm of the part inside lengths.

    Parameters
    ----------
    p, lengths, c : arrays (N,)
        Of each response that can be drawn: its probability, its length, and the factor that the update uses less the
        right factor (e to the ignored log-ratio).
    u : array (N, D)
        The responses' gradients before that factor: e to the log-ratio that is not ignored, times A psi.
    """
    between, inside, bound = np.zeros(u.shape[1]), np.zeros(u.shape[1]), 0.0
    for length in np.unique(lengths):
        at = lengths == length
        share = float(p[at].sum())
        q = p[at] / share
        mean_c, mean_u = q @ c[at], q @ u[at]
        left, right = c[at] - mean_c, u[at] - mean_u
        between += share * mean_c * mean_u
        inside += share * (q * left) @ right
        bound += share * math.sqrt(float(q @ left**2) * float(q @ (right**2).sum(axis=1)))
    return between, inside, bound


def true_update(chain: Chain, step: float = 1e-5) -> Floats:
    """Return the true update, over responses that the sampler can draw: the gradient of the new policy's expected
    advantage, computed by central differences.
    """
    A = np.where(chain.drawn, chain.advantages, 0.0)
    found = np.empty(chain.new.size)
    for i in range(found.size):
        shift = np.zeros(chain.new.size)
        shift[i] = step
        ends = (chain.probability(chain.new + sign * shift.reshape(chain.new.shape)) @ A for sign in (1.0, -1.0))
        found[i] = (next(ends) - next(ends)) / (2 * step)
    return found


def bias(rng: np.random.Generator, sign: float = 1.0, weighted: bool = True, inner: bool = True) -> Outcome:
    """Check T13 (d) for updates that use a wrong factor in place of e^(D + E): 1 (D + E is ignored) or the factor of a
    correction. The error of such an update (the update less the gradient of the expected advantage) must be the sum of
    a part between lengths and a part inside lengths. The norm of the second part must be within T13's bound.
    """
    gaps, slack = [], []
    for sampler in SAMPLERS:
        chain = make_chain(rng, vocabulary=2, max_length=4, **sampler)
        truth, on = true_update(chain), chain.drawn
        for name in ("none", *RANGES):
            f = kept_factor(chain, name)
            u = (np.exp(chain.update) * chain.advantages)[:, None] * chain.psi
            used = (chain.p_draw * f) @ u
            rest = u if weighted else chain.advantages[:, None] * chain.psi
            lost = sign * (f - np.exp(chain.staleness + chain.engine))
            parts = bias_parts(chain.p_draw[on], chain.lengths[on], lost[on], rest[on])
            stated = parts[0] + parts[1] if inner else parts[0]
            gaps.append(float(np.linalg.norm(used - truth - stated)) / float(np.linalg.norm(truth)))
            slack.append(parts[2] - float(np.linalg.norm(parts[1])))
    error = float(np.max(gaps))
    found = Outcome(math.log10(1e-6 / max(error, 1e-17)), "decades", note=f"largest gap {error:.0e} of the true update")
    return found if min(slack) > -1e-12 else holds(slack, "bound less the inside part")


def bound_reached(rng: np.random.Generator, factor: float = 1.0, centred: bool = True) -> Outcome:
    """Check by examples that T13 (d)'s bound on the part of an update's bias that lies inside lengths can be reached.
    Let c be the factor that the update gives a response, less the right factor, and u the response's gradient without a
    factor. In the examples u is c times one vector v, the same for all responses.
    """
    errors = []
    for _ in range(20):
        lengths = rng.integers(1, 5, 40)
        p, v = rng.dirichlet(np.ones(40)), rng.standard_normal(6)
        c = 1 - np.exp(rng.normal(0.2, 0.5, 40) * np.sqrt(lengths))
        u = c[:, None] * v
        bound = bias_parts(p, lengths, c, u)[2]
        if not centred:
            bound = math.sqrt(float(p @ c**2) * float(p @ (u**2).sum(axis=1)))
        inside = np.linalg.norm(bias_parts(p, lengths, c, u)[1])
        errors.append(close(factor * bound, inside, 1e-11))
    return worst(*errors)


def gaussian_parts(
    rng: np.random.Generator, sign: float = 1.0, independent: bool = False, weighted: bool = True, draws: int = 200_000
) -> Outcome:
    """Check T13 by drawing normal S and E, which are correlated token by token, with A psi = 1 for every response. The
    mean error at length l of an update that ignores E must be the sum of two parts: 1 - m_l between lengths and -m_l
    (e^(cov l) - 1) inside lengths, with m_l the mean of e^E at length l and cov the covariance of S and E per token.

    The variance of S + E at length l must be the sum of the variances of S and E plus 2 cov l.
    """
    sigma, tau, mean, cov = 0.05, 0.04, -5e-4, 0.4 * 0.05 * 0.04
    lengths = np.array([8.0, 32, 128])
    n = np.broadcast_to(lengths, (draws, lengths.size))
    common, own = rng.standard_normal((2, *n.shape))
    S = -(sigma**2) / 2 * n + sigma * np.sqrt(n) * common
    E = mean * n + np.sqrt(n) * (cov / sigma * common + math.sqrt(tau**2 - (cov / sigma) ** 2) * own)
    weight = preset("none").rule.apply(S, n, np.ones_like(n)).weight if weighted else np.ones_like(n)
    stated_cov = 0.0 if independent else cov
    m = np.exp((mean + tau**2 / 2) * lengths)
    stated = sign * (1 - m - m * np.expm1(stated_cov * lengths))
    variance = (sigma**2 + tau**2 + 2 * stated_cov) * lengths
    squares = ((S + E - (mean - sigma**2 / 2) * lengths) ** 2) / variance
    samples = np.concatenate([1 + (1 - np.exp(E)) * weight, squares], axis=1)
    return mean_is(samples, np.append(1 + stated, np.ones(3)), wanted=0.02, draws=draws)


def increments(rng: np.random.Generator, centred: bool = True, cross: bool = True, one_length: bool = False) -> Outcome:
    """Check T13 (e): if the token log-ratios of S, D and E have mean 0 given the tokens before, the covariance of two
    of S, D and E is a sum over tokens t: of the covariances of their token log-ratios at the same t.
    """
    gaps = []
    for sampler in SAMPLERS:
        chain = make_chain(rng, **sampler)
        symbol = chain.responses.symbols
        start = np.full((len(symbol), 1), chain.draw.shape[1] - 1)
        previous, position = np.concatenate([start, symbol[:, :-1]], axis=1), np.arange(symbol.shape[1])
        Q, parts = next_symbol(chain.draw), []
        for top, bottom in ((chain.new, chain.old), (chain.old, chain.sampling), (chain.sampling, chain.draw)):
            with np.errstate(invalid="ignore", divide="ignore"):
                table = np.where(Q > 0, np.log(next_symbol(top)) - np.log(next_symbol(bottom)), 0.0)
            if centred:
                table = table - (Q * table).sum(axis=-1, keepdims=True)
            parts.append(np.where(symbol >= 0, table[position, previous, symbol], 0.0))
        p = chain.p_draw
        if one_length:
            likeliest = np.bincount(chain.lengths, p).argmax()
            p = np.where(chain.lengths == likeliest, p, 0.0) / p[chain.lengths == likeliest].sum()
        for x, z in combinations_with_replacement(parts, 2):
            sums = x.sum(axis=1), z.sum(axis=1)
            covariance = p @ (sums[0] * sums[1]) - (p @ sums[0]) * (p @ sums[1])
            same = p @ (x * z).sum(axis=1) if cross or x is z else 0.0
            gaps.append(abs(covariance - same) / math.sqrt((p @ sums[0] ** 2) * (p @ sums[1] ** 2)))
    largest = float(np.max(gaps))
    return Outcome(math.log10(1e-11 / max(largest, 1e-17)), "decades", note=f"largest gap {largest:.0e} of the two sds")


def local_exponent(rng: np.random.Generator, weighted: bool = True, falling: bool = False) -> Outcome:
    """Check T10 (f): for a variance that is a sum of powers v_i L^(2 H_i) of the length, half its local exponent (slope
    of log variance on log L) is the mean of the H_i, weighted by their shares of the variance. That mean rises with the
    length. mpmath computes the slope.
    """
    errors, slack = [], []
    for _ in range(20):
        H, v = rng.uniform(0.3, 0.9, 3), 10 ** rng.uniform(-4, 0, 3)
        found = []
        for length in (1.0, 10.0, 100.0, 1000.0):
            with mp.workdps(DIGITS):
                log_variance = lambda x, H=H, v=v: mp.log(  # noqa: E731
                    sum(mp.mpf(a) * mp.e ** (2 * mp.mpf(h) * x) for a, h in zip(v.tolist(), H.tolist(), strict=True))
                )
                slope = float(mp.diff(log_variance, mp.log(length)) / 2)
            share = v * length ** (2 * H) if weighted else np.ones(3)
            errors.append(close(slope, share @ H / share.sum(), 1e-11))
            slack += [slope - H.min(), H.max() - slope]
            found.append(slope)
        slack += list(-np.diff(found) if falling else np.diff(found))
    formula = worst(*errors)
    return formula if min(slack) > -1e-12 else holds(slack, "exponent")


CHECKS = (
    Check(
        "T13",
        Method.ENUMERATED,
        "bias of e^S and of three corrections, in two parts, against finite differences",
        bias,
        {
            "sign reversed": partial(bias, sign=-1.0),
            "weight e^S dropped": partial(bias, weighted=False),
            "inside part left out": partial(bias, inner=False),
        },
    ),
    Check(
        "T13",
        Method.CLOSED,
        "the bound on the inside part is reached",
        bound_reached,
        {
            "bound 5 % smaller": partial(bound_reached, factor=0.95),
            "second moments over all lengths": partial(bound_reached, centred=False),
        },
    ),
    Check(
        "T13",
        Method.SIMULATED,
        "correlated normal S and E: bias by length and Var(S + E | L)",
        gaussian_parts,
        {
            "sign reversed": partial(gaussian_parts, sign=-1.0),
            "S and E independent": partial(gaussian_parts, independent=True),
            "weight e^S dropped": partial(gaussian_parts, weighted=False),
        },
    ),
    Check(
        "T13",
        Method.ENUMERATED,
        "centred token ratios of two parts: same-token terms alone",
        increments,
        {
            "not centred": partial(increments, centred=False),
            "given one length": partial(increments, one_length=True),
            "no cross terms": partial(increments, cross=False),
        },
    ),
    Check(
        "T10",
        Method.CLOSED,
        "local exponent of a sum of parts",
        local_exponent,
        {"plain mean": partial(local_exponent, weighted=False), "falls": partial(local_exponent, falling=True)},
    ),
)
