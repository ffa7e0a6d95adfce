"""Make the lines that ``fspo analyse`` prints of a run's tables: who is clipped, the direction of the update, and the
exponent at which a range would clip all lengths alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.log.partition import LENGTH, Partition
from analysis.log.ratio import CORRECTED
from analysis.tables.acceptance import FACTOR
from analysis.tables.moments import FAIR_SHARES
from fspo.rules import COMPARED, CORRECTIONS, OF_CLIP_RULES
from fspo.stats.intervals import PERCENT

PLAIN = (*OF_CLIP_RULES[:1], "mask")
"""What happens outside the range in the rows that are printed: drop for clip rules, mask for corrections."""
NO_SCORES = "not known, because the log has no scores (fspo train writes them)"
Estimate = tuple[float, float, float]
"""A number and the ends of its interval; NaN where it is not known."""
NOTHING: Estimate = (math.nan, math.nan, math.nan)


def printed(tables: Mapping[str, pd.DataFrame], partition: Partition, on: str) -> list[str]:
    """Return the result of an analysis as lines of text.

    Parameters
    ----------
    tables : mapping of str -> DataFrame
        The tables of one run, of which `acceptance`, `trend`, `cosine` and `scaling` are read.
    partition : Partition
        What the responses are binned by.
    on : str
        The ratio that was analysed. On the update's ratio the lines are of the rule that trained and, at equal clip
        rates, of the rules that the paper compares; on another ratio of the corrections, which are shown at their
        default ranges too.
    """
    lines = [*who_is_clipped(tables, partition, on)]
    lines.append(f"direction: {direction(tables['cosine'], on)}")
    return [*lines, *fair_exponents(tables["scaling"])]


def who_is_clipped(tables: Mapping[str, pd.DataFrame], partition: Partition, on: str) -> list[str]:
    """Return the clip rates of the first and the last bin under each rule, their ratio, and the change of the clip rate
    for each doubling of the length (of another column: for each standard deviation of it), with its interval.

    The responses are those in the first epoch with A != 0, whose clipping changes the update; all responses where the
    log has no update acceptance.
    """
    rates, slopes = (_at_first_use(tables[name]) for name in ("acceptance", "trend"))
    known = rates["estimate"].notna() & (rates["bin"] >= 0)
    nonzero = bool((known & (rates["measure"] == "update")).any())
    wanted = ("update", "nonzero") if nonzero else ("band", "all")
    kept = (rates["measure"] == wanted[0]) & (rates["subset"] == wanted[1])
    factors = rates.loc[known & (rates["measure"] == FACTOR)]
    slopes = slopes.loc[(slopes["measure"] == wanted[0]) & (slopes["subset"] == wanted[1])]
    rates = rates.loc[known & kept]
    if rates.empty and factors.empty:
        return ["who is clipped: not known, see column reason of the table acceptance"]
    ends = [rates if len(rates) else factors][0].sort_values("bin").iloc[[0, -1]]
    spans = [_span(low, high, partition) for low, high in ends[["bin_lo", "bin_hi"]].to_numpy()]
    if ends["bin"].nunique() == 1:
        return [f"who is clipped: not known, only one bin ({spans[0]}) has enough responses; more rollouts will tell"]
    step = "doubling" if partition == LENGTH else "standard deviation"
    responses = ", responses with A != 0" if nonzero else ""
    done = "masked" if on in CORRECTED else "clipped"
    lines = [(f"who is {done}{responses}", [*spans, "ratio", f"points each {step} [{PERCENT}]"])]
    for name, of_rule in _rules(rates, on):
        slope = slopes.loc[_same(slopes, of_rule.iloc[0]), ["slope", "ci_low", "ci_high"]]
        lines.append((f"  {name}", _rates(of_rule, *(slope.iloc[0] if len(slope) else NOTHING))))
    for rule, own in factors.groupby("rule", sort=False):
        few, many = own.sort_values("bin")["estimate"].iloc[[0, -1]]
        lines.append((f"  {rule}, as trained: mean factor", [f"{few:.3f}", f"{many:.3f}", _number(many / few), "-"]))
    return _columns(lines)


def direction(cosine: pd.DataFrame, on: str = "update") -> str:
    """Return the cosine of the clipped with the unclipped gradient under each rule at the lower clip rate."""
    if cosine.empty:
        return NO_SCORES
    rows = _at_first_use(cosine.loc[cosine["bin"] < 0])
    rows = rows.loc[(rows["source"] == "matched") & rows["estimate"].notna()]
    rows = rows.loc[rows["target"] == rows["target"].max()]
    rows = rows.loc[rows["rule"].isin(COMPARED) if on not in CORRECTED else rows["rule"] != "random"]
    if rows.empty:
        return "not known, see column reason of the table cosine"
    shown = (f"{row['rule']} {_interval(*_estimate(row))}" for row in rows.to_dict("records"))
    word = "masked" if on in CORRECTED else "clipped"
    return f"cosine with the unclipped gradient at {_clipped(rows['target'].iloc[0])} {word}: {', '.join(shown)}"


def fair_exponents(scaling: pd.DataFrame) -> list[str]:
    """Return a line with the exponent at which a range clips all lengths alike, of both signs of A and of each. The
    list is empty if the table has no such exponent.
    """
    if scaling.empty:
        return []
    column = f"fair_{FAIR_SHARES[0] * 100:.0f}"
    rows = scaling.loc[(scaling["use"] == "first") & scaling[column].notna()]
    rows = rows.loc[rows["subset"] == ("nonzero" if (rows["subset"] == "nonzero").any() else "all")]
    words = {"all": "all", "positive": "A > 0", "negative": "A < 0"}
    told = [
        f"{words[row['sign']]} {_interval(*_estimate(row, column, f'{column}_'))}" for row in rows.to_dict("records")
    ]
    return [f"fair exponent at {_clipped(FAIR_SHARES[0])} clipped: {', '.join(told)}"] if told else []


def _clipped(acceptance: float) -> str:
    return f"{100 * (1 - acceptance):.0f} %"


def _span(low: float, high: float, partition: Partition) -> str:
    if partition != LENGTH:
        return f"{low:g} to {high:g} {partition.column}"
    return f"{low:g} to {high - 1:g} tokens" if high - 1 > low else f"{low:g} tokens"


def _at_first_use(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the first epoch, with a rule's treatment outside the band in ``PLAIN`` or as trained."""
    if table.empty:
        return table
    return table.loc[(table["use"] == "first") & (table["outside"].isin(PLAIN) | (table["source"] == "trained"))]


