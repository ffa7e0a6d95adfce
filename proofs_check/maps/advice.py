"""Plain advice for a user, every number taken from the tables (docs/theory.md sections 4 to 6)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fspo.stats.intervals import PERCENT
from proofs_check.maps.models import MODELS
from proofs_check.maps.price import ACCEPTANCES, BY_LENGTH, CRITERIA, GAMMAS

Frame = Any
"""A pandas DataFrame or Series: pandas' own annotations are too wide to check selections against."""

LIMIT = 0.1
"""LRE_inf above which the advice calls a rule unfair: some length is off its share by a tenth."""
AT = 0.85
BASE_FACTOR, BASE_VALUE = "exponent", 0.5
"""A one-factor row that is the base case of the fairness map."""
RATES = {"band": "the band's counts", "update": "the update's counts (drop)", "weight": "weight"}
CRITERION_WORDS = {
    "mse": "the update as it is",
    "mse_direction": "the update divided by its acceptance",
    "mse_scaled": "the update with its best step size",
}
CHANGES = {
    "drift_error": "the mean of S lies off 0 at the longest length, in standard deviations",
    "drift_factor": "the drift's estimate is off by a factor",
    "exponent": "Var(S|L) grows like L^2H with H",
    "tail": "tokens are Student-t with 1/df",
    "ar1": "tokens are AR(1) with coefficient",
    "switching": "the tokens' scale switches between 1 and 3 with persistence",
    "length_ratio": "l_max/l_min is",
    "asymmetry": "c_hi/c_lo is",
    "sign_share": "the share of positive advantages differs between the ends by",
    "sign_drift": "the mean of S follows the sign of A, in standard deviations at l_max",
}


def advice(tables: dict[str, Frame]) -> str:
    """The whole text, Markdown. Sections whose table is absent are left out."""
    parts = ["# Where to clip, by the maps\n", _in_short(tables)]
    if "fairness_map" in tables:
        parts.append(_fairness(tables["fairness_map"]))
    if "mse_map" in tables:
        parts.append(_price(tables["mse_map"], tables["mse_best"], tables["price_by_length"]))
    return "\n".join(parts)


def _closed(frame: Frame) -> tuple[Frame, Frame]:
    """Exact one-factor rows at the advice's acceptance, and those of the base case."""
    closed = frame[(frame.method == "closed") & (frame.target == AT) & (frame.factor_2 == "")]
    return closed, closed[(closed.factor == BASE_FACTOR) & (closed.value == BASE_VALUE)]


def _in_short(tables: dict[str, Frame]) -> str:
    """The advice in a few sentences; the sections below say where each number comes from."""
    lines = []
    if "fairness_map" in tables:
        closed, base = _closed(tables["fairness_map"])
        counts = base[(base.measure == "band") & ~base.rule.isin(["none", "random"])]
        if len(counts):
            by = counts.set_index("rule").lre_inf.sort_values()
            rest = ", ".join(f"{rule} {_short(by[rule])}" for rule in ("fspo", "gspo", "rloo") if rule in by.index)
            lines.append(
                f"- **Fair lengths:** take {by.index[0]}: at {AT:.0%} acceptance its LRE_inf is {_short(by.iloc[0])} "
                f"({rest})."
            )
            part = closed[(closed.factor == "exponent") & (closed.measure == "band") & (closed.rule == "fspo-gaussian")]
            if len(part):
                words = _range_words(part.dropna(subset=["lre_inf"]))
                lines.append(
                    f"- **Measure H first:** with Var(S|L) like L^2H, LRE_inf stays at or below {LIMIT:g} {words}."
                )
    if "mse_best" in tables:
        frame, best = tables["mse_map"], tables["mse_best"]
        same = frame[(frame.gamma == 0.5) & (frame.centre == 0) & (frame.acceptance == BY_LENGTH)]
        wide = same.pivot_table(index=["model", "n"], columns="outside", values="mse_scaled")
        ratio = wide["drop"] / wide["cap"]
        better = int((ratio > 1 + 1e-9).sum())
        advised = "hold weights at the edge (cap) rather than drop them" if 2 * better > len(ratio) else "drop, not cap"
        lines.append(
            f"- **Outside the band:** {advised}: with the best step size cap has the lower error in {better} of "
            f"{len(ratio)} cases, drop's is {_short(ratio.median())} times cap's in the median."
        )
        every = best[(best.outside == "any") & (best.criterion == "mse_scaled")]
        half = every.value_gamma_half / every.value
        lines.append(
            f"- **Exponent:** gamma = 1/2 has the least error in {int((half <= 1 + 1e-9).sum())} of {len(every)} "
            f"cases; elsewhere it costs at most {_short((half.max() - 1) * 100)} %. It is chosen for fair lengths."
        )
        names = {"value_centre_minus": "-KL", "value_centre_zero": "0", "value_centre_plus": "+KL"}
        values = every[list(names)].rename(columns=names)
        won = values.idxmin(axis=1).value_counts()
        lines.append(f"- **Centre:** {won.index[0]} has the least error most often ({_counted(won)}).")
    return "\n".join(["## In short\n", *lines]) + "\n" if lines else ""


