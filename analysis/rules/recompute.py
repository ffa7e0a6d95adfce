"""Recompute columns of a gradient log from its other columns, and say in which rows the logged value differs.

The rule in the log's header gives edges, sides, multipliers and weights (docs/theory.md section 2). Over a response's
tokens the sums of s_t, of s_t^2 and of k3 = exp(s_t) - 1 - s_t bound each other, whatever the s_t are. The doctor
(``fspo doctor``) and the integrity check of ``summary.json`` call the functions of this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.log.ratio import WORDS
from analysis.log.rows import appearances, numbered
from fspo.gradlog import GradLog
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.rules import MAX_EXPONENT, Rule, TokenMeans, token_k3
from fspo.rules.online import OnlineRule
from fspo.stats.clusters import Floats, Mask

Columns = Mapping[str, NDArray[Any]]
"""Columns of a gradient log by name, each (N,). NaN stands for an unknown value; a missing column is unknown."""

TIE = 1e-6
"""Largest difference of a logged edge or ratio from its recomputed value that counts as rounding, relative or in nats.
"""
WEIGHT_TOLERANCE = 1e-4
"""Largest difference of the logarithms of a logged weight (float32) and the rule's weight that counts as rounding."""
DRIFT_TOLERANCE = 0.02
"""Largest relative difference of a logged drift from the recomputed one that counts as rounding. It is wide because the
trainer may take the drift's sums from another forward pass than the log's."""
SUM_TOLERANCE = 1e-3
"""Largest relative violation of an inequality between sums over tokens that counts as rounding, because the trainer may
add them in float32."""


class Compared(NamedTuple):
    """Masks (N,): ``compared`` marks the rows in which a column was recomputed, ``wrong`` those in which the logged
    value differs."""

    compared: Mask
    wrong: Mask


FOLLOWS_FROM = {
    "drift": "the rule and the minibatch's sums of k3 and of squares",
    "lo": "the rule and the drift",
    "hi": "the rule and the drift",
    "band_accept": "S and the edges",
    "side": "S, A and the edges",
    "multiplier": "S, A and the edges",
    "weight": "S and the rule",
    "sum_sq_log_ratio": "S and L: at least S^2 / L",
    "k3_sum": "S, L and the sum of squares, which bound it",
    "engine_sum_sq": "E and L: at least E^2 / L",
    "engine_k3_sum": "E, L and the sum of squares, which bound it",
    "behaviour_sum_sq": "D + E and L: at least (D + E)^2 / L",
    "behaviour_k3_sum": "D + E, L and the sum of squares, which bound it",
    "behaviour_log_ratio": "the sum of policy lag and engine ratio",
    "correction_lo": "the correction's rule and drift",
    "correction_hi": "the correction's rule and drift",
    "correction_side": "the correction's ratio, A and the edges",
    "correction_weight": "the correction's ratio, A and the edges",
    "times_used": "the number of earlier steps in which the response stands",
    "updates_since_rollout": "the number of steps since the rollout's first",
}
"""For each column that can be recomputed: a text that names what its values follow from."""
INPUTS = ("rollout", "step", "response_id", "length", "log_ratio", "advantage")
"""Columns that `recompute` reads from every log, beside those of ``FOLLOWS_FROM``."""
FACTORS = ("multiplier", "weight")
"""Columns in which a logged NaN is wrong, because the rule gives every row a number. A null is not wrong there: it says
that no value was logged."""
FIRST = (-1, -1)
"""At the start of a log: the number and the last step that the rollout before is taken to have had."""


def numbers(log: GradLog, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the columns ``names`` of a log by name, as float64 (N,), NaN where null. In the columns multiplier and
    weight a logged NaN becomes inf, which equals no recomputed value. Columns without a value are left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    out = {}
    for name in names:
        if name not in log:
            continue
        column = log.table[name]
        if pa.types.is_boolean(column.type):
            column = pc.cast(column, pa.int8())  # type: ignore[attr-defined]
        out[name] = np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)  # type: ignore[attr-defined]
        if name in FACTORS and np.isnan(out[name]).any():
            nan = np.asarray(pc.fill_null(pc.is_nan(column), False))  # type: ignore[attr-defined]
            out[name] = np.where(nan, np.inf, out[name])
    return out


