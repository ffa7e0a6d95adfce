"""T13: the ratio to what drew, where that was another distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement

import numpy as np
from scipy import special, stats

from fspo.rules import correction, token_k3
from fspo.theory import Floats
from proofs_check.frame import Method, Test, check, near_miss
from proofs_check.models import AutoregressiveTokens, FractionalNoise, GaussianTokens, StudentTokens
from proofs_check.models.base import TokenModel
from proofs_check.tools.chain import SAMPLERS, Chain, make_chain, truncated
from proofs_check.tools.compare import all_of, at_most, beside, equal, holds, means, shares, vectors, within
from proofs_check.tools.policy import all_responses, next_symbol, scores, slopes, states, token_log_probs


def prefixes(chain: Chain) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield each prefix that a response of the sampler can have as three things: the position of the symbol after the
    prefix, the last symbol of the prefix (V if it is empty), and the indices of the responses that begin with it."""
    symbols = chain.responses.symbols
    for t in range(symbols.shape[1]):
        live = np.flatnonzero(chain.drawn & (symbols[:, t] >= 0))
        _, group = np.unique(symbols[live, :t], axis=0, return_inverse=True)
        for one in np.unique(group):
            rows = live[group.ravel() == one]
            yield t, int(symbols[rows[0], t - 1]) if t else chain.draw.shape[1] - 1, rows


def masses_by_length(table: Floats, drawn: np.ndarray) -> Floats:
    """Return (T,), for each length 1..T, a policy's probability of the responses of that length that a sampler can
    draw, by forward recursion. ``table`` holds the policy's probabilities by position, previous and next symbol, (T, V
    + 1, V + 1), and ``drawn``, of the same shape, whether the sampler can draw that symbol."""
    reached, masses = np.eye(table.shape[1])[-1], []
    for step, counted in zip(table, drawn, strict=True):
        ends = reached @ np.where(counted, step, 0.0)
        masses.append(ends[-1])
        reached = np.append(ends[:-1], 0.0)
    masses[-1] += reached.sum()  # the responses that are cut off at the last position
    return np.array(masses)


@check("T13", Method.ENUMERATED, "(a), (b) means of e^R by length, of e^r, r, k3 after each prefix", "of a mean", 1e-8)
@near_miss("mean 1 for k", mass=False)
@near_miss("KL the other way round", swapped=True)
@near_miss("responses that cannot be drawn counted", all_of_p=True)
def after_prefix(rng: np.random.Generator, mass: bool = True, swapped: bool = False, all_of_p: bool = False) -> Test:
    """Test T13 (a) and (b) over all responses that four samplers Q can draw; R is the log-ratio of the sampling
    weights' policy P to Q, r that of a token. The means of e^R by length and of e^r, r, k3 after each prefix are as T13
    says. Falsified by x: the stated means times 1 + x. Near misses: ``mass`` False states the mean 1 of e^r,
    ``swapped`` KL(P || Q) for KL(Q || P), ``all_of_p`` counts also P's responses that Q cannot draw."""
    stated, exact, slack = [], [], []
    for sampler in SAMPLERS:
        chain = make_chain(rng, max_length=4, **sampler)
        Q, P = next_symbol(chain.draw), next_symbol(chain.sampling)
        r = chain.token_log_ratios(chain.sampling, chain.draw)
        for t, previous, rows in prefixes(chain):
            q, p = Q[t, previous], P[t, previous]
            on = q > 0
            k = p[on].sum() if mass else 1.0
            kl = float((p if swapped else q)[on] @ np.log(q[on] / p[on]))
            dist, r_t = chain.p_draw[rows] / chain.p_draw[rows].sum(), r[rows, t]
            found = dist @ np.exp(r_t), dist @ r_t, dist @ token_k3(r_t)
            stated += [k, -kl, kl - (1 - k)]
            exact += found
            slack.append(np.log(k) - found[1])
        weight = chain.p_draw * np.exp(chain.engine)
        of_p = masses_by_length(P, np.ones_like(Q, bool) if all_of_p else Q > 0)
        of_q = masses_by_length(Q, Q > 0)
        for n in np.flatnonzero(of_q > 0):
            at = chain.lengths == n + 1
            stated.append(of_p[n] / of_q[n])
            exact.append(weight[at].sum() / chain.p_draw[at].sum())
        stated.append(of_p.sum())
        exact.append(weight.sum())
    return beside(equal(stated, exact, 1e-9), holds(slack, "log k less the mean of r", 1e-12))


