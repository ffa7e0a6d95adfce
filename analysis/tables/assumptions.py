"""The table assumptions: for each assumption of the theory (docs/theory.md section 7), whether a log meets it.

Each assumption is measured by a quantity with an interval. The assumption holds if the interval lies inside a
tolerance, and fails if the interval lies outside the tolerance. Otherwise there is too little data, and the table says
how many more rows would decide if the estimate stays and its interval shrinks like one over the root of the number of
rows. Only rows at first use count, because the theory is about responses that the weights were not yet updated on.
Each assumption is judged once for all responses and once for those with A != 0; only the assumption that eta (T7) is
near 0 is judged for A != 0 alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from scipy import special

from analysis.log.loading import Run
from analysis.log.rows import SUBSETS, Floats, Rows, windows
from analysis.stats.error_law import MOST_LEFT_OUT
from analysis.tables.acceptance import BinnedRows
from analysis.tables.columns import UNKNOWN, Interval, RunKey, mean_at
from analysis.tables.lemma import LemmaRow
from analysis.tables.moments import (
    GRID,
    Subset,
    below_grid,
    exponent,
    of_standardising,
    standardized,
    update_scale,
)
from fspo.rules import importance_weight
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, Ratios, dense, ratios
from fspo.stats.intervals import sample_interval, simultaneous_half_widths, t_quantile

EXPONENT_TOLERANCE = 0.05
"""Largest distance from 1/2 of the exponent H, in Var(S|L) ~ L^(2H), at which T1's assumption H = 1/2 counts as met."""
LAW_TOLERANCE = 0.05
"""Largest difference of two distribution functions, over the 19 points ``GRID``, at which two laws count as equal."""
DRIFT_TOLERANCE = 0.2
"""Largest difference x of two drifts, in standard deviations of S, at which the drifts count as equal. A drift error of
x changes the acceptance of a symmetric band by at most x^2 times the normal density at 1, which is 0.01 (T3)."""
DEPENDENCE_TOLERANCE = 0.1
"""Tokens count as uncorrelated if the variance of sum (exp(s_t) - 1) over a response's tokens, divided by its value for
uncorrelated tokens, differs from 1 by at most this.
"""
WEIGHT_TOLERANCE = 0.05
"""Largest distance from 1 of the mean of exp(S) at which the assumption that it is 1 (T9) counts as met."""
ETA_TOLERANCE = 0.1
"""Largest eta that counts as near 0. In T7, eta is what clipping inside lengths adds to rho, and rho < 1 guarantees a
positive cosine."""
MOST_TIMES = 1000.0


class AssumptionRow(NamedTuple):
    """Whether the log meets an assumption of the theory: one row for each assumption and set of rows.

    Written for every run. docs/theory.md section 7.
    """

    run: RunKey
    subset: Subset
    use: Annotated[str, "first: the assumptions are about responses at first use", "text"]
    name: Annotated[str, "the assumption in a few words", "text"]
    count: Annotated[int, "rows; of eta, updates", "rows"]
    estimate: Annotated[Interval, "the measured quantity, which sentence names", "the quantity's"]
    tolerated_low: Annotated[float, "lower end of what is tolerated", "the quantity's"]
    tolerated_high: Annotated[float, "upper end of it", "the quantity's"]
    verdict: Annotated[str, "holds: the interval is inside; fails: it is outside; too little data: else", "text"]
    missing_rows: Annotated[float, "further rows that would decide at this estimate; 0 where decided", "rows"]
    sentence: Annotated[str, "the finding in one sentence", "text"]