def differing(
    log: GradLog, rule: Rule | None, correction: Rule | None = None, *, imported: bool = False
) -> dict[str, int]:
    """Return counts by name. For each column NAME, "NAME_compared" is the number of rows of complete rollouts in which
    the column was recomputed, and "NAME_differs" the number of those in which the logged value differs. ``rule`` and
    ``correction`` are those of the log's header, ``imported`` says whether another trainer made the log."""
    columns = numbers(log, (*INPUTS[3:], "engine_log_ratio", "staleness_log_ratio", *FOLLOWS_FROM))
    columns |= {name: log.column(name).astype(np.int64, copy=False) for name in INPUTS[:3]}
    out = {}
    for name, found in recompute(columns, rule, correction, imported=imported).items():
        out[f"{name}_compared"], out[f"{name}_differs"] = (int(np.count_nonzero(rows)) for rows in found)
    return out


def recompute(
    columns: Columns,
    rule: Rule | None,
    correction: Rule | None = None,
    *,
    imported: bool = False,
    before: tuple[int, int] | None = None,
) -> dict[str, Compared]:
    """Recompute each of ``columns`` that follows from others (``FOLLOWS_FROM``) in the rows (N,) of complete rollouts.

    Parameters
    ----------
    rule, correction : Rule, optional
        The clip rule and the correction of the log's header. What a rule on tokens or prefixes did is not compared,
        because such a rule leaves no edges in the log.
    imported : bool
        Whether the log was imported from another trainer's table. Then times_used, updates_since_rollout and the sums
        over tokens are not compared, because the import made them itself.
    before : tuple of int, optional
        Number and last step of the rollout before these rows (-1 and -1 at the start of a log), if they are known.

    Returns
    -------
    dict of str -> Compared
        By the column's name, for the columns that could be compared in at least one row.
    """
    n = np.asarray(columns["length"], np.float64)
    found: dict[str, Compared] = {}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if rule is not None and rule.level == "sequence" and rule.shape != "none":
            found["drift"] = _drift(columns, rule)
        if rule is not None and rule.level == "sequence":
            found |= dict(_clip(columns, rule, "", ratio(columns, rule.on)))
        if correction is not None and correction.level == "sequence":
            found |= dict(_clip(columns, correction, "correction_", ratio(columns, correction.on)))
        for which in WORDS:
            names = RATIO_COLUMNS[which]
            if not imported and (names.sum_sq in columns or names.k3_sum in columns):
                x = ratio(columns, which)
                found |= dict(_sums(x, n, _get(columns, names.sum_sq), _get(columns, names.k3_sum), names))
        if "behaviour_log_ratio" in columns:
            parts = _get(columns, "staleness_log_ratio") + _get(columns, "engine_log_ratio")
            found["behaviour_log_ratio"] = _close(columns["behaviour_log_ratio"], parts)
    if not imported:
        made = {"times_used": _used, "updates_since_rollout": partial(_updates, before=before)}
        found |= {name: make(columns) for name, make in made.items() if name in columns}
    return {name: found[name] for name in FOLLOWS_FROM if name in found and found[name].compared.any()}


def ratio(columns: Columns, which: str) -> Floats:
    """Return the log-ratio ``which`` (update, engine or behaviour) of each row (N,), nats; NaN if not logged."""
    found = _get(columns, RATIO_COLUMNS[which].log_ratio)
    if which == "behaviour" and not np.isfinite(found).any():  # format version 1.0 logs no rollout-policy ratio: take E
        return _get(columns, RATIO_COLUMNS["engine"].log_ratio)
    return found


def _get(columns: Columns, name: str) -> Floats:
    if name not in columns:
        return np.full(len(columns["length"]), np.nan)
    return np.asarray(columns[name], np.float64)


def _close(logged: Floats, expected: Floats, relative: float = TIE, absolute: float = TIE) -> Compared:
    compared = ~(np.isnan(logged) | np.isnan(expected))
    return Compared(compared, compared & ~np.isclose(logged, expected, rtol=relative, atol=absolute))


def _differs(logged: Floats, expected: Floats, compared: Mask) -> Compared:
    return Compared(compared, compared & (logged != expected))


def _used(columns: Columns) -> Compared:
    """Compare the logged ``times_used`` with the number of earlier steps in which the response has a row.

    If the log leaves out the rows before a rollout's first update, ``times_used`` may be 1 larger."""
    used, keys = _get(columns, "times_used"), [columns[name] for name in ("rollout", "response_id", "step")]
    expected = appearances(*keys).astype(np.float64)
    if not np.any(_get(columns, "updates_since_rollout") == 0):
        first = expected == 0
        response = numbered(*keys[:2])
        more = np.zeros(int(response.max(initial=-1)) + 1)
        more[response[first]] = np.clip(used[first], 0, 1)
        expected += more[response]
    return _differs(used, expected, np.isfinite(used))