@check("T13", Method.ENUMERATED, "(c) reported log-probs of another temperature: sum p q/q_hat", "of a mean", 1e-10)
@near_miss("mean 1", one=True)
@near_miss("KL the other way round", swapped=True)
def wrong_log_probs(rng: np.random.Generator, one: bool = False, swapped: bool = False) -> Test:
    """Test T13 (c) over all responses of a sampler that draws from q and reports q_hat, at four temperatures; p is the
    trainer's distribution, r = log(p/q_hat) of a token. After each prefix the mean of e^r is the sum of p q/q_hat; if p
    itself drew, it is 1 + chi^2(p, q_hat), and that of r is KL(p, q_hat). Falsified by x, the test multiplies the
    stated means by 1 + x. Near misses: ``one`` states the mean 1, ``swapped`` KL(q_hat, p)."""
    stated, exact, slack = [], [], []
    for temperature in (0.5, 0.8, 1.25, 2.0):
        chain = make_chain(rng, max_length=4, noise=0.0, temperature=temperature)
        logits = {"p": chain.sampling, "q": chain.draw}
        tables = {name: next_symbol(theta) for name, theta in logits.items()}
        for drawn, computed, reported in (("q", "q", "p"), ("q", "p", "q"), ("q", "p", "p"), ("p", "p", "q")):
            dist, p, q_hat = (tables[name] for name in (drawn, computed, reported))
            probability = chain.probability(logits[drawn])
            r = chain.token_log_ratios(logits[computed], logits[reported])
            for t, previous, rows in prefixes(chain):
                share, at = probability[rows] / probability[rows].sum(), (t, previous)
                mean, mean_r = share @ np.exp(r[rows, t]), share @ r[rows, t]
                stated.append(1.0 if one else float(dist[at] @ (p[at] / q_hat[at])))
                exact.append(mean)
                if computed == drawn:
                    first, second = (q_hat[at], p[at]) if swapped else (p[at], q_hat[at])
                    chi_2 = float(((p[at] - q_hat[at]) ** 2 / q_hat[at]).sum())
                    stated += [1 + chi_2, special.rel_entr(first, second).sum()]
                    exact += [mean, mean_r]
                    slack += [mean_r, mean - 1]
    return beside(equal(stated, exact, 1e-11), holds(slack, "excess of the mean of e^r and of r", 1e-14))


RANGES = {"mis": (0.2, 0.25), "geo-mask": (0.1, 0.1), "engine-sqrt": (0.15, 0.2)}
"""Lower and upper range of the three corrections on whole responses, narrow enough to change some of the factors."""


def kept_factor(chain: Chain, name: str) -> Floats:
    """Return the factor (N,) by which the correction ``name`` on the rollout-policy ratio D + E multiplies each
    response's gradient; 1 for the name "none"."""
    R = chain.staleness + chain.engine
    if name == "none":
        return np.ones_like(R)
    lo, hi = RANGES[name]
    rule = correction(name, on="behaviour", drift="none", range_lo=lo, range_hi=hi)
    assert rule is not None
    return rule.apply(R, chain.lengths.astype(np.float64), np.ones_like(R)).clipped_weight


def bias_parts(p: Floats, lengths: np.ndarray, c: Floats, u: Floats) -> tuple[Floats, Floats, float]:
    """Return the two parts of T13 (d)'s bias of the mean gradient by wrong factors, between lengths (D,) and inside
    lengths (D,), and the bound on the second's norm. ``p``, ``lengths``, ``c`` (N,) are each response's probability,
    length, and error of its factor: the one used less the right one; ``u`` (N, D) its gradient without the factor."""
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