def judge(estimate: Interval, low: float, high: float, rows: int) -> tuple[str, float]:
    """Compare an estimate's interval with a tolerance [low, high]; return the verdict (holds, fails or too little data)
    and how many further rows would decide.

    The number of further rows is 0 if the interval decides already. It is NaN in three cases: more than ``MOST_TIMES``
    times the rows would be needed; the estimate lies on an end of the tolerance, where no number of rows would decide;
    the estimate or an end of its interval is not finite.
    """
    value, below, above = estimate
    if not all(map(math.isfinite, estimate)):
        return "too little data", math.nan
    if low <= below and above <= high:
        return "holds", 0.0
    if above < low or below > high:
        return "fails", 0.0
    if low <= value <= high:
        # ``times`` is the factor by which the confidence interval must shrink towards the estimate for both of its ends
        # to lie inside the tolerance [low, high].
        times = max(
            (value - below) / (value - low) if below < low and value > low else (math.inf if below < low else 0.0),
            (above - value) / (high - value) if above > high and value < high else (math.inf if above > high else 0.0),
        )
    else:
        times = (above - value) / (low - value) if value < low else (value - below) / (value - high)
    share = times**2 - 1
    return "too little data", math.ceil(share * rows) if share <= MOST_TIMES else math.nan


def assumption_table(run: Run, bins: Bins, window_size: int, lemma: Sequence[LemmaRow]) -> list[AssumptionRow]:
    """Make the rows of the table assumptions for one run.

    Parameters
    ----------
    lemma : rows of the table lemma
        The rows from which eta (T7) is taken: those of the rule that trained, or, if there are none, those of all
        rules.
    """
    keep = run.rows.used == 0
    table: list[AssumptionRow] = []
    if not keep.any():
        return [_row(run, "all", "first use", UNKNOWN, -1, 1, 0, "no response was scored before it was trained on")]
    everyone = BinnedRows.of(run.rows.take(keep), bins, windows(run.rows.rollout, window_size)[keep])
    scale = update_scale(everyone.rows.S, everyone.rows.length, everyone.rows.step)
    for subset in SUBSETS:
        chosen = np.ones(len(scale), bool) if subset == "all" else everyone.rows.A != 0
        if not chosen.any():
            continue
        view = everyone.take(chosen, bins)
        if len(np.unique(view.cluster)) < MIN_CLUSTERS:
            table.append(_row(run, subset, "all of them", UNKNOWN, -1, 1, int(chosen.sum()), TOO_FEW))
            continue
        table += _of_subset(run, subset, view, scale[chosen], len(bins))
    eta, number = eta_of(lemma)
    table.append(
        _row(run, "nonzero", "eta", eta, 0, ETA_TOLERANCE, number, "eta of T7 is near 0: clipping is by length")
    )
    return table


def _of_subset(run: Run, subset: str, view: BinnedRows, scale: Floats, number: int) -> list[AssumptionRow]:
    rows, count = view.rows, len(view.rows)
    S, L, cluster = rows.S, rows.length, view.cluster
    z = standardized(S, L, scale, view.bins)
    out: list[AssumptionRow] = []

    def add(name: str, estimate: Interval, low: float, high: float, text: str) -> None:
        out.append(_row(run, subset, name, estimate, low, high, count, text))

    fit = exponent(z**2 * L, L, cluster)
    half = Interval(*(0.5 * float(x) for x in fit.slope))
    wide = EXPONENT_TOLERANCE
    add(
        "exponent H",
        half,
        0.5 - wide,
        0.5 + wide,
        "Var(S|L) grows like L^(2H) with H = 1/2 (T1)",
    )
    drift = DRIFT_TOLERANCE
    text = "E[S|L] is -L KL, in sd of S, in every bin"
    add("drift against -KL", worst_drift(view, number), -math.inf, drift, text)
    text = "the drift does not depend on the sign of A, in sd of S at the mean length (T11)"
    add("drift by sign of A", drift_by_sign(view), -drift, drift, text)
    u = (S - band_centre(run, rows)) / (scale * np.sqrt(L))
    distances = law_distances(z, u, view.bins, cluster, number)
    texts = {
        "normality": "S given L is normal, in every bin (T1 does not need it)",
        "one law": "the law of (S - m_L) / sqrt(L) does not depend on L, m_L the band's centre (T1)",
        "symmetry": "S given L is symmetric about the band's centre m_L (T11)",
    }
    for name, text in texts.items():
        add(name, distances[name], -math.inf, LAW_TOLERANCE, text)
    wide = DEPENDENCE_TOLERANCE
    text = "exp(s) - 1 of different tokens are uncorrelated: long-run over one-step variance is 1 (T9)"
    add("token dependence", dependence(view), 1 - wide, 1 + wide, text)
    weight = ratios(importance_weight(S), cluster, np.zeros(count, np.int64), 1)
    wide = WEIGHT_TOLERANCE
    add("mean weight", _mean(weight, 0), 1 - wide, 1 + wide, "the mean of exp(S) is 1 (T9)")
    text = "E[exp S|L] is 1 in every bin: lengths do not shift (T9)"
    add("weight by length", worst_weight(view, number), -math.inf, wide, text)
    return out


