"""The rows of a log that an analysis uses, as arrays. :mod:`analysis.log.usable` makes these arrays from the log.

Tables keep rows of the first epoch (``times_used`` = 0) apart from rows of later epochs (theory.md, section 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fspo.base.errors import UserError
from fspo.rules import Rule, TokenMeans
from fspo.stats.clusters import Floats, Ints, Mask

if TYPE_CHECKING:
    import pandas as pd

USES = ("first", "reused")
SUBSETS = ("all", "nonzero")


@dataclass(frozen=True)
class Rows:
    """Columns of a log as arrays (N,). Each entry belongs to one response in one update.

    ``S`` is the log-ratio that is analysed, nats, ``A`` the advantage, ``used`` how many updates used the response
    before, ``updates`` how many there were since its rollout, and ``cluster`` the number of the pair of rollout and
    prompt. ``k3_sum``, ``k2_sum``, ``k3_max`` and ``k2_max`` are sums and largest values of k3 and s^2/2 over the
    response's tokens; ``k3`` and ``sigma2`` are means of k3 and s^2 over the tokens of the row's minibatch, with
    ``_lagged`` of the minibatch before. The fields ``lo`` to ``band_accept`` say what the run's own rule did,
    ``coordinate`` is what the bins divide, and ``trend`` its place on the axis of slopes."""

    rollout: Ints
    step: Ints
    used: Ints
    updates: Ints  # number of updates since the row's rollout was sampled
    length: Floats
    S: Floats  # of the log-ratio that is analysed (see analysis.log.ratio), as are k3 and sigma2
    A: Floats
    cluster: Ints  # number of the response's cluster, a pair (rollout, prompt_id)
    prompt: Ints
    reward: Floats  # reward; NaN if not logged
    k3_sum: Floats  # sum of k3 = e^s - 1 - s over the response's tokens, nats; NaN if not logged
    k2_sum: Floats  # sum of k2 = s^2 / 2 over the tokens; of it and of k3 the largest of a token, NaN if not known
    k2_max: Floats
    k3_max: Floats
    k3: Floats  # mean k3 per token over the row's minibatch, nats
    sigma2: Floats  # mean s^2 per token over the row's minibatch, s the token log-ratio
    k3_lagged: Floats  # mean k3 per token over the previous minibatch, nats
    sigma2_lagged: Floats
    lo: Floats  # lower edge of the band as logged, nats; NaN if not logged
    hi: Floats
    drift: Floats  # logged drift (centre per token) of the band of the run's rule, nats; NaN if not logged
    side: Ints
    multiplier: Floats
    weight: Floats
    band_accept: Mask
    response: Ints  # number of the response; (rollout, step, response) identifies a row
    coordinate: Floats  # the number by which responses are put into bins: the length, or another coordinate
    trend: Floats  # what slopes are fitted over: log2 of the length, or `Partition.trend_coordinate`

    def __len__(self) -> int:
        return len(self.S)

    def take(self, which: NDArray[Any] | slice) -> Rows:
        """Return the rows that ``which`` selects, a mask (N,), an array of indices or a slice."""
        return Rows(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def use(self, use: str) -> Rows:
        """Return the rows of the first epoch (``use`` "first"), those of later epochs (`reused`), or all (`all`)."""
        if use == "all":
            return self
        return self.take(self.used == 0 if use == "first" else self.used > 0)

    def subset(self, subset: str) -> Rows:
        """Return all rows (``subset`` "all"), or the rows with A != 0 ("nonzero")."""
        return self if subset == "all" else self.take(self.A != 0)

    def centre(self, rule: Rule) -> Floats | float:
        """Return the drift (centre per token, nats) of ``rule``'s band in each row's minibatch (N,); 0 without a drift.

        The drift is NaN where the log lacks the columns that it is computed from."""
        lagged = rule.drift_source == "lagged"
        means = (self.k3_lagged, self.sigma2_lagged) if lagged else (self.k3, self.sigma2)
        return rule.centre(TokenMeans(*means))

    def edges(self, rule: Rule) -> tuple[Floats, Floats]:
        """Return the edges (N,), nats, of the band of ``rule``, which must be the run's own rule.

        The edges are as logged. Where none are logged, they are computed from the lengths and the logged drift."""
        lo, hi = rule.band(self.length, self.drift if rule.needs_stats else None)
        logged = ~(np.isnan(self.lo) | np.isnan(self.hi))
        return np.where(logged, self.lo, lo), np.where(logged, self.hi, hi)


class LearningRows(NamedTuple):
    """Columns (N,) from which a band that follows a target learns (log-ratio S in nats, length, advantage A), sorted by
    step and, within a step, by response."""

    step: Ints
    S: Floats
    length: Floats
    A: Floats

    @staticmethod
    def of(blocks: Sequence[Rows]) -> LearningRows:
        """Return the columns of one or more blocks of rows from which a band that follows a target learns."""
        step, response, *numbers = (
            np.concatenate([getattr(rows, name) for rows in blocks])
            for name in ("step", "response", "S", "length", "A")
        )
        order = in_order(step, response)
        return LearningRows(step[order], *(x[order] for x in numbers))


DENSE = 4
"""The function `numbered` uses a table with one entry for each possible key, which is faster than hashing, if the table
has at most this many entries for each row."""

MOST, CLEARLY = 0.6, 0.9
"""Responses serve several updates if ``MOST`` of the rows stand in equally many steps, two or more. An offset of the
rollouts is taken from the rows if it divides at most the share ``CLEARLY`` as often prompts or responses."""


def row_names(rollout: Ints, step: Ints, response: Ints) -> pd.MultiIndex:
    """Return an index of rows (N,) by rollout, step and response, integer columns (N,) that together identify a row."""
    import pandas as pd

    return pd.MultiIndex.from_arrays([np.asarray(x, np.int64) for x in (rollout, step, response)])


def in_order(step: Ints, response: Ints) -> Ints | slice:
    """Return the index that sorts rows by step and then by response; a slice of all rows if they are sorted already."""
    later, same = step[1:] > step[:-1], step[1:] == step[:-1]
    if np.all(later | (same & (response[1:] >= response[:-1]))):
        return slice(None)
    return np.lexsort((response, step))


def numbered(*keys: Ints) -> Ints:
    """Return a number for each row (N,) of the columns ``keys``: equal rows get one number, and the different rows are
    numbered 0, 1, 2, ... in sorted order."""
    code = _combined(keys)
    if code is None:
        return np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if not len(code):
        return code
    if (span := int(code.max()) + 1) <= DENSE * len(code):
        taken = np.zeros(span, np.int64)
        taken[code] = 1
        return (np.cumsum(taken) - 1)[code]
    import pandas as pd

    return pd.factorize(code, sort=True)[0].astype(np.int64)


def repeated(*keys: Ints) -> Mask:
    """Return whether each row's (N,) values in the columns ``keys`` occurred together in an earlier row."""
    code = _combined(keys)
    if code is not None and np.all(code[1:] > code[:-1]):
        return np.zeros(len(code), bool)
    import pandas as pd

    again = pd.Series(code).duplicated() if code is not None else pd.MultiIndex.from_arrays(list(keys)).duplicated()
    return np.asarray(again)


