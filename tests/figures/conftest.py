"""Tables as ``fspo analyse`` writes them, with the columns that figures read, the awkward cases included."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.tables.files import TABLES, write_tables
from analysis.tables.typed_rows import names
from figures.tables import load
from fspo.rules import PRESETS

LOW, HIGH, MEANS = [4, 4, 16, 32, 64, 128], [257, 16, 32, 64, 128, 257], [69.2, 11.2, 24.1, 47.3, 92.8, 170.4]
BINS = pd.DataFrame({"bin": range(-1, 5), "bin_lo": LOW, "bin_hi": HIGH, "bin_mean": MEANS})
BANDS = ("rloo", "gspo", "fspo", "fspo-kl")
MEASURES = [("all", "band"), ("all", "update"), ("nonzero", "band"), ("nonzero", "update"), ("nonzero", "weight")]
COUNT, WINDOWS = 400, 12


def estimated(rng, rows, value, spread, column: str = "estimate", ends: str = "ci", low=-np.inf, high=np.inf):
    """Return ``rows`` with noisy estimates of ``value`` in ``column`` and 95 % intervals in two more columns."""
    centre = np.clip(value + rng.normal(0, 1, len(rows)) * spread / 2, low, high)
    lower, upper = np.maximum(centre - 1.96 * spread, low), np.minimum(centre + 1.96 * spread, high)
    return rows.assign(**{column: centre, f"{ends}_low": lower, f"{ends}_high": upper})


def fake_tables(
    run: str, trained_rule: str, seed: int, rules: tuple[str, ...] = BANDS, near_one: bool = False, spoil: bool = False
) -> dict[str, pd.DataFrame]:
    """Return all tables of one run. ``spoil`` turns some estimates into NaN with a reason."""
    rng = np.random.default_rng([seed, len(rules), sum(map(ord, run))])
    compared = cases(trained_rule, rules)
    frames = acceptance_and_lre(rng, compared) | cosine_and_lemma(rng, compared, near_one)
    frames |= tables_of_the_run(rng, trained_rule)
    frames |= {"training": training(rng), "noise_floor": noise_floor() if trained_rule == "fspo" else pd.DataFrame()}
    if spoil:
        for name in ("acceptance", "lre", "cosine"):
            bad = np.arange(len(frames[name])) % 5 == 2
            frames[name].loc[bad, ["estimate", "ci_low", "ci_high"]] = np.nan
            frames[name].loc[bad, "reason"] = "fewer than 20 clusters"
    return {name: frame.assign(run=run, trained_rule=trained_rule, seed=seed) for name, frame in frames.items()}


def cases(trained: str, rules: tuple[str, ...]) -> pd.DataFrame:
    """The rules that the tables are about, each with the share that it clips and how that grows with length."""
    rows = [(trained, PRESETS[trained].rule.outside, "trained", np.nan, 0.05)]
    for rule, outside in [*((rule, "drop") for rule in rules), ("fspo", "truncate"), ("fspo", "cap")]:
        rows.append((rule, outside, "given", np.nan, 0.1))
        rows += [(rule, outside, "matched", 1 - clipped, clipped) for clipped in (0.05, 0.15)]
    found = pd.DataFrame(rows, columns=["rule", "outside", "source", "target", "clipped"])
    tilt = found["rule"].map({"rloo": 0.8, "gspo": -0.8}).fillna(0.0)
    return found.assign(tilt=tilt, use="first", reason="")


def acceptance_and_lre(rng, compared: pd.DataFrame) -> dict[str, pd.DataFrame]:
    rows = compared.merge(pd.DataFrame(MEASURES, columns=["subset", "measure"]), "cross")
    # as the analysis does: band rows on one log do not depend on outside
    rows = rows[(rows["measure"] != "band") | (rows["source"] == "trained") | (rows["outside"] == "drop")]
    binned = rows.merge(BINS, "cross")
    far = (binned["bin"] / 2 - 1).where(binned["bin"] >= 0, 0.0)  # from the middle bin, -1 to 1
    share = binned["measure"].map({"band": 1.0, "update": 0.55, "weight": 0.8})
    a = 1 - share * binned["clipped"] * (1 + binned["tilt"] * far)
    count = np.where(binned["bin"] < 0, 5 * COUNT, COUNT)
    acceptance = estimated(rng, binned.assign(count=count), a, np.sqrt(a * (1 - a) / count), low=0, high=1)
    normed = rows.merge(pd.DataFrame({"norm": ["inf", "l2"], "size": [1.0, 0.7]}), "cross")
    size = normed["size"] * normed["tilt"].abs() * normed["clipped"] * np.where(normed["measure"] == "band", 1, 1.7)
    return {"acceptance": acceptance, "lre": estimated(rng, normed, size + 0.004, 0.006, low=0)}


def cosine_and_lemma(rng, compared: pd.DataFrame, near_one: bool) -> dict[str, pd.DataFrame]:
    loss = compared["outside"].map({"drop": 0.03, "truncate": 0.006, "cap": 0.004}) * (20 * compared["clipped"]) ** 1.6
    loss *= compared["rule"].map({"rloo": 1.2, "gspo": 1.6}).fillna(1.0) * (1e-4 if near_one else 1)
    compared = compared.assign(loss=loss, subset="nonzero", count=COUNT)
    control = compared.query("outside == 'drop' and source != 'given'").drop_duplicates("target")
    binned = pd.concat([compared, control.assign(rule="random", loss=0.6 * control["loss"])]).merge(BINS, "cross")
    whole, loss = binned["bin"] < 0, binned["loss"]
    overall = 1 - loss * (1 + 0.4 * binned["bin"]).where(~whole, 1.0)
    table = estimated(rng, binned.assign(updates=WINDOWS), overall, loss / 8, low=-1, high=1)
    cosine = estimated(rng, table, (1 - 3 * loss).where(whole), loss / 4, "worst_bin", "worst_ci", -1, 1)
    lemma = compared.merge(pd.DataFrame({"updates": [1] * WINDOWS}), "cross")
    e_in = (0.01 if near_one else 4 * lemma["loss"]) * np.exp(rng.normal(0, 0.5, len(lemma)))
    e_len = (lemma["tilt"].abs() * lemma["clipped"] + 1e-4) * rng.uniform(0.4, 0.9, len(lemma))
    rho = 2 * e_in + 0.02
    cos = np.sqrt(1 - np.minimum(0.45 * rho, 0.95) ** 2 * rng.uniform(0.3, 1, len(lemma)))
    return {"cosine": cosine, "lemma": lemma.assign(rho=rho, guaranteed=rho < 1, cosine=cos, e_in=e_in, e_len=e_len)}


def tables_of_the_run(rng, trained_rule: str) -> dict[str, pd.DataFrame]:
    moments = pd.DataFrame({"subset": ["all", "nonzero"], "use": "first"}).merge(BINS, "cross")
    count = np.where(moments["bin"] < 0, 5 * COUNT, COUNT)
    var, spread = (0.03**2 * moments["bin_mean"] ** 1.12), np.exp(1.96 * np.sqrt(2 / count))
    ends = {"var_S_ci_low": var / spread, "var_S_ci_high": var * spread}
    signs = {"sign": ["all", "positive", "negative"], "drift": [-4e-4, 2.5e-3, -3.5e-3], "fair": [0.5, 0.7, 0.3]}
    fits = moments[["subset", "use"]].drop_duplicates().merge(pd.DataFrame(signs), "cross")
    fits = fits.assign(intercept=2 * np.log(0.03), k3_per_token=5e-4, count=COUNT, reason="")
    scaling = estimated(rng, fits, 1.12, 0.04, "slope_2H")
    scaling = estimated(rng, scaling, fits["drift"], 2e-4, "drift_per_token", "drift_ci")
    for name in ("fair_95", "fair_85"):
        scaling = estimated(rng, scaling, fits["fair"].where(fits["subset"] == "nonzero"), 0.08, name, f"{name}_ci")
    over_time = BINS[1:].merge(pd.DataFrame({"window": 4 * np.arange(WINDOWS), "count": COUNT}), "cross")
    grows = 1 + 0.25 * over_time["bin"] * (trained_rule == "rloo")
    share = 0.02 + 0.06 * (1 - np.exp(-over_time["window"] / 16)) * grows
    return {
        "moments": moments.assign(count=count, var_S=var * np.exp(rng.normal(0, 0.06, len(moments))), **ends),
        "scaling": scaling,
        "over_time": estimated(rng, over_time, share, np.sqrt(share * (1 - share) / COUNT), low=0, high=1),
    }


def training(rng) -> pd.DataFrame:
    rollout = np.arange(4 * WINDOWS)
    reward = 0.35 + 0.4 * (1 - np.exp(-rollout / 20)) + rng.normal(0, 0.02, rollout.size)
    length = 60 + 30 * (1 - np.exp(-rollout / 15)) + rng.normal(0, 2, rollout.size)
    values = {"reward": reward, "completions/mean_length": length, "entropy": 0.4}
    values |= {"eval/reward": np.where(rollout % 8, np.nan, reward + 0.02), "eval/reward_stderr": 0.03}
    wide = pd.DataFrame({"rollout": rollout, "step": 4 * rollout, "phase": "train"} | values)
    return wide.melt(["rollout", "step", "phase"], var_name="name").dropna()


def noise_floor() -> pd.DataFrame:
    """Two quiet sources and one that puts long responses out of the band."""
    sources = pd.DataFrame({"source": ["again", "padding", "bfloat16"], "meaning": "in words", "reason": ""})
    rows = sources.merge(BINS, "cross")
    share = 0.02 * (rows["bin_mean"] > 90) * (rows["source"] == "bfloat16")
    return rows.assign(out_of_band=share, out_of_band_ci_low=share / 2, out_of_band_ci_high=share + 0.05)


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
