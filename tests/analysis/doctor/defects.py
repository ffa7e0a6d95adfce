"""Fifty ways to spoil a gradient log, and ten kinds of defect at several severities, for the study of `fspo doctor`.

`fspo doctor` reads a gradient log and reports what cannot be true of a sound run. The fifty were written after the
doctor's tests had been fixed: forty first, and ten more after checks had been added for some of the forty that the
doctor had not seen. Where a defect is a bug that a user of an RL library reported, ``Defect.source`` names the report.
A defect changes the logged rows of a sound run as the bug would. The functions of log_changes.py make these
changes and recompute the columns that depend on what they changed. Each defect lists the doctor's checks whose issue
would describe it rightly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from analysis.doctor.issues import Answer
from tests.analysis.doctor.log_changes import (
    Change,
    Columns,
    add,
    after,
    again,
    copies,
    group_of,
    in_group,
    joined,
    judged,
    kept,
    lengthened,
    per_group,
    per_response,
    place,
    rewarded,
    rough,
    zeroed,
)


class Defect(NamedTuple):
    """A way to spoil a gradient log.

    ``rightly`` names, with spaces between them, the doctor's checks whose issue names the defect rightly. "check~words"
    counts an issue of the check only if its text matches the regular expression ``words``. It is empty if a sound run
    could have logged the spoilt rows, so that no check could name the defect.
    """

    says: str
    rightly: str
    change: Change
    source: str = ""  # the bug report that the defect is from: GitHub repository and number; "" if we invented it

    def named_by(self, issues: list[Answer]) -> bool:
        """Return whether one of the doctor's ``issues`` names the defect rightly, as ``rightly`` defines it."""
        wanted = [part.partition("~")[::2] for part in self.rightly.split()]
        return any(a.id == name and re.search(words, a.summary) for a in issues for name, words in wanted)


FINE, SHARES = (1e-4, 3e-4, 1e-3, 3e-3), (0.001, 0.003, 0.01, 0.03)
SEVERITIES: dict[str, tuple[tuple[float, ...], Callable[[float], Change]]] = {
    "S too large, nats a token": (FINE, lambda s: lambda c, r, i: add(c, s * c["length"] * after(c))),
    "S too small, nats a token": (FINE, lambda s: lambda c, r, i: add(c, -s * c["length"] * after(c))),
    "a token more in S, nats": ((0.01, 0.03, 0.1, 0.3), lambda s: lambda c, r, i: add(c, s * after(c))),
    "a token less in S, nats": ((0.01, 0.03, 0.1, 0.3), lambda s: lambda c, r, i: add(c, -s * after(c))),
    "noise of S before and after updates, nats a root token": (
        (1e-4, 1e-3, 3e-3, 1e-2),
        lambda s: lambda c, r, i: rough(c, s, r),
    ),
    "E of a sampler at another temperature, nats a token": (
        FINE,
        lambda s: lambda c, r, i: add(c, -s * c["length"], engine=True),
    ),
    "share of rows with another multiplier": (
        (1e-4, 1e-3, 1e-2, 0.1),
        lambda s: (
            lambda c, r, i: (
                c | {"multiplier": np.where(r.random(len(c["length"])) < s, 0.5, c["multiplier"]).astype(np.float32)}
            )
        ),
    ),
    "share of responses counted twice": (
        (0.005, 0.02, 0.05, 0.2),
        lambda s: lambda c, r, i: copies(c, place(c) % 200 < 200 * s, prompts=True),
    ),
    "share of responses that lack, at random": (
        SHARES,
        lambda s: lambda c, r, i: kept(c, per_response(c, r.random) >= s),
    ),
    "share of responses with another's advantage": (
        SHARES,
        lambda s: lambda c, r, i: rewarded(c, np.where(per_response(c, r.random) < s, -c["advantage"], c["advantage"])),
    ),
}
"""For each kind of defect, by its description: the severities at which it is tried, and a function that returns the
change of the log for a severity."""