def _updates(columns: Columns, before: tuple[int, int] | None) -> Compared:
    """Compare ``updates_since_rollout`` with the number of steps since the first step of the rollout.

    The first step is the one whose rows say 0 updates. If no row says so, it is the rollout's first step in the log,
    provided that this step comes just after the last step of the rollout before (for the first rollout of these rows,
    ``before`` gives its number and last step). If it comes later, rows are left out of the log, and the rollout is not
    compared; nor is one of a single step without a row of 0 updates: ``step`` may count rollouts there, not updates."""
    since, step = _get(columns, "updates_since_rollout"), columns["step"]
    rollout, code = np.unique(columns["rollout"], return_inverse=True)
    least, none = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    first, start, last = (np.full(len(rollout), x) for x in (none, none, least))
    np.minimum.at(first, code, step)
    np.maximum.at(last, code, step)
    np.minimum.at(start, code, np.where(since == 0, step, none))
    number, end = before or (least, least)
    follows = rollout == np.append(number, rollout[:-1]) + 1
    follows &= (first == np.append(end, last[:-1]) + 1) & (last > first)
    start = np.where((start == none) & follows, first, start)
    return _differs(since, (step - start[code]).astype(np.float64), np.isfinite(since) & (start < none)[code])


def _drift(columns: Columns, rule: Rule) -> Compared:
    """Compare the logged drift with the one computed from a minibatch's sums over tokens: of s_t, s_t^2 and
    k3 = exp(s_t) - 1 - s_t. A minibatch is the rows of one step and one rollout."""
    logged, since = _get(columns, "drift"), _get(columns, "updates_since_rollout")
    if not rule.needs_stats or np.isnan(logged).all():
        return Compared(*np.zeros((2, len(logged)), bool))
    n = _get(columns, "length")
    batch = numbered(columns["rollout"], columns["step"])
    number = int(batch.max(initial=-1)) + 1

    def mean(values: Floats) -> Floats:
        return np.bincount(batch, values, number) / np.maximum(np.bincount(batch, n, number), 1)

    means = [mean(_get(columns, "k3_sum")), mean(_get(columns, "sum_sq_log_ratio"))]
    if rule.drift_source == "lagged":  # a lagged drift comes from the minibatch of the rollout's previous step
        rollout = np.zeros(number, np.int64)
        rollout[batch] = columns["rollout"]
        known = np.diff(rollout, prepend=rollout[:1] - 1) == 0
        means = [np.where(known, np.concatenate([[np.nan], x[:-1]]), np.nan) for x in means]
    m = np.zeros(len(n)) + rule.centre(TokenMeans(*(x[batch] for x in means)))
    m = np.where(since == 0, 0.0, m)  # at the first update of a rollout every token log-ratio is 0, so the centre is 0
    return _close(logged, m, DRIFT_TOLERANCE)


def _clip(columns: Columns, rule: Rule, prefix: str, x: Floats) -> Iterator[tuple[str, Compared]]:
    """Compare the logged edges with those of the rule, and the logged side, multiplier and weights with what the rule
    does to its log-ratio ``x`` (N,) at the logged edges. The columns' names begin with ``prefix``."""
    A, n, m = (_get(columns, name) for name in ("advantage", "length", f"{prefix}drift"))
    lo, hi = _get(columns, f"{prefix}lo"), _get(columns, f"{prefix}hi")
    m = m if rule.needs_stats else np.zeros_like(n)
    edges = rule.band(n, m) if rule.adapt == "none" else _followed(columns, rule, n, m, lo, hi)
    for name, logged, expected in zip(("lo", "hi"), (lo, hi), edges, strict=True):
        yield prefix + name, _close(logged, expected)
    lo, hi = (np.where(np.isnan(a), b, a) for a, b in zip((lo, hi), edges, strict=True))
    usable = np.isfinite(x) & np.isfinite(A) & (n >= 1) & ~np.isnan(lo) & ~np.isnan(hi) & ~np.isnan(m)
    x, A, n, lo, hi, m = (np.where(usable, v, 1.0) for v in (x, A, n, lo, hi, m))
    done = rule.apply(x, n, A, m, (lo, hi))
    dual = m * n + (rule.dual or 1.0) * (hi - m * n)
    near = [np.abs(x - edge) <= TIE * (1 + np.abs(edge)) for edge in (lo, hi, dual) if np.isfinite(edge).any()]
    # Rows whose log-ratio lies on an edge are not compared, because rounding decides on which side of it they are.
    clear = usable & ~np.any(near, axis=0) if near else usable
    for name, value in (("band_accept", done.in_band), ("side", done.side)):
        if not prefix or name == "side":
            logged = _get(columns, prefix + name)
            yield prefix + name, _differs(logged, np.asarray(value, np.float64), clear & np.isfinite(logged))
    factors = (
        {"correction_weight": done.clipped_weight} if prefix else {"multiplier": done.multiplier, "weight": done.weight}
    )
    for name, value in factors.items():
        logged = _get(columns, name)
        compared = (usable if name == "weight" else clear) & ~np.isnan(logged)
        same = same_weight(logged, np.asarray(value, np.float64))
        if prefix:  # where a correction rejects a response, verl sets A = 0, but logs the factor for the former A
            before = rule.apply(x, n, np.ones_like(A), m, (lo, hi)).clipped_weight
            same |= (A == 0) & same_weight(logged, np.asarray(before, np.float64))
        yield name, Compared(compared, compared & ~same)


