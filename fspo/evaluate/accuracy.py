"""Accuracy on benchmarks: avg@k and pass@k with intervals over prompts, accuracy by length, differences of models.

A prompt is a cluster: its responses share its difficulty, so k responses to 30 prompts are 30 observations and not
30 k. Rates use the same cluster-robust variance and Wilson interval as acceptance (`fspo.stats`).
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
    """N responses of one model to one benchmark.

    Attributes
    ----------
    prompt : (N,) int
        Number of the prompt.
    correct : (N,) bool
    length : (N,) int
        Tokens; 0 for a prompt that was too long to be asked, which counts as wrong.
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
        """Prompts (P,) in rising order, their numbers of responses and of correct ones."""
        prompts, group, size = np.unique(self.prompt, return_inverse=True, return_counts=True)
        return prompts, size.astype(np.int64), np.bincount(group, self.correct, len(prompts)).astype(np.int64)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """Unbiased estimate of the chance that at least one of k responses is correct, by prompt.

    ``1 - C(n-c, k) / C(n, k)`` (Chen et al. 2021, arXiv:2107.03374): the share of the k-subsets of a prompt's n
    responses that hold a correct one.

    Parameters
    ----------
    n, c : array (P,)
        Responses and correct ones.
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
    some = wrong >= k  # else every subset holds a correct one
    left = np.where(some, wrong - k, 0.0)
    log_none = gammaln(wrong + 1) - gammaln(left + 1) - gammaln(size + 1) + gammaln(size - k + 1)
    return np.where(good == 0, 0.0, np.where(some, 1 - np.exp(log_none), 1.0))


def budgets(n: int) -> list[int]:
    """The k of pass@k that are shown for n responses: powers of two, and n."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


def rate(values: ArrayLike, prompt: ArrayLike) -> dict[str, float]:
    """Mean of indicators or of rates in [0, 1], with an interval over prompts (NaN for fewer than five)."""
    values = np.asarray(values, np.float64)
    found = ratios(values, dense(np.asarray(prompt)), np.zeros(len(values), np.int64), 1, binary=True)
    low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
    return {"value": float(found.value[-1]), "ci_lo": float(low[-1]), "ci_hi": float(high[-1])}


def measures(answers: Answers) -> list[dict[str, Any]]:
    """Rows ``measure, value, ci_lo, ci_hi``: avg@n, then pass@k for each k of `budgets`.

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
    """``one`` minus ``other`` on the prompts of both: mean of the prompts' differences with Student's t interval.

    Where all prompts differ alike (two models that solve the same ones), the interval is that of a proportion with
    two more successes and failures, as for rates: a few prompts without a difference do not show that there is none.

    Parameters
    ----------
    k : int, optional
        Of pass@k; without it the difference is that of avg@n.
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
    """Common bins of several models' response lengths; None when no prompt was asked."""
    lengths = np.concatenate([a.length[a.length > 0] for a in all_answers])
    return quantile_bins(lengths, number) if len(lengths) else None


def by_length(answers: Answers, bins: Bins) -> list[dict[str, Any]]:
    """Accuracy, truncation and verifier failures by length bin; prompts that were not asked are in none."""
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
    """One row for each (benchmark, model) and measure, with the difference from the benchmark's first model.

    Parameters
    ----------
    found : mapping of (benchmark, model) -> Answers
        In the order of the table.
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
    """Accuracy by length bin of each (benchmark, model); a benchmark's models share their bins."""
    rows = []
    for benchmark in dict.fromkeys(name for name, _ in found):
        bins = length_bins([answers for (name, _), answers in found.items() if name == benchmark])
        for (name, model), answers in found.items():
            if name == benchmark and bins is not None:
                rows += [{"benchmark": benchmark, "model": model, **row} for row in by_length(answers, bins)]
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of `results` as one Markdown table: a line for each (benchmark, model), rates in per cent."""
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
