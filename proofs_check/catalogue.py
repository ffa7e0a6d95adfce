"""All checks, in the order of docs/theory.md."""

from __future__ import annotations

from proofs_check import t01_t02_fairness, t03_t06_robustness, t07_t08_cosine, t09_t13_surrogate
from proofs_check.frame import Check

CHECKS: tuple[Check, ...] = (
    *t01_t02_fairness.CHECKS,
    *t03_t06_robustness.CHECKS,
    *t07_t08_cosine.CHECKS,
    *t09_t13_surrogate.CHECKS,
)
