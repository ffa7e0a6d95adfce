"""The table ess: effective sample size and mean of the weights M w that a rule leaves, by length (docs/theory.md, T10).

R = (sum x)^2 / (n sum x^2) is the effective sample size of n weights x as a share of n. Its interval comes from a
bias-corrected jackknife of log(1/R - 1) that deletes one cluster at a time, with Student's t. The degrees of freedom of
t are fewer if few clusters make most of the jackknife's variance (Satterthwaite). docs/coverage.md says how often the
intervals hold.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import Floats
from analysis.rules.evaluate import Case
from analysis.tables.columns import UNKNOWN, BinKey, CaseKey, Interval, RuleKey, RunKey, mean_at
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, dense, ratios_of_sums
from fspo.stats.intervals import t_quantile

EXACT = "exact"
"""Name of the rule that keeps every response with its weight exp(S)."""
EVEN = 0.7
"""The effective sample size gets an interval if the evenness (`_evenness`) of the clusters' sums of squared weights is
at least this share of the evenness of the clusters' numbers of responses. Below this share, few clusters decide the
estimate."""


class EssRow(NamedTuple):
    """Effective sample size of a rule's weights M w: one row for each rule, set of rows and bin.

    Written for every run, with a rule "exact" that keeps every response with its weight exp(S); like the clip rules it
    has the responses with A != 0. docs/theory.md T10. At first use the mean weight over all responses is 1, and in a
    bin it is above 1 where the new policy gives these lengths more probability than the old one (T9, T16); table
    moments has these means. Over the responses with A != 0 the mean of "exact" is 1 only if the new policy makes such
    responses as often as the old one.
    """

    case: CaseKey
    place: BinKey
    count: Annotated[int, "rows: one for each response and update", "rows"]
    clusters: Annotated[int, "clusters, prompts of one rollout, with a row", "clusters"]
    estimate: Annotated[Interval, "(sum of M w)^2 over n sum of (M w)^2, at most 1", "share"]
    mean_weight: Annotated[Interval, "mean of M w", "number"]
    reason: Annotated[str, "why there is no number; else empty", "text"]


def ess_rows(
    case: CaseKey, bins: Bins, rows: Floats, weights: Floats, squares: Floats, clusters: np.ndarray, mean: Floats
) -> list[EssRow]:
    """Make the rows of the table ess for one case: one for each of K bins, and one for all bins together.

    Parameters
    ----------
    rows, weights, squares : arrays (G, K)
        Number of responses, sum of their weights and of the squared weights, by group of clusters and bin.
    clusters : int array (K+1,)
        Number of clusters with a response, in each bin and overall.
    mean : array (K+1,)
        Mean length, or other coordinate, of the responses in each bin and overall.
    """
    found = ratios_of_sums(rows, weights, rows, clusters=clusters)
    n, x, xx = (np.column_stack([v, v.sum(1)]) for v in (rows, weights, squares))
    out: list[EssRow] = []
    for k in range(len(bins) + 1):
        key = case, BinKey.of(bins, k, float(mean[k])), int(found.count[k]), int(clusters[k])
        if clusters[k] < MIN_CLUSTERS:
            out.append(EssRow(*key, UNKNOWN, UNKNOWN, TOO_FEW))
            continue
        some = n[:, k] > 0
        share, why = effective_share(n[some, k], x[some, k], xx[some, k])
        out.append(EssRow(*key, share, mean_at(found, k), why))
    return out


def factor_rows(run: Run, bins: Bins) -> list[EssRow]:
    """Make rows of the table ess for the factors that the run's own correction on tokens left the responses.

    Such factors do not follow from a response's log-ratio and length, so they are read from the log's column
    ``correction_weight``. The result is empty if the run has no correction on the analysed ratio, and if its correction
    acts on sequences: the factors of such a correction are computed as those of the other rules are.
    """
    if run.rule is None or run.rule.level == "sequence" or run.ratio.on not in CORRECTED:
        return []
    rows = run.rows.take(np.flatnonzero(np.isfinite(run.rows.multiplier)))
    if len(rows) == 0:
        return []
    cluster, at = dense(rows.cluster), bins.index(rows.coordinate)
    groups, number = int(cluster.max()) + 1, len(bins)

    def sums(x: Floats) -> Floats:
        return np.bincount(cluster * number + at, x, groups * number).reshape(groups, number).astype(np.float64)

    count, coordinate = sums(np.ones(len(rows))), sums(rows.coordinate)
    clusters = np.append((count > 0).sum(0), groups)
    n, total = (np.append(x.sum(0), x.sum()) for x in (count, coordinate))
    mean = np.divide(total, n, out=np.full(number + 1, np.nan), where=n > 0)
    case = CaseKey(RuleKey.of(RunKey.of(run), Case(run.rule, run.rule.label, "trained")), "all", "first")
    squares = sums(rows.multiplier**2)
    return ess_rows(case, bins, count, sums(rows.multiplier), squares, clusters, mean)


def effective_share(n: Floats, x: Floats, xx: Floats) -> tuple[Interval, str]:
    """Return R = (sum x)^2 / (n sum x^2) with its interval, and a text that says why either is missing, else "".

    Parameters
    ----------
    n, x, xx : arrays (G,)
        Number of responses of each of G clusters, sum of their weights, sum of their squared weights.
    """
    if not xx.sum():
        return UNKNOWN, "all weights are 0"
    share = float(x.sum() ** 2 / (n.sum() * xx.sum()))
    if share > 1 - 1e-12:
        return Interval(1.0, 1.0, 1.0), ""
    if _evenness(xx) < EVEN * _evenness(n):
        return Interval(share), "no interval: few prompts hold most of the squared weight"
    with np.errstate(divide="ignore", invalid="ignore"):
        without = np.log((n.sum() - n) * (xx.sum() - xx) / (x.sum() - x) ** 2 - 1)
        variation, number = np.log(1 / share - 1), len(n)
        off = (without - without.mean()) ** 2
        # The jackknife's variance is a mean of squared deviations (``off``), one for each cluster. Its degrees of
        # freedom are 2 mean^2 / (variance of that mean), at most the number of clusters less 1.
        freedom = min(number - 1.0, 2 * number / np.maximum(1 / _evenness(off) - 1, 0.0))
        half = float(t_quantile(freedom) * np.sqrt(off.sum() * (number - 1) / number))
    if not np.isfinite(half):
        return Interval(share), "no interval: without one prompt all weights are equal"
    middle = number * variation - (number - 1) * without.mean()
    low, high = (float(1 / (1 + np.exp(end))) for end in (middle + half, middle - half))
    return Interval(share, min(low, share), max(high, share)), ""


def _evenness(parts: Floats) -> float:
    """Return the evenness of G numbers, (their sum)^2 / (G x the sum of their squares): 1 if all are equal, 1/G if all
    but one are 0.
    """
    parts = parts / parts.max()  # divide by the largest number first, because squares of tiny numbers would be 0
    return float(parts.sum() ** 2 / (len(parts) * (parts**2).sum()))
