"""All checks, in the order of the statements in docs/theory.md."""

from __future__ import annotations

from proofs_check.checks import t01_t02_certified as certified_fairness
from proofs_check.checks import (
    t01_t02_fairness,
    t03_t04_drift_scale,
    t05_t06_law,
    t07_t08_cosine,
    t09_t12_exact,
    t09_t12_surrogate,
    t13_weight,
    t14_t15_models,
    t14_t15_online,
)
from proofs_check.checks import t01_t06_models as model_checks
from proofs_check.checks import t01_t15_solver as solver
from proofs_check.checks import t01_t15_symbolic as symbolic
from proofs_check.checks import t02_t04_certified_lengths as certified_lengths
from proofs_check.checks import t03_t04_certified as certified
from proofs_check.checks import t05_t13_certified as certified_laws
from proofs_check.checks import t07_attacked as attacks
from proofs_check.checks import t08_logged as logged
from proofs_check.checks import t09_t11_models as joint_checks
from proofs_check.formal import checks as formal_checks
from proofs_check.frame import Check

MODULES = (
    t01_t02_fairness,
    t03_t04_drift_scale,
    t05_t06_law,
    attacks,
    t07_t08_cosine,
    logged,
    t09_t12_exact,
    t09_t12_surrogate,
    t13_weight,
    t14_t15_online,
    t14_t15_models,
    model_checks,
    joint_checks,
    certified_fairness,
    certified,
    certified_laws,
    certified_lengths,
    symbolic,
    solver,
    formal_checks,
)

CHECKS: tuple[Check, ...] = tuple(
    sorted((check for module in MODULES for check in module.CHECKS), key=lambda check: int(check.statement[1:]))
)
