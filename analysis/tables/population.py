"""The table population: cosine and squared error of the clipped gradient as an estimate of a population's update.

On one batch the clipped gradient and the unclipped gradient share their noise, which raises their cosine. Let u_i and
v_j be the coefficients (M w A or w A) of responses i and j. Over pairs of responses to *different* prompts the mean of
``u_i v_j <psi_i, psi_j>`` is an unbiased inner product of the expected updates (docs/theory.md section 5, "Population
cosine"). Together with the products within prompts, that mean gives bias, variance and mean squared error of the update
(T11). Inner products and squared norms are summed over the updates before they are divided.

Only responses in the first epoch count, because the expectations under the old policy do not hold for responses of
later epochs.

Each cosine or error is a ratio of such sums; it is consistent, not unbiased. Its interval comes from a jackknife of the
ratio itself that deletes one prompt at a time, from all updates that hold its responses. For the errors of the
direction, the clipped gradient is first divided by its mean acceptance a_bar. The jackknife estimates a_bar again
without each prompt: with a fixed a_bar, intervals were up to 1.5 times too long, or too short by a third. If the
squared norm in the denominator cannot be told from 0, the result is NaN with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np

from analysis.log.rows import Floats, Ints
from analysis.rules.evaluate import UNCORRECTED, Case, common_weight
from analysis.scores.caps import CapSums
from analysis.scores.products import Judge, Products, UpdateGram, collapsed
from analysis.scores.sketch_error import cosine_variance
from analysis.scores.sketches import ScoredWindow
from analysis.tables.acceptance import Reason
from analysis.tables.cosine import counts_of, rows_weight
from analysis.tables.typed_rows import UNKNOWN, BinKey, CaseKey, Interval, RuleKey, RunKey
from fspo.rules import Rule
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW
from fspo.stats.intervals import t_quantile

ERRORS = ("bias2", "variance", "mse", "bias2_direction", "variance_direction", "mse_direction")
"""Names of the errors of an update (T11). Each error is divided by the variance of the unclipped update, so clipping
helps if mse is below 1. The errors of the "direction" are of the clipped gradient divided by its mean acceptance."""


class PopulationRow(NamedTuple):
    """The clipped gradient as an estimate of a population's: one row for each rule, quantity and bin.

    Only responses in the first epoch count. Empty for a run without scores. It is explained in docs/theory.md, T11."""

    case: CaseKey
    place: BinKey
    quantity: Annotated[
        str,
        f"cosine, or of T11: {', '.join(ERRORS)}; of a bin, rule none: alignment (cosine of its update with that of "
        "the other bins), log_cap (log of the cap on weights of least error); of a rule: log_edge (mean upper edge)",
        "text",
    ]
    count: Annotated[int, "responses with a score", "rows"]
    clusters: Annotated[int, "prompts of one update with a scored response, summed over updates", "clusters"]
    estimate: Annotated[
        Interval,
        "cosine; the error over the mean squared error of the unclipped update; log cap or edge",
        "cosine, ratio, nats",
    ]
    reason: Reason
    updates: Annotated[int, "updates with scores", "updates"]


@dataclass
class _Pool:
    """Collects, update by update, the estimates of `_terms` (inner products, squared norms, variances), and numbers of
    responses and prompts.

    A bin of an update without a pair of responses to different prompts gets the estimate 0."""

    parts: dict[str, Products] = field(default_factory=dict)
    update: list[Ints] = field(default_factory=list)
    # For each update an array (2, C): rollout number and prompt number of each of its C prompts. Each replicate leaves
    # one of these prompts out.
    prompt: list[Ints] = field(default_factory=list)
    counts: Any = 0.0  # (3, K+1), see `counts_of`

    def add(self, found: dict[str, tuple[Floats, Floats]], prompt: Ints, counts: Floats) -> None:
        for name, (total, without) in found.items():
            gone = np.isnan(total)
            # If no pair of responses to different prompts is left without one prompt, the replicate without it is NaN.
            # It is replaced by the value from all prompts, as if that prompt had no influence.
            without = np.where(np.isnan(without), total, without)
            self.parts.setdefault(name, Products()).add(np.where(gone, 0.0, total), np.where(gone, 0.0, without))
        some = next(iter(found.values()))[1]
        self.update.append(np.full(len(some), len(self.update)))
        self.prompt.append(prompt)
        self.counts = self.counts + counts


class PopulationTable:
    """Collects scored blocks and makes the rows of the table population.

    Parameters
    ----------
    key : RunKey
        The columns that name the run in every row.
    bins : Bins
        Bins of length, or of another coordinate.
    cases : list of Case
        The rules. Each clip rule takes the common weight exp(S). A rule that clips nothing is added. Its name is
        ``none``, or ``exact`` if corrections are analysed, because ``none`` then names the case that corrects nothing.
    width : float
        Effective width of the sketch (analysis.scores.sketch_error), infinite for exact scores.
    """

    def __init__(self, key: RunKey, bins: Bins, cases: list[Case], width: float = math.inf) -> None:
        self.key, self.bins, self.width = key, bins, width
        self.take_cases(cases)
        self._pool = _Pool()
        self._reasons: dict[int, str] = {}
        self._caps, self._edges = CapSums(len(bins)), np.zeros((len(self.cases), len(bins)))
        self._cut: dict[int, int] = {}  # for each case, by its index: number of updates of which it kept no response

    def take_cases(self, cases: list[Case]) -> None:
        """Take ``cases`` as the rules of the blocks that are added next, with exp(S) as weight of each clip rule; the
        rule that clips nothing is added."""
        uncut = any(case.name == UNCORRECTED and case.rule.weight == "none" for case in cases)
        unclipped = Case(Rule("none"), "exact" if uncut else "none", "given")
        self.cases = [unclipped, *(common_weight(case) for case in cases if case.name != unclipped.name)]

    def add(self, window: ScoredWindow) -> None:
        """Add one scored block to the table's sums; rows of later epochs and updates of one prompt are ignored."""
        if window.use != "first":
            return
        rows, number = window.rows, len(self.bins)
        columns, accepted, outcomes = [], [], []
        for i, case in enumerate(self.cases):
            found = window.outcome(case)
            if found.reason:
                self._reasons.setdefault(i, found.reason)
            outcomes.append(found)
            columns.append(np.nan_to_num(found.clipped_weight))
            kept = (found.side == 0).astype(np.float64)
            accepted.append(kept if case.rule.clip.zeroes else np.nan_to_num(found.clipped_weight))
        coefficients, weight = np.column_stack(columns), rows_weight(window)
        normaliser = np.column_stack(accepted)
        weighted = np.array([not case.rule.clip.zeroes for case in self.cases])
        for u in range(window.updates):
            at, one, gram = window.part(u, number)
            c, w, cluster = coefficients[at], weight[at, None], gram.cluster
            if gram.clusters < 2:
                continue
            scale = _scale(normaliser[at], np.where(weighted, w, 1.0), cluster)
            for i in np.flatnonzero(np.isnan(scale[0])).tolist():
                self._cut[i] = self._cut.get(i, 0) + 1
            found = _terms(gram, c, w, scale)
            prompt = np.stack([rows.rollout[one], rows.prompt[one]])
            self._caps.add(gram, w[:, 0])
            edges = [np.bincount(window.bins[at], outcome.hi[at], number) for outcome in outcomes]
            self._edges = self._edges + np.stack(edges)
            self._pool.add(found, prompt, counts_of(window.bins[at], cluster, rows.coordinate[at], number))

    def rows(self) -> list[PopulationRow]:
        """Return the rows of the table population: cosine and errors of each rule's clipped gradient as an estimate of
        a population's update (T11)."""
        out: list[PopulationRow] = []
        pool = self._pool
        if not pool.update:
            return out
        stratum = collapsed(np.concatenate(pool.update))
        values = {name: part.replicates() for name, part in pool.parts.items()}
        prompt = np.unique(np.concatenate(pool.prompt, axis=1), axis=1, return_inverse=True)[1].reshape(-1)
        degrees = max(int(prompt.max()) - int(stratum.max()), 1)
        judge = Judge(stratum, prompt.astype(np.int64), t_quantile(degrees))
        for quantity in ("cosine", *ERRORS):
            numerator, denominator = _ratio(quantity, values)
            for i, case in enumerate(self.cases):
                key = CaseKey(RuleKey.of(self.key, case), "nonzero", "first")
                out += self._rows(key, quantity, i, numerator, denominator, values, judge)
        return out + self._bin_rows()

    def _bin_rows(self) -> list[PopulationRow]:
        """Return the rows of single bins: alignment and log_cap (`CapSums`); log_edge, mean upper edge of S, nats."""
        pool, out = self._pool, []
        of_bins = self._caps.estimates()
        for k, (count, clusters, total) in enumerate(pool.counts.T[:-1]):
            if not count:
                continue
            place, counts = BinKey.of(self.bins, k, float(total / count)), (int(count), int(clusters))
            found = [(0, name, Interval(*bins[k])) for name, bins in of_bins.items()]
            found += [(i, "log_edge", Interval(edge[k] / count)) for i, edge in enumerate(self._edges)]
            for i, quantity, value in found:
                if not np.isfinite(value.value) and quantity == "log_edge":
                    continue
                key = CaseKey(RuleKey.of(self.key, self.cases[i]), "nonzero", "first")
                why = "" if np.isfinite(value.value) else "the squared norm of an expected update cannot be told from 0"
                out.append(PopulationRow(key, place, quantity, *counts, value, why, len(pool.update)))
        return out

    def _rows(
        self,
        case: CaseKey,
        quantity: str,
        i: int,
        numerator: tuple[Floats, Floats],
        denominator: tuple[Floats, Floats],
        values: dict[str, tuple[Floats, Floats]],
        judge: Judge,
    ) -> list[PopulationRow]:
        number, pool = len(self.bins), self._pool
        out = []
        for k in [number, *range(number)]:
            count, clusters, total = pool.counts[:, k].tolist()
            mean = total / count if count else float("nan")
            why = self._reasons.get(i, "") or (TOO_FEW if clusters < MIN_CLUSTERS else "")
            if not why and i in self._cut and quantity.endswith("_direction"):
                why = f"nothing is accepted in {self._cut[i]} of {len(pool.update)} updates: they have no direction"
            found = UNKNOWN
            if not why and quantity == "cosine":
                why = judge.positive(values["right"][0][k, 0], values["right"][1][:, k, 0], "the unclipped gradient g")
                why = why or judge.positive(values["left"][0][k, i], values["left"][1][:, k, i], "the clipped gradient")
            if not why:
                j = 0 if denominator[0].shape[1] == 1 else i
                noise = self._sketch_error(k, i, quantity, values)
                found, why = judge.ratio(
                    (numerator[0][k, i], numerator[1][:, k, i]), (denominator[0][k, j], denominator[1][:, k, j]), noise
                )
            key = case, BinKey.of(self.bins, k, mean), quantity, int(count), int(clusters)
            out.append(PopulationRow(*key, Interval(*found), why, len(pool.update)))
        return out

    def _sketch_error(self, k: int, i: int, quantity: str, values: dict[str, tuple[Floats, Floats]]) -> float:
        """Return the standard error that sketching adds to a quantity, in bin ``k`` and of case ``i``, beyond the
        jackknife's standard error. ``values`` holds the estimates of `_terms`, summed over updates."""
        if quantity != "cosine":
            if quantity.startswith("variance"):
                # A variance is computed from the sketches of single prompts, so its jackknife over prompts already
                # contains the error from sketching.
                return 0.0
            # A squared bias is a squared norm. Sketching gives it the relative error sqrt(2 / width), independently in
            # each update.
            here = {name: found[0][k, i if found[0].shape[1] > 1 else 0] for name, found in values.items()}
            direction = quantity.endswith("_direction")
            bias = here["bias2_direction"] if direction else here["left"] - 2 * here["inner"] + here["right"]
            below = float(values["variance"][0][k, 0])
            return (
                abs(float(bias) / below) * math.sqrt(2 / (self.width * len(self._pool.update))) if below else math.nan
            )
        n, a, b = (
            np.array([total[k, i if total.shape[1] > 1 else 0] for total in self._pool.parts[name].total])
            for name in ("inner", "left", "right")
        )
        variance = float(cosine_variance(n, a, b, self.width))
        # Sketches add noise to the inner products of single updates, so the variance that is estimated from them may be
        # 0. Return at least the variance that the cosine has if every update has the same inner products.
        cosine = float(n.sum() / math.sqrt(a.sum() * b.sum()))
        return math.sqrt(max(variance, (1 - cosine**2) ** 2 / (self.width * len(n))))


