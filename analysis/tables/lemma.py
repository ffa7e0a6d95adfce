"""The table lemma: T7 and T8 on every scored update and block, and the check of both (docs/theory.md section 5).

T7 bounds the cosine of the clipped and the unclipped gradient from below, T8 splits the error of the clipped gradient
into a part across bins and a part inside bins. With means over the rows of a finite log in place of expectations, both
hold exactly, up to rounding. So a violation is an error in the log or in the code, and summary.json reports it. What a
reader learns from the table is rho, the slack (the cosine less its bound), and the two parts of the error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from analysis.log.rows import Floats, Ints
from analysis.rules.evaluate import Case, common_weight
from analysis.scores.sketches import ScoredWindow
from analysis.tables.acceptance import Reason
from analysis.tables.cosine import rows_weight
from analysis.tables.typed_rows import CaseKey, RuleKey, RunKey
from fspo.base.errors import UserError
from fspo.stats.bins import Bins
from fspo.theory import CosineLemma
from fspo.theory.lemma import cosine_lemmas

TOLERANCE = 1e-8
"""Largest residual of T8's identity, over the norm ||g|| of the unclipped gradient, and largest violation of T7's bound
that count as float64 rounding."""
BLOCK = 2**22
"""Largest number of entries of clipped gradients in memory at once. If all rules together have more entries, the rules
are evaluated in blocks."""


class LemmaRow(NamedTuple):
    """T7 and T8 on a scored update: one row for each rule, use and update, and one for each block of several updates.

    Empty for a run without scores. Every rule takes the common weight exp(S). The symbols rho, kappa, eta are those of
    docs/theory.md section 5, T7, T8; kappa_inf is a bound where there are more than 10 bins."""

    case: CaseKey
    window: Annotated[int, "first rollout of the block of rollouts; of a single update its rollout", "rollout"]
    rollouts: Annotated[int, "rollouts that the row is about", "rollouts"]
    updates: Annotated[float, "updates that the row is about; empty where the rule could not be evaluated", "updates"]
    step: Annotated[int, "optimizer updates done before this update; -1: several updates", "updates"]
    rho: Annotated[float, "rho of T7", "number"] = np.nan
    bound: Annotated[float, "T7's lower bound of the cosine; empty where rho >= 1", "cosine"] = np.nan
    guaranteed: Annotated[bool, "rho < 1", "yes or no"] = False
    cosine: Annotated[float, "cosine of the clipped and the unclipped gradient", "cosine"] = np.nan
    slack: Annotated[float, "cosine less bound", "cosine"] = np.nan
    kappa_inf: Annotated[float, "largest e_len over LRE_inf that these bins allow (T7)", "number"] = np.nan
    kappa_2: Annotated[float, "the same over LRE_2", "number"] = np.nan
    eta: Annotated[float, "eta of T7: what clipping inside bins changes", "number"] = np.nan
    lre_inf: Annotated[float, "LRE_inf of the update's acceptance over the bins (plug-in)", "share"] = np.nan
    e_len: Annotated[float, "part of the error across bins, over ||g|| (T8)", "number"] = np.nan
    e_in: Annotated[float, "part of the error inside bins, over ||g|| (T8)", "number"] = np.nan
    identity_residual: Annotated[float, "how far T8's identity fails, over ||g||: rounding", "number"] = np.nan
    count: Annotated[int, "responses with a score", "rows"] = 0
    reason: Reason = ""


@dataclass
class StrataSums:
    """Sums over the responses of each of U updates and K bins, for B rules; gradients have D entries. ``above`` over
    ``below`` is an acceptance.

    Attributes
    ----------
    count : array (U, K)
        Number of responses.
    above, below : arrays (B, U, K)
        ``above`` is the numerator of each rule's acceptance in a bin, ``below`` its denominator. If the rule drops,
        they are the number of kept and the number of all responses (update acceptance), else the sum of M w and that of
        w (weight acceptance).
    g : array (U, K, D)
        Sum of the unclipped gradients w A psi.
    g_clip : array (B, U, K, D)
        Sum of the clipped gradients M w A psi of each rule.
    direct : array (B, U, D)
        Sum of the clipped gradients of all responses of an update, computed without the sums by bin.
    """

    count: Floats
    above: Floats
    below: Floats
    g: Floats
    g_clip: Floats
    direct: Floats


class LemmaTable:
    """Collects blocks of scores and makes the rows of the table lemma, with the weight exp(S) for every clip rule.
    ``key`` holds the columns that name the run, ``cases`` are the rules."""

    def __init__(self, key: RunKey, bins: Bins, cases: list[Case]) -> None:
        self.key, self.bins = key, bins
        self.cases = [common_weight(case) for case in cases]
        self.table: list[LemmaRow] = []

    def add(self, window: ScoredWindow) -> None:
        """Append to the table lemma a row for each rule and update of a block, and, if the block has several updates,
        a row for each rule over all of them."""
        rows, number = window.rows, len(self.bins)
        weight = rows_weight(window)
        updates = [window.part(u, number) for u in range(window.updates)]
        places = [at for at, *_ in updates]
        # ``places`` holds the indices of each update's rows; ``spans`` holds these rows' vectors A psi, in coordinates
        # of the space that they span; ``parts`` holds, for each update and bin, the indices and vectors of its rows.
        wide = window.vectors.width
        spans = [in_own_span(gram.gram) if len(at) < wide else window.vectors[at] for at, _, gram in updates]
        shape = (window.updates, number, max(span.shape[1] for span in spans))
        parts = [
            [(at[here], span[here]) for here in window.bins[at] == np.arange(number)[:, None]]
            for at, span in zip(places, spans, strict=True)
        ]

        def by_bin(values: Floats) -> Floats:
            """Sum B values of each of n rows over the rows of each of U updates and K bins: (B, n) to (B, U, K)."""
            return np.stack([np.stack([values[:, at].sum(1) for at, _ in part], 1) for part in parts], 1)

        def vectors(coefficients: Floats) -> tuple[Floats, Floats]:
            """Sum the rows' vectors A psi, multiplied by coefficients (B, n) of B rules, over the rows of each update
            and bin (B, U, K, D), and over the rows of each update (B, U, D)."""
            out = np.zeros((len(coefficients), *shape)), np.zeros((len(coefficients), shape[0], shape[2]))
            for u, (at, span) in enumerate(zip(places, spans, strict=True)):
                out[1][:, u, : span.shape[1]] = coefficients[:, at] @ span
                for k, (here, inside) in enumerate(parts[u]):
                    out[0][:, u, k, : span.shape[1]] = coefficients[:, here] @ inside
            return out

        count, total_weight = by_bin(np.stack([np.ones(len(rows)), weight]))
        g = vectors(weight[None])[0][0]
        first, steps = ([int(x[at[0]]) for at in places] for x in (rows.rollout, rows.step))
        several = window.window, len(set(first))
        effects = [window.outcome(case) for case in self.cases]
        table: dict[int, list[LemmaRow]] = {}
        known = [i for i, found in enumerate(effects) if not found.reason]
        block = max(BLOCK // (shape[0] * shape[1] * shape[2]), 1)
        for cases in (known[start : start + block] for start in range(0, len(known), block)):
            drop = np.array([self.cases[i].rule.clip.zeroes for i in cases])[:, None, None]
            clipped = np.stack([effects[i].clipped_weight for i in cases])
            kept = np.stack([effects[i].side == 0 for i in cases]).astype(np.float64)
            above, below = np.where(drop, by_bin(kept), by_bin(clipped)), np.where(drop, count, total_weight)
            strata = StrataSums(count, above, below, g, *vectors(clipped))
            plain = [LemmaRow(self._key(i, window), -1, 1, 1, -1) for i in cases]
            for u in range(window.updates):
                at = [row._replace(window=first[u], step=steps[u]) for row in plain]
                for i, row in zip(cases, filled(at, strata, np.array([u])), strict=True):
                    table.setdefault(i, []).append(row)
            if window.updates > 1:
                at = [row._replace(window=several[0], rollouts=several[1], updates=window.updates) for row in plain]
                for i, row in zip(cases, filled(at, strata, np.arange(window.updates)), strict=True):
                    table[i].append(row)
        for i, found in enumerate(effects):
            no_row = LemmaRow(self._key(i, window), *several, np.nan, -1, reason=found.reason)
            self.table += table.get(i, [no_row])

    def _key(self, i: int, window: ScoredWindow) -> CaseKey:
        return CaseKey(RuleKey.of(self.key, self.cases[i]), "nonzero", window.use)

    def rows(self) -> list[LemmaRow]:
        """Return the rows of the table lemma: for each rule and use, on each scored update and each block of updates,
        the cosine of clipped and unclipped gradient, T7's bound of it, and T8's parts of the error."""
        return self.table


def filled(rows: Sequence[LemmaRow], strata: StrataSums, at: Ints) -> Iterator[LemmaRow]:
    """Fill the cosine, its bound and the parts of the error (T7, T8) on the updates ``at`` (indices) into ``rows``, one
    for each of B rules, and yield them. If the numbers of a rule cannot be computed, its row gets the reason."""
    # ``through`` is the clipped gradient summed by bin less the clipped gradient summed without bins: a rounding error.
    # Its norm is divided by a_bar ||g||, as in T8, because the weight acceptance a_bar can reach 1e9 and rounding
    # errors grow with a_bar.
    through = strata.g_clip[:, at].sum(2) - strata.direct[:, at]
    off = np.linalg.norm(through.reshape(len(through), -1), axis=1)
    norm = float(np.linalg.norm(strata.g[at].sum(1)))
    count = int(strata.count[at].sum())
    for row, lemma, difference in zip(rows, lemmas_of(strata, at), off, strict=True):
        if isinstance(lemma, UserError):
            yield row._replace(reason=str(lemma))
            continue
        bound, mean = np.nan if lemma.bound is None else lemma.bound, lemma.lre.mean_acceptance
        yield row._replace(
            rho=lemma.rho,
            bound=bound,
            guaranteed=lemma.bound is not None,
            cosine=lemma.cosine,
            slack=lemma.cosine - bound,
            kappa_inf=lemma.kappa_inf,
            kappa_2=lemma.kappa_2,
            eta=lemma.eta,
            lre_inf=lemma.lre.inf,
            e_len=lemma.e_len_ratio,
            e_in=lemma.e_in_ratio,
            # Use np.maximum: Python's max may drop a NaN, and a residual of NaN must count as a violation.
            identity_residual=float(np.maximum(lemma.identity_residual, difference / (mean * norm))),
            count=count,
        )


def integrity(table: Sequence[LemmaRow]) -> dict[str, Any]:
    """Return whether the rows of the table lemma obey T7 (a bound of the cosine) and T8 (the parts of the error sum
    up).

    The result holds the largest residual of T8's identity, the number of rows that violate T7's bound by more than
    rounding, and ``pass``: whether the residual is only rounding and no row violates the bound.

    ``pass`` is None if no row was evaluated, and False if a residual is not finite. A row that has a bound and a NaN
    for its slack (cosine less bound) counts as a violation."""
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


def in_own_span(gram: Floats) -> Floats:
    """Express n vectors in an orthonormal basis of their span, (n, n); ``gram`` (n, n) holds their inner products."""
    values, basis = np.linalg.eigh(gram)  # in a fifth of the time of a QR decomposition
    return basis * np.sqrt(np.maximum(values, 0.0))


def lemmas_of(strata: StrataSums, at: Ints) -> Iterator[CosineLemma | UserError]:
    """Apply T7 and T8 to the updates ``at`` (indices) as if they were one, whose gradient is theirs joined end to end
    (their direct sum). Yield for each of B rules the cosine, its bound and the parts of the error, or an error that
    says why they cannot be computed."""
    count = strata.count[at].sum(0)
    some = count > 0
    count = count[some]
    a = strata.above[:, at].sum(1)[:, some] / strata.below[:, at].sum(1)[:, some]
    g = np.moveaxis(strata.g[at][:, some], 1, 0).reshape(len(count), -1)
    clipped = np.moveaxis(strata.g_clip[:, at][:, :, some], 2, 1).reshape(len(a), len(count), -1)
    return cosine_lemmas(count, a, g / count[:, None], clipped / count[:, None])