def _first(c: Columns, x: np.ndarray) -> np.ndarray:
    """Return for each of a rollout's M responses, in the order of their ids, the value of ``x`` (N,) in its first
    row."""
    return x[np.unique(c["response_id"], return_index=True)[1]]


def _turned(c: Columns, which: np.ndarray) -> np.ndarray:
    """Return the rewards (N,) with those of the rows ``which`` (N,) turned within their group: each response has the
    reward of the response before it in the group, the first response that of the last. Other rows keep their reward."""
    at, before = _first(c, c["reward"]), place(c) - 1
    group = _first(c, c["prompt_id"])
    last = {int(g): int(np.flatnonzero(group == g).max()) for g in np.unique(group)}
    wraps = (before < 0) | (group[before] != c["prompt_id"])
    source = np.where(wraps, [last[int(g)] for g in c["prompt_id"]], before)
    return np.where(which, at[source], c["reward"])


def _of_next_group(c: Columns) -> np.ndarray:
    """Return rewards (N,) in which each group has the rewards of the group that follows it in the order of ids."""
    at = _first(c, c["reward"])
    size = np.bincount(_first(c, c["prompt_id"])).max()
    return at[(place(c) + size) % len(at)]


def _late(c: Columns, i: int) -> Columns:
    """Return the columns ``c`` of rollout ``i`` with wrong response ids: from rollout 6 on they count from 0 again, so
    that ids of earlier rollouts occur twice."""
    return c | {"response_id": place(c) + (i - 6) * (int(place(c).max()) + 1)} if i >= 6 else c


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Round numbers (N,) towards 0 to a 16-bit float with the exponent of a float32."""
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def _best_half(c: Columns) -> Columns:
    """Simulate a defect: keep only the half of each group's responses with the higher rewards, and compute advantages
    within that half."""
    order = np.lexsort((c["response_id"], -c["reward"].astype(float), c["prompt_id"], c["step"]))
    group = np.unique(np.stack([c["step"], c["prompt_id"]]), axis=1, return_inverse=True)[1][order]
    start = np.maximum.accumulate(np.where(np.diff(group, prepend=-1) != 0, np.arange(len(group)), 0))
    size = np.bincount(group)[group]
    c = kept(c, np.sort(order[np.arange(len(group)) - start < size // 2]))
    return rewarded(c, judged(c, c["reward"]))


FORTY = (
    Defect(
        "the sampler returns log-probs from before its temperature",
        "mismatch~temperature",
        lambda c, r, i: add(rough(c, 0.05, r, engine=True), 0.005 * c["length"], engine=True),
        "verl-project/verl#4162",
    ),
    Defect(
        "the sampler's prefix cache is of older weights, older with each rollout",
        "mismatch",
        lambda c, r, i: rough(c, 0.01 * i, r, engine=True),
        "NVIDIA-NeMo/RL#4018",
    ),
    Defect(
        "the sampler never gets the adapter's weights",
        "mismatch",
        lambda c, r, i: rough(c, 0.03 * i, r, engine=True),
        "verl-project/verl#3516",
    ),
    Defect(
        "text tokenized anew: missing log-probs at the end of one response in ten are 0",
        "mismatch~token",
        lambda c, r, i: add(c, -per_response(c, lambda n: (r.random(n) < 0.1) * r.exponential(1.5, n)), engine=True),
        "rllm-org/rllm#816",
    ),
    Defect(
        "an end token is written over the last token at the limit",
        "length_pile truncation",
        lambda c, r, i: lengthened(
            c | {"truncated": c["truncated"] & False}, np.minimum(c["length"], int(np.quantile(c["length"], 0.96)))
        ),
        "OpenRLHF/OpenRLHF#238",
    ),
    Defect(
        "padding counts as tokens in 3 % of the responses, which have no end token",
        "length_pile truncation",
        lambda c, r, i: lengthened(c, np.where(per_response(c, lambda n: r.random(n) < 0.03), 700, c["length"])),
        "verl-project/verl#3805",
    ),
    Defect(
        "the tokens of a tool count in the length of a third of the responses",
        "",
        lambda c, r, i: lengthened(c, c["length"] + 15 * per_response(c, lambda n: r.random(n) < 0.33)),
        "OpenRLHF/OpenRLHF#1252",
    ),
    Defect(
        "groups are cut from responses in another order",
        "estimator",
        lambda c, r, i: rewarded(c, judged(c, c["reward"], place(c) % (int(group_of(c).max()) + 1))),
        "StarsfieldAI/R1-V#67",
    ),
    Defect(
        "cached old log-probs are those of other rows, but for the first quarter",
        "before_update numerics",
        lambda c, r, i: rough(c, 0.5 * (place(c) % 4 > 0), r),
        "nishide-dev/unturtle#40",
    ),
    Defect(
        "the ratio is of the new log-probs and themselves",
        "s_zero old_recomputed",
        lambda c, r, i: zeroed(c, c["length"] > 0),
        "meta-pytorch/torchforge#571",
    ),
    Defect(
        "dropout is on in the update's forward pass",
        "before_update numerics",
        lambda c, r, i: rough(c, 0.02, r),
        "huggingface/trl#3234",
    ),
    Defect(
        "the loss caps weights at 1.2, without a word in the rule",
        "clip",
        lambda c, r, i: c | {"weight": np.minimum(c["weight"], np.float32(1.2))},
    ),
    Defect(
        "a minibatch is filled up with copies of three of its rows",
        "counters~twice",
        lambda c, r, i: joined(c, kept(c, np.isin(place(c) % 64, (0, 1, 2)))),
        "verl-project/verl#5969",
    ),
    Defect(
        "the longest 3 % are masked after the advantages are made",
        "dropped_sequences clip",
        lambda c, r, i: c | {"multiplier": c["multiplier"] * (c["length"] < np.quantile(c["length"], 0.97))},
    ),
    Defect(
        "the reward that trained had a KL penalty, the logged one has not",
        "estimator",
        lambda c, r, i: rewarded(c, judged(c, c["reward"] - 0.1 * per_response(c, lambda n: r.exponential(1.0, n)))),
    ),
    Defect(
        "a penalty of .5 for the longest tenth comes after the advantages",
        "estimator",
        lambda c, r, i: rewarded(c, c["advantage"] - 0.5 * (c["length"] >= np.quantile(c["length"], 0.9))),
    ),
    Defect(
        "in one group in ten the verifiers' answers come back in another order",
        "estimator",
        lambda c, r, i: c | {"reward": _turned(c, group_of(c) % 10 == 0)},
    ),
    Defect(
        "each group is split over two processes, which compare within their half",
        "estimator",
        lambda c, r, i: rewarded(c, judged(c, c["reward"], 2 * group_of(c) + in_group(c) % 2)),
    ),
    Defect(
        "the standard deviation of a group is the biased one",
        "estimator",
        lambda c, r, i: rewarded(c, c["advantage"] * np.sqrt(8 / 7)),
    ),
    Defect(
        "the old log-probs are one update too old",
        "before_update",
        lambda c, r, i: add(c, per_response(c, lambda n: 0.02 * r.standard_normal(n)) * np.sqrt(c["length"])),
    ),
    Defect(
        "from rollout 6 on the optimizer moves nothing",
        "s_zero old_recomputed",
        lambda c, r, i: zeroed(c, np.full(len(c["length"]), i >= 6)),
    ),
    Defect(
        "every fourth response is scored by half of the update",
        "mean_weight",
        lambda c, r, i: add(c, -0.5 * c["log_ratio"] * (place(c) % 4 == 0)),
    ),
    Defect(
        "padding adds noise of .05 a root token to the shorter half, after updates",
        "mean_weight",
        lambda c, r, i: add(
            c,
            0.05
            * np.sqrt(c["length"])
            * r.standard_normal(len(c["length"]))
            * (after(c) & (c["length"] < np.median(c["length"]))),
        ),
        "CarperAI/trlx#509",
    ),
    Defect(
        "a resumed run writes rollout 5 a second time",
        "counters~twice log",
        lambda c, r, i: joined(c, add(c, 0.02 * r.standard_normal(len(c["length"])) * after(c))) if i == 5 else c,
    ),
    Defect("rollouts from 6 on are another run's", "log", lambda c, r, i: _late(c, i)),
    Defect("steps count microbatches", "log counters", lambda c, r, i: c | {"step": 2 * c["step"] + place(c) % 2}),
    Defect(
        "the version of the sampling weights is one too low",
        "staleness",
        lambda c, r, i: c | {"behaviour_version": c["behaviour_version"] - 1},
    ),
    Defect(
        "weights change while a third of the responses are sampled",
        "mismatch staleness",
        lambda c, r, i: rough(c, 0.05 * per_response(c, lambda n: r.random(n) < 0.33), r, engine=True),
        "huggingface/trl#7017",
    ),
    Defect("k3 is half of the squares", "sums", lambda c, r, i: c | {"k3_sum": c["sum_sq_log_ratio"] / 2}),
    Defect(
        "the reward is minus the length",
        "advantage_by_length",
        lambda c, r, i: rewarded(
            c | {"reward": (-c["length"]).astype(c["reward"].dtype)}, judged(c, -c["length"].astype(float))
        ),
    ),
    Defect(
        "the verifier times out on the longest third, which gets reward 0",
        "",
        lambda c, r, i: (lambda reward: rewarded(c | {"reward": reward}, judged(c, reward)))(
            c["reward"] * (c["length"] < np.quantile(c["length"], 0.67))
        ),
    ),
    Defect("two groups stand under one prompt", "estimator", lambda c, r, i: c | {"prompt_id": c["prompt_id"] // 2}),
    Defect(
        "every other response of each group is not logged",
        "dropped_sequences log",
        lambda c, r, i: kept(c, in_group(c) % 2 == 0),
    ),
    Defect(
        "advantages are divided by a standard deviation that follows the run",
        "estimator",
        lambda c, r, i: rewarded(c, c["advantage"] / (0.7 + 0.05 * i)),
    ),
    Defect(
        "S and its sums are added up over two processes that hold the same rows",
        "mean_weight sums",
        lambda c, r, i: again(c | {name: 2 * c[name] for name in ("log_ratio", "sum_sq_log_ratio", "k3_sum")}),
    ),
    Defect(
        "2 % of the groups have no advantage though their rewards differ",
        "estimator",
        lambda c, r, i: rewarded(c, c["advantage"] * per_group(c, lambda n: r.random(n) >= 0.02)),
        "huggingface/trl#2884",
    ),
    Defect(
        "each prompt is judged by the answer of the next",
        "",
        lambda c, r, i: (lambda reward: rewarded(c | {"reward": reward}, judged(c, reward)))(_of_next_group(c)),
    ),
    Defect(
        "sides and multipliers are those of the row before",
        "clip",
        lambda c, r, i: c | {name: np.roll(c[name], 1) for name in ("side", "multiplier")},
    ),
    Defect(
        "the rule clips above alone",
        "clip",
        lambda c, r, i: c | {"multiplier": np.where(c["side"] < 0, np.float32(1), c["multiplier"])},
    ),
    Defect(
        "only the better half of each group is trained on and logged",
        "mean_weight~chosen|outcome|select",
        lambda c, r, i: _best_half(c),
    ),
)
"""The forty defects with which the study of `fspo doctor` first spoilt sound logs."""


def _padded(c: Columns) -> Columns:
    """Return a log's columns with a defect: every length is that of the longest response of its group."""
    group = group_of(c)
    longest = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(longest, group, c["length"])
    return lengthened(c, longest[group])


