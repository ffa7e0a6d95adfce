"""Test equalities, that hold in the first epoch in every sound run, for any policy, task and rule.

Over responses drawn by the old policy, the weight e^S has mean 1, and so has e^s of each token given the tokens before
it (docs/theory.md, T5; S is the log-ratio, s that of a token). All tests together give a false alarm with probability
``LEVEL`` at most, however often a run is looked at (`analysis.stats.anytime`). They use only responses that would have
been logged whatever their reward (`analysis.doctor.selection`).
"""

from __future__ import annotations

import math

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.line import FLOAT32, Line
from analysis.doctor.patient import MIN_ROWS, Floats, Mask, Rows
from analysis.log.rows import numbered
from analysis.rules.recompute import ratio
from analysis.stats.anytime import AnytimeMean
from fspo.rules import importance_weight

LEVEL = 0.01
"""Largest probability that a sound run gets a finding from any of the ``TESTS`` tests, however often it is examined.

The tests whether a mean weight exceeds 1, and whether E[S] exceeds 0, keep this level for every distribution of S. No
test reports a mean weight below 1, because large weights that are too rare to be in the log yet may make up for it. The
tests that compare k1 = -S with k3 (the sum of e^s - 1 - s over a response's tokens) keep the level if k3 + S lies
between -LOST and GAINED; because GAINED is large, they find -E[S] too large only in logs of about a million rows and
more. The check weight_by_length keeps the level as far as it estimates correctly how much lengths shift between
rollouts. The checks before_update, direction, engine, drift, numerics and sorted_minibatches are not among the tests:
they compare with fixed thresholds.
"""
TESTS = 10
"""Number of tests, each of which gets an equal part of ``LEVEL``."""
EACH = LEVEL / TESTS
LOST = 4.0
"""The tests assume that k3 + S of a response is at least -LOST. k3 + S is the sum of e^s - 1 over the response's
tokens, so it comes near -LOST if LOST tokens have become impossible.
"""
GAINED = 2.0**17
"""The tests assume that k3 + S of a response is at most this. 2^17 = 131,072 is e^s of a token that is certain now and
was one of 131,072 equally likely tokens when it was sampled.
"""
WEIGHT_MARGIN = 0.01
"""Smallest distance of a mean weight from 1 that is reported."""
TOKEN_MARGIN = 0.1
"""Smallest difference between E[k1] = -E[S] and E[k3], relative to E[k3], that is reported. k3 is the sum of e^s - 1 -
s over a response's token log-ratios s.
"""
STILL_SPREAD, SURE = 0.8, 5.0
"""S is reported as too small if the mean of (S + k3)^2 lies below this share of its least value, by this many standard
errors. It is not among the tests: it has no level that holds for every distribution.
"""
FLOOR = 3.0
"""S before the first update is reported if its root mean square is more than this many times the noise floor."""

FEW = "{} rows in the first epoch after an update, 30 are wanted (stale rows without a behaviour ratio do not count)"


