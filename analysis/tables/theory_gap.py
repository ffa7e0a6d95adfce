"""The table theory_gap: measured less theoretical share of responses in the band, split into causes.

The theory is T1's: given L, S is normal with the mean m_L, the centre of the rule's band, and variance sigma^2 L, one
sigma for each update, and the band has the logged width and is symmetric about m_L. One after the other, five
ingredients of this theory are replaced by what was measured:

- asymmetry: the two edges that the band really has, instead of edges symmetric about m_L;
- drift: the mean of S in the bin, instead of m_L;
- H: the standard deviation of S in the bin, instead of sigma sqrt(L);
- tails: the law of the standardised S, all bins together, instead of the normal law;
- dependence on A: mean and standard deviation of S in the bin for each sign of A, instead of one for all responses.

The part of an ingredient is its Shapley value: the change of the computed acceptance when the ingredient is replaced,
averaged over all orders of replacing the five. A further part, the rest, is what all five ingredients leave
unexplained, because the law of S changes with length in more than mean and spread. The parts and the rest sum to the
gap. Intervals come from a jackknife over groups of clusters. Updates in which S is 0 throughout are left out, because
their sigma is 0.
"""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import Annotated, NamedTuple

import numpy as np
from scipy import special

from analysis.log.loading import Run
from analysis.log.rows import Floats, Ints, windows
from analysis.tables.acceptance import BinnedRows, Count, Reason
from analysis.tables.columns import BinKey, Interval, RunKey
from analysis.tables.moments import update_scale
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, flat_variance
from fspo.stats.intervals import t_quantile

INGREDIENTS = ("asymmetry", "drift", "H", "tails", "dependence on A")
GROUPS = 20
MOST_ROWS = 100_000
"""Rough largest number of rows that are used. If a run has more rows at first use, clusters are drawn at random, and
all rows of a drawn cluster are used."""


class GapRow(NamedTuple):
    """Measured less theoretical band acceptance of the rule that trained, in parts: one row for each bin and part.

    Only responses at first use count. Written for a rule on whole sequences whose band has edges; else empty.
    docs/theory.md sections 4 and 7, T1, T3, T5.
    """

    run: RunKey
    place: BinKey
    part: Annotated[
        str,
        "theory: acceptance by T1; measured; gap: measured less theory; and the parts that add up to the gap: "
        + ", ".join((*INGREDIENTS, "rest")),
        "text",
    ]
    count: Count
    estimate: Annotated[Interval, "the acceptance, or the part of the gap", "share"]
    reason: Reason


def gap_table(run: Run, bins: Bins, window_size: int) -> list[GapRow]:
    """Make the table theory_gap from rows at first use: the band acceptance by T1, the measured one, their gap and the
    parts of the gap by cause. One row for each bin (-1: all bins) and each of these numbers.
    """
    keep = run.rows.used == 0
    keep &= np.isin(run.rows.step, run.rows.step[keep & (run.rows.S != 0)])
    if not keep.any() or run.rule is None or run.rule.level != "sequence" or run.rule.shape == "none":
        return []
    view = BinnedRows.of(run.rows.take(keep), bins, windows(run.rows.rollout, window_size)[keep])
    rule = run.rule
    if rule.needs_stats and not np.all(np.isfinite(view.rows.drift)):
        return []
    share = MOST_ROWS / len(view.rows)
    if share < 1:
        number = int(view.cluster.max()) + 1
        drawn = np.random.default_rng(0).random(number) < share
        view = view.take(drawn[view.cluster], bins)
    # Sort the rows by bin, sign of A and upper edge. `parts` looks up each row's edges in a sorted array of log-ratios,
    # which is faster if successive edges are near each other.
    unit = update_scale(view.rows.S, view.rows.length, view.rows.step) * np.sqrt(view.rows.length)
    order = np.lexsort((view.rows.edges(rule)[1] / unit, np.sign(view.rows.A), view.bins))
    view = view.take(order, bins)
    rows, clusters = view.rows, int(view.cluster.max()) + 1
    lo, hi = rows.edges(rule)
    centre = rows.drift * rows.length if rule.needs_stats else np.zeros(len(rows))
    root, sign = np.sqrt(rows.length), np.sign(rows.A).astype(np.int64) + 1

    def split(at: np.ndarray) -> dict[str, Floats]:
        """Return by bin the acceptance that T1 states, the measured acceptance, their difference (the gap) and the
        parts of the gap, as `parts` computes them. Only the rows that the mask ``at`` selects count; sigma is estimated
        from them.
        """
        unit = update_scale(rows.S[at], rows.length[at], rows.step[at]) * root[at]
        S, low, high = ((x[at] - centre[at]) / unit for x in (rows.S, lo, hi))
        return parts(S, low, high, view.bins[at], sign[at], len(bins))

    whole = split(np.ones(len(rows), bool))
    group = np.random.default_rng(1).permutation(clusters)[view.cluster] % GROUPS
    # If the log has fewer than MIN_CLUSTERS clusters, make no replicates: every estimate in the table theory_gap is
    # then NaN.
    present = np.unique(group) if clusters >= MIN_CLUSTERS else np.zeros(0, np.int64)
    without = [split(group != g) for g in present]
    n = len(present)
    out: list[GapRow] = []
    for k in range(len(bins) + 1):
        at = view.bins == k if k < len(bins) else np.ones(len(rows), bool)
        met = len(np.unique(view.cluster[at]))
        few = met < MIN_CLUSTERS
        for name, values in whole.items():
            value, half = float(values[k]), np.nan
            if few:
                value = np.nan
            else:
                left = np.array([w[name][k] for w in without])
                se = float(np.sqrt(np.sum((left - left.mean()) ** 2) * (n - 1) / n))
                if name in ("measured", "gap", "rest") and whole["measured"][k] in (0, 1):
                    # All rows are in the band, or none. Leaving clusters out then does not change the measured share,
                    # and the jackknife's error of it is 0. So add an error that depends on the number of clusters.
                    se = float(np.hypot(se, np.sqrt(flat_variance(met))))
                half = t_quantile(max(n - 1, 1)) * se
            key = RunKey.of(run), BinKey.of(bins, k, view.mean[k]), name, int(at.sum())
            out.append(GapRow(*key, Interval(value, value - half, value + half), TOO_FEW if few else ""))
    return out


