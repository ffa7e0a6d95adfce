"""Figures drawn from the tables of ``python -m proofs_check.maps``, one module for each."""

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
"""Figures of the theory, in the order of a paper."""
