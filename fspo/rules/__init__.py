"""Clip rules (docs/theory.md section 2): the family, its drift statistics, calibration and presets."""

from fspo.rules.calibration import calibrate, scaled, standardized_excess
from fspo.rules.drift import MAX_EXPONENT, DriftSource, DriftStats, drift_stats, token_sums
from fspo.rules.presets import PRESETS, Aggregation, Estimator, Preset, preset
from fspo.rules.rule import Applied, Drift, Outside, Rate, Rule, Shape, Weight

__all__ = [
    "MAX_EXPONENT",
    "PRESETS",
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
    "preset",
    "scaled",
    "standardized_excess",
    "token_sums",
]
