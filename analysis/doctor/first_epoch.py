"""Test equalities that hold in the first epoch of every sound run, for any policy, task and rule.

Over responses drawn by the old policy, the weight e^S has mean 1, and so has e^s of each token given the tokens before
it (docs/theory.md, T5; S is the log-ratio, s that of a token). All tests together give a false alarm with probability
``LEVEL`` at most, however often a run is looked at (`analysis.stats.anytime`). They use only responses that would have
been logged whatever their reward (`by_rewards`).

DAPO's dynamic sampling drops groups with equal rewards. Then a response that is logged only because of its own reward
is no fair draw from the policy; but one whose mates (the others of its group) already differ in theirs is."""

from __future__ import annotations

import math

import numpy as np

from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.line import FLOAT32, SOUND, Line
from analysis.doctor.patient import MIN_ROWS, Floats, Mask, Rows
from analysis.rules.recompute import ratio
from analysis.stats.anytime import AnytimeMean
from fspo.rules import importance_weight
from fspo.stats.clusters import totals

LEVEL = 0.007
"""Largest probability that a sound run gets an issue from any of the ``TESTS`` tests, however often it is examined.

The tests whether a mean weight exceeds 1, and whether E[S] exceeds 0, keep this level for every distribution of S. No
test reports a mean weight below 1, because large weights that are too rare to be in the log yet may make up for it.
Checks with thresholds of their own are not among the tests."""
TESTS = 5  # number of tests, each of which gets an equal part of ``LEVEL``
EACH = LEVEL / TESTS
LOST, GAINED = 4.0, 2.0**17
"""The test that compares -E with k3 keeps its level if k3 + E of a response, the sum of e^s - 1 over its tokens, lies
between -LOST and GAINED. It comes near -LOST if LOST tokens have become impossible. GAINED = 131,072 is e^s of a token
that is certain now and was one of 131,072 equally likely tokens when it was sampled."""
WEIGHT_MARGIN = 0.01  # smallest distance of a mean weight from 1 that is reported
STILL_SPREAD, SURE = 0.8, 5.0
"""S is reported as too small if the mean of (S + k3)^2 lies below this share of its least value, by this many standard
errors. It is not among the tests: it has no level that holds for every distribution."""
RARE, LEAST_GROUPS = 0.01, 30
"""Groups were selected if, of at least ``LEAST_GROUPS`` groups with rewards of two values, at most the share ``RARE``
has equal rewards."""
FEW = "{} rows in the first epoch after an update, 30 are wanted (those of older weights without D + E do not count)"