def _mean(found: Ratios, k: int) -> Interval:
    """Return the mean of a value over the rows of bin ``k``, with its interval; ``found`` holds the means of all bins.
    Return UNKNOWN if the clusters' means are all equal, because the interval is computed from their spread."""
    return Interval(*map(float, mean_at(found, k))) if found.variance[k] > 0 else UNKNOWN


def worst(values: Floats, covariance: Floats, df: int) -> Interval:
    """Return the largest magnitude of several estimates (K,), with an interval from their simultaneous intervals."""
    half = simultaneous_half_widths(covariance, max(df, 1))
    size = np.abs(values)
    return Interval(float(size.max()), float(np.max(np.maximum(size - half, 0.0))), float(np.max(size + half)))


def _enough(seen: float, rows: int) -> bool:
    """Return whether the bins with enough clusters hold so many rows that a verdict on them may stand for all bins.

    ``seen`` is the number of rows in these bins, ``rows`` that in all bins. At most the share MOST_LEFT_OUT of the rows
    may lie in other bins.
    """
    return seen > 0 and seen >= (1 - MOST_LEFT_OUT) * rows


def _worst_ratio(y: Floats, view: BinnedRows, number: int, unit: Floats, target: float = 0.0) -> Interval:
    """Return, with its interval, the largest |mean of y in a bin - ``target``| / ``unit`` over the bins.

    ``y`` (N,) is a value of each row, ``unit`` (K,) the bin's scale. Only bins with enough clusters count.
    """
    found = ratios(y, view.cluster, view.bins, number)
    used = np.flatnonzero((found.clusters[:number] >= MIN_CLUSTERS) & (unit > 0))
    if not _enough(found.count[used].sum(), len(y)) or not np.any(found.variance[used] > 0):
        return UNKNOWN
    influence = found.influence[:, used] / unit[used]
    total = len(influence)
    return worst((found.value[used] - target) / unit[used], influence.T @ influence * total / (total - 1), total - 1)


def band_centre(run: Run, rows: Rows) -> Floats:
    """Return for each row the logged centre m_L (N,), nats, of the band of the rule that trained.

    The centre is NaN where it is not logged. It is 0 if the rule has no drift, and if the analysed log-ratio is not the
    one that the rule acts on.
    """
    drifts = run.rule is not None and run.rule.needs_stats and run.rule.on == run.ratio.on
    return rows.drift * rows.length if drifts else np.zeros(len(rows))


def worst_drift(view: BinnedRows, number: int) -> Interval:
    """Return the largest |mean of S + L k| / sd(S) over the bins: how far S lies on average from -L k, the centre of a
    band whose drift is ``kl``.

    As in such a band, k is the mean k3 of the tokens of the row's minibatch. If k were the mean k3 of the tokens of the
    bin, the expectation of S + L k would be 0 for any log at first use (T9), and nothing would be tested.
    """
    spread = np.array([view.rows.S[view.bins == k].std() if np.any(view.bins == k) else 0.0 for k in range(number)])
    y = view.rows.S + view.rows.k3 * view.rows.length
    return _worst_ratio(y, view, number, spread) if np.all(np.isfinite(y)) else UNKNOWN


