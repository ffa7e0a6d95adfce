"""Every check passes, fails for its near misses and for its statement made false by its resolution, and sees a formula
or a rule that is broken on purpose.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from fspo import theory
from fspo.rules import Rule
from proofs_check.catalogue import CHECKS, STATEMENTS, TITLES
from proofs_check.frame import FAMILY, Check, Method, Verdict, gathered, generator, judge, noticed, resolution

SEED = 11  # another than the default's, so that nothing is tuned to one stream
HERE = [check for check in CHECKS if check.method is not Method.MACHINE_PROVED]  # test_formal has those of Coq


def evidence(check: Check, role: str = "claim"):
    """Return the test of a check, or of one of its near misses: it judges the statement made false by x."""
    run = check.run if role == "claim" else check.near_misses[role]
    return gathered(run, generator(SEED, check.key, role), on_error=math.nan)


@pytest.mark.parametrize("check", HERE, ids=lambda check: check.key)
def test_check_passes_and_its_near_misses_and_its_resolution_fail(check):
    test = evidence(check)
    assert judge(test(0.0)) is Verdict.PASS, test(0.0).note
    for name in check.near_misses:
        assert noticed(evidence(check, name), 0.0), name
    if check.false:
        found = resolution(test)
        assert found <= check.sees
        parts = [partial(test, alone=part) for part in range(len(test.tests))]
        assert all(noticed(part, min(1.0, found * factor)) for part in parts for factor in (1, 2, 5, 25))


def test_every_statement_has_a_title_and_two_methods_that_run_everywhere():
    # machine proofs do not count: a machine without Coq reports them as not run
    methods = {s: {str(c.method) for c in HERE if c.statement == s} for s in STATEMENTS}
    missing = [f"{s} has only {', '.join(sorted(used)) or 'nothing'}" for s, used in methods.items() if len(used) < 2]
    assert not missing, "; ".join(missing)
    assert set(TITLES) <= set(STATEMENTS)


def test_the_family_of_simulated_checks_is_no_larger_than_resolutions_take_it():
    assert sum(check.method is Method.SIMULATED for check in CHECKS) <= FAMILY


def scaled(owner: Any, name: str, factor: float):
    original = getattr(owner, name)
    return lambda *args, **kwargs: None if (found := original(*args, **kwargs)) is None else found * factor


def find(statement: str, part: str) -> Check:
    """The one check of a statement whose name contains ``part``."""
    (found,) = [check for check in HERE if check.statement == statement and part in check.name]
    return found


FORMULAS = [
    ("T1", "50 digits", "band_acceptance"),
    ("T2", "GSPO accepts", "band_acceptance"),
    ("T2", "through the rules", "band_acceptance"),
    ("T3", "closing grid", "worst_lre"),
    ("T3", "at most that", "worst_lre"),
    ("T3", "through the rule", "drift_error_bound"),
    ("T3", "through the rule", "scale_error_bound"),
    ("T3", "worst shares", "lre_bound"),
    ("T3", "heteroscedastic", "scale_error_bound"),
    ("T4", "within the bound", "berry_esseen_bound"),
    ("T4", "double sums", "ar1_variance_ratio"),
    ("T6", "softmax", "drift_given_length"),
    ("T6", "forward sums", "drift_given_length"),
    ("T6", "within .01", "fair_centre"),
    ("T6", "drawn", "drift_given_length"),
    ("T9", "a_upd by sign", "update_acceptance"),
    ("T9", "by the formula without", "update_acceptance"),
    ("T9", "b(l) by quadrature", "weight_acceptance"),
    ("T11", "all outcomes of n", "cap_of_least_error"),
    ("T11", "lognormal", "cap_of_least_error"),
    ("T11", "several lengths", "cap_of_least_error"),
    ("T11", "remark (i)", "upper_edge_supremum"),
]
"""Checks by statement and part of their name, and the formula of ``fspo.theory`` that they would see broken: made
smaller by twice the coarsest resolution allowed."""


@pytest.mark.parametrize(("statement", "part", "name"), FORMULAS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_broken_formula_is_found(monkeypatch, statement, part, name):
    check = find(statement, part)
    factor = 1 - 2 * min(check.sees, 0.25)
    value = getattr(theory, name)
    broken = value * factor if isinstance(value, float) else scaled(theory, name, factor)
    for module in (theory, theory.acceptance, theory.bounds, theory.drift, theory.lemma, theory.caps):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, broken)
    assert noticed(evidence(check), 0.0)


def widened(self: Rule, n: Any, m: Any = None, by: float = 1.05):
    below, above = self.half_widths(n)
    centre = self.sum_centre(n, m)
    return centre - below, centre + by * above * n**0.01


RULES = [
    ("T1", "50 digits"),
    ("T1", "gamma = H alone"),
    ("T1", "skewed"),
    ("T2", "GSPO accepts"),
    ("T2", "exact counts"),
    ("T3", "wrong drift and a wrong scale"),
    ("T9", "by the formula without"),
    ("T9", "cosine .848"),
    ("T10", "a part changes"),
    ("T10", "by rules"),
    ("T10", "two signs"),
    ("T10", "each sign with"),
    ("T12", "1.6, 6.8"),
    ("T14", "learnt bands"),
]
"""Checks that would see a rule whose band is too wide above, more so for long responses."""


@pytest.mark.parametrize(("statement", "part"), RULES)
def test_a_broken_rule_is_found(monkeypatch, statement, part):
    monkeypatch.setattr(Rule, "band", widened)
    assert noticed(evidence(find(statement, part)), 0.0)
