"""Figures of the theory, one module for each. They draw tables of their own names, which ``numbers`` computes."""

FIGURES = ("acceptance_models", "drift_and_scale", "cosine_tightness", "normal_approximation")
"""Names of the figures of the theory, in the order in which a paper would show them."""
