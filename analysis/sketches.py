"""Scores of the logged responses, window by window: w A psi as vectors and as inner products.

The projections are redrawn each rollout, and each update has its own parameters, so vectors of different updates
are never added. A window's (or a run's) update is the direct sum of its updates' vectors: inner products and squared
norms of the updates are summed first and divided once (docs/theory.md section 5, "Population cosine").
Only rows with a score and A != 0 are here (section 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.bins import Bins
from analysis.evaluate import Case, Outcome, evaluate
from analysis.loading import Run
from analysis.partition import Partition, coordinates
from analysis.rows import Floats, Ints, Rows, leave_one_out
from analysis.stats import dense
from fspo.errors import UserError
from fspo.gradlog import GradLog, read_log


@dataclass(frozen=True)
class Fresh:
    """An audit: new responses sampled at an update's own parameters, with w = 1 (docs/theory.md section 5).

    Attributes
    ----------
    prompt, coordinate : arrays (m,)
    vectors : array (m, D), float64
        A psi, A leave-one-out from the logged rewards.
    """

    prompt: Ints
    coordinate: Floats
    vectors: Floats


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
    fresh : dict of step -> Fresh
        Audits of the window's first-use updates.
    """

    window: int
    use: str
    rows: Rows
    vectors: Floats
    bins: Ints
    update: Ints
    fresh: dict[int, Fresh] = field(default_factory=dict)
    _outcomes: dict[Case, Outcome] = field(default_factory=dict, repr=False, compare=False)

    def outcome(self, case: Case) -> Outcome:
        """What a case does to the rows, a matched range calibrated over all of them; worked out once for all tables."""
        if case not in self._outcomes:
            self._outcomes[case] = evaluate(case, self.rows, np.zeros(len(self.rows), np.int64), "update")
        return self._outcomes[case]

    @property
    def updates(self) -> int:
        """Number of updates with scores."""
        return int(self.update.max()) + 1 if len(self.update) else 0


def scored_windows(run: Run, bins: Bins, window_size: int, broken: list[int] | None = None) -> Iterator[ScoredWindow]:
    """Read the sketches window by window; memory holds one window at a time.

    Scores that are not finite, or whose stored direction is not of unit norm, are left out and their number is
    appended to ``broken``. Files of which only the sketches cannot be read are named in ``run.damage``.
    """
    if not run.counts.get("scores_taken"):
        return
    wanted = [
        *("rollout", "step", "prompt_id", "response_id", "length", "log_ratio", "reward"),
        *("score_status", "score_norm", "score_unit", run.partition.column),
    ]
    for first, known in run.windows(window_size):
        numbers = known.rollout
        rollouts = int(numbers.min()), int(numbers.max())
        try:
            both = read_log(run.path, columns=wanted, rollouts=rollouts, phases=("train", "audit"))
        except UserError as error:  # the other columns of these files were read
            run.damage.append(f"the sketches of rollouts {rollouts[0]} to {rollouts[1]}: {error}")
            continue
        run.damage.extend(line for line in both.damage if line not in run.damage)
        if "score_unit" not in both:
            continue
        audit = both.column("phase") == "audit" if "phase" in both else np.zeros(len(both), bool)
        log, fresh = both.where(~audit), audits(both.where(audit), run.partition)
        at, psi = log.scores()
        if not len(at):
            continue
        place = _names(known.rollout, known.step, known.response).get_indexer(
            _names(*(log.column(c)[at] for c in ("rollout", "step", "response_id")))
        )
        matches = place >= 0
        sound = _sound(psi, log.column("score_norm")[at])
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
            taken = fresh if use == "first" else {}
            yield ScoredWindow(first, use, some, vectors, bins.index(some.coordinate), dense(some.step), taken)


def audits(log: GradLog, partition: Partition) -> dict[int, Fresh]:
    """The audits among a log's rows, by step; rows without a reward or a sound score are left out."""
    found: dict[int, Fresh] = {}
    if not len(log) or "reward" not in log:
        return found
    at, psi = log.scores()
    step, prompt = log.column("step").astype(np.int64), log.column("prompt_id").astype(np.int64)
    cluster = np.unique(np.stack([step, prompt]), axis=1, return_inverse=True)[1].reshape(-1)
    advantage = leave_one_out(log.column("reward").astype(np.float64), cluster, log.column("response_id"))
    if not len(at):
        return found
    coordinate, _ = coordinates(log, partition, cluster.astype(np.int64))
    sound = _sound(psi, log.column("score_norm")[at]) & np.isfinite(advantage[at] + coordinate[at])
    at, psi = at[sound], psi[sound].astype(np.float64)
    for number in np.unique(step[at]):
        here = step[at] == number
        rows = at[here]
        vectors = psi[here] * advantage[rows, None]
        found[int(number)] = Fresh(prompt[rows], coordinate[rows], vectors)
    return found


def _sound(psi: NDArray[Any], norm: NDArray[Any]) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = np.linalg.norm(psi / norm[:, None], axis=1)  # in the sketch's own precision: the margin is wide
    return np.isfinite(unit) & (np.abs(unit - 1) < 0.02)


def _names(rollout: Ints, step: Ints, response: Ints) -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([np.asarray(x, np.int64) for x in (rollout, step, response)])
