"""Check theorems with Coq's kernel, and check that Coq refuses false versions of them (the controls).

A control is the same script with a statement made false. Coq must stop inside the proof of a theorem. If it stops
elsewhere, for example at a syntax error, the control shows nothing and is undecided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from proofs_check.formal.coq import CoqMissing, find_coq
from proofs_check.formal.library import Refused, ask, compiled, given_up, scripts
from proofs_check.frame import Check, Function, Method, Outcome

Change = tuple[str, str]
"""A pair: text of a Coq script, and the text that replaces it at every occurrence."""
_UNIT = "foreign axioms"


def prove(rng: np.random.Generator, module: str, theorems: Sequence[str], change: Change | None = None) -> Outcome:
    """Let Coq check theorems of a script. ``change`` (a control) is a pair of texts: before the check, the first is
    replaced by the second in the script.

    Returns
    -------
    Outcome
        Margin 0 if the theorems rest on no axioms but those of Coq's real numbers, else minus the number of other
        axioms. The margin is ``-inf`` if coqc, Coq's compiler, refuses the script, and NaN if it refuses a changed
        script at a place outside all proofs. ``not_run`` gives the reason if Coq is missing. ``details`` holds each
        statement as Coq prints it, and its axioms.
    """
    texts = scripts()
    text = None if change is None else changed(texts[module], change)
    parameters = {"script": f"{module}.v", "theorems": list(theorems)}
    try:
        coq = find_coq()
    except CoqMissing as reason:
        return Outcome(not_run=str(reason), parameters=parameters)
    library = compiled(coq)
    if isinstance(library, Refused):
        return Outcome(-math.inf, _UNIT, note=library.error, parameters=parameters)
    answer = ask(coq, module, theorems, library, text)
    if isinstance(answer, Refused):
        note = f"coqc {coq.version} refuses the proof of {answer.theorem or 'no theorem'}: {answer.error}"
        outside = change is not None and not answer.theorem
        return Outcome(math.nan if outside else -math.inf, _UNIT, note=note, parameters=parameters)
    # Search every script for words such as ``Admitted``, which let Coq take a statement without proof. Such a word
    # counts even in a lemma that nothing uses.
    words = [f"{name}.v: {word}" for name, script in texts.items() for word in given_up(script)]
    words += [] if text is None else [f"{module}.v, changed: {word}" for word in given_up(text)]
    foreign = [f"a proof rests on {axiom}" for axiom in answer.foreign]
    note = "; ".join([*foreign, *words]) or f"Coq {coq.version}; axioms: {', '.join(answer.axioms) or 'none'}"
    return Outcome(float(-len(foreign) - len(words)), _UNIT, note=note, parameters=parameters, details=str(answer))


def changed(text: str, change: Change) -> str:
    """Return the script with a statement made false by a replacement of text.

    Raises
    ------
    ValueError
        If the script does not hold the text that should change.
    """
    old, new = change
    if old not in text:
        raise ValueError(f"the script holds no {old!r}")
    return text.replace(old, new)


def without_proof(module: str, theorem: str) -> Change:
    """Return, for a control, the replacement of text that ends one theorem's proof by ``Admitted``: Coq then takes the
    theorem without proof.
    """
    text = scripts()[module]
    found = re.search(rf"(?:Theorem|Lemma) {theorem}\b.*?\bQed\.", text, re.S)
    if found is None:
        raise ValueError(f"{module}.v proves no {theorem}")
    return found[0], re.sub(r"\bProof\..*", "Proof. Admitted.", found[0], flags=re.S)


def _check(statement: str, name: str, module: str, theorems: Sequence[str], controls: Mapping[str, Change]) -> Check:
    made: dict[str, Function] = {
        words: partial(prove, module=module, theorems=theorems, change=change) for words, change in controls.items()
    }
    return Check(statement, Method.MACHINE_PROVED, name, partial(prove, module=module, theorems=theorems), made)


CHECKS = (
    _check(
        "T7",
        "the cosine lemma in every real inner-product space",
        "CosineLemma",
        ("T7_cosine_lemma", "T7_weaker_bound", "T7_cosine_quotient", "T7_sine"),
        {
            "constant sqrt(1 - rho^2/4)": ("1 - rho * rho", "1 - rho * rho / 4"),
            "proof given up": without_proof("CosineLemma", "T7_cosine_lemma"),
        },
    ),
    _check(
        "T7",
        "length error at most LRE_inf kappa, LRE_inf kappa_c, LRE_2 kappa_c2",
        "Strata",
        ("T7_e_len_kappa", "T7_e_len_kappa_c", "T7_e_len_kappa_c2", "T7_e_in_eta", "LRE_inf_attained"),
        {"LRE_1 in the place of LRE_inf": ("<= LRE_inf strata * kappa", "<= LRE_1 strata * kappa")},
    ),
    _check(
        "T7",
        "finite strata: the cosine of g_clip itself",
        "Strata",
        ("T7_finite_strata", "T7_error_bound"),
        {
            "eta left out": ("(LRE_2 * kappa_c2) + eta.", "(LRE_2 * kappa_c2)."),
            "kappa left out": ("Rmin (LRE_inf * kappa)", "Rmin LRE_inf"),
        },
    ),
    _check(
        "T7",
        "R^n with the dot product is such a space",
        "Space",
        ("T7_cosine_Rn", "T7_finite_strata_Rn"),
        {"a difference in the place of the sum": ("fold_right Rplus", "fold_right Rminus")},
    ),
    _check(
        "T7",
        "T7s: sharp for every rho and every LRE, and no better bound",
        "Sharp",
        ("T7s_equality", "T7_sharp_in_R2", "T7_best_bound"),
        {
            "v orthogonal to g instead of g + eps v": ("<| v, u +v (eps *v v) |> = 0", "<| v, u |> = 0"),
            "reached at sqrt(1 - rho^2/4)": ("sqrt (1 - target * target)", "sqrt (1 - target * target / 4)"),
        },
    ),
    _check(
        "T7",
        "refuted: better constant, no kappa, no eta; nothing holds from rho = 1 on",
        "Sharp",
        (
            "T7_better_constant_is_false",
            "T7_without_kappa_is_false",
            "T7_without_eta_is_false",
            "T7_nothing_beyond_one",
            "T7_nothing_at_one",
        ),
        {"the stated constant refuted": ("0 <= factor < 1 ->", "0 <= factor <= 1 ->")},
    ),
    _check(
        "T8",
        "the identity for finite strata, with a(l) = 0 allowed",
        "Strata",
        ("T8_identity", "T8_e_len_plain", "delta_defined"),
        {
            "e_in left out": ("update strata +v e_len strata +v e_in strata.", "update strata +v e_len strata."),
            "a clipped gradient where a(l) = 0": ("a s = 0 -> clipped s = zero)", "a s = 0 -> True)"),
        },
    ),
    _check(
        "T3",
        "LRE_inf from |a(l) - a_0| <= B (a step of T3); orders of the LRE norms",
        "Fairness",
        (
            "T3_T4_two_sided",
            "T3_T4_one_sided",
            "LRE_1_le_LRE_2",
            "LRE_2_le_LRE_inf",
            "LRE_1_is_total_variation",
            "LRE_2_is_chi_squared",
            "LRE_inf_zero_iff",
            "LRE_inf_over_shares",
        ),
        {
            "one-sided form with mixed signs": (
                "LRE_inf strata <= 2 * B / (a_0 - B)",
                "LRE_inf strata <= B / (a_0 - B)",
            ),
            "LRE_2 <= LRE_1": ("LRE_1 strata <= LRE_2 strata", "LRE_2 strata <= LRE_1 strata"),
        },
    ),
    _check(
        "T11",
        "the upper edge with drift gaussian is a parabola's; unbounded without drift",
        "Surrogate",
        ("T10_upper_edge", "T10_reached", "T10_unbounded"),
        {"drift -sigma^2 L/4": ("- L * (sigma * sigma) / 2", "- L * (sigma * sigma) / 4")},
    ),
    _check(
        "T9",
        "the identity for finitely many responses, dual clip included",
        "Surrogate",
        ("T11_identity", "T11_equal_tails"),
        {
            "sides exchanged": ("(andb (good y) (above hi y))", "(andb (bad y) (above hi y))"),
            "a dual edge below the lower edge": ("Hypothesis edges : lo <= dual.", "Hypothesis edges : dual <= lo."),
        },
    ),
    _check(
        "T11",
        "pairs of independent prompts, and bias and variance, for finite laws",
        "Surrogate",
        ("T12_pairs", "T12_bias_variance"),
        {
            "bias left out": (
                "= <| mean -v truth, mean -v truth |> + sum (fun i => prob i * <| d i -v mean",
                "= sum (fun i => prob i * <| d i -v mean",
            ),
            "plug-in estimate": ("prob j * <| d i, d j |>", "prob j * <| d i, d i |>"),
        },
    ),
    _check(
        "T9",
        "delta = (b/a - 1) g where clipping scales a stratum's update by b",
        "Surrogate",
        ("T13_delta",),
        {"a in the place of b": ("clipped s = b *v g s", "clipped s = a s *v g s")},
    ),
    _check(
        "T13",
        "finite laws: the mean weight is the mass that can be drawn; wrong log-probs give 1 + chi^2",
        "Mismatch",
        ("T16_reweighted", "T16_mean_one", "T16_wrong_log_probs"),
        {
            "what cannot be drawn counted": ("then 0 else P y", "then P y else P y"),
            "1 - chi^2": ("= 1 + sum", "= 1 - sum"),
        },
    ),
    _check(
        "T13",
        "one length: the bias in two parts, and the bound on the part inside",
        "Mismatch",
        ("T18_two_parts", "T18_bound"),
        {
            "part inside left out": ("= mean_c *v mean_u +v inside.", "= mean_c *v mean_u."),
            "half the bound": ("norm inside <= sqrt", "norm inside <= / 2 * sqrt"),
        },
    ),
)
