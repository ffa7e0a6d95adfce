"""T11: the cap of least error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import mpmath as mp
import numpy as np
from scipy import optimize, stats
from scipy.integrate import quad
from scipy.special import ndtr

from fspo import theory
from fspo.rules import Rule
from fspo.theory import Floats
from proofs_check.frame import Method, Outcome, Test, check, near_miss
from proofs_check.tools.compare import beside, close, equal, holds, mean_is
from proofs_check.tools.policy import calibrated, make_bandit, update_terms


def held(w: Floats, p: Floats, K: float) -> float:
    """Return E[min(w, K)] of the weights w with the probabilities p, both (N,), at the cap K."""
    return float(p @ np.minimum(w, K))


@dataclass(frozen=True)
class Responses:
    """A distribution of responses: weights w (N,) with probabilities p (N,) and, independent of them, gradients A psi
    (J, D), the rows of ``gradients``, with probabilities q (J,)."""

    w: Floats
    p: Floats
    gradients: Floats
    q: Floats

    @classmethod
    def draw(cls, rng: np.random.Generator, dimension: int = 2) -> Responses:
        """Draw four weights and three gradients with ``dimension`` entries, whose mean is not small beside them."""
        w = np.exp(0.8 * rng.standard_normal(4))
        towards = rng.standard_normal(dimension)
        gradients = towards / np.linalg.norm(towards) + 0.6 * rng.standard_normal((3, dimension))
        return cls(w, rng.dirichlet(np.full(4, 3.0)), gradients, rng.dirichlet(np.full(3, 3.0)))

    @property
    def u(self) -> Floats:
        """The mean gradient E[A psi], (D,)."""
        return self.q @ self.gradients

    @property
    def nu(self) -> float:
        """T11's nu: the mean of |A psi|^2 over the squared length of the mean gradient, at least 1."""
        return float(self.q @ (self.gradients**2).sum(axis=1) / (self.u @ self.u))

    def outcomes(self, tilt: float = 0.0) -> tuple[np.ndarray, Floats]:
        """Return the pairs of weight and gradient as indices (N J, 2) and their probabilities (N J,); with ``tilt`` the
        largest weight comes with the first gradient more often than independence says."""
        joint = np.outer(self.p, self.q)
        joint[np.argmax(self.w), 0] *= 1 + tilt
        index = np.array(list(product(range(self.w.size), range(self.q.size))))
        return index, joint.ravel() / joint.sum()


def enumerated_error(dist: Responses, n: int, tilt: float) -> Callable[[float], float]:
    """Return a function of the cap K: the mean squared error of the mean of min(w, K) A psi over n responses drawn from
    ``dist``, as an estimate of E[w A psi], summed over all outcomes. With ``tilt`` above 0 the largest weight and the
    first gradient come together more often."""
    index, chance = dist.outcomes(tilt)
    truth = (chance * dist.w[index[:, 0]]) @ dist.gradients[index[:, 1]]
    at = np.array(list(product(range(chance.size), repeat=n)))
    weight = chance[at].prod(axis=1)

    def error(K: float) -> float:
        terms = np.minimum(dist.w, K)[index[:, 0], None] * dist.gradients[index[:, 1]]
        return float(weight @ ((terms[at].mean(axis=1) - truth) ** 2).sum(axis=1))

    return error


@check("T11", Method.ENUMERATED, "all outcomes of n responses: the error is least at the root", "of the cap", 1e-5)
@near_miss("n - 1 for n", less=1)
@near_miss("nu = 1", noise=False)
@near_miss("A psi depends on w", tilt=0.5)
def least_error(rng: np.random.Generator, less: int = 0, noise: bool = True, tilt: float = 0.0) -> Test:
    """Test T11 on 16 random distributions of responses, n = 2 or 3 of which are drawn: over all outcomes the mean
    squared error of the capped update is least, by a minimiser over the cap K, at the root of
    `theory.cap_of_least_error`, falls up to it and does not fall after it. Falsified by x, the test multiplies the root
    by 1 + x. Near misses: ``less`` 1 takes n - 1, ``noise`` False takes 1 for nu, ``tilt`` lets A psi depend on w."""
    stated, found, steps = [], [], []
    for i in range(16):
        dist, n = Responses.draw(rng), 2 + i % 2
        error = enumerated_error(dist, n, tilt)
        root = theory.cap_of_least_error(dist.w, dist.p, dist.nu if noise else 1.0, n - less)
        grid = np.linspace(0, 1.2 * dist.w.max(), 60)
        errors = np.array([error(K) for K in grid])
        least = int(np.argmin(errors))
        ends = grid[max(least - 1, 0)], grid[min(least + 1, 59)]
        best: Any = optimize.minimize_scalar(error, bounds=ends, method="bounded", options={"xatol": 1e-10})
        stated.append(root)
        found.append(best.x)
        before, after = grid[1:] <= root, grid[:-1] >= root
        steps += [*-np.diff(errors)[before], *(np.diff(errors)[after] + 1e-12)]
    return beside(equal(stated, found, 1e-6), holds(steps, "error a step off the root"))


