"""Tables as ``fspo analyse`` writes them, drawn from the theory with noise, the awkward cases included."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.tables.columns import names
from analysis.tables.files import TABLES, write_tables
from fspo.rules import PRESETS
from fspo.theory import band_acceptance

EDGES = np.array([4, 16, 32, 64, 128, 257])
MEANS = np.array([11.2, 24.1, 47.3, 92.8, 170.4])
BANDS = ("rloo", "gspo", "fspo", "fspo-kl")
SIGMA = 0.03


def bins(overall: bool = True) -> list[dict]:
    rows = [
        {"bin": i, "bin_lo": int(EDGES[i]), "bin_hi": int(EDGES[i + 1]), "bin_mean": float(MEANS[i])}
        for i in range(len(MEANS))
    ]
    whole = {"bin": -1, "bin_lo": int(EDGES[0]), "bin_hi": int(EDGES[-1]), "bin_mean": float(MEANS.mean())}
    return [whole, *rows] if overall else rows


@cache
def curve(rule: str, target: float) -> np.ndarray:
    """T1 and T2 at the bins' mean lengths, drift taken as exact, sigma such that the mean over bins is the target."""
    band = PRESETS[rule].rule
    if band.shape in ("none", "token"):
        return np.full(len(MEANS), 1.0 if rule == "none" else target)
    band, low, high = replace(band, drift="none"), 1e-8, 1e4
    for _ in range(100):
        middle = float(np.sqrt(low * high))
        if band_acceptance(band, MEANS, 0.0, middle).mean() > target:
            low = middle
        else:
            high = middle
    return band_acceptance(band, MEANS, 0.0, low)


def around(rng, value, spread, low=-np.inf, high=np.inf) -> dict:
    centre = float(np.clip(value + rng.normal(0, spread / 2), low, high))
    lower, upper = max(centre - 1.96 * spread, low), min(centre + 1.96 * spread, high)
    return {"estimate": centre, "ci_low": float(lower), "ci_high": float(upper)}


