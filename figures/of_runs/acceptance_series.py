"""Data for the figure of acceptance by length: measured shares, theory's curve, smooth curve, numerical noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.rules.evaluate import SHAPES
from figures.style import Look, looks
from figures.tables import Frame, Tables, noise_by_run
from fspo.rules import PRESETS
from fspo.theory import band_acceptance, matching_sigma


@dataclass(frozen=True)
class Series:
    """One rule's measured acceptance by length bin with intervals, and theory's curve of it (empty if there is
    none).
    """

    rule: str
    look: Look
    length: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    curve_length: NDArray[np.float64]
    curve: NDArray[np.float64]
    smooth: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 4)))
    """The smooth curve of acceptance at P lengths, (P, 4): length, lower and upper end of its confidence band,
    value."""


@dataclass(frozen=True)
class ShareFloor:
    """Share of a run's responses that stay in the band although one source of numerical noise moves S at unchanged
    weights: by length bin, arrays (K,), and over all responses as the interval ``low .. high``.
    """

    run: str
    source: str
    length: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: float
    high: float


def theory_curve(
    rule: str, lengths: NDArray[np.float64], shares: NDArray[np.float64], overall: float, at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the acceptance that T1 and T2 give a preset at lengths ``at`` if S is normal with the band's centre as its
    mean and variance sigma^2 L.

    sigma is chosen so that the mean acceptance is ``overall``.

    Parameters
    ----------
    rule : str
        Name of a preset or of a correction's band; without a sequence band, or unknown, the result is empty.
    lengths, shares : arrays (K,)
        Mean length and share of responses of each bin.
    overall : float
        Acceptance over all lengths.
    at : array (M,)
        Lengths at which the curve is wanted.
    """
    band = PRESETS[rule].rule if rule in PRESETS else SHAPES.get(rule)
    if band is None or band.shape in ("none", "token", "prefix") or not 0 < overall < 1:
        return np.empty(0)
    centred = replace(band, drift="none")
    sigma = matching_sigma(centred, lengths, shares, overall)
    return np.empty(0) if sigma is None else band_acceptance(centred, at, 0.0, sigma)


_CASE = ("run", "rule", "outside", "source", "target", "subset", "use", "measure")


def smooth_band(tables: Tables, case: Frame) -> NDArray[np.float64]:
    """Return the smooth curve of acceptance of one case, (P, 4): place on the axis, lower and upper end of its
    confidence band, value; empty if the tables have none. ``case``: a table row with the case's run, rule, source and
    target.
    """
    rows = tables.frames.get("smooth")
    if rows is None:
        return np.empty((0, 4))
    for name in _CASE:
        rows = rows[(rows[name] == case[name]) | (rows[name].isna() & pd.isna(case[name]))]
    rows = rows[rows["estimate"].notna()]
    return rows.sort_values("coordinate")[["coordinate", "ci_low", "ci_high", "estimate"]].to_numpy(float)


def floors(tables: Tables) -> list[ShareFloor]:
    """Return, for each run and source of numerical noise, the share of responses that the noise leaves in the band.

    Sources that put no response out of the band are merged into one.
    """
    found = []
    for run, whole, by_bin in noise_by_run(tables, "out_of_band"):
        own: Frame = pd.concat([whole, by_bin])
        quiet = own.groupby("source")["out_of_band"].transform("max") == 0
        own = own.assign(name=own["source"].where(~quiet, "every source" if quiet.all() else "other sources"))
        for name, part in own.drop_duplicates(["name", "bin"]).groupby("name", sort=False):
            whole, part = part[part["bin"] < 0], part[part["bin"] >= 0].sort_values("bin")
            if len(whole):
                low, high = (1 - float(whole[f"out_of_band_ci_{end}"].iloc[0]) for end in ("high", "low"))
                at, share = part["bin_mean"].to_numpy(float), part["out_of_band"].to_numpy(float)
                found.append(ShareFloor(run, str(name), at, 1 - share, low, high))
    return found


def series(rows: Frame, tables: Tables) -> list[Series]:
    """Return the measured acceptance by length bin, with curves, of each run and rule among the rows of one panel."""
    known = looks(rows["rule"])
    found = []
    for rule, look in known.items():
        for _, part in rows[rows["rule"] == rule].groupby("run"):
            by_bin = part[(part["bin"] >= 0) & (part["count"] > 0)].sort_values("bin_mean")
            whole = part[part["bin"] < 0]
            if not by_bin["estimate"].notna().any():
                continue
            length = by_bin["bin_mean"].to_numpy(float)
            at, curve = np.empty(0), np.empty(0)
            if len(whole) == 1 and tables.by_length:
                seen = length[by_bin["estimate"].notna()]
                at = np.geomspace(seen.min() / 1.15, seen.max() * 1.15, 97)
                shares = by_bin["count"].to_numpy(float) / by_bin["count"].sum()
                curve = theory_curve(rule, length, shares, float(whole["estimate"].iloc[0]), at)
            columns = (by_bin[name].to_numpy(float) for name in ("estimate", "ci_low", "ci_high"))
            band = smooth_band(tables, by_bin.iloc[0])
            found.append(Series(rule, look, length, *columns, curve_length=at[: curve.size], curve=curve, smooth=band))
    return found