def _combined(keys: tuple[Ints, ...]) -> Ints | None:
    """Return one integer for each row's tuple of keys, ordered as the tuples; None if that takes more than 62 bits."""
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    lows = [int(key.min()) for key in keys]
    sizes = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if math.prod(sizes) >= 2**62:
        return None
    code = np.zeros(len(keys[0]), np.int64)
    for key, low, size in zip(keys, lows, sizes, strict=True):
        code = code * size + (np.asarray(key, np.int64) - low)  # the products of int32 keys would wrap
    return code


def appearances(rollout: Ints, response: Ints, step: Ints) -> Ints:
    """Return for each row (N,) at how many earlier steps there are rows of the same rollout and response."""
    order = np.lexsort((step, response, rollout))
    same = np.zeros(len(order), bool)
    same[1:] = (rollout[order][1:] == rollout[order][:-1]) & (response[order][1:] == response[order][:-1])
    steps = np.cumsum(np.diff(step[order], prepend=0) != 0)
    start = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    used = np.empty(len(order), np.int64)
    used[order] = steps - steps[start]
    return used


def identify(frame: pd.DataFrame, *, named: bool, prompts: bool) -> int:
    """Write a number for each response into the column response_id of ``frame``, and return how many updates a rollout
    serves: 1 unless the same responses stand in several steps.

    If response_id holds ids (``named``), an id under several prompts in one step is an index within the group, and the
    pair of prompt and id is numbered. Without ids, rows of several steps are one response if their prompt (if
    ``prompts`` are known), text, length, reward and advantage are equal."""
    if named and np.any(frame.groupby(["step", "response_id"])["prompt_id"].nunique() > 1):
        frame["response_id"] = numbered(*(frame[name].to_numpy() for name in ("prompt_id", "response_id")))
    same = [name for name in ("response_id", "length", "reward", "advantage") if name in frame]
    response = frame.groupby([*same, *["prompt_id"] * prompts], dropna=False).ngroup().to_numpy()
    each = updates_of(frame[["step"]].assign(response=response))
    if not named:
        place = frame.groupby([frame["step"], response]).cumcount().to_numpy()
        frame["response_id"] = 1 + (numbered(response, place) if each > 1 else np.arange(len(frame)))
    return each


