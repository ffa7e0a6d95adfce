"""The few lines of the table ``acceptance`` that ``fspo analyse`` prints: which lengths each rule cuts."""

from __future__ import annotations

import pandas as pd

from analysis.log.partition import Partition
from analysis.log.ratio import CORRECTED, UPDATE

ORDER = {"trained": 0, "given": 1, "matched": 2}
"""Order of the printed lines, by where the rule's range is from: first the run's own, then a preset's, then matched."""


def printed(acceptance: pd.DataFrame, ess: pd.DataFrame, partition: Partition, on: str) -> list[str]:
    """Return a line for each rule, with the share of responses in its band by bin: for the rule that trained, for each
    rule matched to the least target, and, where corrections are analysed, for each preset at its own range.

    For a correction on tokens that share is not defined: its line has the mean of the factors that it left (table ess).
    """
    table = acceptance.loc[(acceptance["measure"] == "band") & (acceptance["subset"] == "all")]
    table = table.loc[(table["use"] == "first") & table["estimate"].notna()]
    least = table["target"].min()
    words = {"trained": "the run's own", "given": "preset", "matched": f"{least:.0%} of all"}
    bins: dict[int, float] = {}
    shares: dict[tuple[int, str], dict[int, str]] = {}
    for row in table.to_dict("records"):
        source = row["source"]
        if (source == "given" and on == UPDATE.on) or (source == "matched" and row["target"] != least):
            continue
        bins[row["bin"]] = row["bin_lo"]
        name = (ORDER[source], f"{row['rule']}, {words[source]}")
        shares.setdefault(name, {})[row["bin"]] = f"{row['estimate']:.2f}"
    if not shares:
        return []
    own = ess.loc[(ess["source"] == "trained") & ~ess["rule"].isin(table.loc[table["source"] == "trained", "rule"])]
    for row in own.loc[own["mean_weight"].notna()].to_dict("records") if on in CORRECTED else ():
        name = (ORDER["trained"], f"{row['rule']}, the run's own: mean factor")
        shares.setdefault(name, {})[row["bin"]] = f"{row['mean_weight']:.2f}"
    numbers = [*sorted(number for number in bins if number >= 0), -1]
    lines = [(f"{partition.name} from", [*(f"{bins[number]:g}" for number in numbers[:-1]), "all"])]
    for name in sorted(shares, key=lambda name: name[0]):
        lines.append((name[1], [shares[name].get(number, "-") for number in numbers]))
    left = max(len(name) for name, _ in lines)
    wide = max(len(cell) for _, cells in lines for cell in cells)
    return [
        "share inside the band, first uses; another acceptance, intervals, shares not cut: acceptance.csv",
        *(f"  {name:<{left}}  " + " ".join(f"{cell:>{wide}}" for cell in cells) for name, cells in lines),
    ]
