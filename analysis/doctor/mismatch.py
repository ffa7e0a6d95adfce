"""Check the log-ratios other than S: the engine mismatch E of sampler and trainer, and the staleness D. Also check how
much weight a correction of E or D + E leaves to responses of each length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.laws import EACH, GAINED, LOST, WEIGHT_MARGIN
from analysis.doctor.line import FLOAT32, Line
from analysis.doctor.patient import MIN_ROWS, Floats, Mask, Rows
from analysis.rules.recompute import ratio
from analysis.stats.anytime import AnytimeMean
from fspo.rules import Rule, exponent, importance_weight

LARGE = 0.1
"""Root mean square of E / sqrt(L), in nats, above which E is reported whatever its cause. A bfloat16 sampler with a
float32 trainer gives about .04.
"""
WIDE = 0.5
"""Standard deviation of D + E in some octave of lengths, nats, above which the mismatch of a run without a correction
counts as unbounded. It is reported if E is also above half of ``LARGE``, or the standard deviation above twice this.
"""
THIRD, HALF = 1 / 3, 0.5
"""Thresholds of the share of weight that a correction leaves: the sum of the responses' weights after it over the sum
before it, in one octave of lengths (L to 2 L). A share below ``THIRD`` is reported. If the share is ``HALF`` or more in
every octave, a large E that looks like noise (E[e^E] = 1, docs/theory.md, T16) is reported for information only.
"""
POSITIVE = 0.05
"""In a sound run x + k3 has mean 0, and the check sampler_law assumes that it is above 0 in at least this share of the
responses. x is E, or D + E where E is unknown; k3 is the sum of e^s - 1 - s over the token log-ratios s of x.
Truncated sampling (top-p, top-k) makes x + k3 negative in all responses.
"""
STALE = 0.2
"""Root mean square of the staleness D of stale responses, nats, above which a run without a correction is reported."""
OCTAVES = 24
SAMPLER = "the sampler's log-probs"


@dataclass
class Mismatch:
    """Sums over rows for the checks of E and D: E, D + E and weights by octave of the length, D by age of the weights.

    An octave is the range of lengths [2^k, 2^(k+1)). Pass complete rollouts to ``add``.

    Parameters
    ----------
    correction : Rule, optional
        The correction that the run trained with.
    same : bool
        Whether the configuration says that sampler and trainer are one program at one precision, so that E is 0.
    imported : bool
        Whether the log was made from another trainer's table, in which the weights' version may not count updates.
    """

    correction: Rule | None = None
    same: bool = False
    imported: bool = False
    engine: Line = field(default_factory=Line)
    weight: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    token: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH, LOST, GAINED))
    k3: float = 0.0
    below: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    # For each octave of lengths: number of rows, sum and sum of squares of D + E.
    by_length: Floats = field(default_factory=lambda: np.zeros((OCTAVES, 3)))
    # For each octave of lengths: number of rows, sum of the weights after the correction, sum of the weights before it.
    kept: Floats = field(default_factory=lambda: np.zeros((OCTAVES, 3)))
    cut_since: int | None = None
    # By lag (updates between the weights that sampled and the old weights): number of responses, number whose D
    # is known, sum of squares of these D, number whose D + E is known, sum of squares of these D + E.
    lags: dict[int, Floats] = field(default_factory=dict)
    stale_since: int | None = None
    contradicting: int = 0
    # moved: number of rows logged after an update on their rollout, and how many of these rows have S != 0.
    # still: number of stale responses whose D is known, and how many of these responses have D exactly 0.
    moved: Floats = field(default_factory=lambda: np.zeros(2))
    still: Floats = field(default_factory=lambda: np.zeros(2))

    def add(self, rows: Rows, fair: Mask) -> None:
        """Add the rows of complete rollouts to this object's sums, from which the checks of E and D are made.

        Only the first row of each response counts, except in the fields ``kept`` and ``moved``, for which every row
        counts. ``fair`` (N,) marks the rows that would have been logged whatever their reward.
        """
        first = rows.first & (rows["length"] >= 1)
        c = rows.columns
        L, rollout, octave = rows.L, rows["rollout"], np.log2(rows.L).astype(np.int64)
        E, behaviour = c["engine_log_ratio"], ratio(c, "behaviour")
        self.engine.add(E[first], L[first], rollout[first], c["engine_k3_sum"][first])
        x = np.where(np.isfinite(E), E, behaviour)
        k3 = np.where(np.isfinite(E), c["engine_k3_sum"], c["behaviour_k3_sum"])
        drawn = first & fair
        self.weight.add((importance_weight(x) - 1)[drawn], rollout[drawn])
        self.token.add((k3 + x)[drawn], rollout[drawn])
        self.k3 += float(np.nansum(k3[drawn]))
        # `below` tests whether x + k3 is above 0 in less than the share ``POSITIVE`` of the responses, with x = E, or D
        # + E where E is unknown. In a row without k3 the sign of x counts instead, if |x| is at most 1 nat.
        known = np.isfinite(k3)
        y = np.where(known, k3 + x, x)
        signed = drawn & np.isfinite(y) & (y != 0) & (known | (np.abs(x) <= 1))
        self.below.add(np.where(y[signed] > 0, POSITIVE - 1, POSITIVE), rollout[signed])
        self._tally(self.by_length, octave, first & np.isfinite(behaviour), np.ones_like(L), behaviour, behaviour**2)
        weight = c["correction_weight"]
        if self.correction is not None:
            base = importance_weight(exponent(ratio(c, self.correction.on), L, self.correction.weight))
            base = base if self.correction.level == "sequence" else np.ones_like(L)
            good = np.isfinite(weight) & np.isfinite(base)
            self._tally(self.kept, octave, good, np.ones_like(L), weight, base)
        lag, D = (
            rows["policy_version"] - rows["updates_since_rollout"] - rows["behaviour_version"],
            c["staleness_log_ratio"],
        )
        known = first & np.isfinite(lag)
        self.contradicting += int(np.sum(known & (lag == 0) & np.isfinite(D) & (np.abs(D) > 1e-9)))
        after = (rows["updates_since_rollout"] >= 1) & np.isfinite(rows.S)
        self.moved += (after.sum(), np.sum(rows.S[after] != 0))
        stale = known & (lag > 0) & np.isfinite(D)
        self.still += (stale.sum(), np.sum(D[stale] == 0))
        for number in np.unique(lag[known]):
            here = known & (lag == number)
            sums = self.lags.setdefault(int(number), np.zeros(5))
            sums[0] += here.sum()
            for k, x in ((1, D[here]), (3, behaviour[here])):
                sums[k : k + 2] += (np.isfinite(x).sum(), np.nansum(x * x))
        if self.stale_since is None and np.any(lag[known] > 0):
            self.stale_since = int(rollout[known & (lag > 0)].min())

    @staticmethod
    def _tally(sums: Floats, octave: np.ndarray, which: np.ndarray, *values: Floats) -> None:
        for k, x in enumerate(values):
            sums[:, k] += np.bincount(octave[which], x[which], OCTAVES)[:OCTAVES]

    def answers(self) -> list[Answer]:
        """Return the answers of the checks of the mismatch: law of the sampler, engine, correction and staleness."""
        return [self._law(), self._engine(), self._correction(), self._staleness()]

    def _deviations(self) -> list[tuple[int, float]]:
        """Return the least length and the standard deviation of D + E of each octave of lengths with enough rows."""
        n, x, square = self.by_length.T
        some = np.flatnonzero(n >= MIN_ROWS)
        return [(2**k, math.sqrt(max(square[k] / n[k] - (x[k] / n[k]) ** 2, 0.0))) for k in some.tolist()]

    def _law(self) -> Answer:
        """Check whether e^E has mean 1. The mean is 1 if the sampler's logged log-probabilities are those of the
        distribution that drew the tokens (docs/theory.md, T16).
        """
        name, line = "sampler_law", self.engine
        if line.n < MIN_ROWS:
            return not_checked(name, "the log holds no engine_log_ratio")
        mean, low, high = self.weight.interval()
        evidence = [Evidence("mean of e^E (law: 1)", 1 + mean, 1 + low, 1 + high), *line.evidence("E")]
        broken = [self.weight.above] if mean > WEIGHT_MARGIN else []
        if self.k3 > 0:
            ends = [v * self.token.count / self.k3 for v in self.token.interval()]
            evidence.append(Evidence("k1 over k3 of E (law: 1)", 1 - ends[0], 1 - ends[2], 1 - ends[1]))
            if abs(self.token.mean) > WEIGHT_MARGIN:
                broken.append(self.token.above if self.token.mean > 0 else self.token.below)
        if line.one_sided and abs(line.x / line.n) > WEIGHT_MARGIN:
            broken.append(self.below.above)
        since = [rollout for rollout in broken if rollout is not None]
        if line.rms <= FLOAT32 or not since:
            return clear(
                name, "E is near 0, or E[e^E] = 1; raw log-probs of truncated sampling would hide it", *evidence
            )
        return found(
            name,
            Severity.WARNING,
            f"the sampler's log-probs are not those of the law that the trainer's weights give (mean of e^E "
            f"{1 + mean:.3g}, law 1): {line.cause(SAMPLER)}",
            "let the sampler return processed log-probabilities of the tokens that it drew (temperature and top-p "
            "included), sum both over the same tokens, and set top_p 1 or correct for it",
            *evidence,
            since=min(since),
        )

    def _engine(self) -> Answer:
        """Say how large the engine mismatch E is, and name a likely cause.

        A large E is a warning. Its severity is only INFO if all of these hold: E looks like noise alone, the
        configuration lets E differ from 0, the correction leaves enough weight at every length, and D + E is corrected
        or spreads little.
        """
        name, line = "engine", self.engine
        if line.n < MIN_ROWS:
            return not_checked(name, "the log holds no engine_log_ratio")
        spread, left = self._deviations(), self._left()
        worst = min(left.values(), default=1.0)
        evidence = (
            *line.evidence("E"),
            *(Evidence(f"sd of D + E, L from {at}", sd, unit="nats") for at, sd in spread),
            *(Evidence(f"weight that the correction leaves, L from {at}", x, unit="share") for at, x in left.items()),
        )
        unbounded = self.correction is None and max((sd for _, sd in spread), default=0.0) > WIDE
        if self.same and line.rms > FLOAT32:
            what = "sampler and trainer are one program at one precision, and E is not 0"
        elif line.rms > LARGE or (line.systematic() and line.rms > LARGE / 2):
            what = "sampler and trainer differ far beyond rounding"
        elif unbounded and (line.rms > LARGE / 2 or max(sd for _, sd in spread) > 2 * WIDE):
            what = "the mismatch of sampler and trainer grows with the length, and no correction bounds it"
        else:
            return clear(
                name,
                "sampler and trainer agree up to rounding"
                if line.rms <= FLOAT32
                else "sampler and trainer differ as programs of another precision do",
                *evidence,
            )
        harmless = not (self.same or line.systematic() or line.one_sided or unbounded or worst < HALF)
        return found(
            name,
            Severity.INFO if harmless else Severity.WARNING,
            f"{what}: {line.cause(SAMPLER)}",
            "compare temperature, weights' version and precision of sampler and trainer; a correction with a sqrt band "
            "(engine-sqrt) bounds what is left alike at every length",
            *evidence,
            since=line.first,
        )

    def _left(self) -> dict[int, float]:
        """Return the share of the responses' weight that the correction leaves, for each octave of lengths (2^k to
        2^(k+1) - 1 tokens), by the octave's least length. Octaves with too few rows are left out.
        """
        n, left, base = self.kept.T
        return {2**k: float(left[k] / base[k]) for k in np.flatnonzero((n >= MIN_ROWS) & (base > 0)).tolist()}

    def _correction(self) -> Answer:
        name = "correction"
        if self.correction is None:
            return not_checked(name, "the log's header names no correction")
        shares = self._left()
        if not shares:
            return not_checked(name, "no octave of lengths has enough rows with a correction_weight")
        evidence = [Evidence(f"weight left, L from {at}", share, unit="share") for at, share in shares.items()]
        worst = min(shares, key=lambda at: shares[at])
        if shares[worst] >= THIRD:
            return clear(name, "the correction leaves every length more than a third of its weight", *evidence)
        return found(
            name,
            Severity.WARNING,
            f"correction {self.correction.label} leaves responses of {worst} to {2 * worst - 1} tokens "
            f"{shares[worst]:.0%} of their weight",
            "a product mask cuts long responses and a geometric one short ones (docs/theory.md, T2, T17): take a sqrt "
            "band (engine-sqrt) or a wider range; or mend the mismatch",
            *evidence,
        )

    def _staleness(self) -> Answer:
        name = "staleness"
        if not self.lags:
            return not_checked(name, "the log holds no behaviour_version")
        total = sum(s[0] for s in self.lags.values())
        stale = {lag: s for lag, s in self.lags.items() if lag > 0}
        number = sum(s[0] for s in stale.values())
        share = Evidence("responses that older weights sampled", number / total, unit="share")
        evidence = [share]
        for lag, s in sorted(stale.items())[:6]:
            for what, n, square in (("D", s[1], s[2]), ("D + E", s[3], s[4])):
                if n and (what == "D" or not s[1]):
                    name_of = f"rms of {what} at a lag of {lag} updates"
                    evidence.append(Evidence(name_of, math.sqrt(square / n), unit="nats"))
        version = "write behaviour_version when the response is sampled"
        if any(lag < 0 for lag in self.lags):
            summary = "responses were sampled by weights that did not exist yet, by their versions"
            return found(name, Severity.WARNING, summary, version, *evidence)
        if self.contradicting:
            summary = f"D is not 0 in {self.contradicting} responses that, by version, the present weights sampled"
            return found(name, Severity.WARNING, summary, version, *evidence)
        unmoved = self.still[0] >= MIN_ROWS and self.still[1] == self.still[0]
        if unmoved and 2 * self.moved[1] > self.moved[0] and not self.imported:
            summary = "D is 0 in every response that, by version, older weights sampled, though updates move S"
            return found(name, Severity.WARNING, summary, version, *evidence, since=self.stale_since)
        measured = sum(s[1] for s in stale.values())
        if measured < number / 2:
            both = sum(s[3] for s in stale.values())
            size = math.sqrt(sum(s[4] for s in stale.values()) / both) if both else math.nan
            summary = f"{share.value:.0%} of the responses were sampled by older weights, and their D is not known"
            summary += f": the rms of their D + E is {size:.2g} nats" if both else ""
            fix = "log old log-probabilities of the version that sampled; until then judge D + E as one ratio"
            return found(name, Severity.INFO, summary, fix, *evidence, since=self.stale_since)
        rms = math.sqrt(sum(s[2] for s in stale.values()) / max(measured, 1))
        if rms > STALE and self.correction is None:
            return found(
                name,
                Severity.WARNING,
                f"{share.value:.0%} of the responses were sampled by older weights, and nothing corrects their ratio "
                f"(rms of D {rms:.2g} nats)",
                "set a correction on the behaviour ratio, or sample with newer weights",
                *evidence,
                since=self.stale_since,
            )
        text = "no response is stale" if not stale else "stale responses hardly differ, or are corrected"
        return clear(name, text, *evidence)
