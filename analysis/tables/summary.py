"""Make summary.json of one run: what was read, whether the log is sound, and the key numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.log.loading import Run
from analysis.log.notes import Notes
from analysis.log.ratio import CORRECTED
from analysis.log.rows import Floats, Rows
from analysis.rules.evaluate import Outcome
from analysis.scores.sketches import LEFT_OUT
from fspo.rules import Rule
from fspo.stats.bins import Bins

SIDE_TOLERANCE = 1e-3
"""Largest share of rows whose logged side may differ from the rule's: in lower precision S may tie with an edge."""
EDGE_TOLERANCE = 1e-6
"""Largest difference between a logged edge and the rule's edge that counts as rounding: relative, and in nats."""
WEIGHT_TOLERANCE = 1e-4
"""Largest difference in log weight between the logged weight (float32) and the rule's that counts as rounding."""


def summarize(
    run: Run,
    bins: Bins,
    options: dict[str, Any],
    tables: dict[str, pd.DataFrame],
    integrity: dict[str, Any],
    scored: dict[str, Any],
    checked: SideCheck,
    notes: Notes,
) -> dict[str, Any]:
    """Return the content of summary.json; ``notes`` are the notes of all steps."""
    warnings = list(notes.warnings)
    sides = checked.shares(run.logged)
    integrity = {**integrity, **sides}
    if integrity["pass"] is False:
        warnings.append("ERROR: T7 or T8 is violated beyond rounding: the log or the code is wrong")
    for name in ("lo", "hi", "side", "band_accept", "weight", "multiplier"):
        if (share := sides.get(f"{name}_mismatch_share", 0.0)) > SIDE_TOLERANCE:
            integrity["pass"] = False
            warnings.append(
                f"ERROR: the logged {name} differs from the rule's in {share:.1%} of the rows: "
                "the header's rule, the logged drift or S is not what trained"
            )
    if scored["first"] == 0:
        warnings.append("no scores of first-use responses with A != 0: the tables cosine and lemma hold no such rows")
    warnings.extend(words.format(scored[name]) for name, words in LEFT_OUT.items() if scored[name])
    if lost := notes.counts.get("token_lists_left_out", 0):
        warnings.append(f"{lost} lists of token log-ratios left out: missing, not finite, or not L long")
    no_range = tables["ranges"].loc[tables["ranges"]["reason"].astype(str) != ""]
    if number := no_range["window"].nunique():
        windows = "1 window" if number == 1 else f"{number} windows"
        warnings.append(f"{windows} without a matched range for some rules: see column reason of the table ranges")
    return {
        "run": run.name,
        "rule": run.trained_rule,
        "rule_parameters": run.rule.to_dict() if run.rule else None,
        "own_rule": run.rule.label if run.rule else None,
        "seed": run.seed,
        "counts": {**notes.counts, "windows_without_a_range": number, "scored": scored},
        "partition": {"name": run.partition.name, "label": run.partition.label},
        "edges": list(bins.edges),
        "options": options,
        "damage": list(notes.damage),
        "warnings": warnings,
        "sampled": {name: value for name, value in run.sampled.items() if name != "text"},
        "integrity": integrity,
        "ratio": {"on": run.ratio.on, "symbol": run.ratio.words.text, "rows": run.ratio.words.rows},
        "key_numbers": key_numbers(tables),
    }


