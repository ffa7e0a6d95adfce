"""Statements that Coq's kernel has checked, and near misses that it has refuted.

A near miss is a false neighbour of the statement. Its negation is a theorem too, so that it fails only because Coq
accepts the proof that it is false."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from proofs_check.formal.coq import AXIOMS, DEFINITIONS, CoqMissing, CoqRefused, printed, reviewed
from proofs_check.frame import Check, Method, Outcome


def proved(rng: np.random.Generator, theorems: Sequence[str], refuted: bool = False) -> Outcome:
    """Return the outcome of looking up ``theorems`` among those that Coq has proved; each must be as in
    ``statements.txt``, and so must the definitions and the axioms. The random numbers are not used.

    Returns
    -------
    Outcome
        Margin 0 if all are proved as reviewed, else minus the number of those that are not: the check then fails.
        With ``refuted`` the theorems are negations of near misses: the margin is -1 if they are proved, else 0.
        ``not_run`` says so if there is no Coq."""
    try:
        found = printed()
    except CoqMissing as reason:
        return Outcome(not_run=str(reason))
    except CoqRefused as error:
        return Outcome(0.0 if refuted else -1.0, "scripts refused", note=str(error))
    known = reviewed()
    other = [name for name in (*theorems, DEFINITIONS, AXIOMS) if found.get(name) != known.get(name, "")]
    if refuted:
        return Outcome(0.0 if other else -1.0, "near misses refuted")
    note = f"not as reviewed in statements.txt: {', '.join(other)}" if other else found[AXIOMS]
    return Outcome(-float(len(other)), "theorems unlike the review", note=note)


def _check(statement: str, name: str, theorems: Sequence[str], near_misses: Mapping[str, str]) -> Check:
    run = partial(proved, theorems=theorems)
    refutations = {words: partial(proved, theorems=(of,), refuted=True) for words, of in near_misses.items()}
    return Check(statement, Method.MACHINE_PROVED, name, run, refutations)


CHECKS = (
    _check(
        "T3",
        "the orders of the LRE norms; their suprema over all shares; the step from |a(l) - a_0| <= B to LRE_inf",
        (
            *("LRE_1_is_total_variation", "LRE_2_is_chi_squared", "LRE_1_le_LRE_2", "LRE_2_le_LRE_inf"),
            *("LRE_inf_zero_iff", "LRE_inf_over_shares", "LRE_inf_supremum", "T3_two_sided", "T3_one_sided"),
        ),
        {
            "LRE_inf <= LRE_2": "LRE_inf_le_LRE_2_is_false",
            "LRE_2 <= LRE_1": "LRE_2_le_LRE_1_is_false",
            "B / (a_0 - B) for errors of both signs": "T3_one_sided_with_mixed_signs_is_false",
        },
    ),
    _check(
        "T7",
        "the cosine lemma in every real inner-product space, for finitely many strata; R^n is such a space",
        (
            *("T7_cosine_lemma", "T7_weaker_bound", "T7_cosine_quotient", "T7_e_len_inf", "T7_e_len_2"),
            *("T7_one_centre", "T7_e_in_eta", "T7_error_bound", "T7_finite_strata"),
        ),
        {
            "the LRE without kappa": "T7_without_kappa_is_false",
            "eta left out: LRE 0 and cosine -1": "T7_without_eta_is_false",
            "LRE_2 in the place of LRE_inf": "T7_LRE_2_kappa_inf_is_false",
            "rho = 1 allowed": "T7_at_one_is_false",
        },
    ),
    _check(
        "T7",
        "its constants and its bound are the best",
        ("T7_kappa_2_attained", "T7_kappa_inf_attained", "T7s_equality", "T7_sharp_in_R2", "T7_best_bound"),
        {"a constant better by any factor": "T7_better_constant_is_false"},
    ),
    _check(
        "T8",
        "the identity for finite strata, with a(l) = 0 allowed",
        ("T8_e_len_plain", "T8_identity"),
        {"e_in left out": "T8_without_e_in_is_false"},
    ),
)