def _scale(accepted: Floats, whole: Floats, cluster: Ints) -> tuple[Floats, Floats]:
    """Return 1 / (mean acceptance) of one update for each of R rules, (R,), and the same number computed without each
    of the update's C prompts, (C, R).

    A number is NaN if nothing is accepted.

    Parameters
    ----------
    accepted, whole : arrays (n, R)
        Numerator and denominator of each response's acceptance by each rule. The mean acceptance is the sum of the
        numerators over the sum of the denominators.
    cluster : int array (n,)
        Number of each response's prompt, from 0 without gaps.
    """
    number = int(cluster.max()) + 1
    member = np.zeros((number, len(cluster)))
    member[cluster, np.arange(len(cluster))] = 1.0
    above, below = accepted.sum(0), whole.sum(0)
    above_without, below_without = above - member @ accepted, below - member @ whole
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(above > 0, below / above, np.nan)
        # If nearly all accepted weight is that of one prompt, what is left without the prompt is a rounding error and
        # counts as 0.
        return found, np.where(above_without > 1e-12 * above, below_without / above_without, np.nan)


def _terms(gram: UpdateGram, c: Floats, w: Floats, scale: tuple[Floats, Floats]) -> dict[str, tuple[Floats, Floats]]:
    """Return the estimates from which the cosines and errors of the table ``population`` are made, by name.

    A response adds c A psi to the clipped gradient and w A psi to the unclipped one: ``c`` (n, R) holds the clipped
    weights M w under R rules, ``w`` (n, 1) the weights. "inner", "left" and "right" are mean inner products over pairs
    of responses to different prompts: of c A psi with w A psi, c A psi with c A psi, and w A psi with w A psi.
    "variance" is the variance of the clipped gradient; "bias2_direction" and "variance_direction" are the squared bias
    and the variance of the clipped gradient divided by its mean acceptance (T11). Each is a pair: from all prompts, and
    without each prompt in turn. ``scale`` is 1 / (mean acceptance), such a pair too (`_scale`)."""
    inner, left, right = gram.between(c, w), gram.between(c, c), gram.between(w, w)
    variance = gram.variance(c, left)
    whole, without = scale[0], scale[1][:, None, :]

    def scaled(of: Callable[[int, Floats], Floats]) -> tuple[Floats, Floats]:
        """Return a quantity from all prompts, and its replicates, each without one prompt. ``of(0, s)`` computes the
        quantity and ``of(1, s)`` the replicates, from s = 1 / (mean acceptance) of the same prompts.
        Because s is no linear function of the data, the quantity has a bias of the order of 1 / (number of an update's
        prompts), however many updates are pooled. The bias is estimated from the replicates (Quenouille) and
        subtracted from both results."""
        found, moving = of(0, whole), of(1, without)
        gap = of(1, whole) - moving
        shift = np.where(np.isnan(gap), 0.0, gap).sum(0) * (len(gap) - 1) / len(gap)
        return found + shift, moving + shift

    return {
        "inner": inner,
        "left": left,
        "right": right,
        "variance": variance,
        "bias2_direction": scaled(lambda at, s: left[at] * s**2 - 2 * inner[at] * s + right[at]),
        "variance_direction": scaled(lambda at, s: variance[at] * s**2),
    }


def _ratio(
    quantity: str, values: dict[str, tuple[Floats, Floats]]
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return the numerator and the denominator of one quantity of the table population: the cosine of clipped and
    unclipped gradient, or the squared bias, variance or mean squared error of the clipped gradient. Each is a pair: the
    value from all prompts (K+1, R), and the replicates (C, K+1, R); R is 1 where all rules share the denominator."""

    def each(f: Any) -> tuple[Floats, Floats]:
        parts = [{name: pair[s] for name, pair in values.items()} for s in (0, 1)]
        return f(parts[0]), f(parts[1])

    if quantity == "cosine":
        with np.errstate(invalid="ignore"):
            return each(lambda v: v["inner"]), each(lambda v: np.sqrt(v["left"] * v["right"]))
    direction = "_direction" if quantity.endswith("_direction") else ""

    def bias(v: dict[str, Floats]) -> Floats:
        return v["bias2_direction"] if direction else v["left"] - 2 * v["inner"] + v["right"]

    above = {
        "bias2": bias,
        "variance": lambda v: v[f"variance{direction}"],
        "mse": lambda v: bias(v) + v[f"variance{direction}"],
    }[quantity.removesuffix("_direction")]
    return each(above), each(lambda v: v["variance"][..., :1])
