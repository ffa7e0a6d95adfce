"""Clip rules (docs/theory.md section 2): the family, its drift statistics, calibration and presets."""

from fspo.rules.calibration import calibrate, excess_quantile, excess_quantiles, scaled, standardized_excess
from fspo.rules.drift import MAX_EXPONENT, DriftSource, DriftStats, drift_stats, sign_sums, token_sums
from fspo.rules.presets import PRESETS, Aggregation, Estimator, Preset, preset
from fspo.rules.rule import Adapt, Applied, Drift, Outside, Rate, Rule, Shape, Weight

__all__ = [
    "MAX_EXPONENT",
    "PRESETS",
    "Adapt",
    "Aggregation",
    "Applied",
    "Drift",
    "DriftSource",
    "DriftStats",
    "Estimator",
    "Outside",
    "Preset",
    "Rate",
    "Rule",
    "Shape",
    "Weight",
    "calibrate",
    "drift_stats",
    "excess_quantile",
    "excess_quantiles",
    "preset",
    "scaled",
    "sign_sums",
    "standardized_excess",
    "token_sums",
]