TEN = (
    Defect(
        "top-p without the share of the mass that it leaves in the sampler's log-probs",
        "mismatch~top-p",
        lambda c, r, i: add(c, -0.002 * c["length"] * per_response(c, lambda n: r.uniform(0.5, 1.5, n)), engine=True),
    ),
    Defect(
        "advantages are held within 1.2 of 0",
        "estimator",
        lambda c, r, i: rewarded(c, np.clip(c["advantage"], -1.2, 1.2)),
    ),
    Defect("the lower edge is logged with the opposite sign", "band", lambda c, r, i: c | {"lo": -c["lo"]}),
    Defect(
        "log-probs are subtracted in bfloat16",
        "values_of_s",
        lambda c, r, i: again(c | {"log_ratio": _bfloat16(c["log_ratio"])}),
    ),
    Defect(
        "k3 is averaged over the tokens and not added up",
        "sums",
        lambda c, r, i: c | {"k3_sum": c["k3_sum"] / c["length"]},
    ),
    Defect(
        "E is logged with the opposite sign",
        "mismatch sums",
        lambda c, r, i: c | {name: -c[name] for name in ("engine_log_ratio", "behaviour_log_ratio") if name in c},
    ),
    Defect("a response's length is that of the longest in its group", "", lambda c, r, i: _padded(c)),
    Defect(
        "the longest tenth is discarded before it is logged",
        "dropped_sequences log",
        lambda c, r, i: kept(c, c["length"] < np.quantile(c["length"], 0.9)),
    ),
    Defect(
        "after each rollout the optimizer's first step is skipped",
        "s_zero old_recomputed",
        lambda c, r, i: zeroed(c, c["updates_since_rollout"] == 1),
    ),
    Defect(
        "times_used counts all updates since the rollout",
        "uses",
        lambda c, r, i: c | {"times_used": c["updates_since_rollout"]},
    ),
)
"""Ten more defects. They were written after the doctor's checks had been changed for those of the forty that the checks
had missed, and before any check was run on the ten."""
DEFECTS = (*FORTY, *TEN)
"""All defects with which the study of `fspo doctor` spoils sound logs."""


