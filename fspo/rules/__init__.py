"""Clip rules (docs/theory.md section 2): bands, clipping outside a band, drift, calibration and presets."""

from fspo.rules.calibration import calibrate, excess_quantile, excess_quantiles, standardized_excess
from fspo.rules.clip import (
    MAX_EXPONENT,
    OF_CLIP_RULES,
    OF_CORRECTIONS,
    ZEROING,
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
from fspo.rules.drift import Drift, DriftSource, DriftStats, TokenMeans, drift_stats, token_sums
from fspo.rules.gone import GoneError
from fspo.rules.presets import (
    COMPARED,
    COMPARED_ADVANTAGE,
    CORRECTIONS,
    CRITERIA,
    PRESETS,
    RIVALS,
    Aggregation,
    Estimator,
    Preset,
    check_ratios,
    correction,
    preset,
)
from fspo.rules.range import Adapt, Rate, Ratio, Rule, Shape, scaled
