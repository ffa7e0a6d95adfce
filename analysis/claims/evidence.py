"""The number that an atom is judged by, its p-values, and the verdicts of atoms and headlines.

An atom says that its estimand lies above a margin, below it, or between -margin and margin (*within*). It is judged by
one number, a mean over seeds with Student's t interval, which has two p-values: ``p_for`` of the hypothesis that the
atom is false, ``p_against`` of the hypothesis that the atom is true. A number that is missing has p-values of 1.

- An atom is *supported* if ``p_for`` is at most ``ALPHA``, and *refuted* if ``p_against`` is.
- A headline of k atoms is supported if all k atoms are supported (intersection-union test). It is refuted if k times
  the smallest p-value against an atom is at most ``ALPHA`` (union-intersection test with Bonferroni's bound).

So each verdict, of an atom or of a headline, is wrong with probability at most ``ALPHA``. The verdict of an atom that
says *above* or *below* can be read from its interval: the atom is supported if the whole interval lies on the claimed
side of the margin, and refuted if it lies on the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from fspo.stats.intervals import CONFIDENCE, t_quantile

Verdict = Literal["supported", "refuted", "inconclusive"]
Relation = Literal["above", "below", "within"]
Tables = Mapping[str, pd.DataFrame]
NAN = float("nan")
ALPHA = (1 - CONFIDENCE) / 2
"""Largest probability that a verdict is wrong; also the probability that an interval misses the truth at one end."""
MIN_SEEDS = 3
"""Fewest seeds over which a mean is judged."""


class Measured(NamedTuple):
    """An estimate with its standard error and the degrees of freedom of that error."""

    value: float
    se: float
    df: float = np.inf

    def above(self, margin: float) -> float:
        """Return the p-value of the hypothesis that the estimand's true value is at most ``margin``."""
        return _tail(self.value - margin, self.se, self.df)

    def below(self, margin: float) -> float:
        """Return the p-value of the hypothesis that the estimand's true value is at least ``margin``."""
        return _tail(margin - self.value, self.se, self.df)


def _tail(distance: float, error: float, df: float) -> float:
    if not (np.isfinite(distance) and error >= 0):
        return 1.0
    return float(special.stdtr(df, -distance / error)) if error > 0 else float(distance <= 0)


@dataclass(frozen=True)
class Number:
    """What the runs say about an atom: the estimate with its interval and p-values, or the reason why the number is
    missing."""

    name: str
    value: float = NAN
    low: float = NAN
    high: float = NAN
    p_for: float = 1.0
    p_against: float = 1.0
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate, its interval and its p-values, as plain values for claims.json."""
        found = {"value": self.value, "low": self.low, "high": self.high}
        return found | {"p for": self.p_for, "p against": self.p_against, "reason": self.reason}


def number(name: str, found: Measured | str, relation: Relation, margin: float) -> Number:
    """Return an estimate with its interval and its p-values for and against "the truth is above (below, within) the
    margin". ``found`` is the estimate, or a text that says why there is none."""
    if isinstance(found, str):
        return Number(name, reason=found)
    if not np.isfinite(found.value) or np.isnan(found.se):
        return Number(name, found.value, reason="no interval" if np.isfinite(found.value) else "no number")
    above, below = found.above, found.below
    if relation == "within":
        # An atom that says "within" is false if the true value lies above the upper margin or below the lower one.
        # Both are tested, so the p-value against the atom is twice the smaller of the two (Bonferroni).
        p_for, p_against = max(above(-margin), below(margin)), 2 * min(above(margin), below(-margin))
    else:
        p_for, p_against = above(margin), below(margin)
        if relation == "below":
            p_for, p_against = p_against, p_for
    t = t_quantile(found.df)
    ends = found.value - t * found.se, found.value + t * found.se
    return Number(name, found.value, *ends, p_for, min(p_against, 1.0))


