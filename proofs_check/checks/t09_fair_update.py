"""T9: when a fair band is a fair update."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
from scipy.special import ndtr

from fspo import theory
from fspo.rules import Rule, calibrate, preset
from fspo.theory import Floats
from proofs_check.frame import Method, Outcome, Test, check, near_miss
from proofs_check.models import GaussianTokens, LogRatioModel, ScaledGamma, ScaledStudent, matching_means
from proofs_check.tools.compare import alike, all_of, at_most, beside, equal, holds, means, shares
from proofs_check.tools.distributions import normal_share
from proofs_check.tools.policy import make_bandit, strata, token_log_probs
from proofs_check.tools.settings import GRID, MU, SIGMA


@check("T9", Method.ENUMERATED, "(a) a_upd by sign of A is E[M | l] of policies, dual clip or not", "of a_upd", 1e-10)
@near_miss("sides exchanged", crossed=True)
@near_miss("dual edge left out", beyond=False)
def by_sign(rng: np.random.Generator, crossed: bool = False, beyond: bool = True) -> Test:
    """Test T9 (a) at each length of 12 random softmax policies, half under a dual clip: `theory.update_acceptance` of
    the probabilities of a clip at each edge, summed over the responses of one sign of A, is the mean multiplier M of
    responses with A != 0. Falsified by x, the test multiplies the stated update acceptance by 1 + x. Near misses:
    ``crossed`` takes the lower edge for A > 0 and the upper for A < 0, ``beyond`` False leaves out the dual edge."""
    stated, exact = [], []
    for i in range(12):
        bandit = make_bandit(rng, step=0.3)
        S, n, A = bandit.log_ratio, bandit.lengths, bandit.advantages
        m = preset("fspo-kl").rule.centre(bandit.drift_stats())
        rule = calibrate(preset("fspo-kl", range_hi=0.02).rule, S, n, A, 0.7, m)
        rule = replace(rule, dual=1.5) if i % 2 else rule
        lo, hi = rule.band(n, m)
        dual = m * n + 1.5 * (hi - m * n) if i % 2 else np.full(n.size, math.inf)
        _, _, _, a = strata(bandit, rule)
        for k, length in enumerate(np.unique(n[A != 0])):
            mass = [np.where((n == length) & (np.sign(A) == sign), bandit.p_old, 0.0) for sign in (1, -1)]
            total = [max(float(part.sum()), 1e-300) for part in mass]
            beyond_edges = (lo > S, hi < S) if crossed else (hi < S, lo > S)
            high, low = (part @ event / sum_of for part, event, sum_of in zip(mass, beyond_edges, total, strict=True))
            far = mass[1] @ (dual < S) / total[1] if beyond and not crossed else 0.0
            stated.append(theory.update_acceptance(total[0] / (total[0] + total[1]), high, low, far))
            exact.append(a[k])
    return equal(stated, exact, 1e-11)


@check("T9", Method.SIMULATED, "(a) drawn: alike under the hypotheses, by the formula without them", "of a_upd", 0.03)
@near_miss("c_hi = 1.2 c_lo is fair", c_hi=0.036)
@near_miss("dual clip is fair", dual=1.5)
@near_miss("a skewed distribution is fair", models=(ScaledGamma(MU, SIGMA, shape=0.5),))
@near_miss("share of A > 0 taken as 1/2", half=True)
@near_miss("S taken as independent of A", pull=0.0)
def drawn(
    rng: np.random.Generator, c_hi: float = 0.03, dual: float | None = None,
    models: tuple[LogRatioModel, ...] = (GaussianTokens(MU, SIGMA), ScaledStudent(MU, SIGMA, df=3.0)),
    half: bool = False, pull: float = 2e-4, draws: int = 100_000,
) -> Test:  # fmt: skip
    """Test T9 (a) on ``draws`` responses at each of six lengths; the share of them with A > 0 grows from .1 at 4 tokens
    to .9 at 4,096. With S of one of ``models``, symmetric, equal ranges and no dual clip, the update acceptance is the
    same at every length. With unlike ranges and 2e-4 nats per token added to S where A > 0, subtracted where A < 0, it
    is `theory.update_acceptance`. Falsified by x: the stated acceptance times 1 - x. Near misses that call fair what is
    not: ``c_hi`` another upper range, a ``dual`` clip, ``models`` with skewed S. Wrong acceptances: ``half`` takes 1/2
    for the share of A > 0, ``pull`` 0 forgets what was added to S."""
    n, tests = np.broadcast_to(GRID, (draws, GRID.size)), []
    positive = np.linspace(0.1, 0.9, GRID.size)
    fair, unlike = (preset("fspo-kl", range_hi=c, dual=d).rule for c, d in ((c_hi, dual), (0.045, None)))
    for model in models:
        A = np.where(rng.random(n.shape) < positive, 1.0, -1.0)
        kept = fair.apply(model.sample(rng, n), n, A, fair.centre(matching_means(model))).multiplier == 1
        tests.append(alike(kept.sum(axis=0), draws))
    A, model = np.where(rng.random(n.shape) < positive, 1.0, -1.0), GaussianTokens(MU, SIGMA)
    S = model.sample(rng, n) + 2e-4 * A * n
    kept = unlike.apply(S, n, A, unlike.centre(matching_means(model))).multiplier == 1
    moved, share = pull * np.sqrt(GRID) / SIGMA, np.full(GRID.size, 0.5) if half else positive
    stated = theory.update_acceptance(share, ndtr(moved - 0.045 / SIGMA), ndtr(moved - 0.03 / SIGMA))
    return all_of(*tests, shares(kept.sum(axis=0), draws, stated))


@check("T9", Method.ENUMERATED, "(b) softmax steps of one distribution clip A < 0 as often", "of P(S < -b)", 1e-6)
@near_miss("logits that are cubes of the parameters", power=3)
@near_miss("other responses where A < 0", others=True)
@near_miss("A < 0 is clipped less often", reversed_signs=True)
def saturating(rng: np.random.Generator, power: int = 1, others: bool = False, reversed_signs: bool = False) -> Test:
    """Test T9 (b): a step moves the logits by v for a response with A > 0, by -v for one with A < 0, and the pair of
    response and v has one distribution for both signs. Then S > b where A > 0 is at most as probable as S < -b where A
    < 0. Exact over all responses of 12 softmax policies; v is the response's score or random. Falsified by x: the
    probability for A < 0 times 1 - x. Near misses: ``power`` 3, logits are cubes of parameters, so not affine in them;
    ``others`` steps by another response's v where A < 0; ``reversed_signs`` states "at least"."""
    values, bounds = [], []
    for _ in range(12):
        bandit = make_bandit(rng, vocabulary=2, max_length=4, step=0.0)
        base, size = np.cbrt(bandit.old) if power == 3 else bandit.old, 10 ** rng.uniform(-2, 0.3)
        N = bandit.lengths.size
        steps = size * np.stack([bandit.psi.reshape(N, *base.shape), rng.standard_normal((N, *base.shape))])
        S = np.empty((2, 2, N))  # sign, kind of step, response
        for sign, kind, i in np.ndindex(2, 2, N):
            at = (i + 1) % N if others and sign else i
            new = (base + (1 - 2 * sign) * steps[kind, at]) ** power
            S[sign, kind, i] = token_log_probs(new, bandit.responses)[i].sum()
        S -= np.log(bandit.p_old)
        p = rng.dirichlet(np.full(2 * N, 0.1)).reshape(2, N)
        for b in S[0][S[0] > 0] * (1 - 1e-9):
            above, below = float(((b < S[0]) * p).sum()), float(((-b > S[1]) * p).sum())
            if above > 1e-9:
                values.append(below if reversed_signs else above)
                bounds.append(max(above if reversed_signs else below, 1e-12))
    return at_most(values, bounds, 1e-9)


