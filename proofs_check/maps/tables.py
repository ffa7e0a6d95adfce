"""The columns of the tables that ``fspo maps`` writes, each with its meaning, and the functions that write a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fspo.base.errors import UserError
from fspo.base.files import whole_file
from fspo.rules.clip import OF_CLIP_RULES
from fspo.stats.intervals import PERCENT

WAYS = ", ".join(OF_CLIP_RULES)
MAP_COLUMNS: dict[str, dict[str, str]] = {
    "fairness_map": {
        "factor": "what is varied: drift_error, drift_factor, exponent, tail, ar1, switching, length_ratio, asymmetry, "
        "sign_share, sign_drift (proofs_check/maps/settings.py explains each)",
        "value": "the factor's value",
        "factor_2": "second factor of a two-factor grid; empty in one-factor rows",
        "value_2": "its value; empty in one-factor rows",
        "model": "law of S given L in one word: gaussian, power_law, student, ar1, markov",
        "rule": "none, a symmetric band (fixed, power-0.25, fspo, power-0.75, linear, fspo-kl, fspo-gaussian, "
        "fspo-tilted), or random (drops as many at random)",
        "gamma": "the band's exponent; empty for none and random",
        "drift": "the band's centre: none, kl, gaussian, tilted",
        "measure": "rate whose LRE is given: band (a_band), update (a_upd of drop), weight (b of a two-sided drop)",
        "target": "mean acceptance of that rate, over p, to which the rule's range was calibrated",
        "acceptance": "mean acceptance reached (1 for rule none)",
        "lre_inf": "LRE_inf of the rate over the lengths (docs/theory.md section 3); empty where the note says why",
        "lre_2": "LRE_2 of the rate",
        "lre_inf_low": f"lower end of a simultaneous {PERCENT} interval; lre_inf itself where method is closed",
        "lre_inf_high": "upper end",
        "lre_2_low": "lower end of the interval for LRE_2",
        "lre_2_high": "upper end",
        "method": "closed (closed form or quadrature) or simulated (responses drawn and put through rule.apply)",
        "note": "why LRE is missing: the target cannot be reached, or the mean weight is infinite",
    },
    "mse_map": {
        "model": "policy, step and reward (proofs_check/maps/models.py)",
        "n": "number of independent prompts, one response each",
        "gamma": "exponent of the band's half-width c L^gamma; empty without clipping",
        "centre": "the band's centre in units of KL(old||new) per token: -1 is -KL L, 0 none, +1 is +KL L (T13); empty "
        "without clipping",
        "acceptance": "band acceptance to which c was calibrated (softmax policies: the nearest that their responses "
        "allow); 1 without clipping",
        "outside": f"{WAYS}, or none: no clipping, one row for each model and n",
        "half_width": "c L^gamma at the mean length, nats; empty without clipping",
        "update_acceptance": "mean of a_upd over A != 0: the share that is not cut",
        "weight_acceptance": "b = E[M w] / E[w] over A != 0",
        "ess_share": "effective sample size of the clipped weights per response, E[M w]^2 / E[(M w)^2]",
        "bias2": "|g_clip - g|^2 / |g|^2",
        "variance": "tr Cov of the update over n prompts / |g|^2",
        "mse": "bias2 + variance: mean squared error of the update as it is (T12)",
        "bias2_direction": "|g_clip/a_bar - g|^2 / |g|^2; a_bar is a_upd for drop and b for truncate and cap",
        "mse_direction": "bias2_direction + variance/a_bar^2 (T12, for direction)",
        "mse_scaled": "least mean squared error over all constant factors on the update (the best step size)",
        "cosine": "cosine of g_clip and g",
        "lre_band": "LRE_inf of a_band over the lengths",
        "lre_weight": "LRE_inf of the rule's weight acceptance b over the lengths",
    },
    "price_by_length": {
        "model": "as in mse_map",
        "gamma": "as in mse_map",
        "centre": "as in mse_map",
        "acceptance": "as in mse_map",
        "outside": "as in mse_map",
        "length": "tokens",
        "upper_edge": "the band's upper edge as a weight, exp(hi); infinite without clipping (T10)",
        "band_acceptance": "a_band at this length",
        "weight_mean": "E[M w | l]; without clipping 1",
        "weight_variance": "Var(M w | l)",
        "ess_share": "E[M w | l]^2 / E[(M w)^2 | l]",
    },
    "mse_best": {
        "model": "as in mse_map",
        "n": "as in mse_map",
        "outside": f"{WAYS}, or any (the best of them and of no clipping)",
        "criterion": "column of mse_map that is minimised: mse, mse_direction or mse_scaled",
        "gamma": "minimiser over the rows of mse_map with this outside; empty where no clipping is best (any)",
        "centre": "minimiser",
        "acceptance": "minimiser; 1 where no clipping is best (any)",
        "value": "the least value",
        "value_unclipped": "the criterion without clipping",
        "value_gamma_half": "the least value with gamma = 1/2, over centre and acceptance",
        "value_centre_minus": "the least value with centre -KL, over gamma and acceptance",
        "value_centre_zero": "with centre 0",
        "value_centre_plus": "with centre +KL",
        "outside_best": "which outside gives the value; none: no clipping is best",
    },
    "adaptive_models": {
        "model": "law of S given L, a name of proofs_check.models.MODELS",
        "words": "what it is",
        "drift": "the band's centre: kl (the model's own drift mu L, known) or none (the presets as they are)",
        "rule": "fspo (range calibrated once), fspo-auto, fspo-adaptive, fspo-conformal",
        "acceptance": "mean acceptance after learning, over lengths and runs; the target is 0.8",
        "gamma": "exponent of the band, mean over runs",
        "lre_inf": "LRE_inf of the long-run acceptance (plug-in) over 12 lengths of equal shares, 8 to 384 tokens",
        "lre_2": "LRE_2 of it (plug-in)",
        "lre_inf_low": f"lower end of a simultaneous {PERCENT} interval over independent runs",
        "lre_inf_high": "upper end",
        "lre_2_low": "lower end for LRE_2",
        "lre_2_high": "upper end",
        "lre_2_update": "root of the mean squared LRE_2 of one update's band, without sampling noise",
        "runs": "independent runs",
    },
    "acceptance_laws": {
        "panel": "drift of the tokens in words",
        "mu": "that drift, nats per token",
        "sigma": "nats per root token",
        "target": "mean acceptance over LENGTHS that the rule's range was set to",
        "rule": "preset with that range",
        "kind": "law (closed form) or simulated",
        "length": "tokens",
        "acceptance": "a(l)",
        "ci_low": f"lower end of Clopper and Pearson's {PERCENT} interval; empty for laws",
        "ci_high": "upper end",
        "draws": "responses of a simulated point",
    },
    "drift_lre": {
        "case": "ranges in a word",
        "u_lo": "c_lo/sigma",
        "u_hi": "c_hi/sigma",
        "mixed_signs": "drift errors from -x to x; else from 0 to x",
        "a_0": "acceptance without drift error",
        "x": "largest drift error",
        "lre": "sup over p of LRE_inf, in float64",
        "low": "certified lower end of it",
        "high": "certified upper end",
        "near": "relative half-width of the ranges behind near_low and near_high",
        "near_low": "certified lower end over all ranges that near",
        "near_high": "certified upper end",
        "one_sided": "B/(a_0 - B); empty where B >= a_0",
        "two_sided": "2B/(a_0 - B)",
    },
    "tightness": {
        "source": "random, optimised, policy or T7s",
        "rho": "rho of T7",
        "cosine": "of clipped and true update",
        "sine": "of the same angle, exact for small ones",
        "guaranteed": "rho < 1",
    },
    "berry_esseen": {
        "law": "tokens: exponential, signs (one of two values) or student",
        "rho3": "E|s - mu|^3/sigma^3",
        "length": "tokens",
        "envelope": "T5's bound",
        "band": "worst (of all bands around the drift) or unit (u = 1)",
        "kind": "exact or simulated",
        "difference": "|a - a_Gauss|",
        "ci_low": f"lower end of its {PERCENT} interval; empty for exact values",
        "ci_high": "upper end",
        "draws": "responses of a simulated point",
    },
}
"""Columns of each table, in order: name and meaning. An empty cell is a missing value."""


def file_name(table: str) -> str:
    """Return the name of the file to which ``fspo maps`` writes the table ``table``."""
    return f"{table}.csv"


def to_frame(table: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a data frame with exactly the columns of the table ``table``.

    Raises
    ------
    UserError
        If a row has an unknown column, or there are no rows.
    """
    rows = list(rows)
    if not rows:
        raise UserError(f"table {table!r} has no rows: choose at least one factor or model")
    frame = pd.DataFrame(rows)
    unknown = set(frame) - set(MAP_COLUMNS[table])
    if unknown:
        raise UserError(f"table {table!r} has no column {sorted(unknown)[0]!r}: describe it in MAP_COLUMNS first")
    return frame.reindex(columns=list(MAP_COLUMNS[table]))


def write_table(folder: Path, table: str, frame: pd.DataFrame, digits: int = 10) -> Path:
    """Write one table with ``digits`` significant digits; the file appears only when it is complete."""
    path = folder / file_name(table)
    with whole_file(path) as part:
        frame.to_csv(part, index=False, float_format=f"%.{digits}g")
    return path
