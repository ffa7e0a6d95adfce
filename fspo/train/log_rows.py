"""The one maker of the gradient log's rows, for the trainer, the noise floor and trainers of other people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fspo.policy.scores import Scores
from fspo.rollouts.batches import RolloutBatch
from fspo.train.updates import Shard

RECORDED = (
    "length",
    "log_ratio",
    "sum_sq_log_ratio",
    "k3_sum",
    "lo",
    "hi",
    "band_accept",
    "side",
    "multiplier",
    "weight",
)
"""Columns that `fspo.objective.Records` has."""


class Update(NamedTuple):
    """Columns of the gradient log that all rows of one update have in common.

    ``drift_source`` is "none" where the rule has no drift.
    """

    rollout: int
    step: int
    behaviour_version: int
    rule: str
    drift_source: str
    phase: Literal["train", "audit", "noise"] = "train"
    updates_since_rollout: int = 0
    times_used: int = 0


class Responses(NamedTuple):
    """Columns of the gradient log that n responses have before any update: arrays (n,)."""

    prompt_id: np.ndarray
    response_id: np.ndarray
    truncated: np.ndarray
    reward: np.ndarray
    advantage: np.ndarray
    entropy: np.ndarray
    engine_log_ratio: np.ndarray | None


def responses_of(batch: RolloutBatch, shard: Shard) -> Responses:
    """The responses of a shard."""
    rows = shard.micro.rows
    return Responses(
        prompt_id=batch.prompt_ids[rows],
        response_id=batch.response_ids[rows],
        truncated=batch.truncated[rows],
        reward=batch.rewards[rows],
        advantage=batch.advantages[rows],
        entropy=shard.entropy,
        engine_log_ratio=shard.old.double().sum(1).cpu().numpy() - batch.sampler_log_prob[rows],
    )


def log_rows(
    update: Update,
    responses: Responses,
    records: Mapping[str, np.ndarray],
    *,
    drift: np.ndarray | float | None = None,
    scores: Scores | None = None,
    user: Mapping[str, list[Any]] | None = None,
) -> dict[str, Any]:
    """Columns of the gradient log for n responses of one update, as `fspo.gradlog.GradLogWriter.append` takes them.

    Parameters
    ----------
    records : dict of (n,) arrays
        From `fspo.objective.Records.to_numpy`.
    drift : (n,) or float, optional
        Centre of the rule's band, nats per token.
    scores : Scores, optional
        Of the same n responses; the log says "not_taken" without them.
    user : dict of lists, optional
        The task's own columns for these responses.
    """
    return {
        **update._asdict(),
        "policy_version": update.step,
        **responses._asdict(),
        **{name: records[name] for name in RECORDED},
        "drift": drift,
        "score_status": "not_taken" if scores is None else np.array(scores.status),
        **({} if scores is None else {"score_norm": scores.norm, "score_unit": scores.unit}),
        **{f"user.{name}": values for name, values in (user or {}).items()},
    }
