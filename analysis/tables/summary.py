"""Make summary.json of one run: what was read, whether the log is sound, and the key numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.log.loading import Run
from analysis.log.notes import Notes
from analysis.rules.recompute import FOLLOWS_FROM
from analysis.scores.sketches import LEFT_OUT
from fspo.stats.bins import Bins

DIFFERING = 1e-3
"""Largest share of rows in which a column of a sound log may differ from its value recomputed from other columns."""


def summarize(
    run: Run,
    bins: Bins,
    options: dict[str, Any],
    tables: dict[str, pd.DataFrame],
    integrity: dict[str, Any],
    scored: dict[str, Any],
    notes: Notes,
) -> dict[str, Any]:
    """Return the content of summary.json of a run, by key. ``options`` are those of the analysis, ``tables`` its
    tables, ``integrity`` is the check of table lemma, ``scored`` counts scores and updates, and ``notes`` are those
    (damage, warnings, counts) of all steps of the analysis."""
    warnings = list(notes.warnings)
    n = notes.counts
    shares = {x: n[f"{x}_differs"] / n[f"{x}_compared"] for x in FOLLOWS_FROM if f"{x}_compared" in n}
    integrity = {**integrity, **{f"{name}_mismatch_share": share for name, share in shares.items()}}
    if integrity["pass"] is False:
        warnings.append("ERROR: T7 or T8 is violated beyond rounding: the log or the code is wrong")
    for name, share in shares.items():
        if share > DIFFERING:
            integrity["pass"] = False
            warnings.append(
                f"ERROR: the logged {name} differs in {share:.1%} of the rows from what follows from "
                f"{FOLLOWS_FROM[name]}: see `fspo doctor RUN`"
            )
    if scored["first"] == 0 and integrity["pass"] is not None:
        warnings.append("no scores of responses of the first epoch with A != 0: cosine and lemma hold no such rows")
    warnings.extend(words.format(scored[name]) for name, words in LEFT_OUT.items() if scored[name])
    return {
        "run": run.name,
        "rule": run.trained_rule,
        "rule_parameters": run.rule.to_dict() if run.rule else None,
        "own_rule": run.rule.label if run.rule else None,
        "seed": run.seed,
        "counts": {**notes.counts, "scored": scored},
        "partition": {"name": run.partition.column, "label": run.partition.label},
        "edges": list(bins.edges),
        "options": options,
        "damage": list(notes.damage),
        "warnings": warnings,
        "sampled": {name: value for name, value in run.sampled.items() if name != "text"},
        "integrity": integrity,
        "ratio": {"on": run.ratio.on, "symbol": run.ratio.words.text, "rows": run.ratio.words.rows},
        "key_numbers": key_numbers(tables),
    }


def key_numbers(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return by name the numbers that a reader looks for first: acceptances, LRE, slopes, cosine, rho and others of the
    rule that trained, in the first epoch, over all lengths."""
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
    for row in pick("cosine", source="trained", bin=-1, use="first"):
        if row["rule"] == "random":
            continue
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