def fake_tables(
    run: str,
    trained_rule: str,
    seed: int,
    rules: tuple[str, ...] = BANDS,
    *,
    counts: int = 400,
    windows: int = 12,
    targets: tuple[float, ...] = (0.95, 0.85),
    near_one: bool = False,
    spoil: bool = False,
) -> dict[str, pd.DataFrame]:
    """All tables of one run. ``spoil`` turns some estimates into NaN with a reason."""
    rng = np.random.default_rng([seed, len(rules), sum(map(ord, run))])
    who = {"run": run, "trained_rule": trained_rule, "seed": seed}
    out: dict[str, list[dict]] = {name: [] for name in ("acceptance", "lre", "trend", "cosine", "lemma")}

    def grid():
        own = PRESETS[trained_rule].rule.outside
        yield {**who, "rule": trained_rule, "outside": own, "source": "trained", "target": np.nan}, 0.95
        for rule in rules:
            for outside in ("drop", "truncate", "cap") if rule == "fspo" else ("drop",):
                yield {**who, "rule": rule, "outside": outside, "source": "given", "target": np.nan}, 0.9
                for target in targets:
                    key = {**who, "rule": rule, "outside": outside, "source": "matched", "target": target}
                    yield key, target

    for key, target in grid():
        rule, outside = key["rule"], key["outside"]
        law = curve(rule, target)
        r = law / law.mean() - 1
        for subset in ("all", "nonzero"):
            for measure in ("band", "update", "weight"):
                counterfactual = key["source"] != "trained"
                if (measure == "weight" and subset == "all") or (
                    measure == "band" and counterfactual and outside != "drop"
                ):
                    continue  # as the analysis does: b is over A != 0, band rows do not depend on outside
                for b in bins():
                    n = counts * (5 if b["bin"] < 0 else 1)
                    a = float(law.mean() if b["bin"] < 0 else law[b["bin"]])
                    a = a if measure == "band" else 1 - (1 - a) * (0.55 if measure == "update" else 0.8)
                    se = np.sqrt(max(a * (1 - a), 1e-4) / n)
                    row = {**key, "subset": subset, "use": "first", **b, "measure": measure, "count": n}
                    out["acceptance"].append({**row, "clusters": n // 8, **around(rng, a, se, 0, 1), "reason": ""})
                for norm, value in (("inf", abs(r).max()), ("l1", abs(r).mean()), ("l2", np.sqrt((r**2).mean()))):
                    e = around(rng, value * (1 if measure == "band" else 1.7) + 0.004, 0.006, 0)
                    row = {**key, "subset": subset, "use": "first", "measure": measure, "norm": norm}
                    out["lre"].append({**row, **e, "plug_in": e["estimate"] + 0.01, "reason": ""})
        loss = {"drop": 0.03, "truncate": 0.006, "cap": 0.004}[outside] * ((1 - target) / 0.05) ** 1.6
        loss *= {"rloo": 1.2, "gspo": 1.6}.get(rule, 1.0) * (1e-4 if near_one else 1)
        for control in (False, True):
            if control and (outside != "drop" or key["source"] == "given" or rule not in (*rules[:1], trained_rule)):
                continue
            for b in bins():
                c = 1 - loss * (0.6 if control else 1.0) * (1 if b["bin"] < 0 else 1 + 0.4 * b["bin"])
                e = around(rng, c, loss / 8, -1, 1)
                row = {**key, "subset": "nonzero", "use": "first", **b}
                row = {**row, "rule": "random" if control else rule}
                worst = around(rng, 1 - loss * 3, loss / 4, -1, 1) if b["bin"] < 0 else dict.fromkeys(e, np.nan)
                row |= {"worst_bin": worst["estimate"], "worst_ci_low": worst["ci_low"]}
                row |= {"worst_ci_high": worst["ci_high"], "count": counts, "clusters": counts // 8, "updates": windows}
                out["cosine"].append({**row, **e, "reason": ""})
        for window in range(windows):
            eta = float(np.exp(rng.normal(np.log(8 * loss if not near_one else 0.01), 0.35)))
            rho = eta + 0.1 * abs(r).max() + 0.02
            ok = rho < 1
            bound = float(np.sqrt(1 - rho**2)) if ok else np.nan
            cos = 1 - (1 - np.sqrt(max(1 - (0.45 * rho) ** 2, 0.05))) * rng.uniform(0.3, 1)
            row = {**key, "subset": "nonzero", "use": "first", "window": 4 * window, "rollouts": 1}
            row |= {"updates": 1, "step": 16 * window, "count": counts, "reason": ""}
            numbers = {"rho": rho, "bound": bound, "guaranteed": ok, "cosine": cos, "slack": cos - bound}
            parts = {"kappa_inf": 2.2, "kappa_2": 1.9, "eta": eta, "lre_inf": abs(r).max()}
            split = {"e_len": abs(r).max() * rng.uniform(0.4, 0.9) + 1e-4, "e_in": 0.45 * eta}
            out["lemma"].append({**row, **numbers, **parts, **split, "identity_residual": 1e-12})
    overall = [row for row in out["acceptance"] if row["bin"] == -1 and row["measure"] == "band"]
    for row in overall:
        e = around(rng, {"rloo": -0.03, "gspo": 0.02}.get(row["rule"], 0.0), 0.003)
        trend = {k: row[k] for k in (*who, "rule", "outside", "source", "target", "subset", "use")}
        numbers = {"slope": e["estimate"], "ci_low": e["ci_low"], "ci_high": e["ci_high"]}
        ninety = {"ci90_low": e["ci_low"], "ci90_high": e["ci_high"], "p_value": 0.01}
        out["trend"].append({**trend, "measure": "band", **numbers, **ninety})

    moments, scaling, over_time, training = [], [], [], []
    for subset in ("all", "nonzero"):
        for b in bins():
            n = counts * (5 if b["bin"] < 0 else 1)
            var = SIGMA**2 * b["bin_mean"] ** 1.12 * np.exp(rng.normal(0, 0.06))
            spread = np.exp(1.96 * np.sqrt(2 / n))
            drift = -0.5 * SIGMA**2 * (1 + rng.normal(0, 0.2))
            row = {**who, "subset": subset, "use": "first", **b, "count": n, "clusters": n // 8}
            row |= {"mean_S": drift * b["bin_mean"], "mean_S_ci_low": drift * b["bin_mean"] - 0.01}
            row |= {"mean_S_ci_high": drift * b["bin_mean"] + 0.01, "var_S": var, "var_S_ci_low": var / spread}
            row |= {"var_S_ci_high": var * spread, "k3_per_token": 5e-4}
            moments.append(row)
        for sign, drift in (("all", -4e-4), ("positive", 2.5e-3), ("negative", -3.5e-3)):
            e = around(rng, 1.12, 0.04)
            row = {**who, "subset": subset, "use": "first", "sign": sign, "count": counts, "clusters": counts // 8}
            row |= {"slope_2H": e["estimate"], "ci_low": e["ci_low"], "ci_high": e["ci_high"]}
            drift += rng.normal(0, 2e-4)
            row |= {"intercept": 2 * np.log(SIGMA), "drift_per_token": drift, "drift_ci_low": drift - 4e-4}
            for kept in (95, 85) if subset == "nonzero" else ():
                g = around(rng, {"positive": 0.7, "negative": 0.3}.get(sign, 0.5), 0.08)
                row |= {f"fair_{kept}{end}": g[name] for end, name in zip(("", "_ci_low", "_ci_high"), g, strict=True)}
            scaling.append({**row, "drift_ci_high": drift + 4e-4, "k3_per_token": 5e-4, "reason": ""})
    for window in range(windows):
        for b in bins(overall=False):
            share = 0.02 + 0.06 * (1 - np.exp(-window / 4)) * (1 + 0.25 * b["bin"] * (trained_rule == "rloo"))
            cut = rng.binomial(counts, min(share, 1))
            se = np.sqrt(max(share * (1 - share), 1e-4) / counts)
            row = {**who, "window": 4 * window, **b, "count": counts}
            low, high = max(cut / counts - 1.96 * se, 0), cut / counts + 1.96 * se
            over_time.append({**row, "estimate": cut / counts, "ci_low": low, "ci_high": high})
    for rollout in range(4 * windows):
        reward = 0.35 + 0.4 * (1 - np.exp(-rollout / 20)) + rng.normal(0, 0.02)
        length = 60 + 30 * (1 - np.exp(-rollout / 15)) + rng.normal(0, 2)
        for name, value in (("reward", reward), ("completions/mean_length", length), ("entropy", 0.4)):
            row = {**who, "rollout": rollout, "step": 4 * rollout, "phase": "train", "name": name}
            training.append({**row, "value": value})
        if rollout % 8 == 0:
            row = {**who, "rollout": rollout, "step": 4 * rollout, "phase": "eval"}
            training.append({**row, "name": "eval/reward", "value": reward + 0.02})
            training.append({**row, "name": "eval/reward_stderr", "value": 0.03})
    frames = {name: pd.DataFrame(rows) for name, rows in out.items() if rows}
    frames |= {"moments": pd.DataFrame(moments), "scaling": pd.DataFrame(scaling)}
    frames |= {"over_time": pd.DataFrame(over_time), "training": pd.DataFrame(training)}
    frames["noise_floor"] = noise_floor(who) if trained_rule == "fspo" else pd.DataFrame()
    if spoil:
        for name in ("acceptance", "lre", "cosine"):
            bad = frames[name].index % 5 == 2
            frames[name].loc[bad, ["estimate", "ci_low", "ci_high"]] = np.nan
            frames[name].loc[bad, "reason"] = "fewer than 20 clusters"
    return frames


def noise_floor(who: dict) -> pd.DataFrame:
    """Two quiet sources and one that puts long responses out of the band."""
    out = []
    for (name, size), place in product({"again": 0.0, "padding": 1e-14, "bfloat16": 4e-5}.items(), bins()):
        share = 0.02 * (place["bin_mean"] > 90) * (name == "bfloat16")
        row = {**who, "source": name, "meaning": f"{name} in words", **place, "count": 100, "clusters": 20}
        row |= {"out_of_band": share, "out_of_band_ci_low": share / 2, "out_of_band_ci_high": share + 0.05}
        row |= {f"mean_square_per_token{end}": size * x for end, x in (("", 1), ("_ci_low", 0.5), ("_ci_high", 1.5))}
        out.append({**row, "reason": ""})
    return pd.DataFrame(out)


def write_run(folder: Path, frames: dict[str, pd.DataFrame], place: str = "analysis", **summary: list[str]) -> Path:
    """A run folder with its analysis tables, empty where none is given, and what is given of its summary."""
    known = {name: frames.get(name, pd.DataFrame()).reindex(columns=[*names(row)]) for name, row in TABLES.items()}
    write_tables(folder / place, known, {"damage": [], "warnings": []} | summary)
    return folder


CASES: dict[str, list[dict]] = {
    "usual": [
        {"run": f"{rule}-s{seed}", "trained_rule": rule, "seed": seed}
        for rule in ("none", "rloo", "gspo", "fspo", "fspo-kl", "fspo-adaptive")
        for seed in (0, 1)
    ],
    "one": [{"run": "fspo", "trained_rule": "fspo", "seed": 0, "rules": ("fspo",)}],
    "near-one": [{"run": "none", "trained_rule": "none", "seed": 0, "near_one": True}],
    "spoiled": [{"run": "fspo", "trained_rule": "fspo", "seed": 0, "spoil": True}],
}


def make_case(name: str, folder: Path) -> list[Path]:
    return [write_run(folder / spec["run"], fake_tables(**spec)) for spec in CASES[name]]


@pytest.fixture(scope="session")
def case_runs(tmp_path_factory):
    """Run folders of a case by name, written once a session."""
    made: dict[str, list[Path]] = {}

    def get(name: str) -> list[Path]:
        if name not in made:
            made[name] = make_case(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture(scope="session")
def case_tables(case_runs):
    """Loaded tables of a case by name."""
    from figures.tables import load

    loaded = {}

    def get(name: str):
        if name not in loaded:
            loaded[name] = load(case_runs(name))
        return loaded[name]

    return get