class FirstEpoch:
    """Tests of the equalities on ``rows`` (N,) of complete rollouts, of which ``fair`` (N,) marks those that would be
    logged whatever their reward (`by_rewards`). ``float32`` says whether the trainer computes in float32, by its
    configuration. If sampler and trainer differ by more than float32 explains, S + D + E is tested and not S."""

    def __init__(self, rows: Rows, fair: Mask, *, float32: bool = False) -> None:
        S, E, self.float32 = rows.S, ratio(rows.columns, "behaviour"), float32
        x, k3, square = S, rows["k3_sum"], rows["sum_sq_log_ratio"]
        since = rows["updates_since_rollout"]
        self.before = Line(rows.take(since == 0), S[since == 0], k3[since == 0])
        self.mismatch = Line(rows, E, rows["behaviour_k3_sum"])
        if self.mismatch.n and self.mismatch.rms > FLOAT32:
            x, k3, square = S + E, rows["total_k3_sum"], rows["total_sum_sq"]
        # Rows of older weights without a rollout-policy ratio are left out: if D, the part of the policy lag, is
        # unknown, no tested equality holds for S (T13).
        stale = (rows.lag > 0) & ~np.isfinite(rows["behaviour_log_ratio"])
        fresh = fair & (since >= 1) & ~(rows["times_used"] > 0) & np.isfinite(x) & (rows["length"] >= 1) & ~stale
        self.k3, self.square = k3[fresh], square[fresh]
        self.if_mean = x[fresh] + S[fresh] * (rows.L[fresh] - 1)  # what x is if S is a mean over the tokens
        self.line = Line(rows.take(fresh), x[fresh], self.k3)
        weight = importance_weight(self.line.x) - 1
        self.weight = AnytimeMean.of(weight, self.line.rollout, EACH)
        self.likelihood = AnytimeMean.of(weight, self.line.rollout, EACH, bets=np.ones(1))
        # Few responses carry the mean weight if the others' mean does not differ from 1.
        others = np.delete(weight, self.line.carriers)
        error = float(others.std()) / math.sqrt(len(others)) if len(others) else math.inf
        few = len(others) < len(weight) and others.sum() < (WEIGHT_MARGIN + 2 * error) * len(others)
        self.carriers = self.line.carried() if few else ""
        # Noise explains a mean of S + k3 before the first update the more, the farther the old log-probs lie from the
        # sampler's (root mean square over tokens). If that distance is not logged, the one of new and old log-probs is
        # taken, which is at least as large if new, old and sampler's log-probs have independent noise.
        noise = (self.mismatch if self.mismatch.n else self.before).of_tokens
        self.unlike_before = self.before.systematic(noise)

    def answers(self) -> dict[str, Answer]:
        """Return the answers of the checks of equalities that hold in the first epoch, by their names."""
        return {"before_update": self._before(), "mean_weight": self._weight(), "spread_of_s": self._spread_of_s()}

    def _before(self) -> Answer:
        line = self.before
        if not line.n:
            return not_checked("no row before the first update of a rollout")
        large, unlike = self.float32 and line.n >= MIN_ROWS and line.rms > FLOAT32, self.unlike_before
        evidence = line.evidence("S before")
        if not unlike and not large:
            return clear("S is 0 before the first update, or noise around 0", *evidence)
        known, why = bool(self.mismatch.n) or large, line.cause("the old log-probs")
        if not unlike:
            why = "it is noise of a lower precision (bfloat16), dropout, or other code for old and new log-probs"
        elif not known:
            why = "the log has no E, so it does not say whether the old or the sampler's log-probs are at fault"
        what = f"S is not 0 ({line.rms:.2g} nats per root token) before the first update, where new and old weights "
        what += f"are one, and no noise of its size is like it: {why}"
        fix = "compute old and new log-probabilities of the same tokens by the same code, at the sampling temperature; "
        fix += "log the sampler's log-probabilities (engine_log_ratio)"
        severity = Severity.CRITICAL if known else Severity.WARNING
        return found(what, fix, *evidence, since=line.since(), severity=severity)

    def _weight(self) -> Answer:
        """Check whether E[e^S] is above 1 (T5), and whether E[S] is above 0: in a sound run it is -KL, at most 0."""
        test, before = self.weight, self.before
        if test.count < 30:
            return not_checked(FEW.format(test.count))
        (mean, low, high), of_S = test.interval(), float(self.line.x.mean())
        evidence = Evidence("mean weight in the first epoch (expected: 1)", 1 + mean, 1 + low, 1 + high)
        # Numerical noise of S, taken to be as large as S is before any update, adds this to the mean weight at most.
        noise = 2 * math.expm1(min(before.rms**2 * float(before.L.mean()), 1.0)) if before.n else 0.0
        above = test.above if mean >= WEIGHT_MARGIN + noise else None
        positive = self.likelihood.above if of_S >= WEIGHT_MARGIN else None
        since = min((rollout for rollout in (above, positive) if rollout is not None), default=None)
        if since is None or self.unlike_before or self.mismatch.systematic():
            return clear("E[e^S] is not above 1 in the first epoch (T5); of a mean below 1 nothing is said", evidence)
        text = f"the mean weight in the first epoch is {1 + mean:.3g} and not 1 (T5): "
        if self.carriers:
            return found(text + self.carriers, SOUND, evidence, since=since)
        if positive is not None:
            what = f"E[S] is above 0 ({of_S:.3g} nats) in the first epoch, which no ratio to the distribution that "
            what += "drew the responses can be (E[S] = -KL)"
            fix = "look at the sign of S (new less old), and whether these responses were trained on before"
            return found(what, fix, evidence, since=since, severity=Severity.CRITICAL)
        what = f"{text}S is too large: rows were trained on before, or new and old log-probs differ by noise or tokens"
        fix = "compare the temperature, mask and tokens of the sampler with those of the old and new log-probabilities"
        return found(what, fix, evidence, since=since)

    def _spread_of_s(self) -> Answer:
        """Check whether the mean of (S + k3)^2 is at least the mean of v, a lower bound that the tokens give (T5).

        S + k3 is the sum over tokens of e^s - 1, each of mean 0 given the tokens before it. So the mean of (S + k3)^2
        is that of the sum of (e^s - 1)^2, and this sum is at least v = (1 - e^-r)^2, with r^2 the sum of s^2."""
        S, known = self.line.x, np.isfinite(self.k3) & (self.square >= 0)
        a, v = (S + self.k3)[known] ** 2, np.expm1(-np.sqrt(self.square[known])) ** 2
        if len(v) < MIN_ROWS or not v.sum() > 0:
            return not_checked("the log has no sums over tokens in the first epoch after an update")
        ratio = float(a.sum() / v.sum())
        with np.errstate(over="ignore"):
            error = float(np.sqrt(np.sum((a - ratio * v) ** 2)) / v.sum())
        evidence = Evidence("mean of (S + k3)^2 over its least value (expected: 1 or more)", ratio, ratio - 2 * error)
        if ratio + SURE * error > STILL_SPREAD:
            return clear("S spreads at least as its tokens do", evidence)
        # The mean of S must be -E[k3]. If only the mean of S times L is, S was logged as a mean over tokens.
        k3, why = float(np.nansum(self.k3)), "it is scaled down or held at a limit, or loses tokens"
        if k3 > 0 and abs(self.if_mean.sum() / k3 + 1) < 0.25 < abs(S.sum() / k3 + 1):
            why = "S is a mean over the tokens and not their sum"
        what = f"S spreads {math.sqrt(ratio):.2g} times as much as its tokens ask for at least: {why}"
        fix = "log S as the sum of new less old log-probabilities over the response's tokens, and clip that"
        return found(what, fix, evidence, severity=Severity.CRITICAL)


def by_rewards(rows: Rows) -> tuple[Mask, bool]:
    """Return a mask (N,) of the rows that would be logged whatever their reward, because those of their mates differ;
    and whether groups were selected (as by dynamic sampling, so that the log has hardly a group with equal rewards).

    The mask is also True without a reward or with fewer than two mates: the log cannot show why those were logged."""
    reward, group = rows["reward"], rows.cluster
    first = rows.first & np.isfinite(reward)
    r, g = reward[first], group[first]
    n, total, square = (totals(g, rows.clusters, x) for x in (np.ones_like(r), r, r * r))
    several = n >= 2
    equal = _equal(n, total, square)[several].sum() <= RARE * several.sum()
    selected = bool(equal and several.sum() >= LEAST_GROUPS and len(np.unique(r)) == 2)
    mates = _equal(n[group] - 1, total[group] - reward, square[group] - reward**2)
    # A row without a reward (NaN) gets True too, because a comparison with NaN is False.
    return ~(mates & (n >= 3)[group]), selected


def _equal(n: Floats, total: Floats, square: Floats) -> Mask:
    """Return for each group whether its ``n`` rewards, with sum ``total`` and sum of squares ``square``, are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        return n * square - total**2 <= 1e-9 * (1 + n * square)
