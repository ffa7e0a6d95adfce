"""Make rows of the gradient log: for the trainer, the noise floor and the adapters to other trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fspo.gradlog.schema import LOG_COLUMNS
from fspo.policy.scores import Scores
from fspo.rollouts.batches import RolloutBatch
from fspo.train.updates import Shard


class UpdateColumns(NamedTuple):
    """Columns of the gradient log that have one value for all rows of an update.

    ``drift_source`` is "none" if the rule has no drift.
    """

    rollout: int
    step: int
    behaviour_version: int
    rule: str
    drift_source: str
    phase: Literal["train", "noise"] = "train"
    updates_since_rollout: int = 0
    times_used: int = 0


class ResponseColumns(NamedTuple):
    """Columns of the gradient log that are known before any update, each as an array over n responses, (n,)."""

    prompt_id: np.ndarray
    response_id: np.ndarray
    truncated: np.ndarray
    reward: np.ndarray
    advantage: np.ndarray
    entropy: np.ndarray | None


def responses_of(batch: RolloutBatch, shard: Shard) -> ResponseColumns:
    """Collect the gradient log's columns that are known before any update, for the responses of one shard."""
    rows = shard.micro.rows
    return ResponseColumns(
        prompt_id=batch.prompt_ids[rows],
        response_id=batch.response_ids[rows],
        truncated=batch.truncated[rows],
        reward=batch.rewards[rows],
        advantage=batch.advantages[rows],
        entropy=shard.entropy,
    )


def log_rows(
    update: UpdateColumns,
    responses: ResponseColumns,
    records: Mapping[str, np.ndarray],
    *,
    tokens: Mapping[str, list[np.ndarray]] | None = None,
    scores: Scores | None = None,
    user: Mapping[str, list[Any]] | None = None,
) -> dict[str, Any]:
    """Return the gradient log's columns for n responses of one update, for `fspo.gradlog.GradLogWriter.append`.

    ``records`` are arrays (n,) of `fspo.objective.Records`; those whose name is a column of the log are copied.
    ``tokens`` (token log-ratios) and ``user`` (columns of the task, without ``user.``) hold n values by column. Without
    ``scores`` the log's score_status is "not_taken".
    """
    return {
        **update._asdict(),
        "policy_version": update.step,
        **responses._asdict(),
        **{name: values for name, values in records.items() if name in LOG_COLUMNS},
        **(tokens or {}),
        "score_status": "not_taken" if scores is None else np.array(scores.status),
        **({} if scores is None else {"score_norm": scores.norm, "score_unit": scores.unit}),
        **{f"user.{name}": values for name, values in (user or {}).items()},
    }
