"""Counts and moments of a rule over many draws of a model: in the cache, on all cores, in bounded memory.

The draws of each length are cut into blocks of 2^20. A block has its own stream, named by (length, block) under one
SeedSequence, and blocks are merged in order: the result depends on the seed alone, not on the number of jobs. Within
a block the work arrays hold 2^14 draws, so memory does not grow with the number of draws. Jobs are threads: numpy
lets go of the interpreter while it fills and compares arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from fspo.errors import UserError
from fspo.rules import DriftStats, Rate, Rule
from fspo.theory import Floats
from proofs_check.models.base import JointModel, LogRatioModel, checked_lengths, matching_stats

BLOCK = 1 << 20
"""Draws that share one random stream."""
CHUNK = 1 << 14
"""Draws in the work arrays at once."""
RULE_COLUMNS = ("in_band", "multiplier", "weight", "clipped_weight")
"""What ``rule_moments`` takes the moments of: the indicator of the band, M, w and M w."""

Statistic = Callable[[Floats, Floats, Floats], Floats]
"""A function of S, n, A (each (N,)) with values (N, Q), or weights (N,)."""
_Part = TypeVar("_Part")


def draw(model: LogRatioModel, rng: np.random.Generator, lengths: ArrayLike) -> tuple[Floats, Floats]:
    """(S, A) of a joint model; for a model of S alone A is 1 everywhere, so that only the upper side is active."""
    if isinstance(model, JointModel):
        return model.sample_pair(rng, lengths)
    S = model.sample(rng, lengths)
    return S, np.ones_like(S)


def acceptance_counts(
    model: LogRatioModel,
    rule: Rule,
    lengths: ArrayLike,
    draws: int,
    seed: int | np.random.SeedSequence,
    *,
    stats: DriftStats | None = None,
    rate: Rate = "band",
    jobs: int = 1,
    progress: bool = False,
) -> NDArray[np.int64]:
    """How many of ``draws`` responses of each length a rule accepts.

    Parameters
    ----------
    model : LogRatioModel; a JointModel for ``rate="update"``
    rule : Rule of a sequence shape
    lengths : array (K,), tokens
    draws : int
        Draws for each length.
    seed : int or SeedSequence
    stats : DriftStats, optional
        For a rule with a drift; the model's own (``matching_stats``) unless given.
    rate : {"band", "update"}
        In the band, or not cut (docs/theory.md section 1; T11).
    jobs : int
        Threads. The counts do not depend on it.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    int array (K,)

    Raises
    ------
    UserError
        For bad lengths, draws or jobs, a token or prefix rule, an update rate without advantages, or a drift that
        the model cannot match.
    """
    if rate not in ("band", "update"):
        raise UserError(f"rate {rate!r} is not counted here; use 'band' or 'update'")
    if rate == "update" and not isinstance(model, JointModel):
        raise UserError("update acceptance needs the sign of A: wrap the model in IndependentAdvantage")
    stats = _stats_for(model, rule, stats)

    def in_band(rng: np.random.Generator, n: Floats) -> int:
        lo, hi = rule.band(n[:1], stats)
        S = model.sample(rng, n)
        return int(np.count_nonzero((lo <= S) & (hi >= S)))

    def not_cut(rng: np.random.Generator, n: Floats) -> int:
        S, A = draw(model, rng, n)
        return int(np.count_nonzero(rule.apply(S, n, A, stats).side == 0))

    one_chunk = in_band if rate == "band" else not_cut

    def one_block(rng: np.random.Generator, length: float, size: int) -> int:
        return sum(one_chunk(rng, n) for n in _chunks(length, size))

    return np.array(_over_blocks(one_block, int.__add__, lengths, draws, seed, jobs, progress), np.int64)


@dataclass(frozen=True)
class Moments:
    """Weighted means of Q statistics at each of K lengths.

    Attributes
    ----------
    mean : array (K, Q)
        Sum of w x over sum of w; NaN where every weight is 0.
    covariance : array (K, Q, Q)
        Of the statistics under the weights (divided by the sum of the weights).
    standard_error : array (K, Q)
        Of the mean: sqrt(sum w^2 (x - mean)^2) / sum w, which is sd/sqrt(N) without weights.
    effective_size : array (K,)
        (sum w)^2 / sum w^2.
    """

    mean: Floats
    covariance: Floats
    standard_error: Floats
    effective_size: Floats


def weighted_moments(
    model: LogRatioModel,
    values: Statistic,
    lengths: ArrayLike,
    draws: int,
    seed: int | np.random.SeedSequence,
    *,
    weight: Statistic | None = None,
    jobs: int = 1,
    progress: bool = False,
) -> Moments:
    """Moments of statistics of (S, n, A) over draws of a model, in one pass and stable to rounding.

    Parameters
    ----------
    values : function of (S, n, A), each (N,), with values (N, Q)
    weight : function of (S, n, A) with weights (N,) >= 0, optional
        All weights are 1 unless given.
    model, lengths, draws, seed, jobs, progress
        See ``acceptance_counts``.

    Raises
    ------
    UserError
        For bad lengths, draws or jobs, or negative weights.
    """

    def one_block(rng: np.random.Generator, length: float, size: int) -> _Sums:
        total: _Sums | None = None
        for n in _chunks(length, size):
            S, A = draw(model, rng, n)
            part = _Sums.of(values(S, n, A), None if weight is None else weight(S, n, A))
            total = part if total is None else total + part
        assert total is not None
        return total

    return _moments(_over_blocks(one_block, _Sums.__add__, lengths, draws, seed, jobs, progress))


def rule_moments(
    model: LogRatioModel,
    rule: Rule,
    lengths: ArrayLike,
    draws: int,
    seed: int | np.random.SeedSequence,
    *,
    stats: DriftStats | None = None,
    jobs: int = 1,
    progress: bool = False,
) -> Moments:
    """Moments of ``RULE_COLUMNS`` of a rule: acceptances, weights, their variances and effective sample sizes.

    Parameters and errors as in ``acceptance_counts``.
    """
    stats = _stats_for(model, rule, stats)

    def columns(S: Floats, n: Floats, A: Floats) -> Floats:
        applied = rule.apply(S, n, A, stats)
        return np.stack([np.asarray(getattr(applied, name), np.float64) for name in RULE_COLUMNS], axis=1)

    return weighted_moments(model, columns, lengths, draws, seed, jobs=jobs, progress=progress)


def _stats_for(model: LogRatioModel, rule: Rule, stats: DriftStats | None) -> DriftStats | None:
    if rule.level != "sequence":
        raise UserError(f"rule {rule.label!r} clips {rule.level}s: draw the model's paths() and apply it to them")
    return matching_stats(model) if rule.needs_stats and stats is None else stats


def _chunks(length: float, size: int) -> Iterator[Floats]:
    """The length, repeated without memory, in pieces of at most CHUNK."""
    for start in range(0, size, CHUNK):
        yield np.broadcast_to(np.float64(length), (min(CHUNK, size - start),))


def _over_blocks(
    one_block: Callable[[np.random.Generator, float, int], _Part],
    merge: Callable[[_Part, _Part], _Part],
    lengths: ArrayLike,
    draws: int,
    seed: int | np.random.SeedSequence,
    jobs: int,
    progress: bool,
) -> list[_Part]:
    """Merge ``one_block(rng, length, size)`` over the blocks of each length, in order, with a few blocks in flight."""
    n = np.broadcast_to(checked_lengths(lengths), np.shape(lengths))
    if n.ndim != 1:
        raise UserError(f"lengths must be a vector (K,), not of shape {n.shape}")
    for name, value in (("draws", draws), ("jobs", jobs)):
        if not (value >= 1 and value == int(value)):
            raise UserError(f"{name}={value} must be a whole number >= 1")
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    totals: list[_Part | None] = [None] * n.size
    work = ((i, j, min(BLOCK, int(draws) - j * BLOCK)) for i in range(n.size) for j in range(-(-int(draws) // BLOCK)))

    def run(i: int, j: int, size: int) -> _Part:
        stream = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, i, j))
        return one_block(np.random.default_rng(stream), float(n[i]), size)

    pool = ThreadPoolExecutor(jobs)
    try:
        with tqdm(
            total=n.size * int(draws), unit="draw", unit_scale=True, disable=not progress, file=sys.stderr
        ) as bar:
            waiting: list[tuple[int, int, Future[_Part]]] = []
            while True:
                for i, j, size in islice(work, 2 * jobs - len(waiting)):
                    waiting.append((i, size, pool.submit(run, i, j, size)))
                if not waiting:
                    break
                i, size, future = waiting.pop(0)
                before, part = totals[i], future.result()
                totals[i] = part if before is None else merge(before, part)
                bar.update(size)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt or an error ends what has not begun
    return [total for total in totals if total is not None]


@dataclass(frozen=True)
class _Central:
    """Sum of weights, weighted mean (Q,) and weighted co-moment (Q, Q), merged as by Chan, Golub and LeVeque (1983)."""

    total: float
    mean: Floats
    comoment: Floats

    @classmethod
    def of(cls, values: Floats, weights: Floats) -> _Central:
        total = float(weights.sum())
        mean = weights @ values / total if total > 0 else np.zeros(values.shape[1])
        centred = values - mean
        return cls(total, mean, centred.T @ (weights[:, None] * centred))

    def __add__(self, other: _Central) -> _Central:
        total = self.total + other.total
        if not total > 0:
            return self
        gap, share = other.mean - self.mean, other.total / total
        comoment = self.comoment + other.comoment + np.outer(gap, gap) * (self.total * share)
        return _Central(total, self.mean + gap * share, comoment)


@dataclass(frozen=True)
class _Sums:
    """Central sums under the weights, and under their squares for the standard error."""

    plain: _Central
    squared: _Central

    @classmethod
    def of(cls, values: Floats, weights: Floats | None) -> _Sums:
        if values.ndim != 2:
            raise UserError(f"a statistic must give values (N, Q), not of shape {values.shape}")
        if weights is None:
            plain = _Central.of(values, np.ones(len(values)))
            return cls(plain, plain)
        if weights.shape != values.shape[:1] or not np.all(weights >= 0):
            raise UserError("weights must be >= 0, one for each draw")
        return cls(_Central.of(values, weights), _Central.of(values, weights**2))

    def __add__(self, other: _Sums) -> _Sums:
        if self.plain is self.squared and other.plain is other.squared:
            both = self.plain + other.plain
            return _Sums(both, both)
        return _Sums(self.plain + other.plain, self.squared + other.squared)


def _moments(sums: list[_Sums]) -> Moments:
    total = np.array([s.plain.total for s in sums])
    squares = np.array([s.squared.total for s in sums])
    mean = np.array([s.plain.mean for s in sums])
    mean[total == 0] = np.nan
    around = np.array([np.diag(s.squared.comoment) for s in sums])
    around = around + squares[:, None] * (np.array([s.squared.mean for s in sums]) - mean) ** 2
    with np.errstate(invalid="ignore"):
        return Moments(
            mean,
            np.array([s.plain.comoment for s in sums]) / total[:, None, None],
            np.sqrt(around) / total[:, None],
            np.where(total > 0, total**2 / np.where(squares > 0, squares, 1.0), 0.0),
        )
