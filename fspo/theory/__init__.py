"""The formulas of docs/theory.md: acceptance by length, Length Reweighting Error, bounds, and the cosine lemma.

Everything is numpy in float64. Log-ratios are in nats, lengths in tokens, acceptances are probabilities."""

from fspo.theory.acceptance import (
    band_acceptance,
    gaussian_means,
    interval_probability,
    matching_sigma,
    update_acceptance,
    upper_edge_supremum,
    weight_acceptance,
)
from fspo.theory.bounds import (
    BERRY_ESSEEN_IID,
    PHI_1,
    ar1_variance_ratio,
    berry_esseen_bound,
    drift_error_bound,
    lre_bound,
    scale_error_bound,
    worst_lre,
)
from fspo.theory.caps import cap_of_least_error
from fspo.theory.drift import drift_given_length, fair_centre, length_shift_bounds
from fspo.theory.lemma import CosineLemma, cosine, cosine_bound, cosine_lemma
from fspo.theory.reweighting import LRE, Floats, lre, relative_acceptance
