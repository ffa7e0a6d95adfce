"""Tables as ``fspo analyse`` writes them, with the columns that figures read, the awkward cases included."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.tables.files import TABLES, write_tables
from analysis.tables.typed_rows import names
from figures.of_runs.acceptance_series import theory_curve
from figures.tables import load
from fspo.rules import PRESETS

EDGES = np.array([4, 16, 32, 64, 128, 257])
MEANS = np.array([11.2, 24.1, 47.3, 92.8, 170.4])
BANDS = ("rloo", "gspo", "fspo", "fspo-kl")
SIGMA = 0.03
COUNT = 400
WINDOWS = 12


def bins(overall: bool = True) -> list[dict]:
    rows = [
        {"bin": i, "bin_lo": int(EDGES[i]), "bin_hi": int(EDGES[i + 1]), "bin_mean": float(MEANS[i])}
        for i in range(len(MEANS))
    ]
    whole = {"bin": -1, "bin_lo": int(EDGES[0]), "bin_hi": int(EDGES[-1]), "bin_mean": float(MEANS.mean())}
    return [whole, *rows] if overall else rows


@cache
def curve(rule: str, target: float) -> np.ndarray:
    """The acceptance in each bin by the theory, where the mean over the bins is the target."""
    found = theory_curve(rule, MEANS, np.full(len(MEANS), 1 / len(MEANS)), target, MEANS)
    return found if found.size else np.full(len(MEANS), 1.0 if rule == "none" else target)


def around(rng, value, spread, low=-np.inf, high=np.inf, prefix: str = "") -> dict:
    """A noisy estimate with its interval; with a prefix, the columns PREFIX, PREFIX_ci_low and PREFIX_ci_high."""
    centre = float(np.clip(value + rng.normal(0, spread / 2), low, high))
    ends = {"ci_low": float(max(centre - 1.96 * spread, low)), "ci_high": float(min(centre + 1.96 * spread, high))}
    return {prefix or "estimate": centre} | {f"{prefix}_{end}" if prefix else end: x for end, x in ends.items()}


def fake_tables(
    run: str,
    trained_rule: str,
    seed: int,
    rules: tuple[str, ...] = BANDS,
    *,
    near_one: bool = False,
    spoil: bool = False,
) -> dict[str, pd.DataFrame]:
    """All tables of one run. ``spoil`` turns some estimates into NaN with a reason."""
    rng = np.random.default_rng([seed, len(rules), sum(map(ord, run))])
    who = {"run": run, "trained_rule": trained_rule, "seed": seed}
    frames = {name: pd.DataFrame(rows) for name, rows in tables_by_rule(rng, who, rules, near_one).items()}
    frames |= {name: pd.DataFrame(rows) for name, rows in tables_of_the_run(rng, who).items()}
    frames["noise_floor"] = noise_floor(who) if trained_rule == "fspo" else pd.DataFrame()
    if spoil:
        for name in ("acceptance", "lre", "cosine"):
            bad = frames[name].index % 5 == 2
            frames[name].loc[bad, ["estimate", "ci_low", "ci_high"]] = np.nan
            frames[name].loc[bad, "reason"] = "fewer than 20 clusters"
    return frames


def cases(who: dict, rules: tuple[str, ...]) -> list[tuple[dict, float]]:
    """The rules that the tables are about, each with its acceptance: as trained, at its default range, matched."""
    trained = who["trained_rule"]
    own = {"rule": trained, "outside": PRESETS[trained].rule.outside, "source": "trained", "target": np.nan}
    found = [(who | own, 0.95)]
    for rule in rules:
        for outside in ("drop", "truncate", "cap") if rule == "fspo" else ("drop",):
            key = who | {"rule": rule, "outside": outside}
            found.append((key | {"source": "given", "target": np.nan}, 0.9))
            found += [(key | {"source": "matched", "target": target}, target) for target in (0.95, 0.85)]
    return found


def tables_by_rule(rng, who: dict, rules: tuple[str, ...], near_one: bool) -> dict[str, list[dict]]:
    """Rows of the tables acceptance, lre, cosine and lemma."""
    out: dict[str, list[dict]] = {name: [] for name in ("acceptance", "lre", "cosine", "lemma")}
    for key, target in cases(who, rules):
        rule, outside = key["rule"], key["outside"]
        law = curve(rule, target)
        r = law / law.mean() - 1
        for subset, measure in product(("all", "nonzero"), ("band", "update", "weight")):
            counterfactual = key["source"] != "trained"
            if (measure == "weight" and subset == "all") or (
                measure == "band" and counterfactual and outside != "drop"
            ):
                continue  # as the analysis does: b is over A != 0, band rows do not depend on outside
            rows = key | {"subset": subset, "use": "first", "measure": measure, "reason": ""}
            for b in bins():
                n = COUNT * (5 if b["bin"] < 0 else 1)
                a = float(law.mean() if b["bin"] < 0 else law[b["bin"]])
                a = a if measure == "band" else 1 - (1 - a) * (0.55 if measure == "update" else 0.8)
                estimate = around(rng, a, np.sqrt(max(a * (1 - a), 1e-4) / n), 0, 1)
                out["acceptance"].append(rows | b | estimate | {"count": n})
            for norm, value in (("inf", abs(r).max()), ("l2", np.sqrt((r**2).mean()))):
                e = around(rng, value * (1 if measure == "band" else 1.7) + 0.004, 0.006, 0)
                out["lre"].append(rows | {"norm": norm} | e)
        loss = {"drop": 0.03, "truncate": 0.006, "cap": 0.004}[outside] * ((1 - target) / 0.05) ** 1.6
        loss *= {"rloo": 1.2, "gspo": 1.6}.get(rule, 1.0) * (1e-4 if near_one else 1)
        rows = key | {"subset": "nonzero", "use": "first", "count": COUNT, "reason": ""}
        for control in (False, True):
            if control and (
                outside != "drop" or key["source"] == "given" or rule not in (*rules[:1], key["trained_rule"])
            ):
                continue
            for b in bins():
                c = 1 - loss * (0.6 if control else 1.0) * (1 if b["bin"] < 0 else 1 + 0.4 * b["bin"])
                row = rows | b | around(rng, c, loss / 8, -1, 1) | {"updates": WINDOWS}
                if b["bin"] < 0:
                    worst = around(rng, 1 - loss * 3, loss / 4, -1, 1, "worst")
                    row |= {"worst_bin": worst.pop("worst")} | worst
                out["cosine"].append(row | {"rule": "random" if control else rule})
        for _ in range(WINDOWS):
            eta = float(np.exp(rng.normal(np.log(0.01 if near_one else 8 * loss), 0.35)))
            rho = eta + 0.1 * abs(r).max() + 0.02
            cos = 1 - (1 - np.sqrt(max(1 - (0.45 * rho) ** 2, 0.05))) * rng.uniform(0.3, 1)
            numbers = {"updates": 1, "rho": rho, "guaranteed": rho < 1, "cosine": cos, "e_in": 0.45 * eta}
            out["lemma"].append(rows | numbers | {"e_len": abs(r).max() * rng.uniform(0.4, 0.9) + 1e-4})
    return out


def tables_of_the_run(rng, who: dict) -> dict[str, list[dict]]:
    """Rows of the tables moments, scaling, over_time and training."""
    out: dict[str, list[dict]] = {name: [] for name in ("moments", "scaling", "over_time", "training")}
    for subset in ("all", "nonzero"):
        rows = who | {"subset": subset, "use": "first"}
        for b in bins():
            n = COUNT * (5 if b["bin"] < 0 else 1)
            var, spread = SIGMA**2 * b["bin_mean"] ** 1.12 * np.exp(rng.normal(0, 0.06)), np.exp(1.96 * np.sqrt(2 / n))
            ends = {"var_S_ci_low": var / spread, "var_S_ci_high": var * spread}
            out["moments"].append(rows | b | ends | {"count": n, "var_S": var})
        for sign, drift in (("all", -4e-4), ("positive", 2.5e-3), ("negative", -3.5e-3)):
            row = rows | {
                "sign": sign,
                "intercept": 2 * np.log(SIGMA),
                "k3_per_token": 5e-4,
                "count": COUNT,
                "reason": "",
            }
            slope = around(rng, 1.12, 0.04, prefix="slope_2H")
            row |= dict(zip(("slope_2H", "ci_low", "ci_high"), slope.values(), strict=True))
            of_drift = around(rng, drift, 2e-4, prefix="drift")
            row |= {"drift_per_token": of_drift.pop("drift")} | of_drift
            for kept in (95, 85) if subset == "nonzero" else ():
                row |= around(rng, {"positive": 0.7, "negative": 0.3}.get(sign, 0.5), 0.08, prefix=f"fair_{kept}")
            out["scaling"].append(row)
    for window, b in product(range(WINDOWS), bins(overall=False)):
        share = 0.02 + 0.06 * (1 - np.exp(-window / 4)) * (1 + 0.25 * b["bin"] * (who["trained_rule"] == "rloo"))
        estimate = around(rng, share, np.sqrt(share * (1 - share) / COUNT), 0, 1)
        out["over_time"].append(who | {"window": 4 * window, "count": COUNT} | b | estimate)
    for rollout in range(4 * WINDOWS):
        reward = 0.35 + 0.4 * (1 - np.exp(-rollout / 20)) + rng.normal(0, 0.02)
        length = 60 + 30 * (1 - np.exp(-rollout / 15)) + rng.normal(0, 2)
        values = {"reward": reward, "completions/mean_length": length, "entropy": 0.4}
        if rollout % 8 == 0:
            values |= {"eval/reward": reward + 0.02, "eval/reward_stderr": 0.03}
        for name, value in values.items():
            phase = "eval" if name.startswith("eval/") else "train"
            row = who | {"rollout": rollout, "step": 4 * rollout, "phase": phase, "name": name}
            out["training"].append(row | {"value": value})
    return out


def noise_floor(who: dict) -> pd.DataFrame:
    """Two quiet sources and one that puts long responses out of the band."""
    out = []
    for name, place in product(("again", "padding", "bfloat16"), bins()):
        share = 0.02 * (place["bin_mean"] > 90) * (name == "bfloat16")
        row = who | {"source": name, "meaning": f"{name} in words"} | place | {"out_of_band": share, "reason": ""}
        out.append(row | {"out_of_band_ci_low": share / 2, "out_of_band_ci_high": share + 0.05})
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


@pytest.fixture(scope="session")
def case_runs(tmp_path_factory):
    """Run folders of a case by name, written once a session."""

    @cache
    def get(name: str) -> list[Path]:
        folder = tmp_path_factory.mktemp(name)
        return [write_run(folder / spec["run"], fake_tables(**spec)) for spec in CASES[name]]

    return get


@pytest.fixture(scope="session")
def case_tables(case_runs):
    """Loaded tables of a case by name."""
    return cache(lambda name: load(case_runs(name)))