def lead_in_size(name: str, gap: Measured | str, total: Measured | str) -> Number:
    """Judge whether |r| > |o| for two estimates r and o, from their difference ``gap``, r - o, and their sum ``total``.

    |r| > |o| exactly if r - o and r + o are both above 0 or both below 0. Each of these two cases is tested by an
    intersection-union test (the larger of the p-values of r - o and r + o), and the smaller of the two results is
    doubled (Bonferroni). The interval of |r| - |o| has level 1 - 2 ALPHA: it is made from intervals of r - o and r + o
    at level 1 - ALPHA each, which both hold with probability 1 - 2 ALPHA or more.
    """
    if isinstance(gap, str) or isinstance(total, str):
        return Number(name, reason=gap if isinstance(gap, str) else str(total))
    t = t_quantile(gap.df, 1 - ALPHA)
    (g_low, g_high), (s_low, s_high) = ((m.value - t * m.se, m.value + t * m.se) for m in (gap, total))
    if not np.isfinite(g_low + g_high + s_low + s_high):
        return Number(name, reason="no number")
    p_for = 2 * min(max(gap.above(0), total.above(0)), max(gap.below(0), total.below(0)))
    p_against = 2 * min(max(gap.below(0), total.above(0)), max(gap.above(0), total.below(0)))
    value = max(min(gap.value, total.value), min(-gap.value, -total.value))
    low = max(min(g_low, s_low), min(-g_high, -s_high))
    high = min(max(g_high, -s_low), max(-g_low, s_high))
    return Number(name, value, low, high, min(p_for, 1.0), min(p_against, 1.0))


def over_seeds(values: Mapping[float, float]) -> Measured | str:
    """Return the mean over seeds with its standard error (Student's t), or a text that says why there is none.

    There is no mean if a seed has no value, or if there are fewer than `MIN_SEEDS` seeds. There is no mean either if
    all values are equal, because the standard error would be 0: three short runs in which the reward does not fall
    would then prove that the reward never falls.
    """
    missing = [f"{seed:g}" for seed, value in values.items() if not np.isfinite(value)]
    if missing:
        return f"no number for seed {', '.join(missing)}"
    if len(values) < MIN_SEEDS:
        return f"{len(values)} of at least {MIN_SEEDS} seeds"
    x = np.array([*values.values()])
    if np.ptp(x) == 0:
        return f"{x[0]:g} for every seed: nothing shows how far the mean may be from the true one"
    error = float(x.std(ddof=1) / np.sqrt(len(x)))
    return Measured(float(x.mean()), error, len(x) - 1)


def verdict_of(p_for: float, p_against: float) -> Verdict:
    """Return the verdict of an atom or a headline from its p-values."""
    return "supported" if p_for <= ALPHA else "refuted" if p_against <= ALPHA else "inconclusive"


def select(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Return the rows of a table with the given column values; no row if the table lacks one of the columns.

    Floats match within 1e-9.
    """
    keep = np.ones(len(table), bool)
    for column, value in where.items():
        if column not in table:
            return table.iloc[:0]
        if isinstance(value, float):
            keep &= np.isclose(table[column].to_numpy(np.float64), value, rtol=0, atol=1e-9)
        else:
            keep &= np.asarray(table[column] == value, bool)
    return table.loc[keep]


def groups(rows: pd.DataFrame, columns: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield each combination of values of some columns with the rows that have it; NaN counts as a value."""
    found: Any = rows.groupby(columns, dropna=False)
    for values, some in found:
        yield tuple(values), some


class Log(NamedTuple):
    """An analysed log: the name of its run folder, the rule that trained the run, and the run's seed."""

    run: str
    rule: str
    seed: float


def logs_of(tables: Tables) -> list[Log]:
    """Return every analysed log that has a row in any table."""
    keys = [t[["run", "trained_rule", "seed"]].drop_duplicates() for t in tables.values() if len(t)]
    found = pd.concat(keys).drop_duplicates().itertuples(index=False) if keys else ()
    return [Log(str(run), str(rule), float(seed)) for run, rule, seed in found]


def row_of(rows: pd.DataFrame, log: Log) -> dict[str, Any] | str:
    """Return the one row in ``rows``, the rows of a table, that is about ``log``; if there is none or several, a text
    that says so.
    """
    some = rows.loc[rows["run"] == log.run] if len(rows) else rows
    if len(some) != 1:
        return "several logs have this name" if len(some) else "no row in the table"
    return {str(name): value for name, value in some.iloc[0].items()}