def worst_weight(view: BinnedRows, number: int) -> Interval:
    """Return the largest |mean of exp(S) in a bin - 1| over the bins, with its interval."""
    return _worst_ratio(importance_weight(view.rows.S), view, number, np.ones(number), 1.0)


def drift_by_sign(view: BinnedRows) -> Interval:
    """Return how much the mean of S differs between responses with A > 0 and with A < 0, with its interval.

    The number is (sum of S over sum of L at A > 0, less the same at A < 0) x mean length / standard deviation of S.
    """
    rows = view.rows
    at = rows.A != 0
    if not (np.any(rows.A > 0) and np.any(rows.A < 0)) or not rows.S.std() > 0:
        return UNKNOWN
    found = ratios(rows.S[at], dense(view.cluster[at]), (rows.A[at] < 0).astype(np.int64), 2, rows.length[at])
    if np.any(found.clusters[:2] < MIN_CLUSTERS):
        return UNKNOWN
    unit = float(rows.length.mean() / rows.S.std())
    step = (found.influence[:, 0] - found.influence[:, 1]) * unit
    total = len(step)
    half = float(t_quantile(total - 1) * np.sqrt(np.sum(step**2) * total / (total - 1)))
    value = float(found.value[0] - found.value[1]) * unit
    return Interval(value, value - half, value + half)


def dependence(view: BinnedRows) -> Interval:
    """Return a ratio that is 1 if the tokens of a response are uncorrelated, with its interval.

    It is the variance of sum (exp(s_t) - 1), where the sum is over a response's tokens and s_t is the token log-ratio,
    divided by the variance that this sum has for uncorrelated tokens, ``sum E[(exp(s_t) - 1)^2]``. The log lacks the
    sum of these squares. Twice the sum of k3(s_t) = exp(s_t) - 1 - s_t stands in for it, which is equal to leading
    order in s_t. No mean is subtracted, because at first use sum (exp(s_t) - 1) has mean 0.
    """
    M, one_step = view.rows.S + view.rows.k3_sum, 2 * view.rows.k3_sum
    if not np.all(np.isfinite(M)) or not one_step.sum() > 0:
        return UNKNOWN
    return _mean(ratios(M**2, view.cluster, np.zeros(len(M), np.int64), 1, one_step), 0)


def law_distances(z: Floats, u: Floats, bins: np.ndarray, cluster: np.ndarray, number: int) -> dict[str, Interval]:
    """Return how far the law of S in a bin is from three other laws, each with its interval.

    A distance is the largest difference of two distribution functions over the bins and the points ``GRID``.

    Parameters
    ----------
    z : array (N,)
        S / (scale sqrt(L)), less its mean in the bin; the scale is that of the row's update (`update_scale`).
    u : array (N,)
        (S - m_L) / (scale sqrt(L)), where m_L is the band's centre.

    Returns
    -------
    dict
        "normality": z in the bin, divided by its standard deviation there, against the normal law. "symmetry": u in the
        bin, divided by its standard deviation there, against -u. "one law": u in the bin against u over all bins, both
        divided by the standard deviation of u over all bins.
    """
    names = ("normality", "one law", "symmetry")
    clusters = int(cluster.max()) + 1
    if not np.all(np.isfinite(u)):
        u = np.full(len(z), np.nan)
    size = u.std()
    u = u / size if size > 0 else u
    values: dict[str, list[Floats]] = {name: [] for name in names}
    steps: dict[str, list[Floats]] = {name: [] for name in names}
    law_all, all_step = _law(below_grid(u, cluster, clusters), cluster)
    seen = 0
    for k in range(number):
        at = bins == k
        inside = cluster[at]
        if len(np.unique(inside)) < MIN_CLUSTERS or not z[at].std() > 0:
            continue
        seen += len(inside)
        law, step = _law(below_grid(u[at], inside, clusters), inside)
        values["one law"].append(law - law_all)
        steps["one law"].append(step - all_step)
        own = z[at] / z[at].std()
        law, step = _law(below_grid(own, inside, clusters), inside)
        values["normality"].append(law - special.ndtr(GRID))
        steps["normality"].append(step + of_standardising(own, inside, clusters) / len(inside))
        centred = u[at] / u[at].std()
        tails = below_grid(centred, inside, clusters) - below_grid(-centred, inside, clusters)
        law, step = _law(tails, inside)
        values["symmetry"].append(law)
        steps["symmetry"].append(step)
    known = bool(np.all(np.isfinite(u)))
    out: dict[str, Interval] = {}
    for name in names:
        missing = (not known and name != "normality") or (name == "one law" and len(values[name]) < 2)
        if missing or not _enough(seen, len(z)):
            out[name] = UNKNOWN
            continue
        influence = np.concatenate(steps[name], axis=1)
        covariance = influence.T @ influence * clusters / (clusters - 1)
        out[name] = worst(np.concatenate(values[name]), covariance, clusters - 1)
    return out