def lognormal_root(s: float, nu: float, n: float) -> float:
    """Return the cap of least error (T11's root K) for a lognormal weight w = exp(s Z - s^2/2), Z standard normal, by
    root search on closed forms at 30 digits. ``nu`` is E|A psi|^2 over |E[A psi]|^2, ``n`` the number of responses."""
    with mp.workdps(30):
        s, nu, n = mp.mpf(s), mp.mpf(nu), mp.mpf(n)

        def excess(K: Any) -> Any:
            d = -mp.log(K) / s + s / 2
            call = mp.ncdf(d) - K * mp.ncdf(d - s)  # E[(w - K)_+]
            return n * call - nu * K + 1 - call

        return float(mp.findroot(excess, (mp.mpf(10) ** -6, mp.mpf(1000)), solver="bisect", tol=1e-40))


def limit_of(ratio: float, n: float, s: float) -> float:
    """Return zeta such that T11's cap of least error is near 1 + zeta s for n responses if log w has a small standard
    deviation s: n f(zeta) - f(-zeta) = ratio (1 + s zeta), where f(k) is the mean of max(Z - k, 0) of a standard normal
    Z and ``ratio`` is (nu - 1)/s, nu as in `lognormal_root`."""

    def excess(k: float) -> float:
        up, down = (stats.norm.pdf(k) - z * ndtr(-z) for z in (k, -k))
        return n * up - down - ratio * (1 + s * k)

    found: Any = optimize.brentq(excess, -1e4, 50, xtol=1e-13)
    return float(found)


@check("T11", Method.CLOSED, "lognormal, gamma, bounded weights; zeta of small log-ratios", "of the cap", 1e-3)
@near_miss("n left out", n_out=True)
@near_miss("nu for nu - 1 in the limit", off=1.0)
@near_miss("zeta left out on the right", right=0.0)
def continuous(rng: np.random.Generator, n_out: bool = False, off: float = 0.0, right: float = 1.0) -> Test:
    """Test that `theory.cap_of_least_error`, for 20,000 quantiles of w, is the cap K of T11 by root search, from closed
    forms for lognormal weights and by quadrature for gamma and uniform ones. As the standard deviation s of log w goes
    to 0, (K - 1)/s is within 20 s of zeta from `limit_of`. Falsified by x, the test multiplies K by 1 + x. Near misses:
    ``n_out`` takes n = 1; for zeta, ``off`` 1 has nu for nu - 1 and ``right`` 0 leaves out s zeta."""
    stated, exact, levels = [], [], (np.arange(20_000) + 0.5) / 20_000
    for _ in range(6):
        nu, n = 1 + float(10 ** rng.uniform(-2, 1)), float(rng.integers(2, 60))
        of_n, s, shape = 1.0 if n_out else n, float(rng.uniform(0.1, 0.6)), float(rng.uniform(2, 6))
        stated.append(
            theory.cap_of_least_error(stats.lognorm.ppf(levels, s, scale=math.exp(-s * s / 2)), levels**0, nu, of_n)
        )
        exact.append(lognormal_root(s, nu, n))
        for dist in (stats.gamma(shape, scale=1 / shape), stats.uniform(0.2, 1.6)):
            stated.append(theory.cap_of_least_error(dist.ppf(levels), levels**0, nu, of_n))

            def excess(K: float, dist: Any = dist, nu: float = nu, n: float = n) -> float:
                call = quad(dist.sf, K, float(dist.ppf(1 - 1e-15)), epsabs=1e-12)[0]
                return n * call - nu * K + float(dist.mean()) - call

            exact.append(optimize.brentq(excess, 1e-9, 50, xtol=1e-12))
    gaps = []
    for n, ratio, by in ((8.0, 0.5, 1), (40.0, 3.0, 1), (40.0, 60.0, 1), (64.0, 9.0, 0), (64.0, 64.0, 0)):
        for s in (1e-2, 1e-3, 1e-4):
            zeta = (lognormal_root(s, 1 + ratio * s**by, n) - 1) / s
            gaps.append(20 * s - abs(zeta - limit_of((ratio + off) * s ** (by - 1), n, right * s)))
    return beside(equal(stated, exact, 5e-4), holds(gaps, "zeta's distance to its limit"))


