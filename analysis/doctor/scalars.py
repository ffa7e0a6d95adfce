"""Check scalar metrics by what they mean, whoever logged them: weights, mismatch and truncation. Also ask the package
rldoctor about them, if it is installed."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from analysis.doctor.batch import FEW_ADVANTAGES, LIMIT, MOSTLY_TRUNCATED, TRUNCATED, VERIFIER
from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.line import SENT, SERIES, bend, rises, separated
from analysis.doctor.patient import Floats, Patient
from analysis.importing.names import FOREIGN
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile
from fspo.stats.intervals import sample_interval

WEIGHT = (
    r"(sampling/)?importance_sampling_ratio(/mean)?|sampling_importance_ratio(/mean)?|o?is|tis|ois|mis"
    r"|(rollout_corr|mismatch)/rollout_is_mean|(behav(e|ior|iour)_)?(imp|importance)_weight(/avg|/mean|_mean)?"
)
"""Pattern of names of the mean weight that corrects the mismatch: TRL, NeMo, slime, verl, AReaL; without prefixes."""
LARGEST = r"(sampling/)?importance_sampling_ratio/max|(rollout_corr|mismatch)/rollout_is_max"
"""Names of the largest such weight."""
TOKENS = r"token_mult_prob_error"  # names of a mean token ratio of trainer and sampler, 1 or more
POLICY = r"probs_ratio|ratio(/mean|_mean)?|clip_ratio/ratio_mean|policy_ratio(/mean)?"
"""Names of the mean ratio of new and old weights."""
DIFFERENCE = (
    r"(sampling/)?sampling_logp_difference/mean|(train_)?rollout_(train_)?log_?probs?_(abs_)?diff(_mean|/mean)?"
    r"|rollout_probs_diff_mean|gen_kl_error|(rollout_corr|mismatch)/(mismatch_)?(k3_)?kl|mismatch_kl/[^/]+/mean"
    r"|(logprobs?|logp)_(abs_)?diff(erence)?(/mean|_mean)?"
)
"""Names of a mean difference of a token's log-probs by trainer and sampler: TRL, slime, verl, NeMo, prime-rl, SkyRL."""
TRUNCATION = r"completions/clipped_ratio|response_length/clip_ratio|(response/)?truncated(_ratio|_fraction|_share)?"
LONGEST = r"completions/max_length|response_length/max|response_len/max|max_gen_tokens_per_sample"
PREFIX = re.compile(r"^(imported/|train(ing)?/|rollout/|actor/|policy/|perf/)+")
NEAR = 0.05  # a mean token ratio and a mean policy ratio count as 1 if they differ from 1 by less
FAR = 2.0  # a mean weight is far from 1 if it is this many times too large or too small
PACKAGE = "rldoctor"


def _series(p: Patient, names: str) -> dict[str, Floats]:
    """Return by name the metrics whose name without prefix fits the regex ``names``: rollouts and values, (2, N)."""
    return {
        name.removeprefix(FOREIGN): np.array(values).T
        for name, values in p.metrics.items()
        if re.fullmatch(names, PREFIX.sub("", name).lower()) and len(values) >= 3
    }


def weight_scale(p: Patient) -> Answer:
    """Check whether a mean weight in the metrics equals or exceeds the largest weight, or is a sum over samples."""
    weights = _series(p, WEIGHT)
    if not weights:
        return not_checked("the metrics hold no mean weight of a correction")
    for label, (_, w) in weights.items():
        whole, lengths = float(np.round(np.median(w))), p.metric(metric.MEAN_LENGTH)
        tops = [top for _, top in _series(p, LARGEST).values() if len(top) == len(w)]
        fix = "divide the sum of weights by the number of responses (or tokens) that count, over all processes"
        if whole >= 2 and any(np.allclose(w, top, rtol=1e-3) for top in tops):
            what = f"{label} is the largest weight, {w.mean():.3g}, in every line: all weights are at their cap"
            fix = "compare temperature (raw log-probabilities?) and weights: the sampler's log-probs are too low"
        elif whole >= 2 and np.all(np.abs(w - whole) < 1e-3 * whole):
            what = f"{label} is {whole:.0f} in every line: a sum over {whole:.0f} samples, and no mean"
            what += "" if tops else ", or all weights are at a cap of that size"
        elif whole >= 2 and len(lengths) == len(w) and np.all(np.abs(w - lengths) < 0.1 * lengths):
            what = f"{label} is the mean length in tokens in every line: a sum over a response's tokens, and no mean"
        elif any(np.mean(w > top * (1 + 1e-6)) > 0.5 for top in tops):
            what = f"{label}, a mean weight, exceeds the largest weight that is logged beside it, in most lines"
        else:
            continue
        return found(what, fix, Evidence(label, float(np.median(w))))
    return clear("mean weights lie within their caps")


