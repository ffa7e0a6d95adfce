"""Evaluation of a training run on its held-out prompts."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedModel

from fspo.config import TrainConfig
from fspo.gradlog import metric_names as metric
from fspo.rollouts.collect import Collector
from fspo.rollouts.metric_sums import length_bins


def evaluate(model: PreTrainedModel, collector: Collector, config: TrainConfig, step: int) -> dict[str, float]:
    """Sample one response to each of the first ``eval.prompts`` held-out prompts and return the evaluation's metrics.

    ``step`` is the number of updates made so far. Every evaluation of a run samples with the same noise, so that
    evaluations differ by the weights alone."""
    size, prompts = collector.task.size("eval"), config.eval.prompts
    indices = np.arange(prompts if size is None else min(prompts, size))
    batch = collector.collect(
        model,
        collector.prompts("eval", indices, indices),
        1,
        stream="eval",
        rollout=0,
        step=step,
        sampling=collector.sampling.of_policy(temperature=config.eval.temperature),
    )
    n = len(batch)
    values = {
        metric.HELD_OUT_REWARD: float(batch.rewards.mean()),
        metric.HELD_OUT_STDERR: float(batch.rewards.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan"),
        metric.HELD_OUT_COUNT: n,
        metric.EVAL + metric.MEAN_LENGTH: float(batch.lengths.mean()),
        metric.EVAL + metric.TRUNCATED: float(batch.truncated.mean()),
        metric.HELD_OUT_FAILED: float((batch.reward_status != "ok").mean()),
    }
    for i, mask in enumerate(length_bins(batch.lengths, config.log.length_edges)):
        if mask.any():
            values[metric.EVAL + metric.in_bin(i, metric.BIN_REWARD)] = float(batch.rewards[mask].mean())
            values[metric.EVAL + metric.in_bin(i, metric.BIN_COUNT)] = int(mask.sum())
    return values