class FirstEpoch:
    """Tests of equalities that theory promises (such as E[e^S] = 1, T5) on responses that no update had trained on.

    Parameters
    ----------
    rows : Rows
        Rows (N,) of complete rollouts.
    fair : bool array (N,)
        Rows that would be logged whatever their reward.
    noise : Rows, optional
        Rows of the phase noise: the same weights scored them twice.
    float32 : bool
        Whether the configuration says that the trainer computes in float32.
    """

    def __init__(self, rows: Rows, fair: Mask, noise: Rows | None = None, *, float32: bool = False) -> None:
        S, L, rollout = rows.S, rows.L, rows["rollout"]
        since, used = rows["updates_since_rollout"], rows["times_used"]
        self.float32, start = float32, since == 0
        self.floor = None if noise is None else Line(noise.S, noise.L, noise["rollout"])
        self.before = Line(S[start], L[start], rollout[start], rows["k3_sum"][start])
        E = ratio(rows.columns, "behaviour")
        self.mismatch = Line(E, L, rollout, rows["behaviour_k3_sum"])
        x, k3, square = S, rows["k3_sum"], rows["sum_sq_log_ratio"]
        if self.mismatch.n and self.mismatch.rms > FLOAT32:
            x, k3, square = S + E, rows["total_k3_sum"], rows["total_sum_sq"]
        lag = rows["policy_version"] - since - rows["behaviour_version"]
        # Stale rows without a behaviour ratio are left out: if the staleness D is unknown, no tested equality holds for
        # S (T13).
        stale = (lag > 0) & ~np.isfinite(rows["behaviour_log_ratio"])
        fresh = fair & (since >= 1) & ~(used > 0) & np.isfinite(x) & (rows["length"] >= 1) & ~stale
        x, k3, at, self.square = x[fresh], k3[fresh], rollout[fresh], square[fresh]
        self.S, self.k3 = x, k3
        self.total_k3 = float(np.nansum(k3))
        self.S_times_L = float((S[fresh] * (L[fresh] - 1) + x).sum())
        weight = importance_weight(x) - 1
        self.weight = AnytimeMean.of(weight, at, EACH)
        self.likelihood = AnytimeMean.of(weight, at, EACH, bets=np.ones(1))
        self.token = AnytimeMean.of(k3 + x, at, EACH, LOST, GAINED)
        z, self.by_prompt, self.shift = _beyond_mates(rows)
        # How far the log length lies above, or below, the mean of the rest of the group; each response adds 1 at most.
        apart = [np.clip(sign * z[fresh], 0, 1) for sign in (1, -1)]
        self.longer, self.shorter = (AnytimeMean.of(weight * h, at, EACH) for h in apart)
        self.apart = np.array([np.nansum(h) for h in apart])
        again = rows.take((used >= 1) & np.isfinite(S) & np.isfinite(rows["advantage"]))
        self.push = AnytimeMean(EACH)
        if len(again) and again["advantage"].any():
            number, code = np.unique(again["rollout"], return_inverse=True)
            self.push.add(np.bincount(code, _pushed(again)) / np.sqrt(np.bincount(code)), number)

    @property
    def _noise(self) -> float:
        """Return an upper bound of what numerical noise of S adds to the mean weight.

        The noise is taken to be as large as S is before any update.
        """
        return 2 * math.expm1(min(self.before.rms**2 * float(self.before.L.mean()), 1.0)) if self.before.n else 0.0

    @property
    def _unlike_before(self) -> bool:
        """Whether S before the first update is more than noise explains.

        The farther the sampler's log-probs lie from the old ones, the more noise explains. If the log does not say how
        far, the distance of the new from the old log-probs is taken instead. It is large enough if all three log-probs
        have independent noise: the mean of S + k3 is then L times the variance of the noise of a token's old log-prob,
        and at most L times the mean square of the token log-ratio.
        """
        return self.before.systematic((self.mismatch if self.mismatch.n else self.before).of_tokens)

    @property
    def _explained(self) -> bool:
        """Whether S before the first update, or a mismatch that is no noise, explains that an equality is broken."""
        return self._unlike_before or self.mismatch.systematic()

    @property
    def _of_mean(self) -> bool:
        """Whether S times the length, and not S, has the mean that k3 asks for."""
        return (
            self.total_k3 > 0
            and abs(self.S_times_L / self.total_k3 + 1) < 0.25
            and abs(self.S.sum() / self.total_k3 + 1) > 0.25
        )

    @property
    def _floor(self) -> float:
        """Return the largest root mean square of S / sqrt(L) that numerical noise explains in rows logged before the
        first update of their rollout; inf if unknown.
        """
        known = [FLOAT32] if self.float32 else []
        known += [max(FLOOR * self.floor.rms, FLOAT32)] if self.floor is not None and self.floor.n >= MIN_ROWS else []
        return min(known, default=math.inf)

    def answers(self) -> list[Answer]:
        """Return the answer of each check of an equality that holds in the first epoch, such as E[e^S] = 1."""
        known = [self._before(), self._weight(), self._token(), self._spread_of_s(), self._by_length()]
        return [*known, self._drift(), self._direction()]

    def _before(self) -> Answer:
        name, line = "before_update", self.before
        if not line.n:
            return not_checked(name, "no row before the first update of a rollout")
        large = line.n >= MIN_ROWS and line.rms > self._floor
        if not self._unlike_before and not large:
            return clear(name, "S is 0 before the first update, or noise around 0", *line.evidence("S before"))
        known, why = bool(self.mismatch.n) or large, line.cause("the old log-probs")
        if large and not self._unlike_before:
            why = (
                f"its root mean square is {line.rms:.2g} nats per root token, where noise makes {self._floor:.2g} at "
                "most: it is noise of a lower precision (bfloat16), dropout, or other code for old and new log-probs"
            )
        elif not known:
            why = "the log has no E, so it does not say whether the old or the sampler's log-probs are at fault"
        return found(
            name,
            Severity.CRITICAL if known else Severity.WARNING,
            "S is not 0 before the first update, where new and old weights are one, and no noise of its size is like "
            f"it: {why}",
            "compute old and new log-probabilities of the same tokens by the same code, at the sampling temperature; "
            "log the sampler's log-probabilities (engine_log_ratio)",
            *line.evidence("S before"),
            since=line.since(),
        )

    def _weight(self) -> Answer:
        name, test = "mean_weight", self.weight
        mean, low, high = test.interval()
        evidence = Evidence("mean weight in the first epoch (expected: 1)", 1 + mean, 1 + low, 1 + high)
        if test.count < 30:
            return not_checked(name, FEW.format(test.count))
        if test.above is None or mean < WEIGHT_MARGIN + self._noise or self._explained:
            return clear(
                name, "E[e^S] is not above 1 in the first epoch (T5); of a mean below 1 nothing is said", evidence
            )
        return found(
            name,
            Severity.WARNING,
            f"the mean weight in the first epoch is {1 + mean:.3g} and not 1 (T5): S is too large: rows were trained "
            "on before, or new and old log-probs differ by noise or by tokens",
            "compare the temperature, mask and tokens of the sampler with those of the old and new log-probabilities",
            evidence,
            since=test.above,
        )

    def _token(self) -> Answer:
        name, test = "k1_k3", self.token
        if test.count < 30 or not self.total_k3:
            return not_checked(
                name, "the log has no k3_sum in the first epoch after an update (total_k3_sum under mismatch)"
            )
        mean, low, high = (v * test.count / self.total_k3 for v in test.interval())
        evidence = (
            Evidence("k1 over k3 in the first epoch (expected: 1)", 1 - mean, 1 - high, 1 - low),
            Evidence("mean k3 of a response", self.total_k3 / test.count, unit="nats"),
        )
        since = test.above if mean > 0 else test.below
        noise = self._noise * test.count / self.total_k3
        if since is None or abs(mean) < TOKEN_MARGIN + noise or self._explained:
            return clear(name, "-E[S] = E[k3] in the first epoch (T5): both estimate one KL", *evidence)
        return found(
            name,
            Severity.WARNING,
            f"-E[S] is {1 - mean:.2g} times E[k3] in the first epoch and ought to equal it (T5): "
            + (
                "S is a mean over the tokens and not their sum"
                if self._of_mean
                else "rows were trained on before, S has a token more, or noise raises k3"
                if mean > 0
                else "S loses tokens"
            )
            + ", or the responses were drawn at another temperature or by other weights",
            "compare the tokens that S and k3 sum over, and the sampler's distribution with that of the old log-probs",
            *evidence,
            since=since,
        )

    def _spread_of_s(self) -> Answer:
        """Check whether S spreads as its tokens do (T5).

        S + k3 is the sum of the tokens' e^s - 1, each of mean 0 after its prefix, so the mean of its square is that of
        the sum of (e^s - 1)^2, which is at least v = (1 - e^-r)^2, r^2 the sum of s^2.
        """
        name = "spread_of_s"
        known = np.isfinite(self.k3) & (self.square >= 0)
        a, v = (self.S + self.k3)[known] ** 2, np.expm1(-np.sqrt(self.square[known])) ** 2
        if self.token.count < MIN_ROWS or not v.sum() > 0:
            return not_checked(name, "the log has no sums over tokens in the first epoch after an update")
        ratio = float(a.sum() / v.sum())
        with np.errstate(over="ignore"):
            error = float(np.sqrt(np.sum((a - ratio * v) ** 2)) / v.sum())
        evidence = Evidence("mean of (S + k3)^2 over its least value (expected: 1 or more)", ratio, ratio - 2 * error)
        if ratio + SURE * error > STILL_SPREAD:
            return clear(name, "S spreads at least as its tokens do", evidence)
        return found(
            name,
            Severity.CRITICAL,
            f"S spreads {math.sqrt(ratio):.2g} times as much as its tokens ask for at least: "
            + (
                "it is a mean over the tokens and not their sum"
                if self._of_mean
                else "it is scaled down, or loses tokens"
            ),
            "log S as the sum of new less old log-probabilities over the response's tokens, and clip that",
            evidence,
        )

    def _by_length(self) -> Answer:
        name = "weight_by_length"
        if self.longer.count < 30 or not np.all(self.apart > 0):
            return not_checked(name, "too few rows in the first epoch after an update whose mates have other lengths")
        longer, shorter = (test.total / h for test, h in zip((self.longer, self.shorter), self.apart, strict=True))
        ends = [
            [v * test.count / h for v in test.interval()[1:]]
            for test, h in zip((self.longer, self.shorter), self.apart, strict=True)
        ]
        evidence = (
            Evidence("mean weight of responses longer than their mates", 1 + longer, *(1 + e for e in ends[0])),
            Evidence("mean weight of responses shorter than their mates", 1 + shorter, *(1 + e for e in ends[1])),
            Evidence(
                f"change of {'a prompt' if self.by_prompt else 'a rollout'}'s mean log length in a rollout", self.shift
            ),
        )
        allowed = WEIGHT_MARGIN + self._noise + 2 * self.shift * self.longer.count / float(self.apart.min())
        rise = longer - shorter
        since = self.longer.above if rise > 0 else self.shorter.above
        if since is None or abs(rise) < allowed or self._explained:
            return clear(name, "among responses to one prompt weights do not depend on the length (T5)", *evidence)
        return found(
            name,
            Severity.WARNING,
            f"among responses to one prompt weights {'rise' if rise > 0 else 'fall'} with the length more than the "
            "lengths shift (T5): something adds to S for each token",
            "look for a temperature, a padding or a mask that differs between old and new log-probabilities",
            *evidence,
            since=since,
        )

    def _drift(self) -> Answer:
        name, test = "drift_sign", self.likelihood
        if test.count < 30:
            return not_checked(name, FEW.format(test.count))
        mean = float(self.S.mean())
        evidence = (
            Evidence("mean S in the first epoch (expected: -KL, below 0)", mean, unit="nats"),
            Evidence("sum of S in the first epoch", float(self.S.sum()), unit="nats"),
        )
        if test.above is None or mean < WEIGHT_MARGIN or self._explained:
            return clear(name, "E[S] is not above 0 in the first epoch", *evidence)
        return found(
            name,
            Severity.CRITICAL,
            "E[S] is above 0 in the first epoch, which no ratio to the distribution that drew the responses can be "
            "(E[S] = -KL)",
            "look at the sign of S (new less old), and whether these responses were trained on before",
            *evidence,
            since=test.above,
        )

    def _direction(self) -> Answer:
        name, test = "direction", self.push
        if not test.count:
            return not_checked(name, "no row of a response that an update has trained on before")
        mean, low, high = test.interval()
        evidence = Evidence(
            "A, as a share of the rollout's largest, times S less its group's mean, where trained on",
            mean,
            low,
            high,
            "nats",
        )
        sigma = math.sqrt(max(test.square / test.count - mean * mean, 0.0)) if test.count > 1 else math.inf
        against = test.count >= 5 and mean * math.sqrt(test.count) < -4 * max(sigma, 1e-12) and mean < 0
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


