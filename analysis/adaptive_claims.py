"""The claim about bands that learn their exponent; see analysis.claims, which lists it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from analysis.acceptance import TREND_MARGIN
from analysis.evidence import Claim, Tables, combine, plain, select, verdict_of

LEARNT = "fspo-adaptive"
TARGET = 0.85


def learns_to_be_fair(tables: Tables) -> Claim:
    """C7: two one-sided tests on the trend of fspo-adaptive's band, its exponent from earlier updates of each log.

    A trend of 0 is not yet every length alike, and the mean over logs not yet every log: so a log whose bins differ,
    by the test of a constant acceptance corrected for the number of logs and by more than the margin, refutes it.
    """
    where: dict[str, Any] = {"source": "matched", "measure": "band", "subset": "all", "outside": "drop"}
    found, found90, unequal = {}, {}, {}
    for rule in (LEARNT, "fspo", "fspo-conformal"):
        for use in ("first", "reused"):
            rows = select(tables["trend"], **where, rule=rule, use=use, target=TARGET)
            name = f"{rule}, {use} use"
            found[name] = combine(rows, "slope_per_doubling", "ci_low", "ci_high")
            found90[name] = combine(rows, "slope_per_doubling", "ci90_low", "ci90_high", 0.90)
    main, margin = f"{LEARNT}, first use", TREND_MARGIN
    bins = select(tables["lre"], **where, rule=LEARNT, use="first", target=TARGET, norm="l2")
    if len(bins):
        bins = bins.loc[np.isfinite(bins["wald_p"].to_numpy(np.float64))]
    for row in bins.to_dict("records"):
        p = min(float(row["wald_p"]) * len(bins), 1.0)
        if p < 0.05 and row["ci_low"] > margin:
            parts = {"LRE_2": row["estimate"], "low": row["ci_low"], "high": row["ci_high"]}
            unequal[f"{row['run']}, seed {row['seed']:g}"] = parts | {"corrected p of a constant acceptance": p}
    own, own90 = found[main], found90[main]
    refuted = [own.low > margin or own.high < -margin, bool(unequal)]
    return Claim(
        "C7",
        "A band whose exponent is learnt from earlier updates accepts every length alike.",
        "change of a_band for each doubling of L under fspo-adaptive's band at 85 %, first-use rows, mean over logs; "
        "90 % interval within the margin (two one-sided tests), and no log in which the bins of length differ (test of "
        "a constant acceptance, 5 % over all logs, with LRE_2 above the margin)",
        margin,
        own.value,
        own.low,
        own.high,
        verdict_of([own90.low > -margin and own90.high < margin, len(bins) > 0], refuted),
        {"slopes": plain(found), f"{main}, 90 %": asdict(own90), "logs with unequal bins": unequal},
    )
