"""Laws of every sound run (docs/theory.md, T9): they hold at first use, whatever the policy, the task and the rule.

Under the law that drew the responses, a weight has mean 1. The exponentials of a response's token log-ratios, each less
1, sum to a martingale of mean 0. All tests of a report share one level, at every look (`analysis.stats.anytime`): see
LEVEL for what it is worth. Rows chosen by their outcome (DAPO's dynamic sampling drops groups with equal rewards) break
the laws: ``mean_weight`` and ``k1_k3`` may then name a sound run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.patient import MIN_ROWS, Floats, Ints, Rows
from analysis.log.rows import numbered
from analysis.rules.recompute import ratio
from analysis.stats.anytime import AnytimeMean
from fspo.rules import importance_weight

LEVEL = 0.01
"""Probability that a sound run gets a finding from any test of its report, however often it is examined.

It holds as the number of terms grows, and exactly for symmetric terms; it does not hold for heavy tails. Outside it
stand the checks before_update, direction, engine, drift, numerics and sorted_minibatches, which compare with thresholds
of their own.
"""
TESTS = 10
"""Number of tests that share LEVEL."""
EACH = LEVEL / TESTS
WEIGHT_MARGIN = 0.01
"""Smallest distance of the mean weight from 1 that is reported."""
TOKEN_MARGIN = 0.1
"""Smallest difference of k1 and k3, over k3, that is reported."""
NEGLIGIBLE = 1e-3
"""Mismatch of sampler and trainer, nats per root token, up to which S alone is taken for the ratio to the sampler."""
OFFSET = 0.02
"""Smallest mean of a ratio that ought to be 0, nats, that is reported."""

FEW = "{} rows at first use after an update, 30 are wanted (stale rows without a behaviour ratio do not count)"


@dataclass
class Line:
    """Sums for the line x = a + b L of a log-ratio x whose variance grows with L, and its extremes."""

    n: float = 0.0
    x: float = 0.0
    over: float = 0.0  # sum of 1 / L
    L: float = 0.0
    x_over: float = 0.0
    square_over: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    first: int | None = None  # the first rollout with an x that is not 0

    def add(self, x: Floats, L: Floats, rollout: Ints) -> None:
        """Add the rows (N,) that are finite."""
        good = np.isfinite(x)
        x, L, rollout = x[good], L[good], rollout[good]
        if not len(x):
            return
        self.n += len(x)
        self.x += float(x.sum())
        self.over += float((1 / L).sum())
        self.L += float(L.sum())
        self.x_over += float((x / L).sum())
        self.square_over += float((x * x / L).sum())
        self.least, self.most = min(self.least, float(x.min())), max(self.most, float(x.max()))
        if self.first is None and np.any(x):
            self.first = int(rollout[np.flatnonzero(x)[0]])

    @property
    def rms(self) -> float:
        """Root mean square of x, nats per root token."""
        return math.sqrt(self.square_over / self.n) if self.n else math.nan

    def fit(self) -> tuple[float, float, float, float]:
        """Return a and b by least squares with weights 1/L, and their standard errors."""
        determinant = self.over * self.L - self.n**2
        if self.n < 3 or determinant <= 1e-9 * self.n**2:
            return 0.0, self.x / max(self.L, 1.0), math.inf, self.rms / math.sqrt(max(self.L, 1.0))
        a = (self.L * self.x_over - self.n * self.x) / determinant
        b = (self.over * self.x - self.n * self.x_over) / determinant
        rest = max(self.square_over - a * self.x_over - b * self.x, 0.0) / (self.n - 2)
        return a, b, math.sqrt(rest * self.L / determinant), math.sqrt(rest * self.over / determinant)

    def cause(self, sampler: str) -> str:
        """Name what makes x differ from 0 in this way; ``sampler`` names the log-probabilities that x compares with."""
        a, b, a_error, _ = self.fit()
        per_response = abs(a) > 5 * a_error and abs(a) > 2 * abs(b) * self.L / self.n
        one_sided = min(-self.least, self.most) <= 0.02 * max(-self.least, self.most)
        if per_response:
            token = "has a token less" if a < 0 else "has a token more"
            return f"it does not grow with the length: the sum of {sampler} {token} than the trainer's"
        if one_sided and self.x < 0:
            return "it is never above 0 and grows with the length: tokens were drawn by top-p or top-k, or masked"
        return f"it grows with the length: {sampler} are of another temperature, of other weights or of another model"

    def evidence(self, name: str) -> tuple[Evidence, ...]:
        """Return the numbers of the line."""
        a, b, a_error, b_error = self.fit()
        return (
            Evidence(f"{name}: root mean square", self.rms, unit="nats per root token"),
            Evidence(f"{name}: part that does not grow with L", a, a - 2 * a_error, a + 2 * a_error, "nats"),
            Evidence(f"{name}: part for each token", b, b - 2 * b_error, b + 2 * b_error, "nats"),
        )

    def systematic(self) -> bool:
        """Whether the mean differs from 0 by more than noise explains."""
        a, b, a_error, b_error = self.fit()
        size = max(abs(a), abs(b) * self.L / max(self.n, 1)) > OFFSET and self.n >= MIN_ROWS
        return size and (abs(a) > 5 * a_error or abs(b) > 5 * b_error)


@dataclass
class Laws:
    """Tests of the laws on rows that no update had trained on. ``add`` takes complete rollouts in order."""

    weight: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    token: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    drift: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    by_length: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    push: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    before: Line = field(default_factory=Line)
    mismatch: Line = field(default_factory=Line)
    k3: float = 0.0
    centre: tuple[float, float] | None = None
    lengths: list[float] = field(default_factory=list)  # mean standardized log length of each rollout

    def add(self, rows: Rows) -> None:
        """Add the rows of complete rollouts."""
        c, S, L, rollout = rows.columns, rows.S, rows.L, rows["rollout"]
        since, used = rows["updates_since_rollout"], rows["times_used"]
        self.before.add(S[since == 0], L[since == 0], rollout[since == 0])
        E = ratio(c, "behaviour")
        self.mismatch.add(E, L, rollout)
        apart = self.mismatch.n and self.mismatch.rms > NEGLIGIBLE
        x, k3 = (S + E, rows["total_k3_sum"]) if apart else (S, rows["k3_sum"])
        lag = rows["policy_version"] - since - rows["behaviour_version"]
        stale = (lag > 0) & ~np.isfinite(rows["behaviour_log_ratio"])  # S alone obeys no law there (T16)
        fresh = (since >= 1) & ~(used > 0) & np.isfinite(x) & (rows["length"] >= 1) & ~stale
        weight, at = importance_weight(x[fresh]) - 1, rollout[fresh]
        self.weight.add(weight, at)
        self.drift.add(x[fresh], at)
        token = (k3 + x)[fresh]
        self.token.add(token, at)
        self.k3 += float(np.nansum(k3[fresh]))
        z = np.log(L)
        if self.centre is None:
            self.centre = float(z.mean()), max(float(z.std()), 0.1)
        z = np.clip((z - self.centre[0]) / self.centre[1], -4, 4)
        self.by_length.add(weight * z[fresh], at)
        self.lengths += [float(z[rollout == r].mean()) for r in np.unique(rollout)]
        again = rows.take((used >= 1) & np.isfinite(S) & np.isfinite(rows["advantage"]))
        if len(again) and again["advantage"].any():
            number, code = np.unique(again["rollout"], return_inverse=True)
            self.push.add(np.bincount(code, _pushed(again)) / np.sqrt(np.bincount(code)), number)

    @property
    def _noise(self) -> float:
        """What the numerical noise that S has before any update adds to the mean weight, at most."""
        return 2 * math.expm1(min(self.before.rms**2 * self.before.L / self.before.n, 1.0)) if self.before.n else 0.0

    def answers(self) -> list[Answer]:
        """Return one answer for each law."""
        return [self._before(), self._weight(), self._token(), self._by_length(), self._drift(), self._direction()]

    def _before(self) -> Answer:
        name, line = "before_update", self.before
        if not line.n:
            return not_checked(name, "no row before the first update of a rollout")
        if not line.systematic():
            return clear(name, "S is 0 before the first update, or noise around 0", *line.evidence("S before"))
        return found(
            name,
            Severity.CRITICAL,
            f"S is not 0 before the first update, where new and old weights are one: {line.cause('the old log-probs')}",
            "compute old and new log-probabilities of the same tokens by the same code, at the sampling temperature",
            *line.evidence("S before"),
            since=line.first,
        )

    def _weight(self) -> Answer:
        name, law = "mean_weight", self.weight
        mean, low, high = law.interval()
        evidence = Evidence("mean weight at first use (law: 1)", 1 + mean, 1 + low, 1 + high)
        if law.count < 30:
            return not_checked(name, FEW.format(law.count))
        since = law.above if mean > 0 else law.below
        if since is None or abs(mean) < WEIGHT_MARGIN + self._noise or self.before.systematic():
            return clear(name, "E[e^S] = 1 at first use (T9)", evidence)
        return found(
            name,
            Severity.WARNING,
            f"the mean weight at first use is {1 + mean:.3g} and not 1 (T9): "
            + (
                "S is too large: rows were trained on before, or new and old log-probs differ by noise or by tokens"
                if mean > 0
                else "S is too small: another law than that of the old log-probs drew the responses, or tokens are lost"
            ),
            "compare the temperature, mask and tokens of the sampler with those of the old and new log-probabilities",
            evidence,
            since=since,
        )

    def _token(self) -> Answer:
        name, law = "k1_k3", self.token
        if law.count < 30 or not self.k3:
            return not_checked(name, "the log has no k3_sum at first use after an update (total_k3_sum under mismatch)")
        mean, low, high = (v * law.count / self.k3 for v in law.interval())
        evidence = (
            Evidence("k1 over k3 at first use (law: 1)", 1 - mean, 1 - high, 1 - low),
            Evidence("mean k3 of a response", self.k3 / law.count, unit="nats"),
        )
        since = law.above if mean > 0 else law.below
        noise = self._noise * law.count / self.k3
        if since is None or abs(mean) < TOKEN_MARGIN + noise or self.before.systematic():
            return clear(name, "-E[S] = E[k3] at first use (T9): both estimate one KL", *evidence)
        return found(
            name,
            Severity.WARNING,
            f"-E[S] is {1 - mean:.2g} times E[k3] at first use and ought to equal it (T9): "
            + ("rows were trained on before, S has a token more, or noise raises k3" if mean > 0 else "S loses tokens")
            + ", or the responses were drawn at another temperature or by other weights",
            "compare the tokens that S and k3 sum over, and the law that sampled with the one of the old log-probs",
            *evidence,
            since=since,
        )

    def _by_length(self) -> Answer:
        name, law = "weight_by_length", self.by_length
        if law.count < 30 or len(self.lengths) < 3:
            return not_checked(name, "fewer than 3 rollouts with rows at first use after an update")
        mean, low, high = law.interval()
        shift = (max(self.lengths) - min(self.lengths)) / len(self.lengths)
        evidence = (
            Evidence("mean of (weight - 1) times standardized log length", mean, low, high),
            Evidence("largest shift of the lengths in a rollout, on average", shift),
        )
        since = law.above if mean > 0 else law.below
        broken = since is not None and abs(mean) > 2 * shift + WEIGHT_MARGIN + self._noise
        if not broken or self.before.systematic():
            return clear(name, "weights by length shift no more than the lengths do (T9)", *evidence)
        return found(
            name,
            Severity.WARNING,
            f"weights {'rise' if mean > 0 else 'fall'} with the length more than the lengths shift (T9): something "
            "adds to S for each token",
            "look for a temperature, a padding or a mask that differs between old and new log-probabilities",
            *evidence,
            since=since,
        )

    def _drift(self) -> Answer:
        name, law = "drift_sign", self.drift
        if law.count < 30:
            return not_checked(name, FEW.format(law.count))
        evidence = Evidence("mean S at first use (law: -KL, below 0)", *law.interval(), "nats")
        if law.above is None or law.mean < WEIGHT_MARGIN or self.before.systematic():
            return clear(name, "E[S] is not above 0 at first use", evidence)
        return found(
            name,
            Severity.CRITICAL,
            "E[S] is above 0 at first use, which no ratio to the law that drew the responses can be (E[S] = -KL)",
            "look at the sign of S (new less old), and whether these responses were trained on before",
            evidence,
            since=law.above,
        )

    def _direction(self) -> Answer:
        name, law = "direction", self.push
        if not law.count:
            return not_checked(name, "no row of a response that an update has trained on before")
        mean, low, high = law.interval()
        evidence = Evidence(
            "A, as a share of the rollout's largest, times S less its group's mean, where trained on",
            mean,
            low,
            high,
            "nats",
        )
        sigma = math.sqrt(max(law.square / law.count - mean * mean, 0.0)) if law.count > 1 else math.inf
        against = law.count >= 5 and mean * math.sqrt(law.count) < -4 * max(sigma, 1e-12) and mean < 0
        if not against:
            return clear(
                name,
                "training does not lower responses with large A below those with small A of the same group",
                evidence,
            )
        return found(
            name,
            Severity.WARNING,
            "training on responses makes those with large A less likely than those with small A of the same group",
            "look at the sign of the loss and of the advantages in it",
            evidence,
        )


def _pushed(rows: Rows) -> Floats:
    """Return A (S - mean S) (N,) with the mean of the group in its minibatch and A over the rollout's largest |A|.

    Its sum is a covariance, so what all responses of a group drift in common does not count. Where most groups have a
    single row the mean is that of the minibatch. The distance of S from the mean counts as at most 1 nat.
    """
    group = numbered(rows["rollout"], rows["step"], rows["prompt_id"])
    if np.bincount(group).mean() < 2:
        group = numbered(rows["rollout"], rows["step"])
    rollout = numbered(rows["rollout"])
    largest = np.zeros(int(rollout.max()) + 1)
    np.maximum.at(largest, rollout, np.abs(rows["advantage"]))
    A = rows["advantage"] / np.where(largest > 0, largest, 1)[rollout]
    count = np.bincount(group)
    y = np.clip(rows.S - (np.bincount(group, rows.S) / count)[group], -1, 1)
    return (y - (np.bincount(group, y) / count)[group]) * A