def _followed(columns: Columns, rule: Rule, n: Floats, m: Floats, lo: Floats, hi: Floats) -> tuple[Floats, Floats]:
    """Return the edges of a band that follows a target, fitted in log space to the logged edges ``lo`` and ``hi`` (N,);
    ``n`` and ``m`` (N,) are the rows' lengths and drifts. Within one step such a band multiplies the half-widths of the
    rule in the log's header by a factor: one number if the rule's ``adapt`` is "range", a number times a power of the
    length if it is "exponent". A band with two sides has a factor for each side."""
    below, above = rule.half_widths(n)
    group = numbered(columns["step"])
    z = np.log(np.maximum(n, 1))

    def fitted(factor: Floats) -> Floats:
        good = np.isfinite(factor)

        def mean(x: Floats) -> Floats:
            return (np.bincount(group, np.where(good, x, 0.0)) / np.maximum(np.bincount(group, good), 1))[group]

        away = z - mean(z)
        spread = mean(away * away)
        slope = np.where(spread > 0, mean(away * factor) / spread, 0.0) if rule.adapt == "exponent" else 0.0
        return np.exp(mean(factor) + slope * away)

    if OnlineRule(rule).two_sided:
        return m * n - below * fitted(np.log((m * n - lo) / below)), m * n + above * fitted(
            np.log((hi - m * n) / above)
        )
    factor = fitted(np.log((hi - lo) / (below + above)))
    return m * n - below * factor, m * n + above * factor


def _sums(x: Floats, n: Floats, square: Floats, k3: Floats, names: Any) -> Iterator[tuple[str, Compared]]:
    """Compare a response's sum of squares Q and sum of k3(s) = e^s - 1 - s over its tokens with their bounds.

    With x the sum of the L = ``n`` token log-ratios: Q >= x^2/L (Cauchy-Schwarz), k3_sum >= L k3(x/L) (Jensen), and
    k3(-sqrt Q) <= k3_sum <= k3(sqrt Q), because k3(s)/s^2 rises in s. Bounds of k3_sum need that no token log-ratio
    exceeds ``MAX_EXPONENT``, beyond which the exponential is held and k3 is not convex. No token does so if sqrt Q is
    below it or, without Q, if k3_sum is below half of k3(MAX_EXPONENT). ``square`` and ``k3`` (N,) are the logged Q and
    k3_sum, from the columns ``names.sum_sq`` and ``names.k3_sum``."""
    n = np.maximum(n, 1.0)
    # The logged sums Q and k3_sum are rounded to float32 and may lie just outside their bounds. So the bounds are
    # widened by 1e-6 for each token.
    slack = 1e-9 + TIE * n
    compared = np.isfinite(x) & np.isfinite(square)
    yield names.sum_sq, Compared(compared, compared & (square < x * x / n * (1 - SUM_TOLERANCE) - slack))
    compared = np.isfinite(x) & np.isfinite(k3)
    root = np.sqrt(np.maximum(square, 0.0))
    low, high = (token_k3(sign * root) for sign in (-1.0, 1.0))
    convex = np.where(np.isfinite(square), root < MAX_EXPONENT, k3 < 0.5 * token_k3(np.array(MAX_EXPONENT)))
    wrong = k3 < n * token_k3(x / n) * (1 - SUM_TOLERANCE) - slack
    wrong |= (k3 < low * (1 - SUM_TOLERANCE) - slack) | (k3 > high * (1 + SUM_TOLERANCE) + slack)
    wrong &= convex
    yield names.k3_sum, Compared(compared, compared & wrong)


def same_weight(logged: Floats, expected: Floats) -> Mask:
    """Return whether each logged weight (N,), a float32, equals the recomputed weight (N,), a float64, up to rounding.

    Weights are compared in log space. Below 1e-38 float32 has only multiples of 1.4e-45, so there a logged weight is
    right if it is the nearest multiple or one of its two neighbours. Below S = -103.97 the nearest multiple is 0."""
    step = float(np.finfo(np.float32).smallest_subnormal)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.abs(np.log(logged) - np.log(expected)) <= WEIGHT_TOLERANCE
    return near | (np.abs(logged - expected) <= step)
