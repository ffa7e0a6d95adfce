"""Scores of the logged responses, window by window: w A psi as vectors and as inner products.

The projections are redrawn each rollout, and each update has its own parameters, so vectors of different updates
are never added. A window's (or a run's) update is the direct sum of its updates' vectors: inner products and squared
norms of the updates are summed first and divided once (docs/theory.md section 5, "Population cosine").
Only rows with a score and A != 0 are here (section 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.bins import Bins
from analysis.rows import Floats, Ints, Rows, Run, windows
from analysis.stats import dense
from fspo.gradlog import read_log


@dataclass(frozen=True)
class ScoredWindow:
    """Scored rows with A != 0 of one window and use.

    Attributes
    ----------
    rows : Rows (n,)
    vectors : array (n, D), float64
        A psi (without the weight).
    bins, update, cluster : int arrays (n,)
        Length bin, update number within the window, (rollout, prompt) numbered within the run.
    """

    window: int
    use: str
    rows: Rows
    vectors: Floats
    bins: Ints
    update: Ints

    @property
    def updates(self) -> int:
        """Number of updates with scores."""
        return int(self.update.max()) + 1 if len(self.update) else 0


def scored_windows(run: Run, bins: Bins, window_size: int, broken: list[int] | None = None) -> Iterator[ScoredWindow]:
    """Read the sketches window by window; memory holds one window at a time.

    Scores that are not finite, or whose stored direction is not of unit norm, are left out and their number is
    appended to ``broken``.
    """
    if "score_status" not in run.logged:
        return
    window = windows(run.rows.rollout, window_size)
    wanted = ["rollout", "step", "response_id", "log_ratio", "score_status", "score_norm", "score_unit"]
    for first in np.unique(window):
        inside = np.flatnonzero(window == first)
        numbers = run.rows.rollout[inside]
        log = read_log(run.path, columns=wanted, rollouts=(int(numbers.min()), int(numbers.max())))
        if "score_unit" not in log:
            continue
        at, psi = log.scores()
        if not len(at):
            continue
        known = run.rows.take(inside)
        place = _names(known.rollout, known.step, known.response).get_indexer(
            _names(*(log.column(c)[at] for c in ("rollout", "step", "response_id")))
        )
        matches = place >= 0
        norms = log.column("score_norm")[at].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            unit = np.linalg.norm(psi.astype(np.float64), axis=1) / norms
        sound = np.isfinite(unit) & (np.abs(unit - 1) < 0.02)
        if broken is not None:
            broken.append(int(np.sum(matches & ~sound)))
        keep = matches & sound
        rows = known.take(place[keep])
        psi = psi[keep]
        for use, chosen in (("first", rows.used == 0), ("reused", rows.used > 0)):
            chosen = chosen & (rows.A != 0)
            if not chosen.any():
                continue
            some = rows.take(np.flatnonzero(chosen))
            vectors = psi[chosen].astype(np.float64) * some.A[:, None]
            yield ScoredWindow(int(first), use, some, vectors, bins.index(some.length), dense(some.step))


def _names(rollout: Ints, step: Ints, response: Ints) -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([np.asarray(x, np.int64) for x in (rollout, step, response)])
