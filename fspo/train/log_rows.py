"""Make rows of the gradient log: for the trainer, the noise floor and the adapters to other trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fspo.gradlog.schema import LOG_COLUMNS, OF_THE_RULE
from fspo.policy.scores import Scores
from fspo.rollouts.batches import RolloutBatch
from fspo.rules import Rule
from fspo.train.updates import Shard


class UpdateColumns(NamedTuple):
    """Columns of the gradient log that have one value for all rows of an update (its rollout, the number of updates
    before it, the phase, ...), and the rule that trained.
    ``behaviour_version`` (the version of the weights that sampled) and ``times_used`` (how many earlier updates were
    trained on the response) may be arrays (n,), with a value for each row."""

    rollout: int
    step: int
    behaviour_version: Any
    rule: Rule
    phase: Literal["train", "noise"] = "train"
    updates_since_rollout: int = 0
    times_used: Any = 0


class ResponseColumns(NamedTuple):
    """Columns of the gradient log that do not depend on the clip rule, arrays (n,) over n responses, or None (unknown):
    numbers of prompt and response, whether the response was truncated, reward, advantage, mean token entropy (nats)."""

    prompt_id: np.ndarray
    response_id: np.ndarray
    truncated: np.ndarray | None
    reward: np.ndarray | None
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
    scores: Scores | None = None,
    user: Mapping[str, list[Any]] | None = None,
    known: bool = True,
) -> dict[str, Any]:
    """Return the gradient log's columns by name for n responses of one update, for `fspo.gradlog.GradLogWriter.append`.

    ``records`` holds by name what the rule did to each response (n,), fields of `fspo.objective.Records`; those whose
    name is a column of the log are copied. ``user`` holds n values for each column of the task, named without
    ``user.``. Without ``scores`` the log's score_status is "not_taken". If no rule of this project does what the
    trainer does (``known`` false), the columns of the rule are null."""
    rule = update.rule
    rows = {
        **update._asdict(),
        "policy_version": update.step,
        "rule": rule.label,
        "drift_source": rule.drift_source if rule.needs_stats else "none",
        **responses._asdict(),
        **{name: values for name, values in records.items() if name in LOG_COLUMNS},
        "score_status": "not_taken" if scores is None else np.array(scores.status),
        **({} if scores is None else {"score_norm": scores.norm, "score_unit": scores.unit}),
        **{f"user.{name}": values for name, values in (user or {}).items()},
    }
    return rows if known else rows | dict.fromkeys(OF_THE_RULE)