def kept_weight(rule: Rule, length: float, sigma: float) -> float:
    """Return the weight acceptance at one length of a mask by ``rule`` for normal S of mean -sigma^2 length/2 and
    standard deviation sigma sqrt(length), by quadrature of e^s times the density of S, at 30 digits."""
    with mp.workdps(30):
        mu = -(mp.mpf(sigma) ** 2) / 2
        centre = {"none": 0, "gaussian": mu, "tilted": -mu}[rule.drift] * length
        mean, scale = mu * length, mp.mpf(sigma) * mp.sqrt(length)
        ends = mp.linspace(centre - rule.range_lo * mp.sqrt(length), centre + rule.range_hi * mp.sqrt(length), 5)
        return float(mp.quad(lambda s: mp.e**s * mp.npdf(s, mean, scale), ends) / mp.e ** (mean + scale**2 / 2))


@check("T9", Method.CLOSED, "(c) b(l) by quadrature; tilted makes b constant, and a = b for none", "of b(l)", 1e-9)
@near_miss("a for b", as_band=True)
@near_miss("drift gaussian makes b constant", tilted="gaussian")
def weights(rng: np.random.Generator, as_band: bool = False, tilted: str = "tilted") -> Test:
    """Test T9 (c) for Gaussian S of mean mu L, mu = -sigma^2/2, and standard deviation sigma sqrt(L), at random sigma,
    lengths and ranges: `theory.weight_acceptance` is the weight acceptance by quadrature of e^S over the band, with the
    drifts none, gaussian (mu) and tilted (-mu). With tilted it is one number at three lengths, the band acceptance
    around mu; with none and equal ranges it is the band acceptance; with gaussian it is not one number. Falsified by x,
    the test multiplies the stated numbers by 1 + x. Near misses: ``as_band`` takes the band acceptance for the weight
    acceptance; ``tilted`` "gaussian" states that drift gaussian makes the latter one number."""
    stated, exact, falls = [], [], []
    formula = theory.band_acceptance if as_band else theory.weight_acceptance
    for i in range(18):
        sigma, length = 10 ** rng.uniform(-2, -1), float(np.round(10 ** rng.uniform(0.5, 3)))
        u_lo, u_hi = rng.uniform(0.3, 2.0, 2)
        mu, means_of = -(sigma**2) / 2, theory.gaussian_means(sigma)
        rules = {d: Rule("sqrt", u_lo * sigma, u_hi * sigma, drift=d) for d in ("none", "gaussian", "tilted")}  # type: ignore[arg-type]
        centre = {d: rule.centre(means_of) for d, rule in rules.items()}
        drift = ("none", "gaussian", "tilted")[i % 3]
        stated += formula(rules[drift], [length], mu, sigma, centre[drift]).tolist()
        exact.append(kept_weight(rules[drift], length, sigma))
        stated += theory.weight_acceptance(rules[tilted], [1.0, 1e2, 1e4], mu, sigma, centre[tilted]).tolist()
        exact += [normal_share(-u_lo, u_hi)] * 3
        even = replace(rules["none"], range_hi=u_lo * sigma)
        stated += theory.band_acceptance(even, [1.0, 10.0, 100.0], mu, sigma).tolist()
        exact += theory.weight_acceptance(even, [1.0, 10.0, 100.0], mu, sigma).tolist()
        b = theory.weight_acceptance(rules["gaussian"], [1.0, 1e2, 1e4], mu, sigma, centre["gaussian"])
        falls.append(np.ptp(b) - 1e-6)
    return beside(equal(stated, exact, 1e-10), holds(falls, "spread of b"))