def _fairness(frame: Frame) -> str:
    closed, base = _closed(frame)
    lines = [
        "## Where the rules are fair\n",
        f"All rules accept {AT:.0%} on average. Base case: independent Gaussian tokens at first use; "
        "`proofs_check/maps/settings.py` says the rest. LRE_inf is the largest relative error of a length's share.\n",
    ]
    if base.empty:
        return "\n".join(lines)
    for measure, words in RATES.items():
        found = base[(base.measure == measure) & ~base.rule.isin(["none", "random"])].sort_values("lre_inf")
        listed = ", ".join(f"{r.rule} {_short(r.lre_inf)}" for r in found.itertuples())
        lines.append(f"- LRE_inf of {words} in the base case: {listed}.")
    lines.append("")
    for rule in ("fspo", "fspo-gaussian"):
        lines.append(f"**{rule}** keeps LRE_inf of the band's counts at or below {LIMIT:g}:\n")
        for factor in closed.factor.unique():
            part = closed[(closed.factor == factor) & (closed.measure == "band") & (closed.rule == rule)]
            lines.append(f"- {CHANGES[factor]}: {_range_words(part.dropna(subset=['lre_inf']))}.")
        lines.append("")
    lines.append(_where_beaten(closed))
    weights = base[(base.measure == "weight") & base.rule.isin(["fspo", "fspo-kl", "fspo-tilted"])]
    by = weights.set_index("rule").lre_inf
    lines.append(
        f"- Fair counts are not fair weights (T13): in the base case LRE_inf of the weight is {_short(by['fspo-kl'])} "
        f"with centre -KL, {_short(by['fspo'])} with none and {_short(by['fspo-tilted'])} with +KL."
    )
    simulated = frame[frame.method == "simulated"]
    if len(simulated):
        keys = ["factor", "value", "rule", "measure", "target"]
        pairs = simulated.merge(closed, on=keys, suffixes=("", "_closed"))
        inside = pairs.lre_inf_closed.between(pairs.lre_inf_low, pairs.lre_inf_high)
        lines.append(
            f"- {int(inside.sum())} of {len(pairs)} simulated intervals contain the closed form; "
            f"{PERCENT} is asked of them."
        )
    return "\n".join(lines) + "\n"


def _where_beaten(closed: Frame) -> str:
    """How often another band is fairer than every sqrt band, and where by most."""
    bands = closed[(closed.measure == "band") & ~closed.rule.isin(["none", "random"])]
    sqrt = bands[bands.gamma == 0.5].groupby(["factor", "value"]).lre_inf.min()
    other = bands[bands.gamma != 0.5].groupby(["factor", "value"]).lre_inf.min()
    worse = (sqrt - other)[sqrt > other + 1e-9].sort_values(ascending=False)
    text = f"- In {len(sqrt) - len(worse)} of {len(sqrt)} one-factor settings a sqrt band is the fairest in counts"
    if len(worse):
        places = "; ".join(
            f"{factor} = {value:.3g} ({_fairest(bands, factor, value)} {_short(other[factor, value])}, "
            f"best sqrt band {_short(sqrt[factor, value])})"
            for factor, value in worse.index[:4]
        )
        text += f"; it is not at {places}"
    return text + "."


