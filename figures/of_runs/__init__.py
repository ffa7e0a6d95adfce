"""Figures drawn from the tables of runs, one module for each. The module ``acceptance_series`` draws no figure: it
makes tables for ``acceptance_by_length``."""

FIGURES = (
    "acceptance_by_length",
    "clip_over_training",
    "lre_by_rule",
    "cosine_by_rule",
    "cosine_bound",
    "error_split",
    "variance_scaling",
    "drift_by_sign",
    "fair_exponent",
    "training_curves",
)
"""Names of the figures from the tables of ``fspo analyse``, in the order in which a paper would show them."""