@check("T9", Method.CLOSED, "cosine .848 at LRE 0 of a; b of two lengths alike by accident", "of sigma", 1e-7)
@near_miss("u = 1.05", u=1.05)
@near_miss("g_2 = (-.5, .87)", second=-0.5)
def examples(rng: np.random.Generator, u: float = 1.0, second: float = -0.6) -> Test:
    """Test the examples of T9 in docs/theory.md: a band acceptance with LRE 0 beside a cosine of .848, computed from
    the normal distribution at 50 digits; update acceptances of .781 and .835 under a dual clip; and, with an upper
    range of twice the lower one, a weight acceptance that is the same at 100 and 900 tokens. Falsified by x, the test
    multiplies sigma, the scale of S, by 1 + x. Near misses, with another cosine: ``u`` 1.05 for a half-width of 1
    standard deviation of S, ``second`` -.5 for -.6 as first entry of the second length's mean gradient."""
    del rng
    kept = [normal_share(-0.03 * math.sqrt(n) - 1, -0.03 * math.sqrt(n) + 1) for n in (10, 2000)]
    clipped, unclipped = (np.array([x - 0.6 * y, 0.8 * y]) for x, y in (kept, (1.0, 1.0)))
    exact = clipped @ unclipped / (np.linalg.norm(clipped) * np.linalg.norm(unclipped))
    dual = theory.update_acceptance([0.1, 0.9], ndtr(-1.0), ndtr(-1.0), ndtr(-1.5))
    printed = [exact - 0.848, *(dual - [0.781, 0.835])]

    def turned(x: float) -> Outcome:
        sigma = 0.03 * (1 + x)
        centred = Rule("sqrt", 0.03 * u, 0.03 * u, drift="gaussian")
        m = centred.centre(theory.gaussian_means(sigma))
        g = np.array([[1.0, 0.0], [second, math.sqrt(1 - second**2)]])
        a, b = (f(centred, [10.0, 2000.0], m, sigma, m) for f in (theory.band_acceptance, theory.weight_acceptance))
        lemma = theory.cosine_lemma(np.full(2, 0.5), a, g, b[:, None] * g)
        return holds([1e-9 - float(abs(lemma.cosine - exact)), 1e-9 - lemma.lre.inf], "cosine and LRE")

    def accident(x: float) -> Outcome:
        near = 0.025 * (1 + x)
        skew = Rule("sqrt", 0.025, 0.05, drift="gaussian")
        b = theory.weight_acceptance(skew, [100.0, 900.0], -(near**2) / 2, near, -(near**2) / 2)
        return holds(1e-9 - abs(b[0] / b[1] - 1), "ratio of b")

    return beside(all_of(turned, accident), holds(5e-4 - np.abs(printed), "the page's digits"))