def parts(S: Floats, lo: Floats, hi: Floats, bins: Ints, sign: Ints, number: int) -> dict[str, Floats]:
    """Return the theoretical and the measured share of rows in the band, the gap (measured less theoretical) and its
    parts, each (K+1,).

    The last of the K+1 entries is over all rows, the others are by bin.

    Parameters
    ----------
    S, lo, hi : arrays (N,)
        Each row's log-ratio and the edges of its band, less the band's centre and divided by sigma sqrt(L).
    bins, sign : int arrays (N,)
        Bin, and the sign of A plus 1 (0, 1 or 2).
    """
    counts = np.bincount(bins, minlength=number)

    def by_bin(values: Floats) -> Floats:
        sums = np.bincount(bins, values, number)
        return np.append(np.divide(sums, counts, out=np.full(number, np.nan), where=counts > 0), values.mean())

    mean, spread = _moments(S, bins)
    strata = bins * 3 + sign
    own_mean, own_spread = _moments(S, strata)
    pooled = np.sqrt(np.mean((S - mean) ** 2)) or 1.0
    safe, own_safe = (np.where(x > 1e-9 * pooled, x, 1e-9 * pooled) for x in (spread, own_spread))
    laws = {False: np.sort((S - mean) / safe), True: np.sort((S - own_mean) / own_safe)}
    half = (hi - lo) / 2

    def value(chosen: frozenset[str]) -> Floats:
        low, high = (lo, hi) if "asymmetry" in chosen else (-half, half)
        signed = "dependence on A" in chosen
        at = (mean if "drift" in chosen else 0.0) + (own_mean - mean if signed else 0.0)
        size = (safe if "H" in chosen else pooled) * (own_safe / safe if signed else 1.0)
        if "tails" in chosen:
            law = laws[signed]
            above = np.searchsorted(law, (high - at) / size, side="right")
            inside = (above - np.searchsorted(law, (low - at) / size, side="left")) / len(law)
        else:
            inside = special.ndtr((high - at) / size) - special.ndtr((low - at) / size)
        return by_bin(inside)

    n = len(INGREDIENTS)
    symmetric = {"asymmetry"} if np.array_equal(lo, -half) and np.array_equal(hi, half) else set()
    values: dict[frozenset[str], Floats] = {}
    for chosen in (frozenset(c) for size in range(n + 1) for c in combinations(INGREDIENTS, size)):
        # The ingredient "asymmetry" takes the two real edges in place of equal half-widths. If every row's edges lie
        # symmetrically about the band's centre, it changes nothing. Then an acceptance that was computed without it is
        # taken instead of computing the same again.
        known = values.get(chosen - symmetric)
        values[chosen] = value(chosen) if known is None else known
    theory, everything = values[frozenset()], values[frozenset(INGREDIENTS)]
    inside = (S - lo >= 0) & (hi - S >= 0)
    measured = by_bin(inside.astype(np.float64))
    out = {"theory": theory, "measured": measured, "gap": measured - theory}
    for name in INGREDIENTS:
        gain = np.zeros(number + 1)
        for before, found in values.items():
            if name not in before:
                weight = factorial(len(before)) * factorial(n - len(before) - 1) / factorial(n)
                gain += weight * (values[before | {name}] - found)
        out[name] = gain
    return out | {"rest": measured - everything}


def _moments(values: Floats, code: Ints) -> tuple[Floats, Floats]:
    """Return for each row (N,) the mean and the standard deviation of ``values`` over the rows of its group.

    ``code`` (N,) is the number of each row's group: its bin, or its bin and sign of A together.
    """
    counts = np.maximum(np.bincount(code), 1)
    mean = (np.bincount(code, values) / counts)[code]
    return mean, np.sqrt(np.bincount(code, (values - mean) ** 2) / counts)[code]
