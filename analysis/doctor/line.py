"""Measure a log-ratio that should be 0 apart from noise (`Line`), and find where values rise or jump over a run."""

from __future__ import annotations

import math
from functools import cached_property
from statistics import NormalDist

import numpy as np

from analysis.doctor.issues import Evidence
from analysis.doctor.patient import MIN_ROWS, Floats, Ints, Rows
from fspo.stats.intervals import t_quantile

FLOAT32 = 1e-3
"""Two programs that compute in float32 differ by less than this (root mean square of their log-ratio over sqrt(L), in
nats). If D + E is no larger than this, the doctor tests E[e^S] = 1 on S alone, else on S + D + E."""
OFFSET = 0.02  # smallest mean of x + k3, in nats, that is reported (x, k3: see `Line`)
CARRIERS = 64  # largest number of rows that `Line.carriers` returns
LOOK = "look at their tokens (was the text tokenised again?) and mask them"  # where few responses carry most of x
SOUND = f"{LOOK}; the others are sound"  # and that where the others were tested
SERIES = 8
"""Least number of rollouts, or of lines of metrics, over which a rise is judged; and of rows in each rollout over which
x is said to jump."""
JUMP, SUDDEN = 2.0, 5.0
"""A series that from some place on exceeds ``JUMP`` times all values before has changed. It jumps if a step fits it
best (`bend`), or if it exceeds even ``SUDDEN`` times them; else it rises."""
SENT = "look at what the sampler gets of each update: all weights, the adapter, the scales, a cache"
"""The fix where the mismatch jumps or rises over the run."""


