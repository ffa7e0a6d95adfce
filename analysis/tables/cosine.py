"""The table cosine: alignment of the clipped with the unclipped gradient of the same responses (docs/theory.md section
5).

The responses of an update have the vectors A psi, and Q is the matrix of their inner products. The unclipped gradient g
adds these vectors with the weights w, the clipped gradient g_clip of a rule with the coefficients c = M w. So
``<g_clip, g> = c' Q w``, and all rules share Q. For a block or a run, inner products and squared norms are summed over
its updates before the cosine divides them.

Intervals come from a jackknife that deletes one cluster at a time; the updates are its strata. It works on Fisher's z
of a cosine. A cluster is a rollout's prompt. It stays one cluster if its responses are in several updates, because
minibatches split a group or because of a further epoch. The error that sketching adds to a cosine is part of its
interval. The intervals are about the *same-batch* cosine at the log's number of responses an update. g_clip and g share
their noise, so the same-batch cosine is higher than the cosine with a population (analysis.tables.population).

If a correction is analysed (``--on engine`` or ``behaviour``), S is the engine or the rollout-policy log-ratio, and the
vectors are ``e^S_update A psi``, where S_update is the log-ratio of the update. So the unclipped gradient weights each
response by exp(S_update) and by exp(S), as in T13. The clipped gradient replaces exp(S) by the factor M w of the
correction. The case "none" leaves every response the factor 1, so its row shows what ignoring the mismatch costs. With
``--on engine`` neither the unclipped nor the clipped gradient contains the policy lag D."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from analysis.log.ratio import CORRECTED
from analysis.log.rows import Floats, Ints
from analysis.rules.evaluate import Case, common_weight
from analysis.scores.products import CosineColumns, Products
from analysis.scores.sketches import ScoredWindow
from analysis.tables.acceptance import Reason
from analysis.tables.typed_rows import UNKNOWN, BinKey, CaseKey, Interval, RuleKey, RunKey
from fspo.rules import importance_weight
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW


class CosineRow(NamedTuple):
    """Cosine of the clipped and the unclipped gradient of the same responses: one row for each rule, use and bin.

    Use is the first epoch or later epochs. Every clip rule takes the weight exp(S). The rule random drops as many
    responses, drawn at random, as a rule that meets the target or as the rule that trained; its row is the mean over
    draws. Empty for a run without scores. It is explained in docs/theory.md, section 5."""

    case: CaseKey
    place: BinKey
    estimate: Annotated[Interval, "cosine of the updates, their products pooled before dividing", "cosine"]
    worst_bin: Annotated[Interval, "smallest cosine over the bins; all bins together only", "cosine", "worst_"]
    reason: Reason
    count: Annotated[int, "responses with a score", "rows"]
    clusters: Annotated[int, "prompts of one update with a scored response, summed over updates", "clusters"]
    updates: Annotated[int, "updates with scores", "updates"]


class CosineTable:
    """Collects scored blocks and makes the rows of the table cosine.

    Parameters
    ----------
    key : RunKey
        The columns that name the run in every row.
    bins : Bins
        Bins of length, or of another coordinate.
    cases : list of Case
        The rules, with the one that trained among them if it is defined on sequences.
    targets : sequence of float
        Shares of the responses that the random control keeps. The control is a rule that drops responses at random; it
        is also made for the share that the rule that trained keeps.
    draws : int
        Number of times that the random control draws the dropped responses.
    seed : int
        Seed of the random control.
    width : float
        Effective width of the sketch (analysis.scores.sketch_error), infinite for exact scores.
    """

    def __init__(
        self,
        key: RunKey,
        bins: Bins,
        cases: list[Case],
        targets: Sequence[float],
        draws: int,
        seed: int,
        width: float = math.inf,
    ) -> None:
        self.key, self.bins, self.draws = key, bins, draws
        self.cases = [common_weight(case) for case in cases]
        self.targets = list(targets)
        self.trained = [case for case in cases if case.source == "trained" and case.rule.clip.zeroes]
        self.plain = "mask" if any(c.rule.on in CORRECTED for c in self.cases) else "drop"
        self.width = width
        self._rng = np.random.default_rng(seed)
        self._uses: dict[str, _Use] = {}

    def add(self, window: ScoredWindow) -> None:
        """Add the inner products of clipped and unclipped gradients in one scored block to the sums of the table
        ``cosine``."""
        use = self._uses.setdefault(window.use, _Use(len(self.bins)))
        n = len(window.rows)
        columns: list[Floats] = []
        weight = rows_weight(window)
        kept: dict[float, int] = {}
        for i, case in enumerate(self.cases):
            found = window.outcome(case)
            if found.reason:
                use.reasons.setdefault(i, found.reason)
            columns.append(np.where(np.isfinite(found.clipped_weight), found.clipped_weight, 0.0))
            if case.source == "trained":
                kept[float("nan")] = int(np.sum(found.side == 0))
        dropped = [round(target * n) for target in self.targets]
        dropped += list(kept.values()) if self.trained else []
        for keep in dropped:
            order = np.argsort(self._rng.random((n, self.draws)), axis=0)
            columns.append(np.where(order < keep, weight[:, None], 0.0))
        use.add(window, np.column_stack(columns), weight[:, None])

    def rows(self) -> list[CosineRow]:
        """Return the rows of the table cosine."""
        out: list[CosineRow] = []
        for name, use in self._uses.items():
            update = np.concatenate(use.cluster_update)
            cluster = np.unique(np.concatenate(use.prompt, axis=1), axis=1, return_inverse=True)[1].reshape(-1)
            columns = CosineColumns.of(use.inner, use.left, use.right, update, self.width, cluster)
            for i, case in enumerate(self.cases):
                key = CaseKey(RuleKey.of(self.key, case), "nonzero", name)
                out += self._rows(key, columns, [i], use, use.reasons.get(i, ""))
            start = len(self.cases)
            controls = [("matched", t) for t in self.targets]
            controls += [("trained", float("nan"))] if self.trained else []
            for source, target in controls:
                key = CaseKey(RuleKey(self.key, "random", self.plain, source, target), "nonzero", name)
                draws = list(range(start, start + self.draws))
                out += self._rows(key, columns, draws, use, "")
                start += self.draws
        return out

    def _rows(self, case: CaseKey, columns: CosineColumns, at: list[int], use: _Use, reason: str) -> list[CosineRow]:
        number = len(self.bins)
        out: list[CosineRow] = []
        for k in [number, *range(number)]:
            count, clusters, total = use.counts[:, k]
            why = reason or (TOO_FEW if clusters < MIN_CLUSTERS else "")
            cosine = worst = UNKNOWN
            if not why:
                cosine = Interval(*columns.interval(k, at))
                why = columns.undefined(k, at)
            if k == number and not why:
                worst = Interval(*columns.interval(number + 1, at))
            place = BinKey.of(self.bins, k, total / count if count else float("nan"))
            out.append(CosineRow(case, place, cosine, worst, why, int(count), int(clusters), len(use.inner.total)))
        return out


class _Use:
    """Collects the inner products of clipped and unclipped gradients, of all rules and of the random control's draws,
    update by update, for the first epoch or for later ones."""

    def __init__(self, number: int) -> None:
        self.inner, self.left, self.right = Products(), Products(), Products()
        self.cluster_update: list[Ints] = []
        self.prompt: list[Ints] = []  # for each update an array (2, C): rollout and prompt of each of its C clusters
        self.counts = np.zeros((3, number + 1))  # see `counts_of`
        self.reasons: dict[int, str] = {}
        self.number = number
        self.updates = 0

    def add(self, window: ScoredWindow, coefficients: Floats, weight: Floats) -> None:
        """Add a block: the inner products of the unclipped and the clipped gradients of each of its updates.

        ``coefficients`` (n, R) are the clipped weights M w that R rules, or draws of the random drop, leave the
        block's n responses; ``weight`` (n, 1) is w = exp(S)."""
        for number in range(window.updates):
            at, one, gram = window.part(number, self.number)
            c, w = coefficients[at], weight[at]
            self.inner.add(*gram.products(c, w))
            self.left.add(*gram.products(c, c))
            self.right.add(*gram.products(w, w))
            self.prompt.append(np.stack([window.rows.rollout[one], window.rows.prompt[one]]))
            self.cluster_update.append(np.full(gram.clusters, self.updates))
            self.updates += 1
            self.counts += counts_of(window.bins[at], gram.cluster, window.rows.coordinate[at], self.number)


def counts_of(bins: Ints, cluster: Ints, coordinate: Floats, number: int) -> Floats:
    """Return an array (3, K+1): in each of K = ``number`` bins, and last in all, the number of rows, the number of
    prompts with a row, and the sum of coordinates (lengths, or another). The arguments (n,) are each row's."""
    rows = np.append(np.bincount(bins, minlength=number), len(bins))
    pairs = np.unique(cluster * number + bins) % number
    clusters = np.append(np.bincount(pairs, minlength=number), len(np.unique(cluster)))
    total = np.append(np.bincount(bins, coordinate, number), coordinate.sum())
    return np.asarray([rows, clusters, total], np.float64)


def rows_weight(window: ScoredWindow) -> Floats:
    """Return the weight exp(S) (n,) of each row of a scored block in the unclipped gradient; the exponent is at most
    20."""
    return importance_weight(window.rows.S)
