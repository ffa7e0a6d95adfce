"""Compute the log-ratios S, D + E and S + D + E from another trainer's log-probabilities.

Where the versions of the weights show that the staleness D is 0, D and E are given apart too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from analysis.importing.values import Floats, Ints
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.rules import Ratio


class Summed(NamedTuple):
    """A log-probability or log-ratio of N responses: its sums over tokens and, if known, the value of each token."""

    total: Floats
    tokens: Floats | None

    def plus(self, other: Summed, sign: int = 1) -> Summed:
        """Return the sum (with ``sign`` -1 the difference) of two log-probabilities or log-ratios of the responses."""
        tokens = None if self.tokens is None or other.tokens is None else self.tokens + sign * other.tokens
        return Summed(self.total + sign * other.total, tokens)

    def where(self, rows: np.ndarray, row: Ints, other: float) -> Summed:
        """Return a copy in which ``other`` replaces the values of all responses that the mask ``rows`` (N,) leaves out.

        ``row`` gives for each token the number of its response.
        """
        tokens = None if self.tokens is None else np.where(rows[row], self.tokens, other)
        return Summed(np.where(rows, self.total, other), tokens)


def ratios(parts: Mapping[str, Summed], first: np.ndarray, row: Ints) -> dict[Ratio, Summed]:
    """Return the log-ratios S ("update"), D + E ("behaviour") and S + D + E ("total") that follow from a table.

    ``parts`` holds the table's columns: the log-ratio ``log_ratio`` and the log-probabilities ``new``, ``old`` and
    ``sampler``, as far as it has them. If it has only ``new`` and ``sampler``, S + D + E follows for all rows; S and
    D + E follow for rows of a rollout's first update, where S is 0. The mask ``first`` (N,) marks these rows. ``row``
    says for each token to which response it belongs.
    """
    has = parts.keys()
    out: dict[Ratio, Summed] = {}
    if "log_ratio" in has:
        out["update"] = parts["log_ratio"]
    elif {"new", "old"} <= has:
        out["update"] = parts["new"].plus(parts["old"], -1)
    if {"old", "sampler"} <= has:
        out["behaviour"] = parts["old"].plus(parts["sampler"], -1)
        if "update" in out:
            out["total"] = out["update"].plus(out["behaviour"])
    elif {"new", "sampler"} <= has and "log_ratio" not in has:
        out["total"] = parts["new"].plus(parts["sampler"], -1)
        out["update"] = parts["new"].plus(parts["new"], -1).where(first, row, np.nan)
        out["behaviour"] = out["total"].where(first, row, np.nan)
    return out


def parted(rows: Mapping[str, Any], updates: Floats) -> dict[str, Floats]:
    """Return the staleness D and the engine ratio E of each response that the old weights sampled, NaN for all others.

    The old weights sampled a response if its behaviour versions equal the policy version less ``updates`` (N,), the
    number of updates since the rollout. Then D is 0, and E is the logged D + E.
    """
    if not {"behaviour_log_ratio", "policy_version", "behaviour_version"} <= rows.keys():
        return {}
    old = rows["policy_version"] - updates
    last = rows.get("behaviour_version_last", np.full(len(old), np.nan))
    same = (rows["behaviour_version"] == old) & (np.isnan(last) | (last == old))
    of, to = RATIO_COLUMNS["behaviour"], RATIO_COLUMNS["engine"]
    found = {theirs: rows[ours] for ours, theirs in zip(of, to, strict=True) if ours in rows}
    found["staleness_log_ratio"] = np.zeros(len(old))
    return {name: np.where(same, values, np.nan) for name, values in found.items() if name not in rows}
