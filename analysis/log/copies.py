"""Find responses that a log holds twice under different ids, because the rows of one training process were logged
twice.

Two rows are called equal if they agree to the last bit in length, in S and in the other sums over tokens. Rows of
different texts are almost never equal. A few equal rows may be responses with the same text, and all of them are kept.
Rows count as logged twice if at least the share ``COPIES`` of them equal a row of another prompt, or if at least the
share ``SAME_PROMPT`` of them stand in sets of two, four, ... equal rows. Both shares are of the rows with at least
``LONG`` tokens and S other than 0. The second share leaves out groups in which all rows are equal, because a collapsed
policy makes such groups too. A copy adds no information and makes intervals too narrow, so an analysis leaves copies
out and reports their number.

Other modules handle other defects: `fspo.gradlog` skips what cannot be read of a log, `analysis.log.loading` refuses a
log with files of two runs, and `analysis.log.usable` leaves out rows with numbers that are not finite and repeated
rows. Rows with any other defect were trained on, so they are kept, and ``fspo doctor`` names the defect."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.log.rows import numbered
from fspo.stats.clusters import Floats, Ints, Mask

LONG = 8
"""Least length, tokens, of a row that may count as a copy of another. Short responses are often equal by chance."""
COPIES = 0.03
"""If at least this share of the judged rows (those of ``LONG`` tokens or more, with S other than 0) has a copy under
another prompt, such copies are left out."""
SAME_PROMPT = 0.9
"""If at least this share of the mixed rows (`Copies.mixed`) stand in sets of two, four, ... equal rows, half of each
such set is left out. A smaller share may be responses with the same text."""
LEAST = 50
"""With fewer judged rows, all rows are kept. ``SAME_PROMPT`` is applied only if there are also this many mixed rows."""
ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


class Copies(NamedTuple):
    """Masks (N,) that say which rows of a log are copies of other rows.

    Two rows are equal if they agree in rollout, step, length and all sums over tokens.

    Attributes
    ----------
    judged : bool array (N,)
        Rows of at least ``LONG`` tokens with a finite log-ratio other than 0.
    mixed : bool array (N,)
        Judged rows of those groups (one rollout, step and prompt) in which not all judged rows are equal; none if no
        two judged rows of the log are equal.
    prompts : bool array (N,)
        Judged rows that equal a row of another prompt.
    pairs : bool array (N,)
        Rows of ``mixed`` whose set of equal rows has an even number of response ids (two, four, ...), the row's own id
        included.
    again : bool array (N,)
        Copies that are to be left out: none, unless there are so many copies that rows must have been logged twice.
    """

    judged: Mask
    mixed: Mask
    prompts: Mask
    pairs: Mask
    again: Mask


def marks(*numbers: Floats) -> NDArray[np.uint64]:
    """Return a hash of each row (N,) of the columns ``numbers``; rows equal in all columns have the same hash."""
    mark = np.zeros(len(numbers[0]), np.uint64)
    for x in numbers:
        mark = (mark ^ np.ascontiguousarray(x, np.float64).view(np.uint64)) * np.uint64(ODD[0])
        mark ^= mark >> np.uint64(29)
        mark *= np.uint64(ODD[1])
        mark ^= mark >> np.uint64(32)
    return mark


def find_copies(rollout: Ints, step: Ints, prompt: Ints, response: Ints, length: Floats, *numbers: Floats) -> Copies:
    """Find the rows (N,) that agree in length and in all ``numbers`` with a row of another response in the same rollout
    and step. The arguments are columns (N,); the first of the ``numbers`` is S, the others are further sums over a
    response's tokens."""
    number = len(step)
    found = Copies(*(np.zeros(number, bool) for _ in Copies._fields))
    judged = np.flatnonzero((length >= LONG) & (numbers[0] != 0) & np.isfinite(numbers[0]))
    found.judged[judged] = True
    key = marks(*(x[judged].astype(np.float64) for x in (rollout, step, length, *numbers)))
    ordered = np.sort(key)
    if not np.any(ordered[1:] == ordered[:-1]):
        return found
    import pandas as pd

    twice = pd.Series(key).duplicated(keep=False).to_numpy()
    found.mixed[judged] = _differing(numbered(rollout[judged], step[judged], prompt[judged]), key)
    rows = judged[twice]
    rows = rows[np.argsort(response[rows], kind="stable")]
    place = np.searchsorted(judged, rows)
    group = pd.factorize(key[place])[0]
    count = int(group.max()) + 1
    first = np.zeros(count, np.int64)
    first[group[::-1]] = rows[::-1]  # of each group of equal rows: the one with the lowest response id
    many = pd.DataFrame({"group": group, "prompt": prompt[rows], "response": response[rows]}).groupby("group").nunique()
    prompts, ids = (many[name].to_numpy()[group] for name in ("prompt", "response"))
    found.prompts[rows] = prompts > 1
    paired = (ids > 1) & (ids % 2 == 0)
    found.pairs[rows] = paired & found.mixed[rows]
    if len(judged) >= LEAST:
        if found.prompts.sum() >= COPIES * len(judged):
            found.again[rows] = prompt[rows] != prompt[first[group]]
        if found.mixed.sum() >= LEAST and found.pairs.sum() >= SAME_PROMPT * found.mixed.sum():
            rank = pd.Series(group).groupby(group).cumcount().to_numpy()
            found.again[rows] |= paired & (2 * rank >= np.bincount(group)[group])
    return found


def _differing(group: Ints, key: NDArray[np.uint64]) -> Mask:
    """Return for each row (N,) whether ``key`` has two or more values among the rows with the same ``group``."""
    some = np.zeros(int(group.max(initial=-1)) + 1, np.uint64)
    some[group] = key
    return np.bincount(group, key != some[group])[group] > 0
