"""Make the lines that ``fspo analyse`` prints of a run's tables: who is clipped, the direction of the update, and the
exponent at which a range would clip all lengths alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.log.partition import LENGTH, Partition
from analysis.log.ratio import CORRECTED
from analysis.tables.acceptance import FACTOR
from analysis.tables.moments import FAIR_SHARES
from fspo.gradlog import metric_names as metric
from fspo.rules import COMPARED, CORRECTIONS, OF_CLIP_RULES
from fspo.stats.clusters import TOO_FEW
from fspo.stats.intervals import PERCENT

PLAIN = (*OF_CLIP_RULES[:1], "mask")
"""What happens outside the range in the rows that are printed: drop for clip rules, mask for corrections."""
SCORING = "--log.score-every 1; observe of TRL: score_every=1"
NO_SCORES = f"not known, because the log has no scores ({SCORING})"
DASH = "  -: not known, since the shortest are clipped at 0 %, or too few responses for an interval"
MORE = "more rollouts will tell"
IDLE = "clipped nothing: raise the learning rate or the updates per rollout, or take a range of fspo calibrate"
Line = tuple[str, list[str]]
"""A name and the cells that stand beside it."""
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
    """Return lines of text: under each rule the clip rates of all lengths, of the first and of the last bin, the last
    bin's over the first bin's, and the change of the clip rate for each doubling of the length (of another column: for
    each standard deviation of it), with its interval.

    The responses are those in the first epoch with A != 0, whose clipping changes the update; all responses where the
    log has no update acceptance, later epochs where no first epoch follows an update."""
    rates, slopes, factors = _first_epoch(tables)
    done = f"who is {'masked' if on in CORRECTED else 'clipped'}"
    ends = _ends(rates if len(rates) else factors)
    if ends.empty:
        return [f"{done}: not known{_why(tables['acceptance'])}"]
    spans = [_span(low, high, partition) for low, high in ends[["bin_lo", "bin_hi"]].to_numpy()]
    if len(set(ends["bin"])) == 1:
        return [f"{done}: not known, only one bin ({spans[0]}) has enough responses; {MORE}"]
    lines = [_head(done, rates, spans, partition)]
    lines += [(f"  {name}", _rates(of_rule, slopes, ends["bin"])) for name, of_rule in _rules(rates, on)]
    trained = {rule: own for rule, own in _of(rates, "trained") if rule != "none"}
    if "first" in set(rates["use"]):
        later = {name: tables[name].loc[tables[name]["use"] == "reused"] for name in ("acceptance", "trend")}
        again, slopes, _ = _first_epoch(later)
        told = [(f"  {rule}, later epochs", _rates(own, slopes, ends["bin"])) for rule, own in _of(again, "trained")]
        lines[1 + len(trained) : 1 + len(trained)] = told
    for rule, own in factors.groupby("rule", sort=False):
        few, many = _ends(own)["estimate"]
        cells = ["-", f"{few:.3f}", f"{many:.3f}", _number(many / few), "-"]
        lines.append((f"  {rule}, as trained: mean factor", cells))
    every = _at_first_use(tables["acceptance"])
    beyond = [f"  above {spans[1]}: too few prompts"] if max(every["bin"]) > max(ends["bin"]) else []
    lost = every.loc[~every["rule"].isin([*rates["rule"], *factors["rule"]]) & every["reason"].ne("")]
    wanted = lost.loc[lost["rule"].isin(CORRECTIONS if on in CORRECTED else COMPARED)].drop_duplicates("rule")
    beyond += [f"  {rule}: not known, {why}" for rule, why in wanted[["rule", "reason"]].to_numpy()]
    idle = (rule for rule, own in trained.items() if on not in CORRECTED and set(own["estimate"]) == {1})
    return [*_columns(lines), *beyond, *(f"  {rule} {IDLE}" for rule in idle)]


def compared(analyses: Mapping[str, Mapping[str, pd.DataFrame]], partition: Partition, on: str) -> list[str]:
    """Return a line for each of several runs, by name: the clip rates of the rule that trained it, of all lengths and
    of two bins, and their slope. A last line has the rewards.

    The two bins are the first and the last in which every run with a known clip rate of its rule has one."""
    known = {name: _first_epoch(tables) for name, tables in analyses.items()}
    own = {name: rates for name, (all_rates, *_) in known.items() for _, rates in _of(all_rates, "trained")}
    bins = set[int].intersection(*(set(rates["bin"]) - {-1} for rates in own.values())) if own else set()
    done = f"who is {'masked' if on in CORRECTED else 'clipped'} as trained"
    if len(bins) < 2:
        return [f"{done}: not known, fewer than two bins have enough responses in every run; {MORE}"]
    first = next(iter(own.values()))
    ends = _ends(first.loc[first["bin"].isin(list(bins))])
    spans = [_span(low, high, partition) for low, high in ends[["bin_lo", "bin_hi"]].to_numpy()]
    lines = [_head(done, first, spans, partition)]
    for name, (_, slopes, _) in known.items():
        cells = _rates(own[name], slopes, ends["bin"]) if name in own else ["-"] * 5
        lines.append((f"  {name}", cells))
    last = max(max(rates["bin"]) for rates in own.values())
    lacking = ", ".join(name for name, rates in own.items() if last not in set(rates["bin"]))
    beyond = [f"  above {spans[1]}: too few prompts in {lacking}"] if last > max(ends["bin"]) else []
    return [*_columns(lines), *beyond, *_rewards(analyses)]


def _rewards(analyses: Mapping[str, Mapping[str, pd.DataFrame]]) -> list[str]:
    told = []
    for name, training in ((name, tables["training"]) for name, tables in analyses.items()):
        values = training.loc[(training["name"] == metric.REWARD) & (training["phase"] == "train"), "value"]
        told += [f"{name} {values.iloc[-max(len(values) // 4, 1) :].mean():.2f}"] if len(values) else []
    return [f"mean reward in the last quarter of the rollouts (one seed each): {', '.join(told)}"] if told else []


def _head(done: str, rates: pd.DataFrame, spans: list[str], partition: Partition) -> Line:
    step = "doubling" if partition == LENGTH else "standard deviation"
    whose = "A != 0, " if "update" in set(rates["measure"]) else ""
    epoch = "first epoch" if "first" in set(rates["use"]) else "later epochs"
    return f"{done}, {whose}{epoch}", ["all", *spans, "long/short", f"points each {step} [{PERCENT}]"]


def _first_epoch(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return rows of the first epoch (`_at_first_use`): known acceptances, their slopes, and mean factors of
    corrections on tokens.
    The acceptance is the update acceptance (A != 0) if any bin has one, else the band acceptance (all responses)."""
    rates, slopes = (_at_first_use(tables[name]) for name in ("acceptance", "trend"))
    known = rates["estimate"].notna()
    nonzero = "update" in set(rates.loc[known & (rates["bin"] >= 0), "measure"])
    wanted = ("update", "nonzero") if nonzero else ("band", "all")
    slopes = slopes.loc[(slopes["measure"] == wanted[0]) & (slopes["subset"] == wanted[1])]
    factors = rates.loc[known & (rates["measure"] == FACTOR)]
    rates = rates.loc[known & (rates["measure"] == wanted[0]) & (rates["subset"] == wanted[1])]
    return (rates if rates["bin"].max() >= 0 else rates.iloc[:0]), slopes, factors


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the first and of the last bin; empty if there is none."""
    rows = rows.loc[rows["bin"] >= 0].sort_values("bin")
    return rows.iloc[[0, -1]] if len(rows) else rows


def _why(rows: pd.DataFrame) -> str:
    """Return the commonest reason why rows of the first epoch at an equal clip rate have no number, and what helps."""
    rows = _at_first_use(rows)
    found = rows.loc[(rows["source"] == "matched") & rows["estimate"].isna() & rows["reason"].ne(""), "reason"]
    why = found.mode().iloc[0] if len(found) else ""
    return f", too few prompts in each bin; {MORE}" if why == TOO_FEW else f" ({why})" if why else f"; {MORE}"


def direction(cosine: pd.DataFrame, on: str = "update") -> str:
    """Return, as text, the cosine of the clipped with the unclipped gradient under each rule, at the lowest of the clip
    rates at which rules are compared."""
    if cosine.empty:
        return NO_SCORES
    rows = _at_first_use(cosine.loc[cosine["bin"] < 0])
    rows = rows.loc[(rows["source"] == "matched") & rows["estimate"].notna()]
    rows = rows.loc[rows["target"] == rows["target"].max()]
    rows = rows.loc[rows["rule"].isin(COMPARED) if on not in CORRECTED else rows["rule"] != "random"]
    if rows.empty:
        return f"not known{_why(cosine)}"
    shown = (f"{row['rule']} {_interval(*_estimate(row))}" for row in rows.to_dict("records"))
    word = "masked" if on in CORRECTED else "clipped"
    return f"cosine with the unclipped gradient at {_clipped(rows['target'].iloc[0])} {word}: {', '.join(shown)}"


def fair_exponents(scaling: pd.DataFrame) -> list[str]:
    """Return a line with the exponent at which a range clips all lengths alike, of both signs of A and of each. The
    list is empty if the table has no such exponent."""
    if scaling.empty:
        return []
    column = f"fair_{FAIR_SHARES[0] * 100:.0f}"
    rows = _of_one_use(scaling.loc[scaling[f"{column}_ci_low"].notna()])
    rows = rows.loc[rows["subset"] == ("nonzero" if "nonzero" in set(rows["subset"]) else "all")]
    words = {"all": "all", "positive": "A > 0", "negative": "A < 0"}
    told = [
        f"{words[row['sign']]} {_interval(*_estimate(row, column, f'{column}_'))}" for row in rows.to_dict("records")
    ]
    if "nonzero" in set(rows["subset"]):
        told += [f"{word} not known" for sign, word in words.items() if sign not in set(rows["sign"])]
    return [f"fair exponent at {_clipped(FAIR_SHARES[0])} clipped: {', '.join(told)}"] if told else []


def _clipped(acceptance: float) -> str:
    return f"{100 * (1 - acceptance):.0f} %"


def _span(low: float, high: float, partition: Partition) -> str:
    if partition != LENGTH:
        return f"{low:g} to {high:g} {partition.column}"
    return f"{low:g} to {high - 1:g} tokens" if high - 1 > low else f"{low:g} tokens"


def _at_first_use(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table's rows of the first epoch (of later ones if it has none): of the rule that trained, and of the
    other rules only with the treatment drop (corrections: mask) outside the band."""
    table = _of_one_use(table)
    return table if table.empty else table.loc[table["outside"].isin(PLAIN) | (table["source"] == "trained")]


