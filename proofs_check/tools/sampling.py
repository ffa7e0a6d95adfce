"""Count how many responses drawn from a log-ratio model a rule accepts, on all cores and in bounded memory.

The draws of each length are cut into blocks of 2^20. The random stream of a block follows from the seed, the index of
the length and the index of the block, so the result depends on the seed alone and not on the number of jobs. Within a
block 2^14 draws are in memory at once. Jobs are threads, because numpy releases the interpreter's lock while it fills
and compares arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from fspo.base.errors import UserError
from fspo.rules import Rate, Rule
from fspo.theory import Floats
from proofs_check.models.base import JointModel, LogRatioModel, checked_lengths, matching_means

BLOCK = 1 << 20
"""Number of draws that share one random stream."""
CHUNK = 1 << 14
"""Number of draws that a job has in memory at once."""


def acceptance_counts(
    model: LogRatioModel,
    rule: Rule,
    lengths: ArrayLike,
    draws: int,
    seed: int | np.random.SeedSequence,
    *,
    m: float | None = None,
    rate: Rate = "band",
    jobs: int = 1,
    progress: bool = False,
) -> NDArray[np.int64]:
    """Count how many of ``draws`` responses of each length a rule accepts.

    Parameters
    ----------
    model : LogRatioModel; a JointModel for ``rate="update"``
    rule : Rule of a sequence shape
    lengths : array (K,), tokens
    draws : int
        Draws for each length.
    seed : int or SeedSequence
    m : float, optional
        Centre of the band of a rule with a drift, nats per token. Unless given, the rule computes it from the model's
        mean and variance (``matching_means``).
    rate : {"band", "update"}
        Which responses count as accepted: those in the band, or those that are not clipped (docs/theory.md section 1;
        T11).
    jobs : int
        Number of threads. The counts do not depend on it.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    int array (K,)

    Raises
    ------
    UserError
        For bad lengths, draws or jobs; a token or prefix rule; ``rate="update"`` with a model that draws no
        advantages; or, without ``m``, a rule with a drift and a model with mu > 0.
    """
    if rate not in ("band", "update"):
        raise UserError(f"rate {rate!r} is not counted here; use 'band' or 'update'")
    if rule.level != "sequence":
        raise UserError(f"rule {rule.label!r} clips {rule.level}s: draw the model's paths() and apply it to them")
    if rule.needs_stats and m is None:
        m = rule.centre(matching_means(model))

    def in_band(rng: np.random.Generator, n: Floats) -> int:
        lo, hi = rule.band(n[:1], m)
        S = model.sample(rng, n)
        return int(np.count_nonzero((lo <= S) & (hi >= S)))

    if rate == "band":
        one_chunk = in_band
    elif isinstance(model, JointModel):
        pairs = model.sample_pair

        def one_chunk(rng: np.random.Generator, n: Floats) -> int:
            S, A = pairs(rng, n)
            return int(np.count_nonzero(rule.apply(S, n, A, m).side == 0))
    else:
        raise UserError("update acceptance needs the sign of A: wrap the model in IndependentAdvantage")

    def one_block(rng: np.random.Generator, length: float, size: int) -> int:
        return sum(one_chunk(rng, n) for n in _chunks(length, size))

    return _over_blocks(one_block, lengths, draws, seed, jobs, progress)


def band_counts(
    rng: np.random.Generator, rule: Rule, model: LogRatioModel, lengths: np.ndarray, draws: int
) -> np.ndarray:
    """Draw S ``draws`` times for each length; return how many of each lie in the band, as ``rule.apply`` says."""
    n = np.broadcast_to(lengths, (draws, lengths.size))
    applied = rule.apply(model.sample(rng, n), n, np.ones_like(n), rule.centre(matching_means(model)))
    return applied.in_band.sum(axis=0)


def _chunks(length: float, size: int) -> Iterator[Floats]:
    """Yield arrays of at most ``CHUNK`` entries, ``size`` entries in all; every entry is the number ``length``."""
    for start in range(0, size, CHUNK):
        yield np.broadcast_to(np.float64(length), (min(CHUNK, size - start),))


def _over_blocks(
    one_block: Callable[[np.random.Generator, float, int], int],
    lengths: ArrayLike,
    draws: int,
    seed: int | np.random.SeedSequence,
    jobs: int,
    progress: bool,
) -> NDArray[np.int64]:
    """Return, for each length, the sum of ``one_block(rng, length, size)``, a count of accepted draws, over the blocks
    into which the draws of the length are cut. Several blocks run at the same time, in threads.
    """
    n = np.broadcast_to(checked_lengths(lengths), np.shape(lengths))
    if n.ndim != 1:
        raise UserError(f"lengths must be a vector (K,), not of shape {n.shape}")
    for name, value in (("draws", draws), ("jobs", jobs)):
        if not (value >= 1 and value == int(value)):
            raise UserError(f"{name}={value} must be a whole number >= 1")
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    totals = np.zeros(n.size, np.int64)
    work = ((i, j, min(BLOCK, int(draws) - j * BLOCK)) for i in range(n.size) for j in range(-(-int(draws) // BLOCK)))

    def run(i: int, j: int, size: int) -> int:
        stream = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, i, j))
        return one_block(np.random.default_rng(stream), float(n[i]), size)

    pool = ThreadPoolExecutor(jobs)
    try:
        with tqdm(
            total=n.size * int(draws), unit="draw", unit_scale=True, disable=not progress, file=sys.stderr
        ) as bar:
            waiting: list[tuple[int, int, Future[int]]] = []
            while True:
                for i, j, size in islice(work, 2 * jobs - len(waiting)):
                    waiting.append((i, size, pool.submit(run, i, j, size)))
                if not waiting:
                    break
                i, size, future = waiting.pop(0)
                totals[i] += future.result()
                bar.update(size)
    finally:
        # After an interrupt or an error, cancel the blocks of draws that no thread has begun.
        pool.shutdown(cancel_futures=True)
    return totals
