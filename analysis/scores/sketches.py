"""Read the scores of the logged responses block by block, as vectors A psi.

Each rollout has a new random projection and each update other weights, so vectors of different updates are never added.
The update of a block or run is the direct sum of its updates' vectors: inner products and squared norms of the updates
are summed first and then divided once (docs/theory.md section 5, "Population cosine"). Only rows with a score and A !=
0 are used (section 1 of the same file)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.log.loading import Run
from analysis.log.notes import Notes
from analysis.log.ratio import CORRECTED
from analysis.log.rows import Floats, Ints, Rows, row_names
from analysis.rules.evaluate import Case, CaseEffect, evaluate
from analysis.scores.products import UpdateGram
from fspo.base.errors import UserError
from fspo.gradlog import GradLog, read_log
from fspo.rules import importance_weight
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense

Read = tuple[GradLog, Ints, NDArray[np.float32]]
"""A block's rows, the numbers of those with a score, and their scores (`GradLog.scores`)."""


class Vectors(NamedTuple):
    """The vectors A psi (n, D) of n rows: ``vectors[at]`` makes those of the rows ``at``, in float64.

    Vector i is ``factor[i] * psi[place[i]]``: ``psi`` (M, D) holds the scores psi of rows of a log, ``place`` (n,) the
    indices of the n rows among them, ``factor`` (n,) A (or w A: `ScoredWindow`)."""

    psi: NDArray[np.float32]
    place: Ints
    factor: Floats

    def __getitem__(self, at: Any) -> Floats:
        return self.psi[self.place[at]] * self.factor[at, None]

    @property
    def width(self) -> int:
        """Number of entries of a vector, D."""
        return self.psi.shape[1]


@dataclass(frozen=True)
class ScoredWindow:
    """The rows with a score and A != 0 of one block, of the first epoch (use `first`) or of later ones (`reused`).

    Attributes
    ----------
    rows : Rows (n,), one for each scored response and update
    vectors : Vectors (n, D)
        A psi, without the importance weight. If the engine or rollout-policy ratio is analysed: w A psi, w being exp of
        the update's own log-ratio, because the factor of a correction multiplies the gradient beside w.
    window, bins, update : int, int arrays (n,)
        First rollout of the block; bin of each row, and number of the row's update within the block.
    """

    window: int
    use: str
    rows: Rows
    vectors: Vectors
    bins: Ints
    update: Ints
    _outcomes: dict[Case, CaseEffect] = field(default_factory=dict, repr=False, compare=False)
    _parts: dict[int, tuple[Ints, Ints, UpdateGram]] = field(default_factory=dict, repr=False, compare=False)

    def outcome(self, case: Case) -> CaseEffect:
        """Return what a case does to the block's rows. If its range is set by a target, these rows meet the target."""
        if case not in self._outcomes:
            self._outcomes[case] = evaluate(case, self.rows, np.full(len(self.rows), self.window), "update")
        return self._outcomes[case]

    def part(self, update: int, number: int) -> tuple[Ints, Ints, UpdateGram]:
        """Return for the block's update number ``update`` the indices of its rows (n,), the index of the first row of
        each of its C prompts (C,), and the inner products of its rows' vectors, for ``number`` bins. They are kept, so
        that a second call for the update returns the same objects."""
        if update not in self._parts:
            at = np.flatnonzero(self.update == update)
            _, one, code = np.unique(self.rows.cluster[at], return_index=True, return_inverse=True)
            cluster, vectors = code.reshape(-1).astype(np.int64), self.vectors[at]
            self._parts[update] = at, at[one], UpdateGram(vectors @ vectors.T, self.bins[at], cluster, number)
        return self._parts[update]

    @property
    def updates(self) -> int:
        """Number of the block's updates that have scores."""
        return int(self.update.max()) + 1 if len(self.update) else 0


LEFT_OUT = {
    "bad_units": "{} scores left out: not finite, or not of unit norm",
}
"""Text for each kind of score that the tables leave out, by its key under ``scored`` in summary.json's counts."""


@dataclass
class ScoredWindows:
    """Reads the scores of a run block by block, the next one while one is used, so that memory holds two at a time.

    Left out are scores that are not finite or whose stored direction is not of unit norm.

    Attributes
    ----------
    size : int
        Number of rollouts in a block.
    notes : Notes
        Number of scores that are left out ("bad_units"), and texts that say which sketches cannot be read. The notes
        are complete after the last block.
    """

    run: Run
    bins: Bins
    size: int
    notes: Notes = field(default_factory=Notes)

    def __iter__(self) -> Iterator[ScoredWindow]:
        self.notes = Notes()
        if not self.run.counts.get("scores_taken"):
            return
        with ThreadPoolExecutor(1) as reader:
            blocks = ((first, known, reader.submit(self._read, known)) for first, known in self.run.windows(self.size))
            coming = next(blocks, None)
            while coming:
                block, coming = coming, next(blocks, None)
                yield from self._window(*block)

    def _read(self, known: Rows) -> Read:
        """Read a block's rows ``known`` again, with the columns of scores."""
        names = ("rollout", "step", "prompt_id", "response_id", "length", "log_ratio")
        wanted = [*names, "score_status", "score_norm", "score_unit", self.run.partition.column]
        first, last = int(known.rollout.min()), int(known.rollout.max())
        try:
            log = read_log(self.run.path, columns=wanted, rollouts=(first, last))
        except UserError as error:
            raise UserError(f"the sketches of rollouts {first} to {last}: {error}") from None
        return log, *log.scores()

    def _window(self, first: int, known: Rows, read: Future[Read]) -> Iterator[ScoredWindow]:
        """Yield a block's scored rows, first those in the first epoch, then those of later epochs.

        ``known`` are the training rows, read without scores, that can be analysed, of the block that begins with
        rollout ``first``. ``read`` brings all training rows of the same rollouts, with scores."""
        try:
            log, at, psi = read.result()
        except UserError as error:
            # The files are damaged. Note this and go on with the next block: only this one's scores are lost.
            self.notes += Notes(damage=(str(error),))
            return
        self.notes += Notes(damage=tuple(log.damage))
        if not len(at):
            return
        place = row_names(known.rollout, known.step, known.response).get_indexer(
            row_names(*(log.column(c)[at] for c in ("rollout", "step", "response_id")))
        )
        matches = place >= 0
        sound = _sound(psi, log.column("score_norm")[at])
        self.notes += Notes(counts={"bad_units": int(np.sum(matches & ~sound))})
        keep = matches & sound
        rows, of_psi = known.take(place[keep]), np.flatnonzero(keep)
        factor = rows.A
        if self.run.ratio.on in CORRECTED:
            factor = importance_weight(log.column("log_ratio")[at][keep]) * factor
        for use, chosen in (("first", rows.used == 0), ("reused", rows.used > 0)):
            chosen = chosen & (rows.A != 0)
            if not chosen.any():
                continue
            some = rows.take(np.flatnonzero(chosen))
            vectors = Vectors(psi, of_psi[chosen], factor[chosen])
            yield ScoredWindow(first, use, some, vectors, self.bins.index(some.coordinate), dense(some.step))


def _sound(psi: NDArray[Any], norm: NDArray[Any]) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore", divide="ignore"):
        # The norm of the stored direction is 1 up to float16's rounding. Squares are summed in float64.
        unit = np.sqrt(np.einsum("nd,nd->n", psi, psi, dtype=np.float64)) / norm
    return np.isfinite(unit) & (np.abs(unit - 1) < 0.02)
