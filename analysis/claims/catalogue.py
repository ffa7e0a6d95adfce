"""The claims C1..C7, and M1 about a mismatch.

What each estimates, its margin and its test were fixed before any full run; each can fail.

A claim reads the tables of several runs (rules x seeds). With at least two seeds, the estimate is the mean over seeds
with Student's t over them. With one seed, the interval is the run's (over clusters of responses) and says nothing about
other seeds; the details give the number of seeds. A claim is "supported" if each part of its statement holds by that
part's interval (as all parts must hold, no correction for several tests is needed), "not supported" if one part is
refuted, and otherwise "inconclusive".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.by_length import CONSTANT, FAIR, SEEN, fair_in_length, learns_to_be_fair, masks_by_length
from analysis.claims.evidence import (
    NAN,
    Claim,
    Estimate,
    Tables,
    absolute,
    combine,
    combine_largest,
    difference,
    groups,
    least_of,
    plain,
    select,
    verdict_of,
    worst_by_run,
)
from analysis.log.ratio import CORRECTED
from analysis.rules.evaluate import TARGETS
from analysis.stats.error_law import MOST_LEFT_OUT
from analysis.tables.assumptions import DRIFT_TOLERANCE, EXPONENT_TOLERANCE, LAW_TOLERANCE
from analysis.tables.files import write_json
from fspo.gradlog import metric_names as metric
from fspo.rules import RIVALS, Ratio
from fspo.stats.intervals import EQUIVALENCE, detectable, sample_interval, t_quantile

MIN_SEEDS = 5
REWARD_MARGIN = 0.02
_TEXT = ("subset", "use", "reason")


def smallest_lre(tables: Tables) -> Claim:
    """Judge C2: the bias-corrected LRE_2^2 of fspo's band acceptance is below that of rloo and that of gspo."""
    rows = {}
    printed: dict[str, Any] = {}
    for rule in (FAIR, *RIVALS):
        for measure in ("band", "update", "weight"):
            subset = "all" if measure == "band" else "nonzero"
            where = {"rule": rule, "source": "trained", "measure": measure, "subset": subset, "use": "first"}
            both = select(tables["lre"], **where)
            if measure == "band":
                rows[rule] = select(both, norm="l2_squared")
            printed[f"lre_{measure} of {rule}"] = asdict(
                combine(select(both, norm="l2"), "estimate", "ci_low", "ci_high")
            )
    parts = {r: difference(rows[r], rows[FAIR], "estimate", "ci_low", "ci_high") for r in RIVALS}
    smallest = least_of(parts)
    return Claim(
        "C2",
        "fspo's lre_band is the smallest.",
        "least of LRE_2^2(rival) - LRE_2^2(fspo), a_band, bias-corrected, first-use rows of each rule's own run",
        0.0,
        smallest.value,
        smallest.low,
        smallest.high,
        verdict_of([p.low > 0 for p in parts.values()], [p.high < 0 for p in parts.values()]),
        {"differences": plain(parts), "LRE_2": printed},
    )


def highest_cosine(tables: Tables) -> Claim:
    """Judge C3: at 95 % acceptance on every log, the cosine of true and clipped update is higher with fspo's band than
    with rloo's and gspo's, over all lengths and in the worst bin of lengths.
    """
    parts: dict[str, Estimate] = {}
    where = {"source": "matched", "target": 0.95, "outside": "drop", "weight": "sequence", "use": "first", "bin": -1}
    for rule in RIVALS:
        rows = select(tables["cosine"], **where, rule=rule)
        for label, name in (("overall", "diff_fspo"), ("worst bin", "diff_fspo_worst")):
            gap = combine(rows, name, f"{name}_ci_low", f"{name}_ci_high") if name in rows else Estimate()
            parts[f"{label}, over {rule}"] = -gap
    shares: dict[str, Any] = {}
    updates = select(tables["lemma"], updates=1, use="first")
    for (source, target, rule, outside), rows in groups(updates, ["source", "target", "rule", "outside"]):
        if outside != "drop" and source != "trained":
            continue
        held = rows["guaranteed"].to_numpy(bool)
        label = f"{rule}, {source}" + (f" {target:.0%}" if source == "matched" else "")
        slack = float(np.median(rows["slack"].to_numpy(float)[held])) if held.any() else NAN
        entry = {"updates": len(rows), "share with a promise": float(held.mean()), "median slack": slack}
        shares[label] = entry | {"median rho": float(np.nanmedian(rows["rho"].to_numpy(float)))}
    smallest = least_of(parts)
    return Claim(
        "C3",
        "fspo's band has the highest cosine to the common g, overall and in the worst bin; T7 promises on the share "
        "of updates given in the details.",
        "least lead of fspo's cosine over rloo's and gspo's (drop, 95 % of A != 0 kept, same batch, every log)",
        0.0,
        smallest.value,
        smallest.low,
        smallest.high,
        verdict_of([p.low > 0 for p in parts.values()], [p.high < 0 for p in parts.values()]),
        {"leads": plain(parts), "T7": shares, "cosines": _cosines(tables)},
    )