@check("T11", Method.SIMULATED, "drawn updates: the squared error's slope in K is 0 at the root", "of the cap", 0.05)
@near_miss("n - 3 for n", less=3)
@near_miss("nu of twice the gradients' noise", noise=math.sqrt(2))
def drawn(rng: np.random.Generator, less: int = 0, noise: float = 1.0, updates: int = 100_000) -> Test:
    """Test T11 on ``updates`` drawn updates of 8 responses with lognormal w: at T11's root K the slope of the squared
    error in the cap, 2 <error, mean of A psi where w > K>, has the mean 0. Falsified by x: K times 1 + x. Near misses
    take a wrong root: ``less`` 3 that of 8 - 3 responses, ``noise`` 2^(1/2) that of twice the noise variance."""
    n, s, spread = 8, 0.5, 1.2
    w = np.exp(s * rng.standard_normal((updates, n)) - s * s / 2)
    gradients = np.array([1.0, 0.0]) + spread * rng.standard_normal((updates, n, 2))
    root = lognormal_root(s, 1 + 2 * (noise * spread) ** 2, n - less)

    def test(x: float) -> Outcome:
        K = root * (1 + x)
        error = (np.minimum(w, K)[..., None] * gradients).mean(axis=1) - [1.0, 0.0]
        slope = 2 * (error * ((w > K)[..., None] * gradients).mean(axis=1)).sum(axis=1)
        return mean_is(1 + slope[:, None], [1.0])

    return test


def over_lengths(dists: list[Responses], p: Floats, n: float) -> Callable[[Floats], float]:
    """Return the mean squared error of an update over several lengths as a function of their caps: squared bias plus
    variance. ``n`` times the share in ``p`` of independent responses have each length, distributed as ``dists`` says.
    """

    def error(caps: Floats) -> float:
        bias, variance = np.zeros(dists[0].u.size), 0.0
        for dist, share, K in zip(dists, p, caps, strict=True):
            mean, square = held(dist.w, dist.p, K), float(dist.p @ np.minimum(dist.w, K) ** 2)
            bias += share * (mean - dist.p @ dist.w) * dist.u
            variance += share / n * (dist.nu * square - mean**2) * float(dist.u @ dist.u)
        return float(bias @ bias) + variance

    return error


@check("T11", Method.ATTACKED, "several lengths: own roots if orthogonal, one number if parallel", "of the caps", 1e-4)
@near_miss("own roots for parallel u_l", own=True)
@near_miss("one cap for parallel u_l", one_cap=True)
def lengths(rng: np.random.Generator, own: bool = False, one_cap: bool = False) -> Test:
    """Test T11's sentence on several lengths l: a minimiser of `over_lengths` over the caps K_l of three lengths has
    the root of each length by itself where the mean gradients u_l = E[A psi | l] are orthogonal; where they are
    parallel, caps at which |u_l| (nu_l K_l - E[min(w, K_l) | l]) is one number (nu_l: `Responses.nu`). Falsified by x,
    the test multiplies what is stated by 1 + x. Near misses, for parallel u_l: ``own`` states each length's own root,
    ``one_cap`` one cap for all, although these lengths differ in w and nu."""
    stated, found, to_the_end = [], [], {"xatol": 1e-10, "fatol": 1e-16, "maxfev": 20_000, "maxiter": 20_000}
    for _ in range(8):
        p, n = rng.dirichlet(np.full(3, 5.0)), 40.0
        w = [np.sort(np.exp(0.5 * rng.standard_normal(40))) for _ in range(3)]
        for parallel in (False, True):
            dists = []
            for i in range(3):
                u = rng.uniform(0.5, 2) * np.eye(3)[0 if parallel else i]
                noise = rng.uniform(1, 3) * np.linalg.norm(u) * np.eye(3)[(i + 1) % 3]
                dists.append(Responses(w[i], np.full(40, 1 / 40), np.stack([u + noise, u - noise]), np.full(2, 0.5)))
            error, start = over_lengths(dists, p, n), np.array([np.median(x) for x in w])
            best: Any = optimize.minimize(error, start, method="Nelder-Mead", options=to_the_end)
            if np.any(best.x >= [x[-1] for x in w]):
                continue
            roots = [theory.cap_of_least_error(x.w, x.p, x.nu, n * share) for x, share in zip(dists, p, strict=True)]
            if not parallel or own:
                stated += roots
                found += best.x.tolist()
                continue
            size = [float(np.linalg.norm(x.u)) for x in dists]
            number = [z * (x.nu * K - held(x.w, x.p, K)) for z, x, K in zip(size, dists, best.x, strict=True)]
            stated += best.x[1:].tolist() if one_cap else number[1:]
            found += [best.x[0]] * 2 if one_cap else [number[0]] * 2
    return equal(stated, found, 1e-5)


