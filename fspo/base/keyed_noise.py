"""Numbers that depend on a key alone, not on batches or processes: uniform random numbers, and hashes of texts."""

from __future__ import annotations

import hashlib

import numpy as np

from fspo.base.errors import UserError

_WORDS_PER_BLOCK = 4  # 64-bit random numbers that Philox 4x64 makes for each value of its counter


def keyed_uniforms(purpose: int, seed: int, address: tuple[int, int], start: int, count: int) -> np.ndarray:
    """Return numbers ``start .. start + count - 1`` of the stream of uniform random numbers that the key names: float64
    (count,), in [0, 1), multiples of 2**-53.

    The key is a ``purpose``, a constant that the caller chooses, a ``seed`` and an ``address`` of two numbers, such as
    (rollout, response), all in [0, 2**64). Streams with different keys are independent.

    Notes
    -----
    Counter-based Philox 4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), read through
    ``random_raw``: NumPy promises that ``random_raw`` gives the same numbers in all versions, and makes no such promise
    for its distributions.
    """
    if not 0 <= seed < 2**64 or not all(0 <= part < 2**64 for part in address):
        raise UserError(f"seed {seed} or address {address} is outside [0, 2**64): use non-negative numbers")
    block, skip = divmod(start, _WORDS_PER_BLOCK)
    generator = np.random.Philox(key=[seed, purpose], counter=[block, 0, *address])
    words = generator.random_raw(skip + count)[skip:]
    return (words >> np.uint64(11)) * 2.0**-53


def hashed(text: str) -> int:
    """Hash a text to a number in [0, 2**63) that depends only on the text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