@dataclass
class SideCheck:
    """Counts rows whose logged edges, side, band or weight differ from those of the header's rule at the logged drift.

    Sides are decided at the logged edges, so the edges are compared apart; not those of a rule whose band follows from
    more than the header and the drift (`Rule.edges_vary`).

    Attributes
    ----------
    rows : int
        Number of rows compared.
    differs : dict of str to int
        Number of rows that differ, by column.
    reason : str
        Why the rule could not be evaluated on some rows.
    """

    rows: int = 0
    differs: dict[str, int] = field(default_factory=dict)
    reason: str = ""

    def add(self, rows: Rows, rule: Rule, found: Outcome) -> None:
        """Count the rows (N,) whose logged side, band or weight differs from what the header's rule gives."""
        if found.reason:
            self.reason = found.reason
            return
        self.rows += len(rows)
        differs = {
            "side": found.side != rows.side,
            "band_accept": found.in_band != rows.band_accept,
            "weight": ~_same_weight(rows.weight, found.weight),
        }
        if rule.on in CORRECTED:  # a correction logs the factor that it leaves on the gradient
            differs["multiplier"] = ~_same_weight(rows.multiplier, found.clipped_weight)
        if not rule.edges_vary:
            edges = rule.band(rows.length, rows.drift if rule.needs_stats else None)
            for name, logged, expected in zip(("lo", "hi"), (rows.lo, rows.hi), edges, strict=True):
                same = np.isclose(logged, expected, rtol=EDGE_TOLERANCE, atol=EDGE_TOLERANCE)
                # an edge that was not logged cannot differ: it would be computed from the rule
                differs[name] = ~(same | np.isnan(logged))
        for name, which in differs.items():
            self.differs[name] = self.differs.get(name, 0) + int(np.count_nonzero(which))

    def merge(self, other: SideCheck) -> None:
        """Add the counts of another check, made on other rows."""
        self.rows += other.rows
        self.reason = self.reason or other.reason
        for name, count in other.differs.items():
            self.differs[name] = self.differs.get(name, 0) + count

    def shares(self, logged: frozenset[str]) -> dict[str, Any]:
        """Return what summary.json says under integrity about the columns that were logged."""
        if self.reason:
            return {"side_check": self.reason}
        shares = {name: count / self.rows for name, count in self.differs.items() if name in logged}
        return {f"{name}_mismatch_share": share for name, share in shares.items()}


def _same_weight(logged: Floats, expected: Floats) -> NDArray[np.bool_]:
    """Return whether each logged weight (N,), a float32, equals the expected one (N,), a float64, up to rounding.

    Weights are compared in log space. Below 1e-38 float32 has only multiples of 1.4e-45, so there a logged weight is
    right if it is the nearest multiple or one of its two neighbours. Below S = -103.97 the nearest multiple is 0.
    """
    step = float(np.finfo(np.float32).smallest_subnormal)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.abs(np.log(logged) - np.log(expected)) <= WEIGHT_TOLERANCE
    return near | (np.abs(logged - expected) <= step)


def key_numbers(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the numbers that a reader looks for first: the rule that trained, at first use, over all lengths."""
    out: dict[str, Any] = {}

    def pick(name: str, **where: Any) -> list[dict[Any, Any]]:
        table = tables[name]
        keep = np.ones(len(table), bool)
        for column, value in where.items():
            keep &= (table[column] == value).to_numpy()
        return table.loc[keep].to_dict("records")

    def interval(row: dict[Any, Any], value: str = "estimate") -> list[float]:
        return [float(row[c]) for c in (value, "ci_low", "ci_high")]

    for measure in ("band", "update", "weight"):
        subset = "all" if measure == "band" else "nonzero"
        where = {"source": "trained", "measure": measure, "subset": subset, "use": "first"}
        for row in pick("acceptance", bin=-1, **where):
            out[f"acceptance_{measure}"] = interval(row)
        for row in pick("lre", norm="l2", **where):
            out[f"lre_{measure}_l2"] = interval(row)
        for row in pick("trend", **where):
            out[f"trend_{measure}"] = interval(row, "slope")
    for row in pick("cosine", source="trained", bin=-1, use="first", control=False, weight="sequence"):
        out["cosine"] = interval(row)
        out["cosine_worst_bin"] = float(row["worst_bin"])
    steps = pick("lemma", source="trained", use="first", updates=1)
    if steps:
        found = pd.DataFrame(steps)
        held = found["guaranteed"].to_numpy(bool)
        out["lemma"] = {"updates": len(steps), "guaranteed_share": float(held.mean())}
        for name in ("rho", "e_len", "e_in"):
            out["lemma"][f"median_{name}"] = float(np.nanmedian(found[name].to_numpy(float)))
        slack = found["slack"].to_numpy(float)[held]
        out["lemma"]["median_slack"] = float(np.median(slack)) if len(slack) else None
    for row in pick("scaling", subset="all", use="first", sign="all"):
        out["variance_exponent_2H"] = interval(row, "slope_2H")
        out["drift_per_token"] = [float(row[c]) for c in ("drift_per_token", "drift_ci_low", "drift_ci_high")]
    return out