def updates_of(rows: pd.DataFrame) -> int:
    """Return how many updates a rollout serves, judged by the columns step and response of ``rows``. If most rows are
    of responses that stand in one and the same number of steps, 2 or more, and the steps can be cut into successive
    parts of one length (first and last may be shorter) that have no response in common, it is that length; else 1."""
    steps = np.unique(rows["step"])
    of = rows.drop_duplicates(keep=False).groupby("response")["step"].agg(["min", "max", "size"])
    count = np.bincount(of["size"], of["size"], 2)
    if (times := int(count.argmax())) < 2 or count[times] < MOST * len(rows):
        return 1
    of = of[of["size"] == times]
    crossing = np.zeros(len(steps) + 1)  # responses that stand in a step, or before it, and after it
    np.add.at(crossing, np.searchsorted(steps, of["min"]), 1)
    np.add.at(crossing, np.searchsorted(steps, of["max"]), -1)
    ends = steps[np.cumsum(crossing)[:-1] == 0]
    sizes = np.diff(ends, prepend=steps[0] - 1)
    each = int(sizes.max())
    return each if np.all(sizes[1:-1] == each) and (len(sizes) > 1 or each == times) else 1


def first_step(step: Ints, named: Sequence[Ints], each: int, start: int) -> int:
    """Return a step at which a rollout begins, if each has ``each`` steps: ``start``, or an earlier one if rollouts
    from it on divide clearly fewer of the logged rollouts, responses or prompts (``named``: numbers (N,) of each)."""
    for names in named:
        divided = [int(numbered((step - start + back) // each, names).max()) + 1 for back in range(each)]
        if min(divided) < CLEARLY * divided[0]:
            return start - int(np.argmin(divided))
    return start


def windows(rollout: Ints, size: int) -> Ints:
    """Return for each row (N,) the first rollout of its block; a block is ``size`` successive rollouts of the log."""
    if size < 1:
        raise UserError(f"--window {size}: a block of rollouts has at least 1 rollout, so give 1 or more")
    numbers = np.unique(rollout)
    place = np.searchsorted(numbers, rollout)
    return numbers[(place // size) * size]
