"""Check logged token log-ratios s: whether those of a response add up to S, and whether E[e^s] = 1 given the earlier
tokens (T5).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.first_epoch import EACH, GAINED, WEIGHT_MARGIN
from analysis.doctor.issues import Answer, Evidence, clear, found, not_checked
from analysis.doctor.patient import Floats, Mask, Rows
from analysis.stats.anytime import AnytimeMean
from fspo.gradlog import GradLog
from fspo.gradlog.schema import TOKEN_COLUMNS
from fspo.rules.clip import MAX_EXPONENT
from fspo.stats.intervals import t_quantile

ROUNDING = 1e-3
"""Largest difference between S and the sum of its token log-ratios, nats, that counts as rounding, besides 1e-4 |S|."""
OCTAVES = 24


@dataclass
class TokenSums:
    """Sums over token log-ratios for each octave [2^k, 2^(k+1)) of the token's position in the response.

    The first token has position 1. Pass complete rollouts to ``add``.
    """

    rows: int = 0
    # For each defect of a row's list of token log-ratios, the number of rows that have it.
    wrong: Counter[str] = field(default_factory=Counter)
    since: int | None = None
    mean: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH, 1.0, GAINED))
    # By octave [2^k, 2^(k+1)) of a token's position in its response: number of tokens, sum and sum of squares of
    # e^s - 1.
    sums: Floats = field(default_factory=lambda: np.zeros((OCTAVES, 3)))

    def add(self, log: GradLog, rows: Rows, fair: Mask) -> None:
        """Add the lists of token log-ratios of the rows (N,).

        ``fair`` (N,) marks the rows that would have been logged whatever their reward.
        """
        names = [name for name in TOKEN_COLUMNS if name in log]
        if TOKEN_COLUMNS[0] not in names:
            return
        lists = [log.table[name].combine_chunks() for name in names]
        size = np.asarray(lists[0].value_lengths().fill_null(0), np.int64)
        flat = [np.asarray(x.flatten(), np.float64) for x in lists]
        row = np.repeat(np.arange(len(size)), size)
        own = np.bincount(row, flat[0], len(size))
        known = (size > 0) & np.isfinite(own) & np.isfinite(rows.S)
        self.rows += int(known.sum())
        count = known & (size != rows["length"])
        apart = known & ~count & (np.abs(own - rows.S) > ROUNDING + 1e-4 * np.abs(rows.S))
        self.wrong += Counter(
            {"have another number of tokens than the length": int(count.sum()), "do not add up to S": int(apart.sum())}
        )
        if self.since is None and np.any(count | apart):
            self.since = int(rows["rollout"][count | apart].min())
        whole = len(flat) > 1 and len(flat[1]) == len(flat[0])
        s = flat[0] + flat[1] if whole else flat[0]
        same = whole | ~(np.abs(rows["behaviour_log_ratio"]) > ROUNDING)
        tested = known & ~count & fair & same & (rows["updates_since_rollout"] >= 1) & (rows["times_used"] == 0)
        use = tested[row] & np.isfinite(s)
        x, row = np.expm1(np.minimum(s[use], MAX_EXPONENT)), row[use]
        position = (np.arange(len(use)) - np.repeat(np.cumsum(size) - size, size))[use] + 1
        self.mean.add(x, rows["rollout"][row])
        octave = np.log2(position).astype(np.int64)
        for k, values in enumerate((np.ones_like(x), x, x * x)):
            self.sums[:, k] += np.bincount(octave, values, OCTAVES)[:OCTAVES]

    def answer(self) -> Answer:
        """Say whether each list of token log-ratios adds up to S, and whether the mean of e^s over all tokens is 1.

        The evidence shows the mean of e^s in the first octaves of positions, or in the first where it is not 1.
        """
        if not self.rows:
            return not_checked("the log has no token log-ratios (--log.tokens true)")
        if wrong := +self.wrong:
            return found(
                "; ".join(f"the token log-ratios of {n} of {self.rows} rows {what}" for what, n in wrong.items()),
                "log one number for each token that counts, the end-of-sequence token included, in the order of S",
                since=self.since,
            )
        known = self.sums[:, 0] > 1
        n, total, square = self.sums[known].T
        mean = total / n
        error = np.sqrt(np.maximum(square / n - mean**2, 0) / n)
        octaves = list(zip((2 ** np.flatnonzero(known)).tolist(), mean.tolist(), error.tolist(), strict=True))
        off = [(at, m, e) for at, m, e in octaves if abs(m) > 5 * e]
        half = t_quantile(np.inf)
        evidence = [
            Evidence(f"mean of e^s from position {at} on (expected: 1)", 1 + m, 1 + m - half * e, 1 + m + half * e)
            for at, m, e in (off or octaves)[:3]
        ]
        test = self.mean
        since = test.above if test.total > 0 else test.below
        if since is None or abs(test.mean) < WEIGHT_MARGIN / 10 or math.isnan(test.mean):
            return clear("token log-ratios add up to S, and E[e^s] = 1 in the first epoch (T5)", *evidence)
        where = f"from position {off[0][0]} on" if off else "over all positions"
        return found(
            f"E[e^s] of a token after its prefix is {1 + test.mean:.3g} in the first epoch and not 1 (T5), {where}",
            "compare new and old log-probabilities of the same token: one of them may be shifted by a token",
            *evidence,
            since=since,
        )