@check("T11", Method.CLOSED, "remark (i): the largest upper edge is exp(u^2/2), at L = (u/sigma)^2", "of u^2/2", 1e-6)
@near_miss("drift none", drift="none")
@near_miss("drift tilted", drift="tilted")
def edge(rng: np.random.Generator, drift: str = "gaussian") -> Test:
    """Test T11's remark (i) at 40 random sigma and u, half-widths in standard deviations of S: an optimiser over
    lengths finds that the upper edge of the sqrt band around the mean, -sigma^2 L/2 (``drift`` gaussian), is at most
    u^2/2 nats (`theory.upper_edge_supremum`), reached at L = (u/sigma)^2. Falsified by x, the test multiplies u^2/2 by
    1 + x. Near misses: ``drift`` none or tilted, with which the edge grows without bound."""
    stated, exact, away = [], [], []
    for _ in range(40):
        sigma, u = 10 ** rng.uniform(-2.5, -1), rng.uniform(0.2, 3.0)
        rule = Rule("sqrt", 0.5 * u * sigma, u * sigma, drift=drift)  # type: ignore[arg-type]
        m, centre = rule.centre(theory.gaussian_means(sigma)), 2 * math.log(u / sigma)
        top: Any = optimize.minimize_scalar(
            lambda z, rule=rule, m=m: -float(rule.band(np.array([math.exp(z)]), m)[1][0]),
            bounds=(centre - 3, centre + 3), method="bounded", options={"xatol": 1e-10},
        )  # fmt: skip
        stated.append(math.log(theory.upper_edge_supremum(u)))
        exact.append(-top.fun)
        away.append(1e-4 - abs(top.x - centre))
    return beside(equal(stated, exact, 1e-7), holds(away, "log L"))


@check("T11", Method.ENUMERATED, "remark (ii): all outcomes of an update of 3 prompts", "of |bias|^2", 1e-8)
@near_miss("plug-in", plug_in=True)
@near_miss("tr Cov/(n - 1)", one_less=True)
def price(rng: np.random.Generator, plug_in: bool = False, one_less: bool = False, prompts: int = 3) -> Test:
    """Test T11's remark (ii) over all outcomes of an update of ``prompts`` prompts with one response each, for a policy
    whose rule clips much: the clipped gradient's mean squared error is |bias|^2 plus the variance of a prompt's
    gradient over the number of prompts; and <d_i, d_j>, d a prompt's clipped less its unclipped gradient, is |bias|^2
    on average over pairs of different prompts. Falsified by x, the test multiplies |bias|^2 by 1 + x. Near misses:
    ``plug_in`` also pairs each prompt with itself, which adds noise; ``one_less`` divides by ``prompts`` less 1."""
    while True:
        bandit = make_bandit(rng, vocabulary=2, max_length=3, step=0.3)
        clipped, true = update_terms(bandit, calibrated(bandit, "fspo", 0.6))
        p, d = bandit.p_old, clipped - true
        bias, variance = p @ d, float(p @ (clipped**2).sum(axis=1) - ((p @ clipped) ** 2).sum())
        if float(bias @ bias) > 0.01 * variance:
            break
    error = estimate = 0.0
    for rows in product(range(p.size), repeat=prompts):
        at = list(rows)
        chance = float(np.prod(p[at]))
        error += chance * float(((clipped[at].mean(axis=0) - p @ true) ** 2).sum())
        total, own = float((d[at].sum(axis=0) ** 2).sum()), float((d[at] ** 2).sum())
        pairs = total / prompts**2 if plug_in else (total - own) / (prompts * (prompts - 1))
        estimate += chance * pairs
    squared, rest = float(bias @ bias), variance / (prompts - one_less)
    return lambda x: close([squared * (1 + x) + rest, squared * (1 + x)], [error, estimate], 1e-9)
