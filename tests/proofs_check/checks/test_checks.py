"""Every check passes, fails for its near misses and for its statement made false by its resolution, and sees a formula
or a rule that is broken on purpose.
"""

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


def find(words: str) -> Check:
    """The one check of the statement named first whose name contains the other words."""
    statement, _, part = words.partition(" ")
    (found,) = [check for check in HERE if check.statement == statement and part in check.name]
    return found


FORMULAS = {
    "band_acceptance": ["T1 50 digits", "T2 GSPO accepts", "T2 through the rules"],
    "worst_lre": ["T3 closing grid", "T3 at most that"],
    "drift_error_bound": ["T3 through the rule"],
    "scale_error_bound": ["T3 through the rule", "T3 heteroscedastic"],
    "lre_bound": ["T3 worst shares"],
    "berry_esseen_bound": ["T4 within the bound"],
    "ar1_variance_ratio": ["T4 double sums"],
    "drift_given_length": ["T6 softmax", "T6 forward sums", "T6 drawn"],
    "fair_centre": ["T6 within .01"],
    "update_acceptance": ["T9 a_upd by sign", "T9 by the formula without"],
    "weight_acceptance": ["T9 b(l) by quadrature"],
    "cap_of_least_error": ["T11 all outcomes of n", "T11 lognormal", "T11 several lengths"],
    "upper_edge_supremum": ["T11 remark (i)"],
}
"""Formulas of ``fspo.theory``, and by statement and part of their name the checks that would see them broken: made
smaller by twice the coarsest resolution allowed."""


@pytest.mark.parametrize(("name", "seen_by"), [(name, one) for name, seen_by in FORMULAS.items() for one in seen_by])
def test_a_broken_formula_is_found(monkeypatch, name, seen_by):
    check = find(seen_by)
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


SEE_RULES = [
    *("T1 50 digits", "T1 gamma = H alone", "T1 skewed", "T2 GSPO accepts", "T2 exact counts"),
    *("T3 wrong drift and a wrong scale", "T9 by the formula without", "T9 cosine .848", "T10 a part changes"),
    *("T10 by rules", "T10 two signs", "T10 each sign with", "T12 1.6, 6.8", "T14 learnt bands"),
]
"""Checks that would see a rule whose band is too wide above, more so for long responses."""


@pytest.mark.parametrize("seen_by", SEE_RULES)
def test_a_broken_rule_is_found(monkeypatch, seen_by):
    monkeypatch.setattr(Rule, "band", widened)
    assert noticed(evidence(find(seen_by)), 0.0)