@check("T13", Method.ENUMERATED, "(d) bias of three corrections and none by finite differences", "of the bias", 1e-3)
@near_miss("sign reversed", sign=-1.0)
@near_miss("weight e^S dropped", weighted=False)
@near_miss("inside part left out", inner=False)
def bias(rng: np.random.Generator, sign: float = 1.0, weighted: bool = True, inner: bool = True) -> Test:
    """Test T13 (d) by sums over all responses that four samplers can draw. The gradient e^S A psi of a response should
    have the factor e^(D + E); an update multiplies it by 1 instead, or by what one of three corrections leaves
    (`kept_factor`). The update's mean, less the gradient of the expected advantage by finite differences, is the sum of
    the two parts in `bias_parts`. Falsified by x, the test multiplies the sum by 1 + x. Near misses: ``sign`` -1 states
    the opposite sum, ``weighted`` False leaves e^S out of it, ``inner`` False the part inside lengths."""
    errors, stated, near = [], [], []
    for sampler in SAMPLERS:
        chain = make_chain(rng, vocabulary=2, max_length=4, **sampler)
        A, on = chain.advantages, chain.drawn
        truth = slopes(lambda theta, chain=chain, on=on, A=A: float(chain.probability(theta)[on] @ A[on]), chain.new)
        for name in ("none", *RANGES):
            f = kept_factor(chain, name)
            u = (np.exp(chain.update) * A)[:, None] * chain.psi
            rest = u if weighted else A[:, None] * chain.psi
            lost = sign * (f - np.exp(chain.staleness + chain.engine))
            parts = bias_parts(chain.p_draw[on], chain.lengths[on], lost[on], rest[on])
            errors.append((chain.p_draw * f) @ u - truth)
            stated.append(parts[0] + parts[1] if inner else parts[0])
            near.append(1e-6 * np.linalg.norm(truth))
    return vectors(errors, stated, near, "distance of the biases")


@check("T13", Method.ATTACKED, "(d) the bound on the part inside lengths holds and is reached", "of the bound", 1e-8)
@near_miss("second moments over all lengths", centred=False)
def bound_reached(rng: np.random.Generator, centred: bool = True) -> Test:
    """Test T13 (d)'s bound on the part of the bias inside lengths (`bias_parts`), for 60 draws of 40 responses: it
    holds for random gradients; gradients that are the factor's error times a vector reach it. Falsified by x: the bound
    times 1 - x, the reached one times 1 + x. The near miss, ``centred`` False: moments without means removed."""
    values, bounds, reached = [], [], []
    for _ in range(60):
        lengths, p = rng.integers(1, 5, 40), rng.dirichlet(np.ones(40))
        c = 1 - np.exp(rng.normal(0.2, 0.5, 40) * np.sqrt(lengths))
        for u in (c[:, None] * rng.standard_normal(6), rng.standard_normal((40, 6))):
            _, inside, bound = bias_parts(p, lengths, c, u)
            values.append(np.linalg.norm(inside))
            bounds.append(bound if centred else math.sqrt(float(p @ c**2) * float(p @ (u**2).sum(axis=1))))
        reached += [bounds[-2], values[-2]]
    return all_of(at_most(values, bounds, 1e-9), equal(reached[::2], reached[1::2], 1e-9))