class Line:
    """The size of a log-ratio x that should be 0 apart from noise, and a line a + b L fitted to x + k3 as a function of
    the responses' length L.

    Let q be the policy that drew the responses, p another policy with the same support, x = log p - log q, and k3 the
    sum of e^s - 1 - s over the token log-ratios s of x. Then E[x] = -KL and E[k3] = KL (T5, T13), so x + k3 has mean 0,
    even if p has noise, another precision or other weights. Any other mean shows that the log-probabilities taken for
    log q are not those of the policy that drew the responses. Where k3 is unknown, e^x - 1 (x held at 3) is taken in
    the place of x + k3; it hardly changes with x where x is below -1.

    Parameters
    ----------
    rows : Rows (N,)
        The rows, of which those whose x is not finite are left out.
    x, k3 : float array (N,)
        Log-ratio and k3 (NaN where unknown) of each row, nats.

    Attributes
    ----------
    n : int
        Number of rows that remain.
    size, y, k3 : float array (n,)
        ``size`` is x^2 / L; ``y`` is x + k3 or, where k3 is unknown, e^x - 1; ``k3`` is the given k3 or, where unknown,
        v L / 2, as noise of variance v L has it; v is the mean of (x - a - b L)^2 / L, a + b L the line fitted to x.
    rms, of_tokens : float
        Root mean square over the rows of x / sqrt(L), and of the token log-ratios s of x, nats; NaN and 0 without a
        row. A row's mean of s^2 is taken as 2 k3 / L, or as x^2 / L where k3 is unknown (x is the sum of the row's s).
    """

    def __init__(self, rows: Rows, x: Floats, k3: Floats) -> None:
        good = np.isfinite(x)
        rows, self.x, k3 = rows.take(good), x[good], k3[good]
        self.L, self.rollout, self.response = rows.L, rows["rollout"], rows["response_id"]
        self.n, self.size, known = len(self.x), self.x**2 / self.L, np.isfinite(k3)
        self.y = np.where(known, self.x + k3, np.expm1(np.minimum(self.x, 3.0)))
        self.rms = math.sqrt(self.size.mean()) if self.n else math.nan
        of_tokens = np.where(known, 2 * k3 / self.L, self.size)
        self.of_tokens = math.sqrt(max(float(of_tokens.mean()), 0.0)) if self.n else 0.0
        a, b, *_ = self._fitted(self.x)
        variance = float(np.sum((self.x - a - b * self.L) ** 2 / self.L)) / max(self.n, 1)
        self.k3 = np.where(known, k3, variance * self.L / 2)

    @cached_property
    def carriers(self) -> Ints:
        """Indices of the few rows that together make 90 % of the sum of x^2 / L, the largest x^2 / L first, and of rows
        like them: with |x| above 1 nat, and x^2 / L so far above the median of the rest that normal noise puts a row
        there in one log of a hundred. At most ``CARRIERS`` rows and a twentieth of all are taken. Empty if these do not
        make 90 %, or if none of the rows that make 90 % has |x| of 1 nat or more."""
        largest = np.argsort(-self.size, kind="stable")[: min(CARRIERS, self.n // 20)]
        share = np.cumsum(self.size[largest]) / max(self.size.sum(), np.finfo(float).tiny)
        k = int(np.searchsorted(share, 0.9)) + 1
        if k > len(share) or np.abs(self.x[largest[:k]]).max() < 1:
            return largest[:0]
        quantile = NormalDist().inv_cdf
        far = np.median(np.delete(self.size, largest[:k])) * (quantile(1 - 0.005 / self.n) / quantile(0.75)) ** 2
        like = (self.size[largest] > far) & (np.abs(self.x[largest]) > 1)
        return largest[like | (np.arange(len(largest)) < k)]

    def carried(self) -> str:
        """Return a text "k of n responses carry ..." that names up to eight of the `carriers` (there must be one)."""
        at = self.carriers
        named = zip(*(values[at[:8]].tolist() for values in (self.rollout, self.response, self.x)), strict=True)
        places = ", ".join(f"rollout {r} response {i} ({v:+.3g} nats)" for r, i, v in named)
        share = self.size[at].sum() / self.size.sum()
        return f"{len(at)} of {self.n} responses carry {share:.0%} of its squares: {places}"

    @cached_property
    def _halves(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Four arrays (H,), without the rows `carriers`, by half octave of L (two to a doubling): number of rows, mean
        log L, second and fourth central moment of x."""
        x, L = (np.delete(values, self.carriers) for values in (self.x, self.L))
        half = np.unique((2 * np.log2(L)).astype(np.int64), return_inverse=True)[1]
        n = np.bincount(half).astype(np.float64)
        apart = x - (np.bincount(half, x) / n)[half]
        log_length, variance, fourth = (np.bincount(half, v) / n for v in (np.log(L), apart**2, apart**4))
        return n, log_length, variance, fourth

    def spread(self) -> tuple[float, float]:
        """Return the standard deviation of x inside half octaves of L, without the `carriers`, nats; and the same over
        the root of the mean length, nats per root token. Both are 0 without a row."""
        n, _, variance, _ = self._halves
        deviation = math.sqrt(float(n @ variance) / max(float(n.sum()), 1.0))
        return deviation, deviation / math.sqrt(float(self.L.mean()) if self.n else 1.0)

    def growth(self) -> tuple[float, float, float]:
        """Return the exponent h of the growth of the spread with the length, sd(x) proportional to L^h, and the ends of
        its 95 % interval. Independent noise of the tokens has h = .5.

        A line over log L is fitted to the logarithm of x's standard deviation in half octaves (n rows), with the
        weights 4 n / (kurtosis - 1). All are NaN unless two half octaves have 20 rows and the width is below 1."""
        enough = self._halves[0] >= 20
        n, u, variance, fourth = (values[enough] for values in self._halves)
        if len(n) < 2 or not np.all(variance > 0):
            return math.nan, math.nan, math.nan
        weight = 4 * n / np.maximum(fourth / variance**2 - 1, 0.5)
        away = u - weight @ u / weight.sum()
        spread = float(weight @ away**2)
        slope, half = float(weight @ (away * np.log(variance)) / 2 / spread), t_quantile(np.inf) / math.sqrt(spread)
        return (slope, slope - half, slope + half) if half < 0.5 else (math.nan, math.nan, math.nan)

    @cached_property
    def by_rollout(self) -> tuple[Ints, Floats, Ints]:
        """The numbers of the rollouts, in order, and for each the root mean square of x / sqrt(L) over its rows, nats,
        and the number of these."""
        number, code, rows = np.unique(self.rollout, return_inverse=True, return_counts=True)
        return number, np.sqrt(np.bincount(code, self.size) / rows), rows

    def since(self) -> int | None:
        """Return the first rollout whose rms of x / sqrt(L) is above half of that over all rows; None if none is."""
        number, size, _ = self.by_rollout
        return next(iter(number[size > self.rms / 2].tolist()), None)

    @cached_property
    def above_0(self) -> bool:
        """Whether the mean of x lies above 0 by more than noise explains. No distribution that drew the responses gives
        this: the mean of log p - log q under q is -KL."""
        return self.n >= MIN_ROWS and float(self.x.mean()) > max(OFFSET, 5 * float(self.x.std()) / math.sqrt(self.n))

    def _fitted(self, values: Floats) -> tuple[float, float, float, float]:
        """Return the line a + b L fitted to ``values`` (n,), nats, with weights 1/L: a (nats), b (nats per token), and
        the standard error of each."""
        n, over, L = self.n, float(np.sum(1 / self.L)), float(self.L.sum())
        y, y_over, square_over = (float(v.sum()) for v in (values, values / self.L, values**2 / self.L))
        determinant = over * L - n**2
        if n < 3 or determinant <= 1e-9 * n**2:
            rest = math.sqrt(square_over / max(n, 1))
            return 0.0, y / max(L, 1.0), math.inf, rest / math.sqrt(max(L, 1.0))
        a = (L * y_over - n * y) / determinant
        b = (over * y - n * y_over) / determinant
        rest = max(square_over - a * y_over - b * y, 0.0) / (n - 2)
        return a, b, math.sqrt(rest * L / determinant), math.sqrt(rest * over / determinant)

    @property
    def per_response(self) -> bool:
        """Whether, in the line a + b L fitted to x + k3, a is not 0 and outweighs b L: x is off by one number at any
        length. If the mean of x is above 0 (`above_0`), the line is fitted to x alone: k3 says little for a large x."""
        a, b, a_error, _ = self._fitted(self.x if self.above_0 else self.x + self.k3)
        return abs(a) > 5 * a_error and abs(a) > 2 * abs(b) * float(self.L.mean())

    def systematic(self, apart: float = 0.0) -> bool:
        """Return whether the mean of x + k3 over responses, fitted by a line a + b L, differs from 0 by more than noise
        does.

        ``apart`` is the root mean square over tokens, in nats, of d = log q - log mu, if another policy mu than q (of
        `Line`) drew the responses; 0 if q did. For the token log-ratios s of x, E_mu[e^d (e^s - 1)] = 0, so the mean of
        e^s - 1 can be as large as ``apart`` rms(s) (Cauchy-Schwarz, to second order) without a defect, perhaps at some
        lengths only. This bound a token is taken off the slope b, and, times the mean length, off the constant a."""
        if self.n < MIN_ROWS:
            return False
        explained, mean = apart * self.of_tokens, float(self.L.mean())
        lines = self._fitted(self.y), self._fitted(self.x + self.k3)  # they differ where k3 is unknown
        for a, b, a_error, b_error in lines:
            a, b = max(abs(a) - explained * mean, 0.0), max(abs(b) - explained, 0.0)
            if max(a, b * mean) <= OFFSET or (a <= 5 * a_error and b <= 5 * b_error):
                return False
        return True

    def cause(self, sampler: str) -> str:
        """Return a sentence that says why x is not 0: noise, or, if `systematic`, wrong tokens or another distribution.
        ``sampler`` names the log-probabilities that x compares with the trainer's."""
        if not self.systematic():
            noise = "differ by noise: its mean is -E[k3], as of two distributions of which one drew"
            return f"{sampler} and the trainer's {noise}"
        above = f"its mean, {self.x.mean():+.2g} nats, lies above 0, where no distribution that drew puts it; "
        above *= self.above_0
        if self.per_response:
            token = "has a token less" if self._fitted(self.y)[0] < 0 else "has a token more"
            return f"{above}its mean does not grow with the length: the sum of {sampler} {token} than the trainer's"
        grows = f"{above}its mean grows with the length: {sampler} are not those of the distribution that drew, but of "
        return grows + "another temperature, of other weights or of another model"

    def evidence(self, name: str) -> list[Evidence]:
        """Return a and b of the line fitted to x + k3 as evidence with intervals; ``name`` stands for x."""
        a, b, a_error, b_error = self._fitted(self.x + self.k3)
        part, t = f"{name} + k3 (expected: 0): part", t_quantile(np.inf)
        return [
            Evidence(f"{part} that does not grow with L", a, a - t * a_error, a + t * a_error, "nats"),
            Evidence(f"{part} for each token", b, b - t * b_error, b + t * b_error, "nats"),
        ]


def rises(x: Floats) -> bool:
    """Return whether the values x (N,) grow from the first to the last, by Kendall's test at the level 1/1000."""
    from scipy.stats import kendalltau

    tau, p = (float(value) for value in np.asarray(kendalltau(np.arange(len(x)), x)))
    return tau > 0 and p < 1e-3


def grows_with(x: Floats, along: Floats) -> bool:
    """Return whether the values x (N,) grow with the values ``along`` (N,), by a permutation test of their covariance
    at the level 1/1000; of 8,000 values or more only every second, third, ... is tested."""
    part, rng = slice(None, None, len(x) // 4000 or 1), np.random.default_rng(0)
    x, away = x[part], along[part] - along[part].mean()
    return sum(rng.permutation(x) @ away >= x @ away for _ in range(4999)) < 5


def separated(x: Floats, factor: float = JUMP) -> int | None:
    """Return the first index (2 to N - 3) from which on all x (N,) exceed ``factor`` times all before; None if none."""
    return next((k for k in range(2, len(x) - 2) if x[k:].min() > factor * x[:k].max() > 0), None)


def bend(x: Floats) -> tuple[int, bool]:
    """Return the index from which on the values x (N,) rise, and whether they rise in one step. The index is that of a
    sudden jump or, without one, where the curve begins to rise that fits x best: a step, or a level that turns into a
    line or a parabola. If the values before that index rise too, the answer is 0 and False."""
    if at := separated(x, SUDDEN):
        return at, True
    place = np.arange(len(x))

    def rest(shape: Floats) -> float:
        fitted = np.stack([np.ones(len(x)), shape], 1)
        return float(np.sum((x - fitted @ np.linalg.lstsq(fitted, x)[0]) ** 2))

    shapes = [(np.maximum(place - k, 0.0) ** power, k + 1, False) for k in range(len(x) - 1) for power in (1, 2)]
    shapes += [((place >= k) * 1.0, k, True) for k in range(1, len(x))]
    _, first, step = min(shapes, key=lambda one: rest(one[0]))
    return (0, False) if first > 2 and rises(x[:first]) else (first, step)
