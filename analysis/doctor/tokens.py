"""Check logged token log-ratios s: whether those of a response add up to S, and whether E[e^s] = 1 given the earlier
tokens (T5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.first_epoch import EACH, GAINED, WEIGHT_MARGIN
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
    wrong: dict[str, int] = field(default_factory=dict)
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
        for what, wrong in (
            ("have another number of tokens than the length", count),
            ("do not add up to S", known & ~count & (np.abs(own - rows.S) > ROUNDING + 1e-4 * np.abs(rows.S))),
        ):
            if wrong.any():
                self.wrong[what] = self.wrong.get(what, 0) + int(wrong.sum())
                first = int(rows["rollout"][wrong].min())
                self.since = first if self.since is None else min(self.since, first)
        whole = len(flat) > 1 and len(flat[1]) == len(flat[0])
        s = flat[0] + flat[1] if whole else flat[0]
        apart = np.zeros(len(size), bool) if whole else np.abs(np.nan_to_num(rows["behaviour_log_ratio"])) > ROUNDING
        tested = known & ~count & fair & ~apart & (rows["updates_since_rollout"] >= 1) & (rows["times_used"] == 0)
        use = tested[row] & np.isfinite(s)
        x, row = np.expm1(np.minimum(s[use], MAX_EXPONENT)), row[use]
        position = (np.arange(len(use)) - np.repeat(np.cumsum(size) - size, size))[use] + 1
        self.mean.add(x, rows["rollout"][row])
        octave = np.log2(position).astype(np.int64)
        for k, values in enumerate((np.ones_like(x), x, x * x)):
            self.sums[:, k] += np.bincount(octave, values, OCTAVES)[:OCTAVES]

    def answer(self) -> Answer:
        """Say whether each list of token log-ratios adds up to S, and whether the mean of e^s over all tokens is 1.

        The evidence shows the mean of e^s for each octave of positions.
        """
        name = "tokens"
        if not self.rows:
            return not_checked(name, "the log has no token log-ratios (--log.tokens true)")
        wrong = [
            Evidence(f"token log-ratios that {what}", n / self.rows, unit="share") for what, n in self.wrong.items()
        ]
        if wrong:
            return found(
                name,
                Severity.WARNING,
                "; ".join(f"the token log-ratios of {n} of {self.rows} rows {what}" for what, n in self.wrong.items()),
                "log one number for each token that counts, the end-of-sequence token included, in the order of S",
                *wrong,
                since=self.since,
            )
        n, total, square = self.sums[self.sums[:, 0] > 1].T
        mean = total / n
        error = np.sqrt(np.maximum(square / n - mean**2, 0) / n)
        places = [2**k for k in np.flatnonzero(self.sums[:, 0] > 1).tolist()]
        half = t_quantile(np.inf)
        evidence = [
            Evidence(f"mean of e^s from position {at} on (expected: 1)", 1 + m, 1 + m - half * e, 1 + m + half * e)
            for at, m, e in zip(places, mean.tolist(), error.tolist(), strict=True)
        ]
        test = self.mean
        since = test.above if test.total > 0 else test.below
        if since is None or abs(test.mean) < WEIGHT_MARGIN / 10 or math.isnan(test.mean):
            return clear(name, "token log-ratios add up to S, and E[e^s] = 1 in the first epoch (T5)", *evidence)
        off = [at for at, m, e in zip(places, mean.tolist(), error.tolist(), strict=True) if abs(m) > 5 * e]
        where = f"from position {off[0]} on" if off else "over all positions"
        return found(
            name,
            Severity.WARNING,
            f"E[e^s] of a token after its prefix is {1 + test.mean:.3g} in the first epoch and not 1 (T5), {where}",
            "compare new and old log-probabilities of the same token: one of them may be shifted by a token",
            *evidence,
            since=since,
        )
