"""Clip rules (docs/theory.md section 2): bands, clipping outside a band, drift, calibration and presets."""

from fspo.rules.calibration import calibrate, excess_quantile, excess_quantiles, scaled, standardized_excess
from fspo.rules.clip import (
    CUTTING_ALIKE,
    MAX_EXPONENT,
    Applied,
    Clip,
    Edges,
    Outside,
    Weight,
    capped,
    exponent,
    importance_weight,
    token_k3,
)
from fspo.rules.drift import DriftSource, DriftStats, TokenMeans, drift_stats, token_sums
from fspo.rules.presets import COMPARED, PRESETS, RIVALS, Aggregation, Estimator, Preset, preset
from fspo.rules.rule import Adapt, Drift, Rate, Rule, Shape

__all__ = [
    "COMPARED",
    "CUTTING_ALIKE",
    "MAX_EXPONENT",
    "PRESETS",
    "RIVALS",
    "Adapt",
    "Aggregation",
    "Applied",
    "Clip",
    "Drift",
    "DriftSource",
    "DriftStats",
    "Edges",
    "Estimator",
    "Outside",
    "Preset",
    "Rate",
    "Rule",
    "Shape",
    "TokenMeans",
    "Weight",
    "calibrate",
    "capped",
    "drift_stats",
    "excess_quantile",
    "excess_quantiles",
    "exponent",
    "importance_weight",
    "preset",
    "scaled",
    "standardized_excess",
    "token_k3",
    "token_sums",
]