def _fairest(bands: Frame, factor: str, value: float) -> str:
    part = bands[(bands.factor == factor) & (bands.value == value)]
    return str(part.loc[part.lre_inf.idxmin()].rule)


def _range_words(part: Frame) -> str:
    """The values, between the grid's ends, at which LRE_inf is at most LIMIT, crossings interpolated linearly."""
    part = part.sort_values("value")
    v, e = part.value.to_numpy(float), part.lre_inf.to_numpy(float)
    fair = e <= LIMIT
    if fair.all():
        return f"everywhere on the grid, {v[0]:.3g} to {v[-1]:.3g}"
    if not fair.any():
        return f"nowhere on the grid, {v[0]:.3g} to {v[-1]:.3g} (least LRE_inf {_short(e.min())})"
    pieces: list[str] = []
    start = v[0] if fair[0] else math.nan
    for i in range(len(v) - 1):
        if fair[i] == fair[i + 1]:
            continue
        crossing = v[i] + (LIMIT - e[i]) / (e[i + 1] - e[i]) * (v[i + 1] - v[i])
        if fair[i + 1]:
            start = crossing
        else:
            pieces.append(f"{start:.2g} to {crossing:.2g}")
    if fair[-1]:
        pieces.append(f"{start:.2g} to {v[-1]:.3g}")
    return f"from {' and '.join(pieces)} (grid {v[0]:.3g} to {v[-1]:.3g}; worst LRE_inf {_short(e.max())})"


def _price(frame: Frame, best: Frame, by_length: Frame) -> str:
    lines = [
        "## What clipping costs and gains\n",
        "Mean squared errors are relative to |g|^2, for n independent prompts; the grid is that of `mse_map.csv`. "
        f"{len(frame.model.unique())} models:\n",
        *[f"- `{name}`: {MODELS[name][0]}." for name in frame.model.unique()],
        "",
    ]
    for n, part in best.groupby("n"):
        lines.append(f"**{n} prompts.**\n")
        for criterion in CRITERIA:
            lines.append(_best_words(part[part.criterion == criterion], criterion))
        lines.append("")
    lines += [_outside_words(frame), _centre_words(best), _gamma_words(best), *_length_words(by_length)]
    return "\n".join(lines) + "\n"


def _best_words(part: Frame, criterion: str) -> str:
    """The minimisers of one criterion at one n, and what FSPO's exponent costs beside them."""
    every = part[part.outside == "any"]
    counts = every.outside_best.value_counts()
    half = every.value_gamma_half / every.value
    gammas = every.gamma.dropna()
    words = [f"- {CRITERION_WORDS[criterion].capitalize()}: best outside " + _counted(counts)]
    if len(gammas):
        words.append(f"gamma {_counted(gammas.value_counts())}")
        words.append(f"centre {_counted(every.centre.dropna().value_counts())}")
        words.append(f"acceptance {_counted(every.acceptance.value_counts())}")
    wins = int((half <= 1 + 1e-9).sum())
    words.append(
        f"gamma = 1/2 is best in {wins} of {len(every)} models, and its own best is {_short(half.median())} times the "
        f"least in the median, {_short(half.max())} at worst"
    )
    if criterion == "mse":
        hopeless = int((every.value >= 1).sum())
        words.append(f"in {hopeless} models even the least error exceeds that of no update at all")
    gain = every.value_unclipped / every.value
    words.append(f"the least is below no clipping by a factor {_short(gain.min())} to {_short(gain.max())}")
    return "; ".join(words) + "."


