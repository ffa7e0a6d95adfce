"""Combine a claim's numbers over runs and seeds, and make a verdict of the claim's parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from scipy import stats as sps

from fspo.stats.intervals import CONFIDENCE, sample_interval

Verdict = Literal["supported", "not supported", "inconclusive"]
Tables = Mapping[str, pd.DataFrame]
NAN = float("nan")


@dataclass(frozen=True)
class Claim:
    """One claim with its estimate, interval and verdict: an entry of claims.json.

    Written by ``fspo analyse RUN ... --claims FILE``. docs/theory.md section 11.
    """

    id: Annotated[str, "C1 to C7; M1 with --on engine or behaviour", "text"]
    statement: Annotated[str, "what is claimed", "text"]
    estimand: Annotated[str, "what estimate is about", "text"]
    margin: Annotated[float, "margin of the claim's test, fixed before any run", "the estimand's"]
    estimate: Annotated[float, "the estimand's estimate over runs and seeds", "the estimand's"]
    ci_low: Annotated[float, "lower end of its interval", "the estimand's"]
    ci_high: Annotated[float, "upper end of its interval", "the estimand's"]
    verdict: Annotated[Verdict, "supported, not supported or inconclusive", "text"]
    details: Annotated[
        dict[str, Any],
        "the estimates behind it, by name, and the power of the test",
        "JSON",
    ] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain values for claims.json."""
        return asdict(self)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and from how many seeds and runs it comes."""

    value: float = NAN
    low: float = NAN
    high: float = NAN
    seeds: int = 0
    runs: int = 0

    def __neg__(self) -> Estimate:
        return Estimate(-self.value, -self.high, -self.low, self.seeds, self.runs)


def select(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Return the rows of a table with the given column values; no row if one is missing. Floats match within 1e-9."""
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


def seed_means(rows: pd.DataFrame, value: str) -> dict[float, float]:
    """Return the mean of a column over the rows of each seed; rows with an unknown seed are left out."""
    return {
        float(seed): float(some[value].to_numpy(float).mean())
        for (seed,), some in groups(rows, ["seed"])
        if seed == seed
    }


def combine(rows: pd.DataFrame, value: str, low: str, high: str, level: float = CONFIDENCE) -> Estimate:
    """Combine the rows of several runs into one estimate, with an interval over seeds where there are at least two.

    ``value``, ``low`` and ``high`` name the columns of the rows' estimates and intervals. With one seed, the runs are
    averaged and so are their half-widths. Runs of one seed share prompts and sampling noise, so they depend on each
    other, and averaged half-widths are never too short, whatever the dependence.
    """
    if len(rows):
        rows = rows.loc[np.isfinite(rows.reindex(columns=[value, low, high]).to_numpy(np.float64)).all(axis=1)]
    if not len(rows):
        return Estimate()
    seed = rows["seed"].to_numpy(np.float64)
    values = rows[value].to_numpy(np.float64)
    codes = np.unique(np.where(np.isnan(seed), -1.0, seed), return_inverse=True)[1]
    means = np.bincount(codes, values) / np.bincount(codes)
    if len(means) >= 2:
        return Estimate(*sample_interval(means, level), len(means), len(rows))
    mean = float(values.mean())
    return Estimate(mean, _known_mean(rows, low), _known_mean(rows, high), 1, len(rows))


def _known_mean(rows: pd.DataFrame, column: str) -> float:
    """Return the mean of a column over the rows in which it is not NaN; NaN if there are none."""
    known = rows[column].to_numpy(np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else NAN


def difference(one: pd.DataFrame, other: pd.DataFrame, value: str, low: str, high: str) -> Estimate:
    """Return the estimate from the rows ``one`` less that from ``other``, which belong to two rules.

    With two common seeds or more, the difference is taken seed by seed. Else its interval is made of those of the two
    estimates (MOVER: squared half-widths are added).
    """
    a, b = combine(one, value, low, high), combine(other, value, low, high)
    if not (np.isfinite(a.value) and np.isfinite(b.value)):
        return Estimate()
    left, right = seed_means(one, value), seed_means(other, value)
    gaps = np.array([left[seed] - right[seed] for seed in left if seed in right])
    if len(gaps) >= 2:
        return Estimate(*sample_interval(gaps), len(gaps), a.runs + b.runs)
    gap = a.value - b.value
    low_gap = gap - np.hypot(a.value - a.low, b.high - b.value)
    high_gap = gap + np.hypot(a.high - a.value, b.value - b.low)
    return Estimate(gap, float(low_gap), float(high_gap), 1, a.runs + b.runs)


def verdict_of(holds: Sequence[bool], refuted: Sequence[bool]) -> Verdict:
    """Return "supported" if all parts of a claim hold, "not supported" if one is refuted, else "inconclusive"."""
    if any(refuted):
        return "not supported"
    return "supported" if holds and all(holds) else "inconclusive"


def plain(parts: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return estimates, given by name, as dicts of plain values for JSON."""
    return {name: asdict(part) for name, part in parts.items()}


def absolute(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the absolute values of estimates (column value) and their intervals (low, high); the low end is
    0 where the interval of the estimate holds 0.
    """
    low, high = rows["low"].to_numpy(float), rows["high"].to_numpy(float)
    nearest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    return rows.assign(value=np.abs(rows["value"]), low=nearest, high=np.maximum(np.abs(low), np.abs(high)))


def worst_by_run(rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each run the largest estimate (column value, not negative) of its K rows.

    The interval is never too short. Its high end is the largest of the K high ends. The largest of the K low ends lies
    above the largest true value up to K times too often, so each low end is first moved down to level
    1 - (1 - CONFIDENCE)/K (Bonferroni), but not below 0.
    """
    number = rows.groupby(["run", "seed"], dropna=False)["value"].transform("count").to_numpy(float)
    tail = (1 - CONFIDENCE) / 2
    widen = sps.norm.isf(tail / np.maximum(number, 1)) / sps.norm.isf(tail)
    low = np.maximum(rows["value"] - widen * (rows["value"] - rows["low"]), 0.0)
    return (
        rows.assign(low=low)
        .groupby(["run", "seed"], dropna=False, as_index=False)
        .agg(value=("value", "max"), low=("low", "max"), high=("high", "max"))
    )


def combine_largest(rows: pd.DataFrame) -> Estimate:
    """Combine the runs' largest estimates (:func:`worst_by_run`) like :func:`combine`, but with a lower low end.

    Noise alone makes the largest of several absolute values positive, to the same degree in every seed, so the spread
    over seeds does not show it. Therefore the low end is at most the mean of the runs' low ends.
    """
    found = combine(rows, "value", "low", "high")
    return replace(found, low=min(found.low, _known_mean(rows, "low"))) if found.seeds >= 2 else found


def least_of(parts: Mapping[str, Estimate]) -> Estimate:
    """Return the smallest of the estimates that are not NaN."""
    finite = [p for p in parts.values() if np.isfinite(p.value)]
    return min(finite, key=lambda p: p.value) if finite else Estimate()
