"""The multiplier M of one response, written out from docs/theory.md section 2.

``fspo.rules`` computes the same with arrays. This module does not import it, so that the two can be compared.
"""

from __future__ import annotations

import math


def multiplier(outside: str, dual: float | None, S: float, A: float, lo: float, hi: float, centre: float) -> float:
    """Return the multiplier M of one response with log-ratio S, advantage A and band [lo, hi] around ``centre``. The
    weight is e^S. ``outside`` names what happens outside the band; ``dual`` is the dual clip's distance from the centre
    over the upper half-width, or None.
    """
    dual_edge = math.inf if dual is None else centre + dual * (hi - centre)
    if A == 0:
        return 1.0
    if outside == "cap":
        return min(1.0, math.exp(hi - S))
    if outside == "mask":
        return float(lo <= S <= hi)
    edge = None
    if A > 0 and hi < S:
        edge = hi
    elif A < 0 and lo > S:
        edge = lo
    elif A < 0 and dual_edge < S:
        edge = dual_edge
    if edge is None:
        return 1.0
    if outside == "truncate":
        return math.exp(edge - S)
    if outside == "drop":
        return 0.0
    raise ValueError(f"no such way outside the band: {outside!r}")