def _outside_words(frame: Frame) -> str:
    """Drop against truncate and cap like for like: FSPO's band without drift at one acceptance."""
    same = frame[(frame.gamma == 0.5) & (frame.centre == 0) & (frame.acceptance == BY_LENGTH)]
    text = [f"**Outside the band**, for FSPO's band without drift at {BY_LENGTH:.0%} band acceptance:\n"]
    for criterion in CRITERIA:
        wide = same.pivot_table(index=["model", "n"], columns="outside", values=criterion)
        for other in ("truncate", "cap"):
            ratio = wide["drop"] / wide[other]
            text.append(
                f"- {CRITERION_WORDS[criterion]}: {other} beats drop in {int((ratio > 1 + 1e-9).sum())} "
                f"of {len(ratio)} cases; drop's error is {_short(ratio.median())} times its own in the median "
                f"({_short(ratio.min())} to {_short(ratio.max())})."
            )
    return "\n".join(text) + "\n"


def _centre_words(best: Frame) -> str:
    text = ["**Centre** (T13), each with its own best gamma, acceptance and outside:\n"]
    names = {"value_centre_minus": "-KL", "value_centre_zero": "0", "value_centre_plus": "+KL"}
    for criterion in CRITERIA:
        part = best[(best.criterion == criterion) & (best.outside == "any")]
        values = part[list(names)].rename(columns=names)
        won = values.idxmin(axis=1).value_counts()
        worst = ", ".join(f"{c} {_short((values[c] / values.min(axis=1)).max())}" for c in values)
        text.append(
            f"- {CRITERION_WORDS[criterion]}: of these three the best is {_counted(won)}; at worst, over the best of "
            f"the three: {worst}."
        )
    return "\n".join(text) + "\n"


def _gamma_words(best: Frame) -> str:
    """Whether FSPO's exponent minimises the error, said plainly."""
    every = best[(best.outside == "any") & (best.criterion == "mse_scaled")]
    half = every.value_gamma_half / every.value
    wins = int((half <= 1 + 1e-9).sum())
    low = int((every.gamma < 0.5).sum())
    claim = (
        "gamma = 1/2 minimises the error everywhere"
        if wins == len(every)
        else f"gamma = 1/2 is chosen for fair lengths, not for the least error: it minimises it in {wins} of "
        f"{len(every)} cases, a smaller gamma in {low}"
    )
    return (
        f"**Exponent.** With the best step size, {claim}; with centre, acceptance and outside chosen for it, it costs "
        f"at most {_short((half.max() - 1) * 100)} % more than the best. "
        f"The least error lies at the grid's lowest acceptance, {min(ACCEPTANCES):.0%}, in "
        f"{int((every.acceptance == min(ACCEPTANCES)).sum())} of {len(every)} cases and at its lowest gamma, "
        f"{min(GAMMAS):g}, in {int((every.gamma == min(GAMMAS)).sum())}: there truncate and cap hold nearly every "
        "weight at an edge, an update almost without importance weights.\n"
    )


def _length_words(by_length: Frame) -> list[str]:
    """T10: what FSPO's band leaves of the weights at the longest length."""
    part = by_length[(by_length.gamma == 0.5) & by_length.model.isin(["aligned"]) & (by_length.outside == "drop")]
    if part.empty:
        return []
    text = ["**Weights by length** (T10), model `aligned`, FSPO's band, drop:\n"]
    for centre, group in part.groupby("centre"):
        group = group.sort_values("length")
        first, last = group.iloc[0], group.iloc[-1]
        text.append(
            f"- centre {centre:+.0f} KL: from {first.length:.0f} to {last.length:.0f} tokens the upper edge of the "
            f"weight goes from {_short(first.upper_edge)} to {_short(last.upper_edge)}, the effective sample size per "
            f"response from {_short(first.ess_share)} to {_short(last.ess_share)}, band acceptance from "
            f"{_short(first.band_acceptance)} to {_short(last.band_acceptance)}."
        )
    return text


def _counted(counts: Frame) -> str:
    return ", ".join(f"{_name(k)} ({v}x)" for k, v in counts.items())


def _name(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(value: float) -> str:
    if not np.isfinite(value):
        return str(value)
    return "0" if abs(value) < 5e-4 else f"{value:.3g}" if abs(value) < 1e4 else f"{value:.1e}"
