"""Every check passes as stated and fails when its formula is broken on purpose."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fspo import theory
from fspo.rules import Rule
from proofs_check import frame
from proofs_check.catalogue import CHECKS, STATEMENTS
from proofs_check.frame import Method, Outcome, Verdict, exit_status
from proofs_check.run import run_checks


def find(statement: str, part: str) -> frame.Check:
    """The one check of a statement whose name contains ``part``; those of Coq have their own tests."""
    others = [check for check in CHECKS if check.method is not Method.MACHINE_PROVED]
    (found,) = [check for check in others if check.statement == statement and part in check.name]
    return found


def judged_alone(check: frame.Check) -> Verdict:
    """Verdict on the claim; its controls are left out, so that only the claim can make the difference."""
    (row,) = run_checks([dataclasses.replace(check, controls={"false": lambda rng: Outcome(-1.0)})], seed=11)
    return row.verdict


# machine proofs need Coq: test_formal has them
@pytest.mark.parametrize(
    "check",
    [pytest.param(c, id=c.key) for c in CHECKS if c.method is not Method.MACHINE_PROVED],
)
def test_check_passes_and_its_controls_fail(check):
    # another seed than the default's, so that nothing is tuned to one stream
    rows = run_checks([check], seed=11)
    assert rows[0].verdict is Verdict.PASS, rows[0].note
    assert all(verdict == "fail" for verdict in rows[0].controls.values()), rows[0].controls
    assert exit_status(rows) == 0


def test_every_statement_has_two_methods_that_run_everywhere():
    # machine proofs do not count: a machine without Coq reports them as not run
    methods = {s: {str(c.method) for c in CHECKS if c.statement == s} - {Method.MACHINE_PROVED} for s in STATEMENTS}
    missing = [f"{s} has only {', '.join(sorted(used)) or 'nothing'}" for s, used in methods.items() if len(used) < 2]
    assert not missing, "; ".join(missing)


def scaled(name: str, factor: float):
    """theory.<name> times a factor: a wrong constant in the suite's own formula."""
    original = getattr(theory, name)
    return lambda *args, **kwargs: original(*args, **kwargs) * factor


def with_attribute(name: str, **changes):
    """theory.<name> whose dataclass result has some fields multiplied."""
    original = getattr(theory, name)

    def broken(*args, **kwargs):
        result = original(*args, **kwargs)
        new = {
            field: None if (value := getattr(result, field)) is None else value * factor
            for field, factor in changes.items()
        }
        return dataclasses.replace(result, **new)

    return broken


def bound_too_good(rho: float) -> float | None:
    return math.sqrt(1 - (0.95 * rho) ** 2) if 0.95 * rho < 1 else None


def one_sided_always(bound: float, a_0: float, *, one_sided: bool) -> float | None:
    return bound / (a_0 - bound) if bound < a_0 else None


def break_formula(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    """Exchange a formula for all that ask theory for it, its own modules included."""
    for module in (theory, theory.acceptance, theory.bounds, theory.lemma, theory.reweighting, theory.still):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, broken)