def _law(counts: Floats, cluster: np.ndarray) -> tuple[Floats, Floats]:
    """Return an empirical distribution function at the 19 points of ``GRID``, and each cluster's influence on it.

    ``counts`` (C, 19) holds for each cluster the number of its rows at or below each point (`below_grid`), or the
    difference of two such numbers; ``cluster`` (N,) is each row's cluster. The shapes of the results are (19,) and
    (C, 19).
    """
    mean = counts.sum(0) / len(cluster)
    return mean, (counts - np.outer(np.bincount(cluster, minlength=len(counts)), mean)) / len(cluster)


def eta_of(lemma: Sequence[LemmaRow]) -> tuple[Interval, int]:
    """Return the mean of eta (T7) of the rule that trained over the updates, with Student's t interval, and the number
    of these updates.

    Only rows of the table lemma at first use count. Rows about a whole window are left out, because each of the
    window's updates has a row too. If no row is of the rule that trained, an update's eta is the mean over all rules.
    """
    rows = [r for r in lemma if r.case.use == "first" and r.updates == 1 and math.isfinite(r.eta)]
    trained = [r for r in rows if r.case.band.source == "trained"]
    by_update: dict[tuple[int, int], list[float]] = {}
    for r in trained or rows:
        by_update.setdefault((r.window, r.step), []).append(r.eta)
    eta = np.array([np.mean(found) for found in by_update.values()])
    if len(eta) < MIN_CLUSTERS:
        return UNKNOWN, len(eta)
    return Interval(*sample_interval(eta)), len(eta)


def _row(
    run: Run,
    subset: str,
    name: str,
    estimate: Interval,
    low: float,
    high: float,
    count: int,
    text: str,
    unit: str = "rows",
) -> AssumptionRow:
    verdict, missing = judge(estimate, low, high, count)
    value, below, above = estimate
    if run.ratio.on != "update":
        text += f", of {run.ratio.words.text} in place of S (T16)"
    if not math.isfinite(value):
        sentence = f"Too little data: {text}."
    else:
        found = f"{value:.3g} ({below:.3g} to {above:.3g})"
        wanted = f"at most {high:g}" if low in (0, -math.inf) else f"{low:g} to {high:g}"
        ending = ""
        if verdict == "too little data":
            need = (
                f"about {missing:,.0f} more {unit}"
                if math.isfinite(missing)
                else f"more than {MOST_TIMES:g} times the {unit}"
            )
            ending = f"; {need} would decide at this estimate"
        sentence = f"{verdict.capitalize()}: {text}; found {found}, tolerated {wanted}{ending}."
    key = RunKey.of(run), subset, "first", name, count
    return AssumptionRow(*key, estimate, low, high, verdict, missing, sentence)
