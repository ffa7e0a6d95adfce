"""Measure a log-ratio x that should be 0 apart from noise: its size over a log's rows, and how far the mean of x + k3,
which theory says is 0, grows with the length L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass
class Line:
    """The size of a log-ratio x that should be 0 apart from noise, and a line a + b L fitted to x + k3 of responses.

    Let q be the policy that drew the responses, p another policy with the same support, x = log p - log q, and k3 the
    sum of e^s - 1 - s over the token log-ratios s of x. Then E[x] = -KL and E[k3] = KL (T9, T16), so x + k3 has mean 0,
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
    least: float = math.inf
    most: float = -math.inf
    first: int | None = None  # the first rollout in which the measured log-ratio is not always 0

    def add(self, x: Floats, L: Floats, rollout: Ints, k3: Floats | None = None) -> None:
        """Add the rows (N,) to the sums, but for those whose log-ratio ``x`` is not finite.

        ``k3`` (N,) is the k3 of ``x``, NaN where unknown.
        """
        good = np.isfinite(x)
        k3 = np.full(len(x), np.nan) if k3 is None else k3
        x, L, rollout, k3 = x[good], L[good], rollout[good], k3[good]
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
        self.least, self.most = min(self.least, float(x.min())), max(self.most, float(x.max()))
        if self.first is None and np.any(x):
            self.first = int(rollout[np.flatnonzero(x)[0]])

    @property
    def rms(self) -> float:
        """Root mean square over rows of x / sqrt(L), x the measured log-ratio, in nats."""
        return math.sqrt(self.size / self.n) if self.n else math.nan

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
        """Name a likely cause of the measured log-ratio x, from the line fitted to x + k3 over L and the extremes of x.

        ``sampler`` names the log-probabilities that x compares with the trainer's. Where neither the mean of x + k3
        differs from 0 nor x lies on one side of 0, noise is named.
        """
        a, b, a_error, _ = self.fit()
        per_response = abs(a) > 5 * a_error and abs(a) > 2 * abs(b) * self.L / self.n
        if not (self.systematic() or self.one_sided):
            return f"{sampler} and the trainer's differ by noise: its mean is -E[k3], as of two laws of which one drew"
        if per_response:
            token = "has a token less" if a < 0 else "has a token more"
            return f"it does not grow with the length: the sum of {sampler} {token} than the trainer's"
        if self.one_sided and self.x < 0:
            return "it is never above 0 and grows with the length: tokens were drawn by top-p or top-k, or masked"
        return (
            f"it grows with the length: {sampler} are not those of the law that drew, but of another temperature, of "
            "other weights or of another model"
        )

    @property
    def one_sided(self) -> bool:
        """Whether the log-ratio x lies nearly on one side of 0.

        It does if the largest |x| of one sign is at most 2 % of the largest |x| of the other sign.
        """
        return min(-self.least, self.most) <= 0.02 * max(-self.least, self.most)

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
