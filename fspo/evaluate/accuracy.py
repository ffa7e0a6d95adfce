"""Accuracy on benchmarks: avg@k and pass@k with intervals, accuracy by length, differences between two models.

The responses to one prompt form a cluster, because they share its difficulty: k responses to each of 30 prompts count
as 30 observations, not as 30 times k. Rates use the same cluster-robust variance and Wilson interval as acceptance
(`fspo.stats`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from fspo.base.errors import UserError
from fspo.stats.bins import DEFAULT_BINS, Bins, quantile_bins
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import mean_interval, proportion_interval

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """N judged responses of one model to one benchmark.

    Attributes
    ----------
    prompt : (N,) int
        Number of the prompt.
    correct : (N,) bool
    length : (N,) int
        Response length, tokens. It is 0 for a prompt that was too long to be asked; such a prompt counts as wrong.
    truncated : (N,) bool
        The response met the token limit.
    failed : (N,) bool
        The verifier gave no verdict, which counts as wrong.
    """

    prompt: NDArray[np.int64]
    correct: NDArray[np.bool_]
    length: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    failed: NDArray[np.bool_]

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the prompts (P,) in rising order, and for each the number of responses and of correct responses."""
        prompts, group, size = np.unique(self.prompt, return_inverse=True, return_counts=True)
        return prompts, size.astype(np.int64), np.bincount(group, self.correct, len(prompts)).astype(np.int64)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """Estimate for each prompt the probability that at least one of k responses is correct, without bias.

    The estimate is ``1 - C(n-c, k) / C(n, k)`` (Chen et al. 2021, arXiv:2107.03374): among the subsets of k of a
    prompt's n responses, the share that contain a correct response.

    Parameters
    ----------
    n, c : array (P,)
        Numbers of responses and of correct responses.
    k : int

    Raises
    ------
    UserError
        If a prompt has fewer than k responses, or more correct ones than responses.
    """
    size, good = np.asarray(n, np.float64), np.asarray(c, np.float64)
    if k < 1 or (size < k).any():
        raise UserError(f"pass@{k} needs {max(k, 1)} responses or more to each prompt: sample more or ask for less")
    if (good < 0).any() or (good > size).any():
        raise UserError("more correct responses than responses, or fewer than none: correct the counts")
    wrong = size - good
    some = wrong >= k  # with fewer than k wrong responses, each subset of k contains a correct one
    left = np.where(some, wrong - k, 0.0)
    log_none = gammaln(wrong + 1) - gammaln(left + 1) - gammaln(size + 1) + gammaln(size - k + 1)
    return np.where(good == 0, 0.0, np.where(some, 1 - np.exp(log_none), 1.0))