def _beyond_mates(rows: Rows) -> tuple[Floats, bool, float]:
    """Compare each response's log length with the mean log length of the prompt's other responses.

    Return the difference (N,), NaN where there are no others; whether a prompt came twice; and by how much a prompt's
    mean log length changes, up or down, from one rollout to the next, averaged over the prompts of a rollout and then
    over rollouts. If no prompt came twice, this is the absolute slope of a line fitted to each rollout's mean log
    length; 0 for a single rollout.
    """
    z, first, group = np.log(rows.L), rows.first, rows.cluster
    n, total = (np.bincount(group[first], x, rows.clusters) for x in (np.ones(int(first.sum())), z[first]))
    place = np.zeros(len(n), np.int64)
    place[group] = np.arange(len(group))
    prompt, rollout, mean = rows["prompt_id"][place], rows["rollout"][place], total / n
    order = np.lexsort((rollout, prompt))
    again = np.flatnonzero(np.diff(prompt[order]) == 0)
    before, after = order[again], order[again + 1]
    if len(again):
        code = numbered(rollout[after])
        changes = (mean[after] - mean[before]) / (rollout[after] - rollout[before])
        shift = float(np.mean(np.abs(np.bincount(code, changes) / np.bincount(code))))
    else:
        number, code = np.unique(rollout, return_inverse=True)
        level = np.bincount(code, total) / np.bincount(code, n)
        shift = abs(float(np.polyfit(number, level, 1)[0])) if len(number) > 1 else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.where(n[group] > 1, z - (total[group] - z) / (n[group] - 1), np.nan)
    return apart, len(again) > 0, shift


def _pushed(rows: Rows) -> Floats:
    """Return A (S - mean of S) for each row (N,), with the mean over the rows of the same group and minibatch.

    The sum over a group is a covariance of A and S, which is positive if updates raise S where A is large. A drift of S
    that all responses of the group share cancels in the sum. A is divided by the rollout's largest |A|, and S less its
    mean is limited to 1 nat. If groups have fewer than 2 rows in a minibatch on average, the mean is over all rows of
    the minibatch.
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