BROKEN = [
    ("T1", "50 digits", "band_acceptance", scaled("band_acceptance", 1 + 1e-6)),
    ("T1", "Gaussian S", "interval_probability", scaled("interval_probability", 0.98)),
    ("T2", "limits of a(l1)", "band_acceptance", lambda *a, **k: theory.interval_probability([0.1, 0.2], 0.5)),
    ("T2", "gspo's preset", "band_acceptance", scaled("band_acceptance", 1.001)),
    ("T2", "rloo and gspo", "band_acceptance", scaled("band_acceptance", 0.97)),
    ("T3", "B_l through", "drift_error_bound", scaled("drift_error_bound", 0.95)),
    ("T3", "supremum", "PHI_1", theory.PHI_1 * 0.999),
    ("T3", "one sign, 20,000 grids", "drift_error_bound", scaled("drift_error_bound", 0.9)),
    ("T3", "2B/(a_0 - B), mixed", "lre_bound", one_sided_always),
    ("T3", "(a_0 - B)/B, one sign", "drift_error_bound", scaled("drift_error_bound", 0.95)),
    ("T3", "one sign, 20,000 grids", "lre", with_attribute("lre", inf=1.1)),
    ("T3", "tau through", "scale_error_bound", scaled("scale_error_bound", 0.95)),
    ("T3", "sharp", "scale_error_bound", scaled("scale_error_bound", 1.02)),
    ("T3", "2B/(a_0 - B), 20,000 grids", "lre_bound", one_sided_always),
    ("T3", "counterexample", "lre_bound", lambda *a, **k: 2 * one_sided_always(*a, **k)),
    ("T4", "gamma and binomial", "berry_esseen_bound", scaled("berry_esseen_bound", 0.8)),
    ("T4", "Var S_l", "ar1_variance_ratio", scaled("ar1_variance_ratio", 1.001)),
    ("T4", "AR(1) tokens through", "ar1_variance_ratio", scaled("ar1_variance_ratio", 1.1)),
    ("T7", "sharp", "cosine_bound", bound_too_good),
    ("T7", "sharp", "cosine_lemma", with_attribute("cosine_lemma", rho=0.99)),
    ("T7", "softmax", "cosine_lemma", with_attribute("cosine_lemma", identity_residual=1e6)),
    ("T8", "random strata", "cosine_lemma", with_attribute("cosine_lemma", e_in=1.001)),
    ("T8", "random strata", "cosine_lemma", with_attribute("cosine_lemma", e_len=1.001)),
    ("T7", "random strata", "cosine_lemma", with_attribute("cosine_lemma", rho=0.999)),
    ("T7", "optimiser maximises", "cosine_lemma", with_attribute("cosine_lemma", rho=0.999)),
    ("T7", "degenerate strata", "cosine_lemma", with_attribute("cosine_lemma", rho=0.999)),
    ("T8", "float16 sketches", "cosine_lemma", with_attribute("cosine_lemma", e_in=1.001)),
    ("T8", "float32 gradients", "cosine_lemma", with_attribute("cosine_lemma", e_len=1.001)),
    ("T11", "hypothesis: an upper edge", "upper_edge_supremum", scaled("upper_edge_supremum", 0.99)),
    ("T11", "moments of in-band", "band_acceptance", scaled("band_acceptance", 0.98)),
    ("T11", "largest upper edge", "upper_edge_supremum", scaled("upper_edge_supremum", 1.001)),
    ("T9", "a_upd by sign", "update_acceptance", scaled("update_acceptance", 1.001)),
    ("T9", "asymmetric", "update_acceptance", scaled("update_acceptance", 0.98)),
    ("T9", "quadrature", "weight_acceptance", scaled("weight_acceptance", 1.001)),
    ("T9", "flattens", "weight_acceptance", lambda r, n, mu, s, st=None: theory.band_acceptance(r, n, mu, s, st)),
    ("T9", "example", "weight_acceptance", scaled("weight_acceptance", 1.01)),
    ("T9", "in-band responses", "weight_acceptance", scaled("weight_acceptance", 0.97)),
    ("T10", "by root search", "fair_exponent_with_still", scaled("fair_exponent_with_still", 1 + 1e-6)),
    ("T10", "through the rule's band", "acceptance_with_still", scaled("acceptance_with_still", 1 + 1e-6)),
    ("T10", "LRE over all", "lre_with_still", with_attribute("lre_with_still", l1=1 + 1e-6)),
    ("T10", "local power", "fair_exponent_with_still", scaled("fair_exponent_with_still", 1.01)),
    ("T10", "a part moves: band", "acceptance_with_still", scaled("acceptance_with_still", 0.98)),
    ("T10", "80 % of all", "fair_exponent_with_still", scaled("fair_exponent_with_still", 1.05)),
    ("T10", "each sign", "update_acceptance", scaled("update_acceptance", 0.98)),
]


@pytest.mark.parametrize(("statement", "part", "name", "broken"), BROKEN, ids=lambda x: x if isinstance(x, str) else "")
def test_a_broken_formula_is_found(monkeypatch, statement, part, name, broken):
    check = find(statement, part)
    break_formula(monkeypatch, name, broken)
    assert judged_alone(check) is not Verdict.PASS


def widened(self, n, m=None):
    below, above = self.half_widths(n)
    centre = self.sum_centre(n, m)
    return centre - below, centre + 1.05 * above


def uncut(self, S, n, A, m=None, logged=None):
    applied = ORIGINAL_APPLY(self, S, n, A, m, logged)
    return applied._replace(
        multiplier=np.ones_like(applied.multiplier),
        clipped_weight=applied.weight,
        in_band=np.ones_like(applied.in_band),
    )


ORIGINAL_APPLY = Rule.apply


def undualled(self, S, n, A, m=None, logged=None):
    return ORIGINAL_APPLY(dataclasses.replace(self, dual=None), S, n, A, m, logged)


@pytest.mark.parametrize(
    ("statement", "part", "method", "broken"),
    [
        ("T1", "50 digits", "band", widened),
        ("T1", "Gaussian S", "band", widened),
        ("T2", "gspo's preset", "band", widened),
        ("T3", "drift none", "band", widened),
        ("T4", "exponential tokens through", "apply", uncut),
        ("T7", "mean g_clip", "apply", uncut),
        ("T9", "asymmetric", "apply", uncut),
        ("T9", "in-band responses", "apply", uncut),
        ("T9", "quadrature", "band", widened),
        ("T11", "largest upper edge", "band", widened),
        ("T11", "hypothesis: an upper edge", "band", widened),
        ("T11", "above the dual edge", "apply", undualled),
        ("T11", "moments of in-band", "apply", uncut),
        ("T9", "hypothesis: symmetric", "band", widened),
        ("T10", "through the rule's band", "band", widened),
        ("T10", "a part moves: band", "band", widened),
        ("T10", "hypothesis: update acceptance", "apply", uncut),
    ],
)
def test_a_broken_rule_is_found(monkeypatch, statement, part, method, broken):
    check = find(statement, part)
    monkeypatch.setattr(Rule, method, broken)
    assert judged_alone(check) is not Verdict.PASS