def budgets(n: int) -> list[int]:
    """Return the k for which pass@k is shown, given n responses to each prompt: the powers of two up to n, and n."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


def rate(values: ArrayLike, prompt: ArrayLike) -> dict[str, float]:
    """Return the mean of ``values``, scores in [0, 1] of responses or prompts (such as 1 for a correct response), with
    an interval.

    ``prompt`` holds the number of the prompt that each value belongs to; values of one prompt form a cluster. The
    interval is NaN for fewer than five prompts.
    """
    values = np.asarray(values, np.float64)
    found = ratios(values, dense(np.asarray(prompt)), np.zeros(len(values), np.int64), 1, binary=True)
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    return {"value": float(found.value[-1]), "ci_lo": float(low[-1]), "ci_hi": float(high[-1])}


def measures(answers: Answers) -> list[dict[str, Any]]:
    """Return rows ``measure, value, ci_lo, ci_hi``: for avg@n and for pass@k at each k > 1 that `budgets` gives.

    avg@n is the share of correct responses; n is the least number of responses to a prompt.

    Raises
    ------
    UserError
        If there is no response.
    """
    if not len(answers.prompt):
        raise UserError("no response to measure: evaluate at least one prompt")
    prompts, size, good = answers.counts()
    n = int(size.min())
    rows: list[dict[str, Any]] = [{"measure": f"avg@{n}", **rate(answers.correct, answers.prompt)}]
    rows += [{"measure": f"pass@{k}", **rate(pass_at_k(size, good, k), prompts)} for k in budgets(n) if k > 1]
    return rows


def difference(one: Answers, other: Answers, k: int | None = None) -> dict[str, float]:
    """Return the accuracy of ``one`` minus that of ``other`` on their common prompts, with Student's t interval.

    The difference is taken for each prompt and averaged over prompts. If it is the same for all prompts (for example
    because both models solve the same ones), its variance over prompts is 0, although a few equal prompts do not show
    that the models are equal. Then the variance of a proportion is used, with two successes and two failures added to
    the data (`fspo.stats.clusters.flat_variance`), as in `rate`.

    Parameters
    ----------
    k : int, optional
        Compare pass@k; without it avg@n is compared.
    """
    (a, size_a, good_a), (b, size_b, good_b) = one.counts(), other.counts()
    shared, i, j = np.intersect1d(a, b, return_indices=True)
    if not len(shared):
        return {"difference": np.nan, "difference_lo": np.nan, "difference_hi": np.nan}
    if k is None:
        gap = good_a[i] / size_a[i] - good_b[j] / size_b[j]
    else:
        gap = pass_at_k(size_a[i], good_a[i], k) - pass_at_k(size_b[j], good_b[j], k)
    found = ratios(gap, np.arange(len(gap)), np.zeros(len(gap), np.int64), 1, binary=True)
    low, high = np.clip(mean_interval(found.value, found.variance, found.clusters), -1, 1)
    return {"difference": float(found.value[-1]), "difference_lo": float(low[-1]), "difference_hi": float(high[-1])}


def length_bins(all_answers: Sequence[Answers], number: int = DEFAULT_BINS) -> Bins | None:
    """Return bins of response length that are common to several models; None if no prompt was asked."""
    lengths = np.concatenate([a.length[a.length > 0] for a in all_answers])
    return quantile_bins(lengths, number) if len(lengths) else None


def by_length(answers: Answers, bins: Bins) -> list[dict[str, Any]]:
    """Return one row for each length bin: accuracy with its interval, numbers of truncated responses and of failures.

    A failure is a response on which the verifier gave no verdict. Prompts that were too long to be asked belong to no
    bin.
    """
    asked = answers.length > 0
    at, cluster = bins.index(answers.length[asked]), dense(answers.prompt[asked])
    if not len(at):
        return []
    found = ratios(answers.correct[asked], cluster, at, len(bins), binary=True)
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    return [
        {
            "bin": k,
            "length_lo": bins.limits(k)[0],
            "length_hi": bins.limits(k)[1],
            "responses": int(found.count[k]),
            "prompts": int(found.clusters[k]),
            "accuracy": float(found.value[k]),
            "ci_lo": float(low[k]),
            "ci_hi": float(high[k]),
            "truncated": int(answers.truncated[asked][at == k].sum()),
            "failed": int(answers.failed[asked][at == k].sum()),
        }
        for k in range(len(bins))
        if found.count[k]
    ]


def results(found: Mapping[tuple[str, str], Answers]) -> list[dict[str, Any]]:
    """Return one row for each benchmark, model and measure (avg@n, pass@k), with the difference from the first model.

    Parameters
    ----------
    found : mapping of (benchmark, model) -> Answers
        The answers, in the order of the table. The other models of a benchmark are compared with its first model.
    """
    first: dict[str, Answers] = {}
    rows = []
    for (benchmark, model), answers in found.items():
        base = first.setdefault(benchmark, answers)
        asked = answers.length > 0
        shared = {
            "prompts": len(np.unique(answers.prompt)),
            "responses": int(asked.sum()),
            "mean_length": float(answers.length[asked].mean()) if asked.any() else np.nan,
            "truncated": float(answers.truncated[asked].mean()) if asked.any() else np.nan,
            "failed": int(answers.failed.sum()),
            "too_long": len(np.unique(answers.prompt[~asked])),
        }
        for row in measures(answers):
            name, _, k = row["measure"].partition("@")
            comparable = base is not answers and int(k) <= int(base.counts()[1].min())
            gap = difference(answers, base, None if name == "avg" else int(k)) if comparable else {}
            rows.append({"benchmark": benchmark, "model": model, **row, **shared, **gap})
    return rows


def results_by_length(found: Mapping[tuple[str, str], Answers]) -> list[dict[str, Any]]:
    """Return rows of accuracy by length bin for each (benchmark, model); the models of a benchmark share its bins."""
    rows = []
    for benchmark in dict.fromkeys(name for name, _ in found):
        bins = length_bins([answers for (name, _), answers in found.items() if name == benchmark])
        for (name, model), answers in found.items():
            if name == benchmark and bins is not None:
                rows += [{"benchmark": benchmark, "model": model, **row} for row in by_length(answers, bins)]
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write the rows of `results` as one Markdown table: a line for each (benchmark, model), rates in per cent."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault(
            (row["benchmark"], row["model"]), {"benchmark": row["benchmark"], "model": row["model"]}
        )
        line[row["measure"]] = _interval(row, "value", "ci_lo", "ci_hi")
        if row["measure"].startswith("avg@") and "difference" in row:
            line["avg - first"] = _interval(row, "difference", "difference_lo", "difference_hi", sign="+")
        line |= {"length": f"{row['mean_length']:.0f}", "truncated": f"{100 * row['truncated']:.1f} %"}
        line |= {"no verdict": str(row["failed"]), "too long": str(row["too_long"]), "prompts": str(row["prompts"])}
    names = dict.fromkeys(name for line in lines.values() for name in line)
    last = ["avg - first", "length", "truncated", "no verdict", "too long", "prompts"]
    order = [n for n in names if n not in last]
    shown = sorted((n for n in order if n.startswith("pass@")), key=lambda n: int(n.partition("@")[2]))
    order = [n for n in order if n not in shown] + shown + [n for n in last if n in names]
    table = [order, *([line.get(n, "") for n in order] for line in lines.values())]
    width = [max(len(row[i]) for row in table) for i in range(len(order))]
    text = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, width, strict=True)) + " |" for row in table]
    return "\n".join([text[0], "| " + " | ".join("-" * w for w in width) + " |", *text[1:]]) + "\n"


def _interval(row: Mapping[str, Any], value: str, low: str, high: str, sign: str = "") -> str:
    mean = f"{100 * row[value]:{sign}.1f}"
    return mean if np.isnan(row[low]) else f"{mean} [{100 * row[low]:{sign}.1f}, {100 * row[high]:{sign}.1f}]"