def _frozen(c: Columns) -> Columns:
    """Return a log's columns with a defect: at later updates a response keeps the S, and the sums, of its first use
    after an update."""
    order = np.argsort(c["step"], kind="stable")
    order = order[after(c)[order]]
    response, first = np.unique(c["response_id"][order], return_index=True)
    at = np.searchsorted(response, c["response_id"])
    known = after(c) & (at < len(response))
    source = np.where(known, order[first][np.minimum(at, len(first) - 1)], np.arange(len(at)))
    return again(c | {name: c[name][source] for name in ("log_ratio", "sum_sq_log_ratio", "k3_sum")})


def _longest_of_minibatch(c: Columns) -> Columns:
    """Return a log's columns with a defect: every length is that of the longest response of its minibatch."""
    longest = {step: c["length"][c["step"] == step].max() for step in np.unique(c["step"])}
    return lengthened(c, np.array([longest[step] for step in c["step"]]))


AUDITED = (
    Defect(
        "lengths lack the end-of-sequence token",
        "mean_length~end-of-sequence",
        lambda c, r, i: lengthened(c, np.maximum(c["length"] - 1, 1)),
    ),
    Defect("S is 1.3 times too large", "sums", lambda c, r, i: again(c | {"log_ratio": 1.3 * c["log_ratio"]})),
    Defect(
        "responses are cut off at 160 tokens and not marked as truncated",
        "length_pile~160",
        lambda c, r, i: lengthened(c | {"truncated": c["truncated"] & False}, np.minimum(c["length"], 160)),
    ),
    Defect("S is not computed again after later updates", "values_of_s~computed", lambda c, r, i: _frozen(c)),
    Defect(
        "S is a mean over the tokens",
        "spread_of_s~mean",
        lambda c, r, i: again(c | {"log_ratio": c["log_ratio"] / c["length"]}),
    ),
    Defect(
        "padding counts: each length is that of the longest of its minibatch",
        "length_pile~padding mean_length~padding",
        lambda c, r, i: _longest_of_minibatch(c),
    ),
    Defect(
        "the sampler's weights are stale, which lowers E in proportion to the length",
        "mismatch~weights",
        lambda c, r, i: add(rough(c, 0.02, r, engine=True), -0.003 * c["length"], engine=True),
    ),
)
"""Seven defects of an audit, of which the doctor had seen some by a symptom alone and others not at all."""
