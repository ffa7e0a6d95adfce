"""Measure a log-ratio x that should be 0 apart from noise: its size over a log's rows, and how far the mean of x + k3,
which theory says is 0, grows with the length L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.findings import Evidence
from analysis.doctor.patient import MIN_ROWS, Floats, Ints
from fspo.stats.intervals import t_quantile

FLOAT32 = 1e-3
"""Two programs that compute in float32 differ by less than this (root mean square of their log-ratio over sqrt(L), in
nats). If D + E is no larger than this, the doctor tests E[e^S] = 1 on S alone, else on S + D + E.
"""
OFFSET = 0.02
"""Smallest mean of x + k3, in nats, that is reported, for a log-ratio x that should be 0 apart from noise. k3 is the
sum of e^s - 1 - s over the token log-ratios s of x.
"""

CARRIERS = 64
"""Number of rows with the largest x^2 / L that are kept by name."""
SERIES = 8
"""Least number of rollouts over which a trend of x is judged."""


@dataclass
class Line:
    """The size of a log-ratio x that should be 0 apart from noise, and a line a + b L fitted to x + k3 of responses.

    Let q be the policy that drew the responses, p another policy with the same support, x = log p - log q, and k3 the
    sum of e^s - 1 - s over the token log-ratios s of x. Then E[x] = -KL and E[k3] = KL (T5, T13), so x + k3 has mean 0,
    even if p has noise, another precision or other weights. Any other mean shows that the log-probabilities taken for
    log q are not those of the policy that drew the responses. Where k3 is unknown, e^x - 1, with x at most 3, stands
    for x + k3.
    """

    n: float = 0.0
    x: float = 0.0
    y: float = 0.0  # sum over rows of y = x + k3, x the measured log-ratio
    over: float = 0.0  # sum over rows of 1 / L
    L: float = 0.0
    y_over: float = 0.0
    square_over: float = 0.0  # sum over rows of y^2 / L, y the measured log-ratio x plus its k3
    size: float = 0.0  # sum over rows of x^2 / L, x the measured log-ratio
    spread: float = 0.0  # sum over rows of 2 k3 / L, which is about the mean square of a row's token log-ratios
    # For each rollout with a row: number of rows and sum of x^2 / L.
    rollouts: dict[int, Floats] = field(default_factory=dict)
    # Of the rows with the largest x^2 / L: x^2 / L, x, rollout, number of the response.
    largest: Floats = field(default_factory=lambda: np.zeros((0, 4)))
    # For each half octave of lengths: number of rows, sums of log L, x, x^2, x^3 and x^4.
    halves: Floats = field(default_factory=lambda: np.zeros((64, 6)))

    def add(self, x: Floats, L: Floats, rollout: Ints, k3: Floats | None = None, response: Ints | None = None) -> None:
        """Add the rows (N,) to the sums, but for those whose log-ratio ``x`` is not finite.

        ``k3`` (N,) is the k3 of ``x``, NaN where unknown; ``response`` (N,) numbers the responses.
        """
        good = np.isfinite(x)
        k3 = np.full(len(x), np.nan) if k3 is None else k3
        response = np.zeros(len(x), np.int64) if response is None else response
        x, L, rollout, k3, response = x[good], L[good], rollout[good], k3[good], response[good]
        if not len(x):
            return
        y = x + k3
        unknown = ~np.isfinite(y)
        twice = np.where(unknown, x * x, 2 * k3)
        if unknown.any():
            y[unknown] = np.expm1(np.minimum(x[unknown], 3.0))
        each = 1 / L
        self.n += len(x)
        self.x += float(x.sum())
        self.y += float(y.sum())
        self.over += float(each.sum())
        self.L += float(L.sum())
        self.y_over += float(y @ each)
        self.square_over += float((y * y) @ each)
        self.size += float((x * x) @ each)
        self.spread += float(twice @ each)
        number, code = np.unique(rollout, return_inverse=True)
        for r, n, square in zip(number.tolist(), np.bincount(code), np.bincount(code, x * x * each), strict=True):
            sums = self.rollouts.setdefault(r, np.zeros(2))
            sums += (n, square)
        held = np.concatenate([self.largest, np.stack([x * x * each, x, rollout, response], 1)])
        self.largest = np.asarray(held, np.float64)[np.argsort(-held[:, 0], kind="stable")[:CARRIERS]]
        half = (2 * np.log2(L)).astype(np.int64)
        for k, values in enumerate((np.ones_like(x), np.log(L), x, x**2, x**3, x**4)):
            self.halves[:, k] += np.bincount(half, values, len(self.halves))

    @property
    def rms(self) -> float:
        """Root mean square over rows of x / sqrt(L), x the measured log-ratio, in nats."""
        return math.sqrt(self.size / self.n) if self.n else math.nan

    def _others(self) -> Floats:
        """Return ``halves`` without the rows that carry most of x."""
        sums = self.halves.copy()
        for square, x, _, _ in self.largest[: len(self.carriers()[0])]:
            L = x * x / square
            sums[int(2 * math.log2(L) + 1e-9)] -= (1, math.log(L), x, x**2, x**3, x**4)
        return sums

    @property
    def deviation(self) -> float:
        """Standard deviation of x inside half octaves of L, without the rows that carry most of it, in nats."""
        n, _, x, square = self._others()[:, :4].T
        inside = float(np.sum(square - np.divide(x**2, n, out=np.zeros_like(x), where=n > 0)))
        return math.sqrt(max(inside, 0.0) / max(float(n.sum()), 1.0))

    @property
    def each_root(self) -> float:
        """The standard deviation of x for each root token: that of x over the root of the mean length, in nats."""
        return self.deviation / math.sqrt(max(self.L / max(self.n, 1.0), 1.0))

    @property
    def last(self) -> float:
        """Root mean square of x / sqrt(L) in the last quarter of the rollouts, in nats."""
        return self._quarters()[1]

    def _quarters(self) -> tuple[float, float]:
        sums = np.array([self.rollouts[r] for r in sorted(self.rollouts)]).reshape(-1, 2)
        quarter = max(len(sums) // 4, 1)
        ends = (part.sum(0) for part in (sums[:quarter], sums[-quarter:]))
        first, last = (math.sqrt(square / n) if n else 0.0 for n, square in ends)
        return first, last

    def rise(self) -> float:
        """Return how many times as large x / sqrt(L) is in the last quarter of the rollouts as in the first.

        Return 1 where fewer than ``SERIES`` rollouts, or no monotone trend over them (Kendall, 1 in 1000), show it.
        """
        if len(self.rollouts) < SERIES:
            return 1.0
        first, last = self._quarters()
        sizes = np.array([square / n for _, (n, square) in sorted(self.rollouts.items())])
        return last / first if first > 0 and rises(sizes) else 1.0

    def since(self) -> int | None:
        """Return the first rollout in which x / sqrt(L) is more than half as large as in all rows; None without one."""
        return next((r for r, (n, square) in sorted(self.rollouts.items()) if square / n > self.rms**2 / 4), None)

    def carriers(self) -> tuple[list[tuple[int, int, float]], float]:
        """Return the few rows that carry 90 % of the sum of x^2 / L, each as rollout, response and x; and their share.

        The list is empty if more than one row of twenty does, or the largest |x| is below 1 nat.
        """
        share = np.cumsum(self.largest[:, 0]) / self.size if self.size > 0 else np.zeros(0)
        k = int(np.searchsorted(share, 0.9)) + 1
        if k > len(share) or k > 0.05 * self.n or np.abs(self.largest[:k, 1]).max() < 1:
            return [], 0.0
        return [(int(r), int(i), float(x)) for _, x, r, i in self.largest[:k]], float(share[k - 1])

    def growth(self) -> tuple[float, float, float]:
        """Return the exponent h with which the standard deviation of x grows as L^h, and its 95 % interval.

        It is .5 for noise of the tokens. The line is fitted to the logarithm of the standard deviation in half octaves
        of L, whose variance is (kurtosis - 1) / (4 n). All are NaN unless two of them have 20 rows.
        """
        others = self._others()
        n, u, *sums = others[others[:, 0] >= 20].T
        if len(n) < 2:
            return math.nan, math.nan, math.nan
        u, (m, square, third, fourth) = u / n, (x / n for x in sums)
        variance = square - m**2
        if not np.all(variance > 1e-12 * square):
            return math.nan, math.nan, math.nan
        kurtosis = (fourth - 4 * m * third + 6 * m**2 * square - 3 * m**4) / variance**2
        weight = 4 * n / np.maximum(kurtosis - 1, 0.5)
        away = u - weight @ u / weight.sum()
        slope, half = weight @ (away * np.log(variance)) / 2, t_quantile(np.inf)
        spread = float(weight @ away**2)
        slope, half = float(slope) / spread, half / math.sqrt(spread)
        return slope, slope - half, slope + half

    @property
    def of_tokens(self) -> float:
        """Root mean square of the token log-ratios s, nats.

        A row's mean of s^2 is taken as 2 k3 / L, or as x^2 / L where k3 is unknown (x is the sum of the row's s).
        """
        return math.sqrt(max(self.spread, 0.0) / self.n) if self.n else 0.0

    def fit(self) -> tuple[float, float, float, float]:
        """Fit the line a + b L to the rows' x + k3, with weights 1/L; L, x and k3 are a row's length, log-ratio and k3.

        Return a, b, the standard error of a and the standard error of b.
        """
        determinant = self.over * self.L - self.n**2
        if self.n < 3 or determinant <= 1e-9 * self.n**2:
            rest = math.sqrt(self.square_over / max(self.n, 1.0))
            return 0.0, self.y / max(self.L, 1.0), math.inf, rest / math.sqrt(max(self.L, 1.0))
        a = (self.L * self.y_over - self.n * self.y) / determinant
        b = (self.over * self.y - self.n * self.y_over) / determinant
        rest = max(self.square_over - a * self.y_over - b * self.y, 0.0) / (self.n - 2)
        return a, b, math.sqrt(rest * self.L / determinant), math.sqrt(rest * self.over / determinant)

    def cause(self, sampler: str) -> str:
        """Name a likely cause of the measured log-ratio x, from the line fitted to x + k3 over L.

        ``sampler`` names the log-probabilities that x compares with the trainer's. Where the mean of x + k3 does not
        differ from 0, noise is named.
        """
        if not self.systematic():
            return f"{sampler} and the trainer's differ by noise: its mean is -E[k3], as of two laws of which one drew"
        if self.per_response:
            token = "has a token less" if self.fit()[0] < 0 else "has a token more"
            return f"it does not grow with the length: the sum of {sampler} {token} than the trainer's"
        return (
            f"it grows with the length: {sampler} are not those of the law that drew, but of another temperature, of "
            "other weights or of another model"
        )

    @property
    def per_response(self) -> bool:
        """Whether the mean of x + k3 is mainly a constant of each response, whatever its length."""
        a, b, a_error, _ = self.fit()
        return abs(a) > 5 * a_error and abs(a) > 2 * abs(b) * self.L / self.n

    def evidence(self, name: str) -> tuple[Evidence, ...]:
        """Return what the doctor shows as evidence about the measured log-ratio x: the root mean square of x / sqrt(L),
        and the coefficients a and b of the line a + b L that is fitted to x + k3.

        ``name`` is what the evidence calls x.
        """
        a, b, *errors = self.fit()
        of_a, of_b = (t_quantile(np.inf) * error for error in errors)
        law = f"{name} + k3 (law: 0)"
        return (
            Evidence(f"{name}: root mean square", self.rms, unit="nats per root token"),
            Evidence(f"exponent of L with which the spread of {name} grows", *self.growth()),
            Evidence(f"{law}: part that does not grow with L", a, a - of_a, a + of_a, "nats"),
            Evidence(f"{law}: part for each token", b, b - of_b, b + of_b, "nats"),
        )

    def systematic(self, apart: float = 0.0) -> bool:
        """Whether the mean of x + k3 over responses differs from 0 by more than noise explains.

        x = log p - log q is the measured log-ratio of a response; k3 is e^s - 1 - s summed over its token log-ratios s.

        Parameters
        ----------
        apart : float
            Root mean square over tokens, in nats, of d = log q - log mu, if another policy mu than q drew the
            responses; 0 if q drew them. If mu did, a mean of x + k3 of up to L rms(d) rms(s) is no defect: because
            E_mu[e^d (e^s - 1)] = 0 for each token, the mean of e^s - 1 can differ from 0 by rms(d) rms(s)
            (Cauchy-Schwarz, to second order). The mean may differ at some lengths only, so the bound is subtracted from
            both the constant part and the slope of the line fitted to x + k3 over L.
        """
        a, b, a_error, b_error = self.fit()
        if self.n < MIN_ROWS:
            return False
        explained, mean = apart * self.of_tokens, self.L / self.n
        a, b = max(abs(a) - explained * mean, 0.0), max(abs(b) - explained, 0.0)
        return max(a, b * mean) > OFFSET and (a > 5 * a_error or b > 5 * b_error)


def rises(x: Floats) -> bool:
    """Return whether the values x (N,) rise in their order, by Kendall's test at 1 in 1000."""
    from scipy.stats import kendalltau

    tau, p = (float(value) for value in np.asarray(kendalltau(np.arange(len(x)), x)))
    return tau > 0 and p < 1e-3
