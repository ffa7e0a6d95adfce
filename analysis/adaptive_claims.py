"""The claim about bands that learn their exponent; see analysis.claims, which lists it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from analysis.acceptance import TREND_MARGIN
from analysis.evidence import Claim, Tables, combine, plain, select, verdict_of

LEARNT = "fspo-adaptive"
TARGET = 0.85


def learns_to_be_fair(tables: Tables) -> Claim:
    """C7: two one-sided tests on the trend of fspo-adaptive's band, its exponent from earlier updates of each log."""
    where: dict[str, Any] = {"source": "matched", "measure": "band", "subset": "all", "outside": "drop"}
    found, found90 = {}, {}
    for rule in (LEARNT, "fspo", "fspo-conformal"):
        for use in ("first", "reused"):
            rows = select(tables["trend"], **where, rule=rule, use=use, target=TARGET)
            name = f"{rule}, {use} use"
            found[name] = combine(rows, "slope_per_doubling", "ci_low", "ci_high")
            found90[name] = combine(rows, "slope_per_doubling", "ci90_low", "ci90_high", 0.90)
    main = f"{LEARNT}, first use"
    own, own90, margin = found[main], found90[main], TREND_MARGIN
    return Claim(
        "C7",
        "A band whose exponent is learnt from earlier updates accepts every length alike.",
        "change of a_band for each doubling of L under fspo-adaptive's band at 85 % on every log, first-use rows; 90 % "
        "interval within the margin (two one-sided tests)",
        margin,
        own.value,
        own.low,
        own.high,
        verdict_of([own90.low > -margin and own90.high < margin], [own.low > margin or own.high < -margin]),
        {"slopes": plain(found), f"{main}, 90 %": asdict(own90)},
    )