@check("T9", Method.SIMULATED, "(c) drawn, A psi independent of S: c_l = b(l) g_l under mask and cap", "of c_l", 0.02)
@near_miss("a for b", as_band=True)
@near_miss("A psi follows S", follows=0.3)
@near_miss("drop for mask", outside="drop")
def independent(
    rng: np.random.Generator, as_band: bool = False, follows: float = 0.0, outside: str = "mask", draws: int = 100_000
) -> Test:
    """Test T9 (c) on ``draws`` responses at each of four lengths, with Gaussian S whose mean weight is 1 and,
    independent of it, an A psi (one number) of mean .9: the mean of M w A psi under mask is .9 times
    `theory.weight_acceptance`, under cap .9 times the mean of M w by the lognormal distribution. Falsified by x, the
    test multiplies these by 1 + x. Near misses: ``as_band`` has the band acceptance for the weight acceptance;
    ``follows`` lets A psi grow with S, ``outside`` drop for mask lets M depend on the sign of A."""
    lengths = np.array([16.0, 64, 256, 1000])
    model, n = GaussianTokens(MU, SIGMA), np.broadcast_to(lengths, (draws, 4))
    S, sign = model.sample(rng, n), np.where(rng.random(n.shape) < 0.7, 1.0, -1.0)
    gradient = sign + 0.5 + follows * (S - MU * n) / (SIGMA * np.sqrt(n))
    kl, tests = preset("fspo-kl").rule, []
    m, hi = kl.centre(matching_means(model)), kl.band(lengths, kl.centre(matching_means(model)))[1]
    scale = SIGMA * np.sqrt(lengths)
    formula = theory.band_acceptance if as_band else theory.weight_acceptance
    capped: Floats = ndtr(hi / scale - scale / 2) + np.exp(hi) * ndtr(-hi / scale - scale / 2)
    for kind, b in ((outside, formula(kl, lengths, MU, SIGMA, m)), ("cap", capped)):
        applied = replace(kl, outside=kind).apply(S, n, sign, m)  # type: ignore[arg-type]
        tests.append(means(applied.clipped_weight * gradient, b * 0.9))
    return all_of(*tests)
