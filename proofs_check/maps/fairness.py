"""The fairness map: the LRE of every rule, with ranges at which all rules have the same mean acceptance (docs/theory.md
T1-T6, T11, T13).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from fspo.rules import Rule
from fspo.theory import Floats, lre, update_acceptance
from proofs_check.maps.matching import matched
from proofs_check.maps.settings import MIDDLE, SIGMA, MapPoint
from proofs_check.tools.lre_interval import simulated_lre

Measure = Literal["band", "update", "weight"]
TARGETS: dict[str, tuple[float, ...]] = {"band": (0.85, 0.5), "update": (0.85, 0.7), "weight": (0.85, 0.5)}
"""Targets of the mean band, update and weight acceptance: each rule's range is set so that the target is met. For
update acceptance no target is low: a response is clipped on one side of the band only, so even a narrow band leaves
about half of all responses alone.
"""
SIMULATED_TARGET = 0.85
Row = dict[str, Any]


def _power(name: str, gamma: float, **options: Any) -> Rule:
    """Return a rule whose band has the half-width c L^gamma, around 0 unless ``options`` name a drift. At the length
    ``MIDDLE`` the half-width is one standard deviation of S; `rows_of` scales c until a target acceptance is met.
    """
    c = SIGMA * MIDDLE ** (0.5 - gamma)
    return Rule("power", c, c, gamma=gamma, name=name, **options)


RULES: tuple[Rule, ...] = (
    _power("fixed", 0.0),
    _power("power-0.25", 0.25),
    _power("fspo", 0.5),
    _power("power-0.75", 0.75),
    _power("linear", 1.0),
    _power("fspo-kl", 0.5, drift="kl"),
    _power("fspo-gaussian", 0.5, drift="gaussian"),
    _power("fspo-tilted", 0.5, drift="tilted"),
)
"""The bands that are compared. All are symmetric; `with_asymmetry` makes them unequal where the fairness map varies the
factor asymmetry. ``fixed`` and ``linear`` stand for the presets rloo and gspo, whose ranges are unequal.
"""


def acceptance(setting: MapPoint, rule: Rule, measure: Measure) -> Floats | None:
    """Return a rule's acceptance at each of the K lengths of ``setting``, a point of the fairness map. ``measure`` says
    which acceptance: band, update or weight.

    Weight acceptance is here the mean of w 1(S in the band) over the mean of w, whatever the sign of A (T13).

    Returns
    -------
    array (K,), or None where the mean of w at a length is infinite.
    """
    positive, negative, share = setting.positive, setting.negative, setting.share
    lo, hi = rule.band(setting.lengths, rule.centre(setting.means))
    if measure == "update":
        cut_high, cut_low = positive.probability(hi, _INFINITE), negative.probability(-_INFINITE, lo)
        return update_acceptance(share, cut_high, cut_low)
    if measure == "band":
        return share * positive.probability(lo, hi) + (1 - share) * negative.probability(lo, hi)
    kept, lost = positive.weighted(lo, hi), negative.weighted(lo, hi)
    whole, rest = positive.weighted(-_INFINITE, _INFINITE), negative.weighted(-_INFINITE, _INFINITE)
    if kept is None or lost is None or whole is None or rest is None:
        return None
    return (share * kept + (1 - share) * lost) / (share * whole + (1 - share) * rest)


_INFINITE = np.array(math.inf)


def with_asymmetry(rule: Rule, ratio: float) -> Rule:
    """Return the rule with the upper range ``ratio`` times the lower one, and the geometric mean of both unchanged."""
    root = math.sqrt(ratio)
    return replace(rule, range_lo=rule.range_lo / root, range_hi=rule.range_hi * root)


def rows_of(setting: MapPoint, measures: tuple[str, ...], rng: np.random.Generator, draws: int) -> list[Row]:
    """Return the rows of one point of the fairness map. For every rule, kind of acceptance and target acceptance, one
    row has the LRE that follows from formulas; if ``setting.simulate``, further rows have the LRE of drawn responses.
    """
    rows: list[Row] = []
    sample = _Sample(setting, rng, draws) if setting.simulate and draws else None
    for measure in measures:
        for target in TARGETS[measure]:
            # Without a rule, or if responses are dropped at random, all lengths are accepted equally often: LRE is 0.
            for name in ("none", "random"):
                a = np.full(setting.lengths.size, 1.0 if name == "none" else target)
                rows.append(_row(setting, name, None, measure, target) | _closed(setting.p, a))
            for rule in RULES:
                rows += _rule_rows(setting, rule, measure, target, sample)
    return rows


def _rule_rows(setting: MapPoint, rule: Rule, measure: Any, target: float, sample: _Sample | None) -> list[Row]:
    base = _row(setting, rule.name, rule, measure, target)
    if not math.isfinite(rule.centre(setting.means)):
        return [base | _missing(f"the estimate behind drift {rule.drift} has no finite mean")]
    start = with_asymmetry(rule, setting.asymmetry)
    if acceptance(setting, start, measure) is None:
        return [base | _missing("the mean weight is infinite")]

    def mean(candidate: Rule) -> float:
        a = acceptance(setting, candidate, measure)
        assert a is not None
        return float(setting.p @ a)

    found = matched(start, mean, target)
    if found is None:
        return [base | _missing("no range reaches the target")]
    a = acceptance(setting, found, measure)
    assert a is not None
    rows = [base | _closed(setting.p, a)]
    if sample is not None and target == SIMULATED_TARGET:
        rows.append(base | sample.lre_of(found, measure))
    return rows


def _row(setting: MapPoint, name: str, rule: Rule | None, measure: str, target: float) -> Row:
    return {
        "factor": setting.factor,
        "value": setting.value,
        "factor_2": setting.factor_2,
        "value_2": setting.value_2,
        "model": setting.model,
        "rule": name,
        "gamma": rule.gamma if rule else math.nan,
        "drift": rule.drift if rule else "none",
        "measure": measure,
        "target": target,
        "note": "",
    }


def _closed(p: Floats, a: Floats) -> Row:
    error = lre(p, a)
    return {
        "acceptance": error.mean_acceptance,
        "lre_inf": error.inf,
        "lre_2": error.l2,
        "lre_inf_low": error.inf,
        "lre_inf_high": error.inf,
        "lre_2_low": error.l2,
        "lre_2_high": error.l2,
        "method": "closed",
    }


def _missing(why: str) -> Row:
    return {"method": "closed", "note": why}


class _Sample:
    """Responses drawn for every length at a point of the fairness map. All rules are applied to the same responses."""

    def __init__(self, setting: MapPoint, rng: np.random.Generator, draws: int) -> None:
        self.setting = setting
        positive = rng.random((draws, setting.lengths.size)) < setting.share
        same = setting.positive is setting.negative
        above = setting.positive.sample(rng, draws)
        below = above if same else setting.negative.sample(rng, draws)
        self.S = np.where(positive, above, below)
        self.A = np.where(positive, 1.0, -1.0)

    def lre_of(self, rule: Rule, measure: Measure) -> Row:
        """Return LRE_inf and LRE_2 of a rule's acceptance of the drawn responses, with intervals that hold for both at
        once. ``measure``: band, update or weight acceptance.
        """
        applied = rule.apply(self.S, self.setting.lengths, self.A, rule.centre(self.setting.means))
        kept = applied.in_band if measure != "update" else applied.side == 0
        weight = applied.weight if measure == "weight" else np.ones_like(self.S)
        return simulated_lre(self.setting.p, np.where(kept, weight, 0.0), weight)
