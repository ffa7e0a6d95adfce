"""What clipping costs under each band: effective sample size, and the update's bias, variance and mean squared error
(T10, T12, T13).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fspo.rules import OF_CLIP_RULES, Outside, Rule
from fspo.theory import Floats, cosine, lre
from proofs_check.maps.models import MODELS
from proofs_check.maps.policies import Moments, Policy
from proofs_check.maps.settings import TYPICAL_PROMPTS

GAMMAS = (0.0, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0)
CENTRES = (-1.0, -0.5, 0.0, 0.5, 1.0)
ACCEPTANCES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
PROMPTS = (32, TYPICAL_PROMPTS, 8192)
BY_LENGTH = 0.85
"""Mean band acceptance to which every band of the table price_by_length is scaled."""
CRITERIA = ("mse", "mse_direction", "mse_scaled")
Row = dict[str, Any]


def rule_for(policy: Policy, gamma: float, centre: float, outside: Outside) -> tuple[Rule, float]:
    """Return a rule whose band has the half-width L^gamma (the caller scales its range to a target), and the centre of
    the band per token: ``centre`` times KL(old||new) per token.
    """
    return Rule("power", 1.0, 1.0, gamma=gamma, outside=outside), centre * policy.kl


def rows_of(name: str, step: Callable[[], object] = lambda: None) -> tuple[list[Row], list[Row]]:
    """Return the rows of the price map's model ``name`` in the tables mse_map and price_by_length.

    Each pair of an exponent gamma and a centre of the band is computed in turn. ``step`` is called after each pair, for
    a progress bar.
    """
    policy = MODELS[name][1]()
    base = {"model": name}
    none = Rule("none")
    unclipped = policy.moments(none, 0.0)
    free = {"gamma": math.nan, "centre": math.nan, "acceptance": 1.0, "outside": "none", "half_width": math.nan}
    every = [base | free | row for row in _price(unclipped, "none")]
    by_length = list(_by_length(base | free, none, 0.0, unclipped))
    for gamma in GAMMAS:
        for centre in CENTRES:
            for target in ACCEPTANCES:
                for row, rule, m, moments in _outsides(policy, gamma, centre, target):
                    every += [base | row | price for price in _price(moments, rule.outside)]
                    if target == BY_LENGTH and centre in (-1, 0, 1):
                        by_length += _by_length(base | row, rule, m, moments)
            step()
    return every, by_length


def steps() -> int:
    """Return how often `rows_of` calls ``step``: once for each pair of an exponent gamma and a centre of the price
    map's bands.
    """
    return len(GAMMAS) * len(CENTRES)


def _outsides(policy: Policy, gamma: float, centre: float, target: float) -> Iterator[tuple[Row, Rule, float, Moments]]:
    """Yield one tuple for each way to treat responses outside one band (drop, truncate, cap): the row's first columns,
    the rule, its centre per token, and the moments of the update. The band's range is scaled to the band acceptance
    ``target``.
    """
    first, m = rule_for(policy, gamma, centre, "drop")
    found = policy.calibrated(first, m, target)
    if found is None:
        return
    for outside in OF_CLIP_RULES:
        rule = replace(found, outside=outside)
        moments = policy.moments(rule, m)
        width = float(found.half_widths(np.array([moments.p @ moments.lengths]))[1][0])
        row = {"gamma": gamma, "centre": centre, "acceptance": target, "outside": outside, "half_width": width}
        yield row, rule, m, moments


def _price(m: Moments, outside: str) -> Iterator[Row]:
    """Yield rows of T12's squared bias, variance and mean squared error of the update, relative to |g|^2 of the true
    update g: one row for each number of prompts.
    """
    p, norm2, clipped2 = m.p_update, _square(m.g), _square(m.g_clip)
    kept, b = float(p @ m.kept), float(p @ m.clipped) / float(p @ m.weight)
    a_bar = kept if outside == "drop" else b
    row = {
        "update_acceptance": kept,
        "weight_acceptance": b,
        "ess_share": float(p @ m.clipped) ** 2 / float(p @ m.clipped_square),
        "bias2": _square(m.g_clip - m.g) / norm2,
        "bias2_direction": _square(m.g_clip / a_bar - m.g) / norm2,
        "cosine": cosine(m.g_clip, m.g),
        "lre_band": lre(m.p, m.band).inf,
        "lre_weight": lre(p, m.clipped / m.weight).inf,
    }
    for n in PROMPTS:
        variance = (m.second - clipped2) / n / norm2
        # ``scaled`` is the least mean squared error of c times the clipped update over all factors c, divided by |g|^2.
        # The mean squared error is |c g_clip - g|^2 + c^2 tr Cov, Cov the covariance of the clipped update.
        scaled = 1 - float(m.g @ m.g_clip) ** 2 / norm2 / (clipped2 + variance * norm2)
        yield row | {
            "n": n,
            "variance": variance,
            "mse": row["bias2"] + variance,
            "mse_direction": row["bias2_direction"] + variance / a_bar**2,
            "mse_scaled": scaled,
        }


def _by_length(base: Row, rule: Rule, m: float, moments: Moments) -> Iterator[Row]:
    """Yield one row for each length: effective sample size, and mean and variance of the clipped weights M w (T10)."""
    with np.errstate(over="ignore"):
        edge = np.exp(rule.band(moments.lengths, m)[1])
    row = {k: v for k, v in base.items() if k != "half_width"}
    for i, length in enumerate(moments.lengths):
        first, square = moments.clipped[i], moments.clipped_square[i]
        yield row | {
            "length": length,
            "upper_edge": edge[i],
            "band_acceptance": moments.band[i],
            "weight_mean": first,
            "weight_variance": square - first**2,
            # The effective sample size is set to 0 where the band keeps no response of this length.
            "ess_share": first**2 / square if square > 0 else 0.0,
        }


def best_rows(frame: Any) -> list[Row]:
    """Return the rows of the table mse_best. A row holds the least value of one kind of error in the table mse_map:
    over all bands, over bands with the exponent 1/2, and over bands with each of three centres.
    """
    rows: list[Row] = []
    for (model, n), part in frame.groupby(["model", "n"], sort=False):
        free, clipped = part[part.outside == "none"].iloc[0], part[part.outside != "none"]
        for outside in (*OF_CLIP_RULES, "any"):
            among = clipped if outside == "any" else clipped[clipped.outside == outside]
            for criterion in CRITERIA:
                open_to = part if outside == "any" else among
                best = open_to.loc[open_to[criterion].idxmin()]
                rows.append(
                    {
                        "model": model,
                        "n": n,
                        "outside": outside,
                        "criterion": criterion,
                        "gamma": best.gamma,
                        "centre": best.centre,
                        "acceptance": best.acceptance,
                        "value": best[criterion],
                        "value_unclipped": free[criterion],
                        "value_gamma_half": among[among.gamma == 0.5][criterion].min(),
                        "value_centre_minus": among[among.centre == -1][criterion].min(),
                        "value_centre_zero": among[among.centre == 0][criterion].min(),
                        "value_centre_plus": among[among.centre == 1][criterion].min(),
                        "outside_best": best.outside,
                    }
                )
    return rows


def _square(v: Floats) -> float:
    return float(v @ v)
