"""Accuracy on benchmarks: avg@k and pass@k with intervals.

The responses to one prompt form a cluster, because they share its difficulty: k responses to each of 30 prompts count
as 30 observations, not as 30 times k. Rates use the same cluster-robust variance and Wilson interval as acceptance
(`fspo.stats`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from fspo.base.errors import UserError
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import proportion_interval


def pass_at_k(n: int, c: ArrayLike, k: int) -> NDArray[np.float64]:
    """Estimate for each of P prompts the probability that at least one of k responses is correct, without bias.

    ``c`` (P,) is the number of correct ones among n >= k responses to each prompt. The estimate is
    ``1 - C(n-c, k) / C(n, k)`` (Chen et al. 2021, arXiv:2107.03374): the share of subsets of k with a correct response.
    """
    wrong = n - np.asarray(c, np.float64)
    some = wrong >= k  # with fewer than k wrong responses, each subset of k contains a correct one
    left = np.where(some, wrong - k, 0.0)
    log_none = gammaln(wrong + 1) - gammaln(left + 1) - gammaln(n + 1) + gammaln(n - k + 1)
    return np.where(wrong == n, 0.0, np.where(some, 1 - np.exp(log_none), 1.0))


def rate(values: ArrayLike, prompt: ArrayLike) -> dict[str, float]:
    """Return the mean (``value``) of ``values``, scores in [0, 1] of responses or prompts (such as 1 for a correct
    response), and the ends of its interval (``ci_lo``, ``ci_hi``).

    ``prompt`` holds the number of the prompt that each value belongs to; values of one prompt form a cluster. The
    interval is NaN for fewer than five prompts."""
    values = np.asarray(values, np.float64)
    found = ratios(values, dense(np.asarray(prompt)), np.zeros(len(values), np.int64), 1, binary=True)
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    return {"value": float(found.value[-1]), "ci_lo": float(low[-1]), "ci_hi": float(high[-1])}


def measures(correct: ArrayLike) -> list[dict[str, Any]]:
    """Return one row for each measure, with its name (``measure``), value and interval (``ci_lo``, ``ci_hi``): avg@n,
    the share of correct responses, and pass@k at the powers of two above 1 and below n, and at n.

    ``correct`` (P, n) says which of the n responses to each of P prompts are correct. Raises UserError if there is no
    response."""
    marks = np.asarray(correct, np.float64)
    if not marks.size:
        raise UserError("no response to measure: evaluate at least one prompt")
    prompts, n = marks.shape
    rows: list[dict[str, Any]] = [{"measure": f"avg@{n}", **rate(marks.ravel(), np.repeat(np.arange(prompts), n))}]
    ks = sorted({2**i for i in range(1, n.bit_length())} | ({n} if n > 1 else set()))
    passed = {k: pass_at_k(n, marks.sum(1), k) for k in ks}
    return rows + [{"measure": f"pass@{k}", **rate(values, np.arange(prompts))} for k, values in passed.items()]
