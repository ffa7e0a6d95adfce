"""The rows of a log that the diagnostics use, as plain arrays (analysis.log.usable makes them).

First-use rows (``times_used`` = 0) and trained-on rows are never mixed (docs/theory.md section 1, "First use").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fspo.base.errors import UserError
from fspo.rules import Rule, TokenMeans

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
USES = ("first", "reused")
SUBSETS = ("all", "nonzero")


@dataclass(frozen=True)
class Rows:
    """Arrays (N,), one entry a response and update."""

    rollout: Ints
    step: Ints
    used: Ints
    updates: Ints  # since the rollout
    length: Floats
    S: Floats
    A: Floats
    cluster: Ints  # (rollout, prompt_id), numbered
    prompt: Ints
    reward: Floats  # NaN if not logged
    leave_one_out: Floats  # reward minus the mean of the prompt's other responses; NaN if there is none
    k3_sum: Floats  # of the response, nats; NaN if not logged
    k3: Floats  # per token of the row's minibatch
    sigma2: Floats
    k3_lagged: Floats  # of the minibatch before
    sigma2_lagged: Floats
    by_sign: Floats  # mean log-ratio per token of the minibatch's rows with the same sign of A; 0 where A = 0
    by_sign_lagged: Floats
    lo: Floats  # edges as logged; NaN if not logged
    hi: Floats
    drift: Floats  # m of the rule that trained, per token, as logged; NaN if not logged
    side: Ints
    multiplier: Floats
    weight: Floats
    band_accept: NDArray[np.bool_]
    response: Ints  # (rollout, step, response) names a row
    coordinate: Floats  # what the bins are made of: the length, or another partition's
    trend: Floats  # abscissa of trends: log2 of the length (analysis.log.partition)

    def __len__(self) -> int:
        return len(self.S)

    def take(self, which: NDArray[Any] | slice) -> Rows:
        """The rows of a mask, index or slice."""
        return Rows(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def use(self, use: str) -> Rows:
        """First-use or trained-on rows, or "all"."""
        if use == "all":
            return self
        return self.take(self.used == 0 if use == "first" else self.used > 0)

    def subset(self, subset: str) -> Rows:
        """All rows, or those with A != 0 ("nonzero")."""
        return self if subset == "all" else self.take(self.A != 0)

    def centre(self, rule: Rule) -> Floats | float:
        """Centre m of ``rule``'s band in each row's minibatch, nats per token: (N,), or 0 where it has no drift.

        NaN where the log lacks what the drift needs.
        """
        if rule.drift_source == "lagged":
            k3, sigma2, by_sign = self.k3_lagged, self.sigma2_lagged, self.by_sign_lagged
        else:
            k3, sigma2, by_sign = self.k3, self.sigma2, self.by_sign
        # by_sign is that of the row's own sign, so it stands for both
        return rule.centre(TokenMeans(k3, sigma2, by_sign, by_sign), self.A)

    def edges(self, rule: Rule) -> tuple[Floats, Floats]:
        """Edges (N,) of the band of the rule that trained: as logged, or from its logged centre where they are not."""
        lo, hi = rule.band(self.length, self.drift if rule.needs_stats else None)
        logged = ~(np.isnan(self.lo) | np.isnan(self.hi))
        return np.where(logged, self.lo, lo), np.where(logged, self.hi, hi)


@dataclass(frozen=True)
class Learnt:
    """What a rule that follows a target is shown of a log, arrays (N,) in the order of steps and responses."""

    rollout: Ints
    step: Ints
    S: Floats
    length: Floats
    A: Floats

    @staticmethod
    def of(rows: Rows) -> Learnt:
        """Rows in this order."""
        return Learnt(rows.rollout, rows.step, rows.S, rows.length, rows.A)


def in_order(step: Ints, response: Ints) -> Ints | slice:
    """The order of the rows by step, and by response within it."""
    later, same = step[1:] > step[:-1], step[1:] == step[:-1]
    if np.all(later | (same & (response[1:] >= response[:-1]))):
        return slice(None)
    return np.lexsort((response, step))


def numbered(*keys: Ints) -> Ints:
    """Dense numbers (N,) of the distinct tuples, in their order."""
    code = _combined(keys)
    if code is None:
        return np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    found, place = pd.factorize(code, sort=True)[:2]
    return found.astype(np.int64) if len(place) else code


def repeated(*keys: Ints) -> NDArray[np.bool_]:
    """Which tuples (N,) stood before."""
    code = _combined(keys)
    if code is not None and np.all(code[1:] > code[:-1]):
        return np.zeros(len(code), bool)
    again = pd.Series(code).duplicated() if code is not None else pd.MultiIndex.from_arrays(list(keys)).duplicated()
    return np.asarray(again)


def _combined(keys: tuple[Ints, ...]) -> Ints | None:
    """One number a tuple, in the tuples' order; None if they do not fit into 62 bits."""
    if not len(keys[0]):
        return keys[0]
    lows = [int(key.min()) for key in keys]
    sizes = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if math.prod(sizes) >= 2**62:
        return None
    code = keys[0] - lows[0]
    for key, low, size in zip(keys[1:], lows[1:], sizes[1:], strict=True):
        code = code * size + (key - low)
    return code


def leave_one_out(reward: Floats, cluster: Ints, response: Ints) -> Floats:
    """Reward minus the mean reward of the other responses of its cluster (N,); NaN where it is the only one.

    A response with several rows counts once (docs/theory.md section 5, fresh reference).
    """
    if not len(reward):
        return reward
    first = np.flatnonzero(~repeated(cluster, response))
    group = cluster[first]
    count = np.bincount(group, minlength=int(cluster.max()) + 1)[cluster]
    total = np.bincount(group, reward[first], minlength=int(cluster.max()) + 1)[cluster]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 1, reward - (total - reward) / (count - 1), np.nan)


def windows(rollout: Ints, size: int) -> Ints:
    """First rollout of each row's window; a window is ``size`` successive rollouts of the log."""
    if size < 1:
        raise UserError(f"--window {size}: a window has at least 1 rollout, so give 1 or more")
    numbers = np.unique(rollout)
    place = np.searchsorted(numbers, rollout)
    return numbers[(place // size) * size]
