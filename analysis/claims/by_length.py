"""The claims on acceptance by length (C1, C7, M1). :mod:`analysis.claims.catalogue` lists all claims.

These claims are about the acceptance a(l) at every length l. A trend of 0 is not enough, because a curve with a hump
can have one. So support needs two equivalence tests: the interval of the trend and that of LRE_inf (relative deviation
of the bin that deviates most, from simultaneous bands) each lie within a margin. A claim is refuted where one of the
two intervals lies beyond its margin. The test that all bins have one acceptance is printed too, with its power; it
tells whether bins differ at all, and not by how much.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.evidence import (
    Claim,
    Estimate,
    Tables,
    combine,
    combine_largest,
    plain,
    select,
    verdict_of,
)
from analysis.tables.acceptance import TREND_MARGIN
from fspo.rules import RIVALS
from fspo.stats.intervals import CONFIDENCE, EQUIVALENCE, PERCENT

FAIR = "fspo"
LEARNT = "fspo-adaptive"
MASKS = ("sqrt-kl", "product", "geometric")
"""The masks (corrections that drop responses) of claim M1: as claimed, their acceptance is the same at every length,
falls with the length, and rises with it.
"""
TARGET = 0.85
LRE_MARGIN = 0.05
"""Largest LRE_inf that counts as 0: no bin of lengths has an acceptance more than 5 % above or below the mean."""
CONSTANT, SEEN = "test of a constant acceptance", "LRE_2 seen with 80 % probability, worst run"
"""Keys in the details of C1, C7 and M1: the test that all bins of lengths have one acceptance, and the LRE_2 that this
test detects with 80 % probability, of the run in which that is largest.
"""
_SLOPE = "slope"


def fair_in_length(tables: Tables) -> Claim:
    """Judge C1: the share of responses that fspo keeps does not depend on the length, where rloo's share falls with the
    length and gspo's rises.
    """
    where: dict[str, Any] = {"source": "trained", "measure": "band", "subset": "all", "use": "first"}
    found, matched = {}, {}
    for rule in (FAIR, *RIVALS):
        found[rule] = combine(select(tables["trend"], **where, rule=rule), _SLOPE, "ci_low", "ci_high")
        on_every = {**where, "rule": rule, "source": "matched", "target": TARGET, "outside": "drop"}
        matched[f"{rule} at 85 % on every log"] = asdict(
            combine(select(tables["trend"], **on_every), _SLOPE, "ci_low", "ci_high")
        )
    own90 = combine(select(tables["trend"], **where, rule=FAIR), _SLOPE, "ci90_low", "ci90_high", EQUIVALENCE)
    own, (falls, rises) = found[FAIR], [found[rule] for rule in RIVALS]
    curve = Deviation.of(select(tables["lre"], **where, rule=FAIR))
    margin = TREND_MARGIN
    holds = [own90.low > -margin and own90.high < margin, curve.equal, falls.high < 0, rises.low > 0]
    refuted = [own.low > margin or own.high < -margin, curve.unequal, falls.low > 0, rises.high < 0]
    return Claim(
        "C1",
        "fspo's band acceptance does not depend on length, where rloo's falls and gspo's rises.",
        f"change of a_band for each doubling of L, first-use rows of each rule's own run: {100 * EQUIVALENCE:g} % "
        f"interval of fspo's within the margin (two one-sided tests), {PERCENT} intervals of the others below and "
        "above 0; and fspo's "
        f"LRE_inf, the bin of lengths that deviates most, below {LRE_MARGIN:g} with its whole interval",
        margin,
        own.value,
        own.low,
        own.high,
        verdict_of(holds, refuted),
        {"slopes": plain(found), "fspo 90 %": asdict(own90), **curve.details(), "counterfactual": matched},
    )


def learns_to_be_fair(tables: Tables) -> Claim:
    """Judge C7: the band of fspo-adaptive, whose exponent is learnt from earlier updates, keeps all lengths alike on
    every log.

    The trend and LRE_inf are judged as in C1. Their means over logs may hide a log, so a single log refutes the claim
    too: if the test that all its bins have one acceptance rejects (corrected for the number of logs) and its LRE_2 is
    above the trend's margin.
    """
    where: dict[str, Any] = {"source": "matched", "measure": "band", "subset": "all", "outside": "drop"}
    found, found90, unequal = {}, {}, {}
    for rule in (LEARNT, FAIR, "fspo-conformal"):
        for use in ("first", "reused"):
            rows = select(tables["trend"], **where, rule=rule, use=use, target=TARGET)
            name = f"{rule}, {use} use"
            found[name] = combine(rows, _SLOPE, "ci_low", "ci_high")
            found90[name] = combine(rows, _SLOPE, "ci90_low", "ci90_high", EQUIVALENCE)
    main, margin = f"{LEARNT}, first use", TREND_MARGIN
    curve = Deviation.of(select(tables["lre"], **where, rule=LEARNT, use="first", target=TARGET))
    tested = curve.tested
    for row in tested.to_dict("records"):
        p = min(float(row["wald_p"]) * len(tested), 1.0)
        if p < 1 - CONFIDENCE and row["ci_low"] > margin:
            parts = {"LRE_2": row["estimate"], "low": row["ci_low"], "high": row["ci_high"]}
            unequal[f"{row['run']}, seed {row['seed']:g}"] = parts | {"corrected p of a constant acceptance": p}
    own, own90 = found[main], found90[main]
    holds = [own90.low > -margin and own90.high < margin, curve.equal]
    refuted = [own.low > margin or own.high < -margin, curve.unequal, bool(unequal)]
    return Claim(
        "C7",
        "A band whose exponent is learnt from earlier updates accepts every length alike.",
        "change of a_band for each doubling of L under fspo-adaptive's band at 85 %, first-use rows, mean over logs: "
        "90 % interval within the margin (two one-sided tests); LRE_inf, the bin of lengths that deviates most, mean "
        f"over logs, below {LRE_MARGIN:g} with its whole interval; and no log in which the bins of length differ (test "
        "of a constant acceptance, 5 % over all logs, with LRE_2 above the margin)",
        margin,
        own.value,
        own.low,
        own.high,
        verdict_of(holds, refuted),
        {
            "slopes": plain(found),
            f"{main}, 90 %": asdict(own90),
            **curve.details(),
            "logs with unequal bins": unequal,
        },
    )


def masks_by_length(tables: Tables) -> Claim:
    """Judge M1: of masks with one overall acceptance, the product mask keeps long responses less often than short ones,
    the geometric mask more often, and the sqrt mask equally often.

    The tables are those of a mismatch (``--on engine`` or ``behaviour``). The sqrt mask is centred on -KL, and is
    judged like fspo's band in C1: by its trend and by LRE_inf.
    """
    where: dict[str, Any] = {"source": "matched", "measure": "band", "subset": "all", "use": "first", "target": TARGET}
    rows = {rule: select(tables["trend"], **where, rule=rule, outside="mask") for rule in MASKS}
    found = {rule: combine(some, _SLOPE, "ci_low", "ci_high") for rule, some in rows.items()}
    flat, falls, rises = (found[rule] for rule in MASKS)
    flat90 = combine(rows[MASKS[0]], _SLOPE, "ci90_low", "ci90_high", EQUIVALENCE)
    curve = Deviation.of(select(tables["lre"], **where, rule=MASKS[0], outside="mask"))
    margin = TREND_MARGIN
    holds = [flat90.low > -margin and flat90.high < margin, curve.equal, falls.high < 0, rises.low > 0]
    refuted = [flat.low > margin or flat.high < -margin, curve.unequal, falls.low > 0, rises.high < 0]
    return Claim(
        "M1",
        "At one acceptance a product mask on the mismatch cuts long responses, a geometric mask short ones, and a sqrt "
        "mask around -KL every length alike.",
        f"change of a_band for each doubling of L, masks that keep {TARGET:.0%}, every log: {100 * EQUIVALENCE:g} % "
        f"interval of sqrt-kl's within the margin, {PERCENT} intervals of product's below and of geometric's above 0; "
        f"and LRE_inf of sqrt-kl below {LRE_MARGIN:g} with its whole interval",
        margin,
        flat.value,
        flat.low,
        flat.high,
        verdict_of(holds, refuted),
        {"slopes": plain(found), f"{MASKS[0]} 90 %": asdict(flat90), **curve.details()},
    )


class Deviation:
    """How far the acceptances of the length bins are from being equal, over the runs of one rule.

    Attributes
    ----------
    largest, mean : Estimate
        LRE_inf and LRE_2.
    tested : DataFrame
        Rows of LRE_2 in the table lre, of the runs in which the test of a constant acceptance was made.
    """

    def __init__(self, largest: Estimate, mean: Estimate, tested: pd.DataFrame) -> None:
        self.largest, self.mean, self.tested = largest, mean, tested

    @staticmethod
    def of(rows: pd.DataFrame) -> Deviation:
        """Combine LRE_inf and LRE_2 over runs, from a rule's rows of the table lre."""
        by_norm = {norm: select(rows, norm=norm) for norm in ("inf", "l2")}
        ends = {norm: found.rename(columns=_NAMES) for norm, found in by_norm.items()}
        tested = by_norm["l2"]
        known = np.isfinite(tested.reindex(columns=["wald_p"]).to_numpy(np.float64)).all(axis=1)
        return Deviation(combine_largest(ends["inf"]), combine_largest(ends["l2"]), tested.loc[known])

    @property
    def equal(self) -> bool:
        """Whether the whole interval of LRE_inf, the deviation of the worst bin, lies below ``LRE_MARGIN``."""
        return self.largest.high < LRE_MARGIN

    @property
    def unequal(self) -> bool:
        """Whether LRE_inf or LRE_2 lies above ``LRE_MARGIN`` with its whole interval.

        LRE_2 is at most LRE_inf. So an LRE_2 above the margin shows that LRE_inf is above it too, and LRE_2 has the
        narrower interval.
        """
        return self.largest.low > LRE_MARGIN or self.mean.low > LRE_MARGIN

    def details(self) -> dict[str, Any]:
        """Return LRE_inf, LRE_2 and the test of a constant acceptance with its power, for a claim's details."""
        columns = ("wald_p", "detectable")
        found = {c: self.tested.reindex(columns=[c])[c].to_numpy(np.float64) for c in columns}
        test: dict[str, Any] = {"runs": len(self.tested)}
        if len(self.tested):
            test |= {
                "least p, times the runs": min(float(found["wald_p"].min()) * len(self.tested), 1.0),
                SEEN: float(found["detectable"].max()),
            }
        bins = {f"LRE_inf (margin {LRE_MARGIN:g})": self.largest, "LRE_2": self.mean}
        return {"bins": plain(bins), CONSTANT: test}


_NAMES = {"estimate": "value", "ci_low": "low", "ci_high": "high"}