def _of_one_use(table: pd.DataFrame) -> pd.DataFrame:
    return table if table.empty else table.loc[table["use"] == ("first" if "first" in set(table["use"]) else "reused")]


def _rules(rates: pd.DataFrame, on: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rules to print, each with its label and its rows of ``rates``, one for each bin: first the one that
    trained, then those at an equal clip rate, from the lowest one on; corrections also at their default ranges."""
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
    """Return a mask of the rows of ``table`` with the same rule, source of its range and target as ``row``."""
    of_target = table["target"].eq(row["target"]) | (table["target"].isna() & pd.isna(row["target"]))
    return table["rule"].eq(row["rule"]) & table["source"].eq(row["source"]) & of_target


def _rates(rows: pd.DataFrame, slopes: pd.DataFrame, bins: Iterable[int]) -> list[str]:
    """Return a rule's cells from its acceptances by bin, ``rows``: clip rates of all responses and of two ``bins``, the
    second's over the first's, and, if it has an interval, the slope in percentage points, found in ``slopes``."""
    slope = slopes.loc[_same(slopes, rows.iloc[0]), ["slope", "ci_low", "ci_high"]]
    slope, low, high = slope.iloc[0] if len(slope) else NOTHING
    clipped = dict(zip(rows["bin"], 1 - rows["estimate"], strict=True))
    shares = [clipped.get(at, math.nan) for at in (-1, *bins)]
    _, few, many = shares
    ratio = _number(many / few) if few > 0 and many >= 0 else "-"
    points = "-" if math.isnan(low) else _interval(*(-100 * value for value in (slope, high, low)), form="+.1f")
    return [*("-" if math.isnan(share) else f"{100 * share:.1f} %" for share in shares), ratio, points]


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


def _columns(lines: list[Line]) -> list[str]:
    """Return lines of text, one for each pair of a name and its cells; names and columns of cells are aligned. A last
    line explains a dash in the cells."""
    left = max(len(name) for name, _ in lines)
    wide = [max(map(len, column)) for column in zip(*(cells for _, cells in lines), strict=True)]
    dashed = any("-" in cells for _, cells in lines)
    return [
        f"{name:<{left}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, wide, strict=True))
        for name, cells in lines
    ] + dashed * [DASH]
