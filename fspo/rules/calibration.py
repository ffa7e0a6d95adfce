"""Calibration: find the range at which a rule accepts a given share of responses (docs/theory.md section 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Real

from fspo.base.errors import UserError
from fspo.base.number_checks import as_numbers, number
from fspo.rules.clip import Array
from fspo.rules.range import Rate, Rule, checked_rows, scaled


def standardized_excess(
    rule: Rule,
    S: Real[Array, "#*rows"],
    n: Real[Array, "#*rows"],
    A: Real[Array, "#*rows"],
    m: Real[Array, "#*rows"] | float | None = None,
    rate: Rate = "band",
) -> Float64[np.ndarray, " ..."]:
    """Return each response's excess, float64: the factor on both half-widths at which the response is just accepted.

    A rule with both half-widths multiplied by f accepts a response if and only if the response's excess is <= f. With
    ``rate="update"`` the result has only the responses with A != 0, and a response is accepted if it is not clipped.
    The excess is NaN where S is NaN. ``S``, ``n`` and ``A`` are log-ratios (nats), lengths and advantages of responses,
    and ``m`` is the drift of the band, nats per token, from `Rule.centre`; needed if the rule has a drift.

    Raises UserError for a ``rate`` that is neither "band" nor "update", lengths below 1, advantages or drifts that are
    not finite, or arrays whose shapes do not broadcast."""
    S, n, A = checked_rows(S, n, A, rate)
    below, above = rule.half_widths(n)
    centre = rule.sum_centre(n, m)
    if not np.all(np.isfinite(centre)):
        raise UserError(f"rule {rule.label!r}: the band's centre m is not finite; look for log-ratios that are NaN")
    centred = S - centre
    over, under = centred / above, -centred / below
    if rate == "band":
        return np.maximum(over, under)
    moves = A != 0
    return rule.clip.excess(over[moves], under[moves], A[moves])


def calibrate(
    rule: Rule,
    S: Real[Array, "#*rows"],
    n: Real[Array, "#*rows"],
    A: Real[Array, "#*rows"],
    target: float,
    m: Real[Array, "#*rows"] | float | None = None,
    rate: Rate = "band",
) -> Rule:
    """Return the rule with both half-widths multiplied by one factor, so that it accepts the share ``target``.

    On the K responses that ``rate`` counts, the returned rule's acceptance is within 1/K of ``target`` if no two of
    them have the same excess.

    Parameters
    ----------
    S, n, A : arrays (N,)
        Log-ratios (nats), lengths and advantages of responses, S after at least one update since their rollout.
    m : float or array, optional
        Drift of the band, nats per token (`Rule.centre`); needed if the rule has one.
    rate : {"band", "update"}
        Whether ``target`` is a band acceptance (all responses) or an update acceptance (those with A != 0).

    Raises
    ------
    UserError
        If no range gives the target: the rule has no band, there is no response, or too many are accepted at any range.
    """
    if rule.shape == "none":
        raise UserError("rule 'none' has no range to calibrate; choose a shape with a band")
    return scaled(rule, excess_quantile(standardized_excess(rule, S, n, A, m, rate), target, rule.label))


def excess_quantile(excess: Real[np.ndarray, " N"], target: float, label: str = "") -> float:
    """Return the factor on both half-widths of a band at which it accepts the share ``target`` of the N responses whose
    excesses are ``excess`` (N,): `excess_quantiles` for one target. ``label`` names the rule in messages."""
    return excess_quantiles(excess, [target], label)[0]


def excess_quantiles(excess: Real[np.ndarray, " N"], targets: Sequence[float], label: str = "") -> list[float]:
    """Return for each target acceptance the factor on both half-widths at which that share of responses is accepted.

    A factor lies midway between two excesses (`standardized_excess`): that of the last accepted response and that of
    the first response not accepted. Responses with equal excess are accepted together; an ``excess`` (N,) that is not
    finite is left out. ``label`` names the rule in messages.

    Raises UserError if a target does not lie in (0, 1), no excess is finite, or no factor above 0 gives one of the
    targets."""
    for target in targets:
        if not 0 < number("target acceptance", target) < 1:
            raise UserError(f"target acceptance {target} must lie strictly between 0 and 1")
    excess = as_numbers("excess", excess)
    if not np.isfinite(excess).all():
        excess = excess[np.isfinite(excess)]
    size = excess.size
    if size == 0:
        raise UserError("no rows to calibrate on: every response has A = 0 or a non-finite S")
    ranks = [min(max(round(target * size), 1), size) for target in targets]
    ordered = np.partition(excess, sorted({k - 1 for k in ranks}))
    factors: list[float] = []
    for k, target in zip(ranks, targets, strict=True):
        here = ordered[k - 1]
        following = ordered[k:].min() if k < size else here
        upper = following if following > here else here * (1 + 1e-9)
        # Take the middle between the excesses of the last response that the band accepts and of the first that it
        # does not: rounding then cannot change which responses are accepted.
        factor = float((here + upper) / 2)
        if not factor > 0:
            raise UserError(
                f"rule {label!r} accepts more than {target:.0%} at any range: S is 0 (no update since the "
                "rollout) or lies on the inactive side; calibrate on rows with updates_since_rollout > 0"
            )
        factors.append(factor)
    return factors