def same_ratio(p: Patient) -> Answer:
    """Check whether two metrics that are ratios of different things are equal in every line of metrics.jsonl."""
    weights = _series(p, f"{WEIGHT}|{POLICY}")
    if len(weights) < 2:
        return not_checked("the metrics hold fewer than two ratios")
    for (first, a), (second, b) in combinations(weights.items(), 2):
        if a.shape == b.shape and np.allclose(a, b, rtol=1e-7, atol=0) and len(np.unique(a[1])) > 2:
            moves = max((float(np.abs(kl).mean()) for _, kl in _series(p, "ppo_kl").values()), default=math.inf)
            # A mean ratio of new to old weights lies about as near to 1 as their KL lies to 0.
            whose = " (the sampler's)" if np.abs(a[1] - 1).mean() > 2 * moves else ""
            what = f"{first} and {second} are equal in all {a.shape[1]} lines: both have one denominator{whose}, "
            what += "so one is a copy, or the correction counts twice"
            fix = "let one ratio divide by the trainer's old log-probs and the other by the sampler's"
            return found(what, fix, Evidence(first, float(a[1].mean())))
    return clear("no two ratios are one column")


def weight_product(p: Patient) -> Answer:
    """Check whether a mean weight of responses is far from 1 though the mean ratio of single tokens is near 1: then
    only the product over many tokens takes it there."""
    weights = _series(p, WEIGHT)
    near = {n: float(np.median(v)) for n, (_, v) in _series(p, f"{TOKENS}|{POLICY}").items() if n not in weights}
    apart = {n: float(np.median(np.abs(v))) for n, (_, v) in _series(p, DIFFERENCE).items() if "kl" not in n.lower()}
    if not weights or not (apart or _series(p, TOKENS)) or weight_scale(p).found:
        return not_checked("the metrics hold no sound mean weight beside a mean token ratio or difference")
    for label, (_, weight) in weights.items():
        w = float(np.median(weight))
        if 1 / FAR <= w <= FAR or any(abs(x) > NEAR for x in [*apart.values(), *(x - 1 for x in near.values())]):
            continue
        agree = ", ".join(f"{n} {x:.4g}" for n, x in (near | apart).items())
        what = f"{label} is {w:.3g} (medians over lines) though tokens agree ({agree}): the batch is weighted "
        what += f"{max(w, 1 / w):.0f} times {'down' if w < 1 else 'up'} by a product over tokens, not by their mismatch"
        fix = "correct by token weights, or by a geometric or sqrt mask on responses: log E for each response to see "
        fix += "which lengths it masks (`fspo import`, `fspo analyse --on behaviour`)"
        return found(what, fix, Evidence(label, w))
    return clear("mean weights are as far from 1 as tokens are")


