"""Make the lines that ``fspo analyse`` prints: which share of the responses each rule clips by length, and a comparison
of rules that clip the same share of all responses."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from analysis.log.partition import Partition
from analysis.log.ratio import UPDATE
from analysis.tables.acceptance import FACTOR
from fspo.stats.intervals import PERCENT

ORDER = {"trained": 0, "given": 1, "matched": 2}
"""Order of the printed lines by source of the rule's range: first the run's own, then a preset's, then matched ones."""


def printed(acceptance: pd.DataFrame, partition: Partition, on: str) -> list[str]:
    """Return a line for each rule, with the share of responses outside its band by bin.

    The rules are the one that trained, each rule whose range is matched to the lowest target acceptance, and, if
    corrections are analysed, each preset at its own range. For a correction on tokens the share outside the band is not
    defined. The line of such a correction shows the mean of the factors that it left the responses.
    """
    table = acceptance.loc[(acceptance["measure"] == "band") & (acceptance["subset"] == "all")]
    table = table.loc[(table["use"] == "first") & table["estimate"].notna()]
    least = table["target"].min()
    words = {"trained": "the run's own", "given": "preset", "matched": f"{1 - least:.0%} clipped"}
    bins: dict[int, float] = {}
    shares: dict[tuple[int, str], dict[int, str]] = {}
    for row in table.to_dict("records"):
        source = row["source"]
        if (source == "given" and on == UPDATE.on) or (source == "matched" and row["target"] != least):
            continue
        bins[row["bin"]] = row["bin_lo"]
        name = (ORDER[source], f"{row['rule']}, {words[source]}")
        shares.setdefault(name, {})[row["bin"]] = f"{1 - row['estimate']:.2f}"
    if not shares:
        return []
    own = acceptance.loc[(acceptance["measure"] == FACTOR) & acceptance["estimate"].notna()]
    for row in own.to_dict("records"):
        name = (ORDER["trained"], f"{row['rule']}, the run's own: mean factor")
        shares.setdefault(name, {})[row["bin"]] = f"{row['estimate']:.2f}"
    numbers = [*sorted(number for number in bins if number >= 0), -1]
    lines = [(f"{partition.column} from", [*(f"{bins[number]:g}" for number in numbers[:-1]), "all"])]
    for name in sorted(shares, key=lambda name: name[0]):
        lines.append((name[1], [shares[name].get(number, "-") for number in numbers]))
    said = "share outside the band, first uses; at other rates, with intervals, and of A != 0: acceptance.csv"
    return [said, *_columns(lines)]


def at_one_rate(tables: Mapping[str, pd.DataFrame], partition: Partition) -> list[str]:
    """Return, as lines of text, the comparison of rules whose ranges clip the same share of all responses.

    A line for each target acceptance and rule shows the share clipped in the first and in the last bin, the change of
    band acceptance for each doubling of the length, and LRE_2, the last two with their intervals. The result is empty
    if no rule's range could be matched to a target.
    """

    def matched(name: str) -> pd.DataFrame:
        table = tables[name]
        of_bands = (table["measure"] == "band") & (table["subset"] == "all") & (table["use"] == "first")
        return table.loc[of_bands & (table["source"] == "matched")]

    shares, trends, errors = matched("acceptance"), matched("trend"), matched("lre")
    errors = errors.loc[errors["norm"] == "l2"]
    shares = shares.loc[shares["bin"].ge(0) & shares["estimate"].notna()]
    if shares.empty:
        return []
    first, last = shares["bin"].min(), shares["bin"].max()
    spans = [shares.loc[shares["bin"] == at, ["bin_lo", "bin_hi"]].iloc[0] for at in (first, last)]
    names = " and ".join(f"{span['bin_lo']:g} to {span['bin_hi']:g}" for span in spans)
    lines: list[tuple[str, list[str]]] = []
    for target in sorted(shares["target"].unique(), reverse=True):
        level = f"[{PERCENT}]"
        lines.append((f"{1 - target:.0%} clipped", ["first bin", "last bin", "trend", level, "LRE_2", level]))
        for rule, own in shares.loc[shares["target"] == target].groupby("rule", sort=False):
            ends = own.sort_values("bin")["estimate"].iloc[[0, -1]]
            cells = [f"{1 - share:.2f}" for share in ends]
            for table, column in ((trends, "slope"), (errors, "estimate")):
                of_rule = (table["rule"] == rule) & (table["target"] == target)
                found = table.loc[of_rule, [column, "ci_low", "ci_high"]]
                cells += _estimate(*(found.iloc[0] if len(found) else [math.nan] * 3))
            lines.append((f"  {rule}", cells))
    said = (
        f"rules at one clip rate; first and last bin of {partition.column}: {names}; trend: acceptance, each doubling"
    )
    return [said, *_columns(lines)]


def _estimate(value: float, low: float, high: float) -> tuple[str, str]:
    """Return a number and its interval as two texts; "-" for a number or an interval that is not known."""
    known = "-" if math.isnan(value) else f"{value:.3f}"
    return known, "-" if math.isnan(low) or math.isnan(high) else f"[{low:.3f}, {high:.3f}]"


def _columns(lines: list[tuple[str, list[str]]]) -> list[str]:
    """Return lines of text, one for each pair of a name and its cells; names and columns of cells are aligned."""
    left = max(len(name) for name, _ in lines)
    wide = [max(map(len, column)) for column in zip(*(cells for _, cells in lines), strict=True)]
    return [
        f"  {name:<{left}}  " + " ".join(f"{cell:>{width}}" for cell, width in zip(cells, wide, strict=True))
        for name, cells in lines
    ]
