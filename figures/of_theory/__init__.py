"""Figures drawn from the tables of ``fspo maps``, one module for each."""

FIGURES = (
    "acceptance_laws",
    "drift_lre",
    "tightness",
    "berry_esseen",
    "fairness_map",
    "fairness_grid",
    "mse_map",
    "mse_best",
    "adaptive_models",
)
"""Names of the figures of the theory, in the order in which a paper would show them."""