def _rules(rates: pd.DataFrame, on: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rules to print, each with its label and its rows of ``rates``, one for each bin: first the one that
    trained, then those at an equal clip rate, from the lowest one on; corrections also at their default ranges.
    """
    word = "masked" if on in CORRECTED else "clipped"
    told = rates.loc[(rates["rule"] != "none") & (rates["rule"] != "random")]
    yield from ((f"{rule}, as trained", rows) for rule, rows in _of(told, "trained"))
    told = told.loc[told["rule"].isin(CORRECTIONS if on in CORRECTED else COMPARED)]  # criteria of others: in the table
    if on in CORRECTED:
        yield from ((f"{rule}, default range", rows) for rule, rows in _of(told, "given"))
    matched = told.loc[told["source"] == "matched"]
    for target in sorted(matched["target"].unique(), reverse=True):
        of_target = matched.loc[matched["target"] == target]
        yield from ((f"{rule}, {_clipped(target)} {word}", rows) for rule, rows in _of(of_target, "matched"))


def _of(rates: pd.DataFrame, source: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    return iter(rates.loc[rates["source"] == source].groupby("rule", sort=False))


def _same(table: pd.DataFrame, row: pd.Series) -> Any:
    """Return which rows of ``table`` have the rule, the source of its range and the target of ``row``."""
    of_target = table["target"].eq(row["target"]) | (table["target"].isna() & pd.isna(row["target"]))
    return table["rule"].eq(row["rule"]) & table["source"].eq(row["source"]) & of_target


def _rates(rows: pd.DataFrame, slope: float, low: float, high: float) -> list[str]:
    """Return a rule's cells: clip rates of first and last bin, their ratio, the slope with its interval."""
    few, many = 1 - rows.sort_values("bin")["estimate"].iloc[[0, -1]]
    ratio = _number(many / few) if few > 0 else "-"
    points = "-" if math.isnan(low) else _interval(*(-100 * value for value in (slope, high, low)), form="+.1f")
    return [f"{100 * few:.1f} %", f"{100 * many:.1f} %", ratio, points]


def _estimate(row: Mapping[Any, Any], name: str = "estimate", before: str = "") -> Estimate:
    return row[name], row[f"{before}ci_low"], row[f"{before}ci_high"]


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _interval(value: float, low: float, high: float, form: str = ".2f") -> str:
    """Return ``value`` with the interval [``low``, ``high``] if that is known, in the format ``form``; "-" if NaN."""
    if math.isnan(value):
        return "-"
    ends = "" if math.isnan(low) or math.isnan(high) else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{ends}"


def _columns(lines: list[tuple[str, list[str]]]) -> list[str]:
    """Return lines of text, one for each pair of a name and its cells; names and columns of cells are aligned."""
    left = max(len(name) for name, _ in lines)
    wide = [max(map(len, column)) for column in zip(*(cells for _, cells in lines), strict=True)]
    return [
        f"{name:<{left}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, wide, strict=True))
        for name, cells in lines
    ]