def _cosines(tables: Tables) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for target in TARGETS:
        where = {"source": "matched", "target": target, "weight": "sequence", "use": "first", "bin": -1}
        rows = select(tables["cosine"], **where)
        for (rule, outside), some in groups(rows, ["rule", "outside"]):
            out[f"{rule}, {outside}, {target:.0%} kept"] = asdict(combine(some, "estimate", "ci_low", "ci_high"))
    return out


def _seen_bins(moments: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the table moments for length bins with an estimated variance of S.

    A run is left out if more than the share MOST_LEFT_OUT of its rows lies in bins without this estimate, because
    claim C4 is about every bin.
    """
    bins = moments.loc[moments["bin"].to_numpy(int) >= 0]
    known = np.isfinite(bins["var_S"].to_numpy(float))
    count = bins["count"].to_numpy(float)
    seen = pd.DataFrame({"run": bins["run"].to_numpy(), "all": count, "seen": np.where(known, count, 0.0)})
    sums = seen.groupby("run").transform("sum")
    enough = sums["seen"].to_numpy(float) >= (1 - MOST_LEFT_OUT) * sums["all"].to_numpy(float)
    return bins.loc[known & enough]


def gaussian_model(tables: Tables) -> Claim:
    """Judge C4: in each length bin S is normal, its variance is proportional to L, and its mean is minus the KL."""
    slope = select(tables["scaling"], subset="all", use="first", sign="all")
    found = combine(slope, "slope_2H", "ci_low", "ci_high")
    found90 = combine(slope, "slope_2H", "ci90_low", "ci90_high", EQUIVALENCE) if len(slope) else Estimate()
    m = select(tables["moments"], subset="all", use="first")
    m = _seen_bins(m) if "var_S" in m else m.iloc[:0]
    normal, drift = Estimate(), Estimate()
    if len(m):
        c = {name: m[name].to_numpy(float) for name in m.columns if name not in ("run", "trained_rule", *_TEXT)}
        sd, kl = np.sqrt(c["var_S"]), c["k3_per_token"] * c["bin_mean"]
        base = {"run": m["run"].to_numpy(), "seed": c["seed"]}
        errors = {"value": c["mean_S"] + kl, "low": c["mean_S_ci_low"] + kl, "high": c["mean_S_ci_high"] + kl}
        errors = pd.DataFrame(base | {name: value / sd for name, value in errors.items()})
        drift = combine_largest(worst_by_run(absolute(errors)))
        law = pd.DataFrame(base | {"value": c["ks_distance"], "low": c["ks_ci_low"], "high": c["ks_ci_high"]})
        normal = combine_largest(worst_by_run(law))
    margin = 2 * EXPONENT_TOLERANCE  # Var(S|L) grows as L^2H: the table holds the exponent 2H, the tolerance is of H
    holds = [
        found90.low > 1 - margin and found90.high < 1 + margin,
        normal.high < LAW_TOLERANCE,
        drift.high < DRIFT_TOLERANCE,
    ]
    refuted = [
        found.low > 1 + margin or found.high < 1 - margin,
        normal.low > LAW_TOLERANCE,
        drift.low > DRIFT_TOLERANCE,
    ]
    nonzero = select(tables["scaling"], subset="nonzero", use="first", sign="all")
    return Claim(
        "C4",
        "S given L is near Gaussian, its variance is proportional to L, its drift is -KL.",
        "2H of Var(S|L) ~ L^2H within 1 +- margin (estimate shown; 90 % interval); largest distance from the normal "
        f"law in any bin < {LAW_TOLERANCE}; largest |E[S] + L KL| / sd(S) in any bin < {DRIFT_TOLERANCE}; all logs, "
        "first use",
        margin,
        found.value,
        found.low,
        found.high,
        verdict_of(holds, refuted),
        {
            "2H": asdict(found),
            "distance from normal": asdict(normal),
            "drift error": asdict(drift),
            "holds": dict(zip(("variance", "normality", "drift"), holds, strict=True)),
            "refuted": dict(zip(("variance", "normality", "drift"), refuted, strict=True)),
            "2H for A != 0": asdict(combine(nonzero, "slope_2H", "ci_low", "ci_high")),
        },
    )


def final_reward(rows: pd.DataFrame) -> float:
    """Return the mean held-out reward over the last fifth of the evaluations."""
    values = rows.sort_values(["rollout", "step"])["value"].to_numpy(np.float64)
    return float(values[-max(len(values) // 5, 1) :].mean())


def drawdown(rows: pd.DataFrame) -> float:
    """Return the deepest fall of the training reward below its running maximum."""
    values = rows.sort_values(["rollout", "step"])["value"].to_numpy(np.float64)
    return float(np.max(np.maximum.accumulate(values) - values))


def trains_as_well(tables: Tables) -> Claim:
    """Judge C5: final reward and deepest fall of the reward are not worse under fspo than under rloo and gspo, paired
    by seed.
    """
    parts: dict[str, Estimate] = {}
    measures: dict[str, tuple[dict[str, Any], Callable[[pd.DataFrame], float]]] = {
        "final held-out reward": ({"name": metric.HELD_OUT_REWARD, "phase": "eval"}, final_reward),
        "deepest fall of the training reward": ({"name": metric.REWARD, "phase": "train"}, drawdown),
    }
    for label, (where, reduce) in measures.items():
        rows = select(tables["training"], **where)
        by_rule = {
            rule: {s: reduce(g) for (s,), g in groups(select(rows, trained_rule=rule), ["seed"])}
            for rule in (FAIR, *RIVALS)
        }
        for rule in RIVALS:
            left, right = by_rule[FAIR], by_rule[rule]
            gaps = np.array([left[seed] - right[seed] for seed in left if seed in right])
            parts[f"{label}, fspo less {rule}"] = Estimate(*sample_interval(gaps), len(gaps), 2 * len(gaps))
    reward = {k: p for k, p in parts.items() if k.startswith("final")}
    falls = {k: p for k, p in parts.items() if k.startswith("deepest")}
    enough = all(p.seeds >= MIN_SEEDS for p in parts.values())
    margin = REWARD_MARGIN
    holds = [p.low > -margin for p in reward.values()] + [p.high < margin for p in falls.values()]
    refuted = [p.high < -margin for p in reward.values()] + [p.low > margin for p in falls.values()]
    smallest = least_of(reward)
    details: dict[str, Any] = {"differences": plain(parts), "seeds needed": MIN_SEEDS}
    return Claim(
        "C5",
        "fspo trains at least as stably and as well as rloo and gspo.",
        "fspo less rival, paired by seed: final held-out reward above -margin and deepest fall of the training reward "
        f"below +margin; inconclusive below {MIN_SEEDS} seeds",
        margin,
        smallest.value,
        smallest.low,
        smallest.high,
        verdict_of(holds, refuted) if enough else "inconclusive",
        details,
    )


def edge_keeps_direction(tables: Tables) -> Claim:
    """Judge C6: with fspo's band at 95 % and at 85 % acceptance, truncating and capping give a higher cosine than
    dropping the responses outside the band.
    """
    parts: dict[str, Estimate] = {}
    for outside in ("truncate", "cap"):
        for target in TARGETS:
            where = {"source": "matched", "target": target, "weight": "sequence", "use": "first", "bin": -1}
            rows = select(tables["cosine"], **where, rule=FAIR, outside=outside)
            name, there = f"{outside}, {target:.0%} kept", "diff_drop" in rows
            parts[name] = combine(rows, "diff_drop", "diff_drop_ci_low", "diff_drop_ci_high") if there else Estimate()
    smallest = least_of(parts)
    return Claim(
        "C6",
        "Truncating or capping at the fair edge keeps more of the update's direction than dropping.",
        "least gain in same-batch cosine over dropping at fspo's band: truncate and cap, 95 % and 85 % of A != 0 kept "
        "(each at its own matched range), every log",
        0.0,
        smallest.value,
        smallest.low,
        smallest.high,
        verdict_of([p.low > 0 for p in parts.values()], [p.high < 0 for p in parts.values()]),
        {"gains": plain(parts)},
    )


CLAIMS: tuple[Callable[[Tables], Claim], ...] = (
    fair_in_length,
    smallest_lre,
    highest_cosine,
    gaussian_model,
    trains_as_well,
    edge_keeps_direction,
    learns_to_be_fair,
)


OF_MISMATCH: tuple[Callable[[Tables], Claim], ...] = (masks_by_length,)
"""Claims about the mismatch of sampler and trainer, judged on the engine ratio E or the behaviour ratio D + E."""


def claims_about(on: Ratio) -> tuple[Callable[[Tables], Claim], ...]:
    """Return the functions that judge the claims about the log-ratio ``on``; the total S + D + E has no claims."""
    return CLAIMS if on == "update" else OF_MISMATCH if on in CORRECTED else ()


def evaluate_claims(tables: Tables, on: Ratio = "update") -> list[Claim]:
    """Judge every claim about a ratio, with its power, on the tables of several runs.

    Parameters
    ----------
    tables : mapping of str to DataFrame
        Tables of runs analysed on this ratio, from :func:`analysis.tables.files.read_tables`.
    """
    return [with_power(claim(tables)) for claim in claims_about(on)]


def with_power(claim: Claim) -> Claim:
    """Return the claim with ``details["power"]``: which difference these runs could have detected.

    ``detectable`` is the smallest true difference from 0 that a two-sided test of level 1 - CONFIDENCE detects with
    80 % probability. It is computed from the longer side of the interval (Student's t where there are several seeds).
    ``parts`` gives the same number for each estimate in the claim's details.
    """
    parts = {name: _detectable(part) for name, part in _estimates(claim.details, ())}
    main = {"value": claim.estimate, "low": claim.ci_low, "high": claim.ci_high}
    seeds = [p["seeds"] for _, p in _estimates(claim.details, ()) if all(p[k] == main[k] for k in main)]
    found = _detectable(main | {"seeds": seeds[0] if seeds else 1})
    if not np.isfinite(found):
        sentence = "Too little data: these runs could not have seen any difference."
    else:
        sentence = f"These runs would have seen a true difference of {found:.2g} with 80 % probability"
        sentence += f"; the margin is {claim.margin:g}." if claim.margin > 0 else "."
        # Half-width of the interval at the level EQUIVALENCE, which equivalence tests use, computed from that at
        # CONFIDENCE.
        half = (
            t_quantile(np.inf, EQUIVALENCE)
            / t_quantile(np.inf)
            * max(claim.estimate - claim.ci_low, claim.ci_high - claim.estimate)
        )
        if 0 < claim.margin <= half:
            sentence += " Without any difference their interval would still reach beyond the margin."
    seen = claim.details.get(CONSTANT, {}).get(SEEN, NAN)
    if np.isfinite(seen):
        sentence += f" The test of a constant acceptance would have seen an LRE_2 of {seen:.2g}."
    power = {"detectable": found, "sentence": sentence, "parts": parts}
    return replace(claim, details=claim.details | {"power": power})


def _estimates(details: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every estimate in a claim's nested details, with the keys on the way to it as its name."""
    for name, value in details.items():
        if isinstance(value, Mapping):
            if {"value", "low", "high", "seeds"} <= value.keys():
                yield ": ".join((*path, name)), value
            else:
                yield from _estimates(value, (*path, name))


def _detectable(part: Mapping[str, Any]) -> float:
    arm = max(part["value"] - part["low"], part["high"] - part["value"])
    return detectable(float(arm), part["seeds"] - 1 if part["seeds"] >= 2 else np.inf)


def write_claims(path: Path, claims: Sequence[Claim]) -> None:
    """Write claims.json whole or not at all: if writing crashes, the file of the last analysis is still there."""
    write_json(path, [claim.to_dict() for claim in claims])
