"""The table lemma: T7 and T8 on every scored update and window, and the check of both (docs/theory.md section 5).

On a finite log both theorems hold exactly, with means over its rows for expectations, up to rounding. So a violation is
an error in the log or in the code, and summary.json says so. What a reader learns from the table is rho, the slack (the
cosine less its bound), and how much alignment is lost across bins and inside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from analysis.log.rows import Floats, Ints
from analysis.rules.evaluate import Case, common_weight
from analysis.scores.sketches import ScoredWindow
from analysis.tables.acceptance import Reason
from analysis.tables.columns import CaseKey, RuleKey, RunKey
from analysis.tables.cosine import rows_weight
from fspo.base.errors import UserError
from fspo.stats.bins import Bins
from fspo.stats.clusters import totals
from fspo.theory import CosineLemma, cosine_lemma

TOLERANCE = 1e-8
"""Largest residual of T8's identity, over the norm ||g|| of the true update, and largest violation of T7's bound that
count as float64 rounding."""


class LemmaRow(NamedTuple):
    """T7 and T8 on a scored update: one row for each rule, use and update, and one for each window of several updates.

    Empty for a run without scores. Every rule takes the common weight exp(S). The symbols rho, kappa, eta are those of
    docs/theory.md section 5, T7, T8.
    """

    case: CaseKey
    weight: Annotated[str, "sequence: the weight exp(S) for every rule", "text"]
    window: Annotated[int, "first rollout of the window; of a single update its rollout", "rollout"]
    rollouts: Annotated[int, "rollouts that the row is about", "rollouts"]
    updates: Annotated[float, "updates that the row is about; empty where the rule could not be evaluated", "updates"]
    step: Annotated[int, "optimizer updates done before this update; -1: several updates", "updates"]
    rho: Annotated[float, "rho of T7", "number"] = np.nan
    bound: Annotated[float, "T7's lower bound of the cosine; empty where rho >= 1", "cosine"] = np.nan
    guaranteed: Annotated[bool, "rho < 1", "yes or no"] = False
    cosine: Annotated[float, "cosine of the clipped and the true update", "cosine"] = np.nan
    slack: Annotated[float, "cosine less bound", "cosine"] = np.nan
    kappa: Annotated[float, "kappa of T7: cancellation between the bins", "number"] = np.nan
    kappa_c: Annotated[float, "kappa_c of T7: the same of the clipped update", "number"] = np.nan
    kappa_c2: Annotated[float, "kappa_c in the quadratic norm", "number"] = np.nan
    eta: Annotated[float, "eta of T7: what clipping inside bins changes", "number"] = np.nan
    lre_inf: Annotated[float, "LRE_inf of the update's acceptance over the bins (plug-in)", "share"] = np.nan
    lre_1: Annotated[float, "LRE_1 of it", "share"] = np.nan
    lre_2: Annotated[float, "LRE_2 of it", "share"] = np.nan
    a_bar: Annotated[float, "mean acceptance: a_upd for drop, b otherwise", "share"] = np.nan
    e_len: Annotated[float, "part of the error across bins, over ||g|| (T8)", "number"] = np.nan
    e_in: Annotated[float, "part of the error inside bins, over ||g|| (T8)", "number"] = np.nan
    identity_residual: Annotated[float, "how far T8's identity fails, over ||g||: rounding", "number"] = np.nan
    count: Annotated[int, "responses with a score", "rows"] = 0
    reason: Reason = ""


@dataclass
class StrataSums:
    """Sums over responses by update and bin, for one case: numbers of responses, and of those that are kept, weights w
    and M w (all (U, K)), and true and clipped gradients (U, K, D)."""

    count: Floats
    kept: Floats
    weight: Floats
    clipped: Floats
    g: Floats
    g_clip: Floats


class LemmaTable:
    """Collects scored windows and makes the rows of the table lemma, with the weight exp(S) for every rule."""

    def __init__(self, key: RunKey, bins: Bins, cases: list[Case]) -> None:
        self.key, self.bins = key, bins
        self.cases = [common_weight(case) for case in cases]
        self.table: list[LemmaRow] = []

    def add(self, window: ScoredWindow) -> None:
        """Append a row for each rule and update, and one for the window as a whole if it has several updates."""
        rows, number = window.rows, len(self.bins)
        groups = window.update * number + window.bins
        size = window.updates * number
        weight = rows_weight(window)
        shape = (window.updates, number)
        places = [np.flatnonzero(window.update == u) for u in range(window.updates)]
        # For each update: its rows, their vectors in a basis of their span, and an indicator (K, n) of each row's bin.
        # Updates are kept apart, so that matrix products stay small.
        parts = [(at, in_own_span(window.vectors[at]), np.eye(number)[:, window.bins[at]]) for at in places]

        def by_bin(values: Floats) -> Floats:
            return totals(groups, size, values).reshape(shape)

        def vectors_by_bin(coefficient: Floats) -> Floats:
            return _stacked([(inside * coefficient[at]) @ vectors for at, vectors, inside in parts])

        count, total_weight, g = by_bin(np.ones(len(rows))), by_bin(weight), vectors_by_bin(weight)
        first, steps = ([int(x[at[0]]) for at in places] for x in (rows.rollout, rows.step))
        for case in self.cases:
            key = CaseKey(RuleKey.of(self.key, case), "nonzero", window.use), "sequence"
            several = window.window, len(set(first))
            found = window.outcome(case)
            if found.reason:
                self.table.append(LemmaRow(*key, *several, np.nan, -1, reason=found.reason))
                continue
            strata = StrataSums(
                count,
                by_bin(found.side == 0),
                total_weight,
                by_bin(found.clipped_weight),
                g,
                vectors_by_bin(found.clipped_weight),
            )
            # For each update of the window, its clipped update summed over rows, not over bins: (U, D).
            direct = _stacked([found.clipped_weight[at] @ vectors for at, vectors, _ in parts])
            for u in range(window.updates):
                row = LemmaRow(*key, first[u], 1, 1, steps[u])
                self.table.append(filled(row, case, strata, np.array([u]), direct[u : u + 1]))
            if window.updates > 1:
                row = LemmaRow(*key, *several, window.updates, -1)
                self.table.append(filled(row, case, strata, np.arange(window.updates), direct))

    def rows(self) -> list[LemmaRow]:
        """Return the rows of the table lemma."""
        return self.table


def filled(row: LemmaRow, case: Case, strata: StrataSums, at: Ints, direct: Floats) -> LemmaRow:
    """Return the row with the numbers of T7 and T8 on the updates ``at`` filled in, or the reason why there are
    none."""
    try:
        lemma, mean = lemma_of(strata, at, drop=case.rule.clip.zeroes)
    except UserError as error:
        return row._replace(reason=str(error))
    # Divide the difference of the clipped update summed over bins and summed over rows by a_bar ||g||, as T8 does: the
    # mean acceptance a_bar of weights can reach 1e9, and rounding errors grow with it.
    through = strata.g_clip[at].sum(1)
    scale = mean * float(np.linalg.norm(strata.g[at].sum(1)))
    # Use np.maximum, because Python's max may drop a NaN, which is a violation.
    residual = float(np.maximum(lemma.identity_residual, np.linalg.norm(through - direct) / scale))
    bound = np.nan if lemma.bound is None else lemma.bound
    return row._replace(
        rho=lemma.rho,
        bound=bound,
        guaranteed=lemma.bound is not None,
        cosine=lemma.cosine,
        slack=lemma.cosine - bound,
        kappa=lemma.kappa,
        kappa_c=lemma.kappa_c,
        kappa_c2=lemma.kappa_c2,
        eta=lemma.eta,
        lre_inf=lemma.lre.inf,
        lre_1=lemma.lre.l1,
        lre_2=lemma.lre.l2,
        a_bar=mean,
        e_len=lemma.e_len_ratio,
        e_in=lemma.e_in_ratio,
        identity_residual=residual,
        count=int(strata.count[at].sum()),
    )


def integrity(table: Sequence[LemmaRow]) -> dict[str, Any]:
    """Return, over the table lemma, the largest residual of T8's identity, the number of rows that violate T7's bound,
    and whether both are only rounding (``pass``).

    ``pass`` is None if no row was evaluated, and False if a residual is not finite. A row with a bound and without a
    finite slack (cosine less bound) is a violation.
    """
    found = [row for row in table if not row.reason]
    residuals = np.array([row.identity_residual for row in found], np.float64)
    slack = np.array([row.slack for row in found if row.guaranteed], np.float64)
    worst = float(np.max(residuals)) if residuals.size else float("nan")
    violations = int(np.sum(~(slack >= -TOLERANCE)))
    return {
        "checked": len(found),
        "max_identity_residual": worst,
        "tolerance": TOLERANCE,
        "bound_violations": violations,
        "pass": (worst <= TOLERANCE and violations == 0) if found else None,
    }


def in_own_span(vectors: Floats) -> Floats:
    """Express vectors (n, D) in an orthonormal basis of their span (n, min(n, D)), which keeps all inner products."""
    if vectors.shape[0] >= vectors.shape[1]:
        return vectors
    return np.asarray(np.linalg.qr(vectors.T, mode="r")).T


def _stacked(parts: list[Floats]) -> Floats:
    """Stack arrays that differ in their last axis only; pad the shorter ones with zeros."""
    width = max(part.shape[-1] for part in parts)
    out = np.zeros((len(parts), *parts[0].shape[:-1], width))
    for place, part in zip(out, parts, strict=True):
        place[..., : part.shape[-1]] = part
    return out


def lemma_of(strata: StrataSums, at: Ints, *, drop: bool) -> tuple[CosineLemma, float]:
    """Apply T7 and T8 to the direct sum of the updates ``at``. A bin's acceptance is the update acceptance (a_upd) for
    rules that drop, else the weight acceptance (b).

    Returns
    -------
    CosineLemma, float
        The quantities of T7 and T8, and the mean acceptance a_bar over bins.
    """
    count = strata.count[at].sum(0)
    some = count > 0
    count = count[some]
    scale = 1 / count[:, None]
    g = strata.g[at][:, some].transpose(1, 0, 2).reshape(len(count), -1) * scale
    clipped = strata.g_clip[at][:, some].transpose(1, 0, 2).reshape(len(count), -1) * scale
    if drop:
        a = strata.kept[at].sum(0)[some] / count
    else:
        a = strata.clipped[at].sum(0)[some] / strata.weight[at].sum(0)[some]
    lemma = cosine_lemma(count, a, g, clipped)
    return lemma, lemma.lre.mean_acceptance
