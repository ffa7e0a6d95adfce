"""Tables of the same made-up runs as in ``conftest``: smooth curves, squared errors, theory gap, noise floor, sweep."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from analysis.tables.theory_gap import INGREDIENTS
from fspo.base.errors import UserError
from fspo.rules import PRESETS, scaled

NEEDED = "the squared norm of the true update g cannot be told from 0: about {} times the responses are needed"
SETTINGS = {
    "dual": ("none", "1.5", "3"),
    "outside": ("drop", "truncate", "cap"),
    "drift": ("none", "kl", "gaussian", "tilted"),
    "gamma": ("0", "0.25", "0.5", "0.75", "1"),
    "aggregation": ("response", "token", "response mean"),
    "group": ("2", "4", "8"),
    "minibatch": ("1", "2", "3"),
}


def interval(rng, value: float, spread: float, low: float = -np.inf, high: float = np.inf) -> dict:
    ends = np.clip([value, value - 1.96 * spread, value + 1.96 * spread], low, high)
    return dict(zip(("estimate", "ci_low", "ci_high"), map(float, ends), strict=True)) | {"reason": ""}


def smooth(rng, acceptance: pd.DataFrame) -> pd.DataFrame:
    """A curve through the bins' estimates of every case of band acceptance, wide at its short end."""
    out = []
    rows = acceptance[(acceptance["measure"] == "band") & (acceptance["bin"] >= 0)]
    case = ["run", "trained_rule", "seed", "rule", "outside", "source", "target", "subset", "use", "measure"]
    for key, part in rows.groupby(case, dropna=False):
        for i, length in enumerate(np.geomspace(8, 220, 12)):
            value = float(np.interp(np.log(length), np.log(part["bin_mean"]), part["estimate"]))
            ends = {"estimate": value, "ci_low": max(value - 0.8 / (i + 1) ** 2, 0), "ci_high": min(value + 0.02, 1)}
            out.append(
                {
                    **dict(zip(case, tuple(key), strict=True)),
                    "coordinate": length,
                    **ends,
                    "parameters": 5,
                    "reason": "",
                }
            )
    return pd.DataFrame(out)