@check("T13", Method.ENUMERATED, "(e) centred token ratios of two parts: same-token terms", "of the covariance", 1e-8)
@near_miss("not centred", centred=False)
@near_miss("given one length", one_length=True)
@near_miss("no cross terms", cross=False)
def increments(rng: np.random.Generator, centred: bool = True, cross: bool = True, one_length: bool = False) -> Test:
    """Test T13 (e) over all responses of four samplers: the covariance of two of S, D and E, after each token's mean
    given its prefix is subtracted, is the sum over tokens of the mean of the product of both at that token. Falsified
    by x, the test multiplies this sum by 1 + x. Near misses: ``centred`` False subtracts nothing, ``cross`` False
    states 0 for two different ratios, ``one_length`` takes means over the likeliest length alone, which looks ahead."""
    found, stated, near = [], [], []
    for sampler in SAMPLERS:
        chain = make_chain(rng, **sampler)
        position, previous, symbol, live = states(chain.new, chain.responses)
        Q, parts = next_symbol(chain.draw), []
        new = chain.new - 40.0 * (rng.random(chain.new.shape) < 0.1)  # tokens that nearly lose their finite moments
        for top, bottom in ((new, chain.old), (chain.old, chain.sampling), (chain.sampling, chain.draw)):
            with np.errstate(invalid="ignore", divide="ignore"):
                table = np.where(Q > 0, np.log(next_symbol(top)) - np.log(next_symbol(bottom)), 0.0)
            if centred:
                table = table - (Q * table).sum(axis=-1, keepdims=True)
            parts.append(np.where(live, table[position, previous, symbol], 0.0))
        p = chain.p_draw
        if one_length:
            likeliest = np.bincount(chain.lengths, p).argmax()
            p = np.where(chain.lengths == likeliest, p, 0.0) / p[chain.lengths == likeliest].sum()
        for x, z in combinations_with_replacement(parts, 2):
            sums = x.sum(axis=1), z.sum(axis=1)
            found.append(p @ (sums[0] * sums[1]) - (p @ sums[0]) * (p @ sums[1]))
            stated.append(p @ (x * z).sum(axis=1) if cross or x is z else 0.0)
            near.append(1e-10 * max(math.sqrt((p @ sums[0] ** 2) * (p @ sums[1] ** 2)), 1e-9))
    return vectors(found, stated, near, "covariance")


@check("T13", Method.SIMULATED, "(a) after a step: E in any epoch, D + E in the first", "of the mass", 0.05)
@near_miss("D + E on the responses of the step", seen="trained on")
@near_miss("D alone", ratio="staleness")
def first_use(
    rng: np.random.Generator, seen: str = "fresh", ratio: str = "behaviour", batches: int = 1_500, size: int = 32
) -> Test:
    """Test T13 (a) where a training step on one batch of ``size`` responses makes the old weights from the sampling
    weights: ``batches`` steps, on responses of a sampler with noise in the logits and top-p .8. The mean of e^E, even
    over that batch, is the sampling policy's probability of all that the sampler can draw; that of e^(D + E) is the old
    policy's, on fresh responses alone. Falsified by x, the test adds x to both stated means. Near misses: ``seen``
    "trained on" takes the batch itself, on which the old weights depend; ``ratio="staleness"`` takes D for D + E."""
    responses = all_responses(2, 4)
    sampling = 0.5 * rng.standard_normal((4, 3, 3))
    draw = truncated(sampling + 0.3 * rng.standard_normal(sampling.shape), top_p=0.8)
    q = np.exp(token_log_probs(draw, responses).sum(axis=1))
    drawn, log_v = q > 0, token_log_probs(sampling, responses).sum(axis=1)
    weight_e = np.divide(np.exp(log_v), q, out=np.zeros_like(q), where=drawn)
    psi, reward = scores(sampling, responses), (responses.symbols == 1).sum(axis=1) / 4
    found = []
    for _ in range(batches):
        rows = rng.choice(q.size, size, p=q / q.sum())
        old = sampling + (2.0 * reward[rows] @ psi[rows] / size).reshape(sampling.shape)
        log_old = token_log_probs(old, responses).sum(axis=1)
        kept = np.exp(log_old)[drawn].sum()
        at = rows if seen == "trained on" else rng.choice(q.size, size, p=q / q.sum())
        weight = np.exp(log_old - log_v) * (weight_e if ratio == "behaviour" else 1.0)
        found.append((1 + weight_e[rows].mean() - np.exp(log_v)[drawn].sum(), 1 + weight[at].mean() - kept))
    return means(np.array(found), np.ones(2))


