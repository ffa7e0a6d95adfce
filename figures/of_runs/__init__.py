"""Figures drawn from the tables of runs, one module for each. The module ``acceptance_series`` draws no figure: it
makes tables for ``acceptance_by_length``.
"""

FIGURES = (
    "acceptance_by_length",
    "acceptance_by_position",
    "clip_over_training",
    "lre_by_rule",
    "ess_by_length",
    "theory_gap",
    "cosine_by_rule",
    "cosine_references",
    "cosine_bound",
    "error_split",
    "update_error",
    "variance_scaling",
    "drift_by_sign",
    "sensitivity_range",
    "sensitivity_settings",
    "training_curves",
)
"""Names of the figures from the tables of ``fspo analyse``, in the order in which a paper would show them."""
STUDIES = ("sketch_error",)
"""Names of the figures from tables that scripts of the folder ``studies`` write."""