def mismatch_trend(p: Patient) -> Answer:
    """Check whether the mean difference of trainer's and sampler's log-probs jumps, or rises over the run."""
    differences = _series(p, DIFFERENCE)
    if not differences:
        return not_checked("the metrics hold no difference of trainer's and sampler's log-probs")
    for label, (rollout, signed) in differences.items():
        x = np.abs(signed)
        quarter = max(len(x) // 4, 1)
        larger = len(x) >= SERIES and x[-quarter:].mean() > 1.5 * x[:quarter].mean()
        if not separated(x) and not (larger and rises(x)):
            continue
        first, step = bend(x)
        early, late = slice(first if step else quarter), slice(first if step else -quarter, None)
        begin, before, after = float(rollout[first]), x[: first or quarter].mean(), x[late].mean()
        evidence = [Evidence(f"{label} before", float(before)), Evidence(f"{label} after", float(after))]
        where = "at" if step else "beginning about" if first else "from"
        text = f"{label} {'jumps' if step else 'rises'} from {before:.3g} to {after:.3g}"
        text += f", {where} step {dict(p.metrics.get('step', [])).get(begin, begin):.0f}" * math.isfinite(begin)
        for other, (_, w) in _series(p, WEIGHT).items():
            full, left = (float(np.median(w[part])) for part in (early, late))
            evidence.append(Evidence(f"{other} after", left))
            if left < full / FAR:
                text += f", and {other} falls from {full:.2g} to {left:.2g}: the correction takes most of the update"
        for other, (_, w) in _series(p, LARGEST).items():
            evidence.append(Evidence(f"{other} after", top := float(np.median(w[late]))))
            if top < 1 / FAR:
                text += f", and the largest weight falls to {top:.1g}: every response is masked, the gradient is 0"
        what = f"{text}; the sampler {'has other weights or settings than' if step else 'leaves'} the trainer"
        fix = f"{SENT}; clip ratios say nothing of this"
        return found(what, fix, *evidence, since=int(begin) if math.isfinite(begin) else None)
    return clear("the difference of trainer's and sampler's log-probs neither jumps nor rises")


def truncation_count(p: Patient) -> Answer:
    """Check whether the metric of truncated responses counts each batch's longest response, whatever its length."""
    shares, longest = _series(p, TRUNCATION), _series(p, LONGEST)
    if not shares or not longest:
        return not_checked("the metrics hold no truncation share beside the longest response")
    _, lengths = next(iter(longest.values()))
    for label, (_, share) in shares.items():
        least = share.min()
        if least <= 0 or len(np.unique(lengths)) <= len(lengths) / 2 or len(share) < SERIES:
            continue
        whole = share / least  # in a batch of B the longest response alone makes 1/B
        if np.all(np.abs(whole - np.round(whole)) < 0.02) and abs(1 / least - round(1 / least)) < 0.02 / least:
            what = f"{label} is never 0 and a multiple of 1/{1 / least:.0f}, while the longest response varies "
            what += f"({lengths.min():.0f} to {lengths.max():.0f}): it counts the longest of each batch as truncated"
            fix = "compare lengths with the limit, and not with the longest of the batch"
            return found(what, fix, Evidence(f"least {label}", float(least), unit="share"))
    return clear("truncation is counted at the limit")


ON_SCALARS = {
    check.__name__: check for check in (weight_scale, same_ratio, weight_product, mismatch_trend, truncation_count)
}
"""The checks of scalars, by name."""


def from_metrics(p: Patient) -> dict[str, Answer]:
    """Return the answers, by check, that metrics give for a run without rows."""
    cut = f"of the responses are cut off at the token limit; {metric.TRUNCATED} is this, and no clipping by the rule"
    equal = "of the groups have one reward for all their responses, so no advantage and no gradient"
    return {
        "truncation": _share(p, metric.TRUNCATED, TRUNCATED, MOSTLY_TRUNCATED, cut, LIMIT),
        "advantages_zero": _share(p, metric.EQUAL_REWARDS, 1 - FEW_ADVANTAGES, 1.0, equal, VERIFIER),
    }


def _share(p: Patient, name: str, warning: float, critical: float, what: str, fix: str) -> Answer:
    """Judge the metric ``name``, a share: its mean over the last quarter of the lines (at least ``SERIES``), with an
    interval that takes lines as independent. Above ``warning`` it is an issue, from ``critical`` on a critical one."""
    values = p.metric(name)
    if len(values) < SERIES:
        return not_checked(f"the metrics have no {SERIES} lines with {name}")
    quarter, reward = max(len(values) // 4, SERIES), p.metric(metric.REWARD)
    share = Evidence(name, *sample_interval(values[-quarter:]), "share")
    if share.low > warning:
        severity = Severity.CRITICAL if share.low >= critical else Severity.WARNING
        text = f"in the last {quarter} lines {share.value:.1%} (in the first {values[:quarter].mean():.1%}) {what}"
        if len(reward) == len(values):
            means = np.convolve(reward, np.full(quarter, 1 / quarter), "valid")
            text += f". The mean reward there is {means[-1]:.3g}, and the highest over as many lines {means.max():.3g}"
        return found(text, fix, share, severity=severity)
    return clear("the share in the metrics is small", share)


def records(run: Path) -> list[dict[str, Any]]:
    """Return the lines of phase train of metrics.jsonl in the folder ``run``, each metric under the name that its
    trainer gave it; NaN for null. verl's ppo_kl is left out, which rldoctor would read as a KL to the reference."""
    lines = MetricsFile(run).of_phase("train")
    told = {name for line in lines for name in line if name != "phase" and not name.endswith("ppo_kl")}
    named = {name: name.removeprefix(FOREIGN) for name in told}
    return [{named[n]: math.nan if x is None else x for n, x in line.items() if n in named} for line in lines]


def by_rldoctor(rows: list[dict[str, Any]]) -> tuple[list[Answer], str]:
    """Return what the package rldoctor finds in ``rows``, lines of metrics (`records`), each issue under rldoctor's
    name for it; and a note: which version of rldoctor examined the lines, or how to install it."""
    if importlib.util.find_spec("rl_doctor") is None:
        return [], f"{PACKAGE} looks for changes of scalars over time: `pip install {PACKAGE}`, then examine again"
    import rl_doctor  # type: ignore[import-not-found]

    answers = []
    for problem in rl_doctor.diagnose(rl_doctor.run_from_records(rows)).problems:
        fix = "; ".join(problem.prescription) or f"{PACKAGE} names none"
        answer = found(problem.summary, fix, severity=Severity[problem.severity.name])
        answers.append(replace(answer, id=f"{PACKAGE}: {problem.detector}"))
    return answers, f"{PACKAGE} {version(PACKAGE)} looked at {len(rows)} lines of scalars"