def no_token_above(threshold: float, ar: float, lengths: np.ndarray) -> Floats:
    """Return, at each of ``lengths`` l, the probability that none of l tokens exceeds ``threshold``, for tokens that
    are a stationary Gaussian AR(1) process with the coefficient ``ar`` and the variance 1, by quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    half = (threshold + 9) / 2
    z, weights = threshold - half * (1 - nodes), half * weights  # the tokens from -9 up to the threshold
    step = stats.norm.pdf(z, ar * z[:, None], math.sqrt(1 - ar**2)) * weights
    mass, found = stats.norm.pdf(z) * weights, []
    for _ in range(int(lengths.max())):
        found.append(mass.sum())
        mass = mass @ step
    return np.array(found)[lengths - 1]


@check("T13", Method.SIMULATED, "(f) largest token: (1 - q)^l, fair thresholds, dependent tokens", "of a(l)", 0.03)
@near_miss("(1 - q)^l for AR(1) tokens", independent=True)
@near_miss("at least (1 - q)^l for dependent tokens", union=False)
@near_miss("threshold like sqrt(l)", root=True)
@near_miss("one threshold is fair", one=True)
def largest_token(
    rng: np.random.Generator, independent: bool = False, union: bool = True, root: bool = False, one: bool = False,
    draws: int = 20_000,
) -> Test:  # fmt: skip
    """Test T13 (f) on ``draws`` responses at four lengths l, 4 to 128, accepted if no token exceeds a threshold.
    Independent normal and Student-t tokens, each above it with probability q, are accepted with (1 - q)^l; with alpha
    where each is above with 1 - alpha^(1/l). AR(1) tokens are accepted as `no_token_above` says. The acceptance lies
    between 1 - l q and 1 - q for AR(1), fractional noise, and two processes that reach one bound each: one value
    repeated, and exactly one token of 1/q above. Falsified by x, the test multiplies the stated acceptances and the
    upper bound by 1 - x, the lower bound by 1 + x. Near misses: ``independent`` states (1 - q)^l for AR(1) tokens,
    ``union`` False states it as least acceptance of dependent ones; ``root`` has a threshold like sqrt(l), ``one`` the
    same for all l, for alpha at every l."""
    lengths, alpha, q = np.array([4, 16, 64, 128]), 0.8, 0.004
    edge = float(stats.norm.isf(q))

    def kept(model: TokenModel, thresholds: Floats | float) -> np.ndarray:
        tokens = model.paths(rng, draws, int(lengths.max()))
        return (np.maximum.accumulate(tokens, axis=1)[:, lengths - 1] <= thresholds).sum(axis=0)

    tests = []
    for model, dist in (
        (GaussianTokens(0.0, 1.0), stats.norm()),
        (StudentTokens(0.0, 1.0, df=4.0), stats.t(4.0, scale=math.sqrt(0.5))),  # of the variance 1
    ):
        fair = dist.ppf(alpha ** (1 / lengths))
        used = fair[0] * np.sqrt(lengths / lengths[0]) if root else fair[:1].repeat(4) if one else fair
        tests.append(shares(kept(model, dist.isf(q)), draws, (1 - q) ** lengths))
        tests.append(shares(kept(model, used), draws, np.full(4, alpha)))
    ar1 = kept(AutoregressiveTokens(0.0, 3.0, 0.8), edge)  # of the variance 1
    tests.append(shares(ar1, draws, (1 - q) ** lengths if independent else no_token_above(edge, 0.8, lengths)))
    both = np.concatenate([ar1, kept(FractionalNoise(0.0, 1.0, hurst=0.65), edge)])
    repeated = np.full(4, (rng.random(draws) > q).sum())
    one_above = (rng.integers(round(1 / q), size=(draws, 1)) >= lengths).sum(axis=0)  # tokens before the one above
    least = np.tile(1 - lengths * q if union else (1 - q) ** lengths, 3)
    tests.append(lambda x: within(np.append(both, one_above), draws, least * (1 + x), 1.0))
    tests.append(lambda x: within(np.append(both, repeated), draws, 0.0, (1 - q) * (1 - x)))
    return all_of(*tests)