def population(rng, cases, place: dict, counts: int, spoil: bool) -> pd.DataFrame:
    """Squared errors of each case and its cosines to three references; ``spoil``: the fresh one is unknown."""
    out = []
    for key, target in cases:
        clipped = (1 - target) * {"drop": 1.0, "truncate": 0.3, "cap": 0.5}[key["outside"]]
        row = {**key, "subset": "nonzero", "use": "first", **place, "count": counts, "clusters": counts // 8}
        bias, variance = clipped**2, 1 - 2 * clipped
        values = {"bias2": bias, "variance": variance, "mse": bias + variance, "mse_direction": 1 + bias}
        for name, value in values.items():
            found = interval(rng, value + rng.normal(0, 0.02), 0.03)
            out.append({**row, "reference": "population", "quantity": name, **found})
        for reference in ("population", "capped", "fresh"):
            found = interval(rng, 1 - 2 * clipped + rng.normal(0, 0.01), 0.04, -1, 1)
            if spoil and (reference == "fresh" or key["rule"] == "rloo"):
                found = dict.fromkeys(found, np.nan) | {"reason": NEEDED.format(2.5 if reference == "fresh" else 40)}
            out.append({**row, "reference": reference, "quantity": "cosine", **found})
    return pd.DataFrame(out)


def theory_gap(rng, who: dict, places: list[dict], counts: int) -> pd.DataFrame:
    """Parts that sum to the gap, for a rule with a band on whole sequences; else no rows."""
    band = PRESETS[who["trained_rule"]].rule
    out = []
    for place in places if band.level == "sequence" and band.shape != "none" else ():
        parts = dict(zip(INGREDIENTS, rng.normal(0, 0.03, len(INGREDIENTS)), strict=True)) | {"rest": 0.005}
        values = {"theory": 0.9, "measured": 0.9 + sum(parts.values()), "gap": sum(parts.values())} | parts
        for name, value in values.items():
            row = {**who, **place, "part": name, "count": counts, **interval(rng, float(value), 0.01)}
            out.append({k: v for k, v in row.items() if k != "weight"})
    return pd.DataFrame(out)


def noise_floor(rng, who: dict, places: list[dict]) -> pd.DataFrame:
    """Two quiet sources and one that puts long responses out of the band."""
    out = []
    for (name, size), place in product({"again": 0.0, "padding": 1e-14, "bfloat16": 4e-5}.items(), places):
        share = 0.02 * (place["bin_mean"] > 90) * (name == "bfloat16")
        row = {**who, "source": name, "meaning": f"{name} in words", **place, "count": 100, "clusters": 20}
        row |= {"out_of_band": share, "out_of_band_ci_low": share / 2, "out_of_band_ci_high": share + 0.05}
        for column, value in (("mean_square_per_token", size), ("drift_per_token", -size)):
            row |= {column: value, f"{column}_ci_low": value * 0.5, f"{column}_ci_high": value * 1.5}
        out.append({**row, "reason": ""})
    return pd.DataFrame(out)


def sweep(rng, run: str, spoil: bool) -> pd.DataFrame:
    """As ``fspo sweep`` writes it: the run's rule and seed stand in summary.json alone."""
    out: list[dict] = []

    def add(setting: str, value: str, rule: str, numbers: dict[str, float]) -> None:
        for quantity, number in numbers.items():
            found = interval(rng, number + rng.normal(0, 0.01), 0.02, 0)
            if spoil and quantity in ("cosine", "mse") and setting in ("minibatch", "group"):
                found = dict.fromkeys(found, np.nan) | {"reason": "too few scored responses"}
            out.append({"run": run, "setting": setting, "value": value, "rule": rule, "quantity": quantity, **found})

    for rule, factor in product(("rloo", "gspo", "fspo"), (0.25, 0.5, 1.0, 2.0, 4.0)):
        try:
            own = scaled(PRESETS[rule].rule, factor)
        except UserError:
            continue
        share = 1 - 0.4 * 2.0 ** -(1 + np.log2(4 * factor))
        numbers = {"band": share, "lre_band_l2": 0.2 * (1 - share), "update": share, "lre_update_l2": 0.1 * (1 - share)}
        add("range", f"{own.range_lo:.3g} {own.range_hi:.3g}", rule, numbers | {"cosine": share, "mse": 1.2 * share})
    for setting, values in SETTINGS.items():
        for i, value in enumerate(values):
            numbers = {"update": 0.85 + 0.02 * i, "lre_update_l2": 0.03, "cosine": 0.9 - 0.03 * i, "mse": 0.8 + 0.1 * i}
            add(setting, value, "power" if setting == "gamma" else "fspo", {"band": 0.9, "lre_band_l2": 0.05} | numbers)
    return pd.DataFrame(out)


def ess(rng, who: dict, cases, places: list[dict], counts: int) -> pd.DataFrame:
    """Effective sample sizes of each case and of all responses, and their mean weights, falling with length."""
    exact = who | {"rule": "exact", "outside": "", "source": "given", "target": np.nan}
    out = []
    for key, target in (*cases, (exact, 1.0)):
        for place in places:
            share = target * np.exp(-(0.02**2) * place["bin_mean"])
            mean = interval(rng, target, 0.02)
            row = {**key, "subset": "nonzero", "use": "first", **place, "count": counts, "clusters": counts // 8}
            row |= {"mean_weight" + ("" if k == "estimate" else f"_{k}"): v for k, v in mean.items() if k != "reason"}
            out.append(row | interval(rng, share, 0.01, 0, 1))
    return pd.DataFrame(out)


def positions(rng, who: dict, bins: list[dict], counts: int) -> pd.DataFrame:
    """Tokens kept by two rules, by position in powers of 2 and by the response's length."""
    powers = [{"bin": k, "bin_lo": 2.0**k, "bin_hi": 2.0 ** (k + 1), "bin_mean": 1.4 * 2.0**k} for k in range(9)]
    out = []
    for rule, keeps in (("grpo", 0.97), ("ctpo", 0.9)):
        key = who | {"rule": rule, "outside": "drop", "source": "given", "target": np.nan}
        for by, places in (("position", powers), ("response", bins)):
            for place in places:
                row = {**key, "by": by, **place, "count": 100 * counts, "clusters": counts // 8}
                out.append(row | interval(rng, keeps - 0.01 * place["bin"], 0.01, 0, 1))
    return pd.DataFrame(out)
