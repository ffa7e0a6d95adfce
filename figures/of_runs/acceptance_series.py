"""Tables that the figure of acceptance by length draws beside its measured points: theory's curves, and the acceptance
under numerical noise alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from figures.tables import Frame, Tables
from fspo.rules import CORRECTIONS, PRESETS
from fspo.theory import band_acceptance, matching_sigma


def theory_curve(
    rule: str, lengths: NDArray[np.float64], shares: NDArray[np.float64], overall: float, at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the band acceptance (M,) that T1 and T2 predict at the lengths ``at`` (M,) for the preset or correction
    named ``rule``. S is taken as normal: its mean is the band's centre, its variance sigma^2 L.

    sigma is set so that over bins with mean ``lengths`` (K,) and ``shares`` (K,) of the responses the mean acceptance
    is ``overall``. The result is empty if no sigma does that, or if the rule has no band on whole sequences."""
    band = PRESETS[rule].rule if rule in PRESETS else CORRECTIONS.get(rule)
    if band is None or band.shape in ("none", "token") or not 0 < overall < 1:
        return np.empty(0)
    centred = replace(band, drift="none")
    sigma = matching_sigma(centred, lengths, shares, overall)
    return np.empty(0) if sigma is None else band_acceptance(centred, at, 0.0, sigma)


def theory_rows(rows: Frame, tables: Tables) -> Frame:
    """Return theory's curves of acceptance by length for the measured ``rows``: columns ``panel``, ``run``, ``rule``,
    ``bin_mean`` and ``estimate``. The result is empty if the bins are not of length."""
    found = [pd.DataFrame(columns=["panel", "run", "rule", "bin_mean", "estimate"])]
    for (panel, run, rule), part in rows.groupby(["panel", "run", "rule"], sort=False) if tables.by_length else ():
        bins, whole = part[(part["bin"] >= 0) & (part["count"] > 0)], part[part["bin"] < 0]
        seen = bins["bin_mean"][bins["estimate"].notna()]
        if len(whole) == 1 and len(seen):
            at = np.geomspace(seen.min() / 1.15, seen.max() * 1.15, 97)
            shares = (bins["count"] / bins["count"].sum()).to_numpy(float)
            curve = theory_curve(rule, bins["bin_mean"].to_numpy(float), shares, float(whole["estimate"].iloc[0]), at)
            key = {"panel": panel, "run": run, "rule": rule}
            found.append(pd.DataFrame({"bin_mean": at[: curve.size], "estimate": curve}).assign(**key))
    return pd.concat([frame for frame in found if len(frame)] or found[:1], ignore_index=True)


def floors(tables: Tables) -> Frame:
    """Return the share of responses that numerical noise leaves in the band at unchanged weights (``estimate``), with
    the ends of its interval (``low``, ``high``), by run, source of the noise (``name``) and bin; bin -1 is all bins.

    Sources that put no response out of the band are merged into one."""
    found: list[Frame] = [pd.DataFrame(columns=["run", "name", "bin"])]
    rows = tables.frames.get("noise_floor", pd.DataFrame({"run": []}))
    for _, own in rows.groupby("run"):
        own = own[own["out_of_band"].notna()].sort_values("bin", kind="stable")
        if not (own["bin"] < 0).any():
            continue
        quiet = own.groupby("source")["out_of_band"].transform("max") == 0
        own = own.assign(name=own["source"].where(~quiet, "every source" if quiet.all() else "other sources"))
        kept = own.drop_duplicates(["name", "bin"])
        ends = {"low": 1 - kept["out_of_band_ci_high"], "high": 1 - kept["out_of_band_ci_low"]}
        found.append(kept.assign(estimate=1 - kept["out_of_band"], **ends))
    return pd.concat([frame for frame in found if len(frame)] or found[:1])
