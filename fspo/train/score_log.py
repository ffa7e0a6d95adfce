"""Take the scores of responses during training, and write the gradient log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from fspo import gradlog
from fspo.config import TrainConfig
from fspo.distributed.layout import layout_of
from fspo.policy.score_hooks import ScoreHooks
from fspo.policy.scores import score
from fspo.rollouts.batches import RolloutBatch
from fspo.rules import Rule
from fspo.tasks import Task
from fspo.train.log_rows import UpdateColumns, log_rows, responses_of
from fspo.train.updates import Record, Shard, Updater

_ARROW_KINDS: tuple[tuple[type, str], ...] = ((bool, "bool"), (int, "int64"), (float, "float64"))


class ScoreLog:
    """Takes the responses' scores at chosen updates and writes this process's rows of the gradient log.

    ``rule`` is the clip rule that trains, ``model`` the model before accelerate wraps it. The log gets one ``user.*``
    column for each entry of ``info`` in the task's first training example."""

    def __init__(self, config: TrainConfig, rule: Rule, model: PreTrainedModel, updater: Updater, task: Task) -> None:
        self.config, self.rule, self.model, self.updater = config, rule, model, updater
        self.user_columns = {name: _kind(value) for name, value in task.example("train", 0).info.items()}
        self._warned = False
        scores, width = config.log.scores, 0
        if config.log.score_every:
            width = ScoreHooks(model, width=scores.width, projection=scores.projection).sketcher.width
        self.writer = gradlog.GradLogWriter(
            config.output,
            rank=updater.accelerator.process_index,
            width=width,
            metadata={"rule": rule.to_dict(), "seed": config.seed, "scores": asdict(scores)}
            | ({} if updater.correction is None else {"correction": updater.correction.to_dict()}),
            user_columns=self.user_columns,
        )

    def wanted(self, rollout: int, since: int) -> bool:
        """Whether the responses of an update are scored; ``since`` counts the rollout's updates before this update."""
        log = self.config.log
        return bool(log.score_every) and rollout % log.score_every == 0 and since in self.config.scored_updates()

    def scored(self, rollout: int, shards: list[Shard]) -> list[Shard]:
        """Take the scores of the responses in a minibatch's shards, with the random projections of ``rollout``; return
        the shards with the scores filled in.

        A shard whose responses have no gradient gets no scores: without a KL term these are the responses with A = 0.
        If the scores leave out trainable parameters, a warning says so once in a run."""
        config, found = self.config, list(shards)
        for i, shard in enumerate(shards):
            if shard.micro.trains and (not shard.micro.dummy or layout_of(self.model).in_step):
                scores = score(
                    self.model,
                    shard.batch,
                    config.sampling.temperature,
                    config=config.log.scores,
                    seed=config.seed,
                    rollout=rollout,
                    logits=self.updater.logits,
                )
                if not shard.micro.dummy:
                    found[i] = replace(shard, scores=scores)
        missing = next((shard.scores.uncovered for shard in found if shard.scores and shard.scores.uncovered), None)
        if missing and not self._warned and self.updater.accelerator.is_main_process:
            self._warned = True
            names = ", ".join(f"{name} ({why})" for name, why in list(missing.items())[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            tqdm.write(
                f"warning: the scores leave out {names}{more}: the cosines are those of the other parameters",
                file=sys.stderr,
            )
        return found

    def update(self, batch: RolloutBatch, records: Sequence[Record], *, step: int, since: int, epoch: int) -> None:
        """Add the rows of one update to the gradient log, from what the rule did to each shard (``records``). Before
        it, ``step`` updates of the run, ``since`` updates since the rollout and ``epoch`` passes over the rollout were
        made."""
        update = UpdateColumns(batch.rollout, step, batch.behaviour_version, self.rule, "train", since, epoch)
        for record in records:
            shard = record.shard
            user = {
                name: [_user_value(value, kind) for value in batch.info[name][shard.micro.rows]]
                for name, kind in self.user_columns.items()
                if name in batch.info
            }
            responses, scores = responses_of(batch, shard), shard.scores
            self.writer.append(log_rows(update, responses, record.rows, scores=scores, user=user))

    def flush(self, rollout: int) -> None:
        """Write the log file of a rollout with this process's rows."""
        self.writer.flush(rollout)


def _kind(value: Any) -> str:
    return next((kind for cls, kind in _ARROW_KINDS if isinstance(value, cls)), "string")


def _user_value(value: Any, kind: str) -> Any:
    """Convert a value for a ``user.*`` column of the log to the column's type; None if it cannot be converted."""
    if value is None:
        return None
    if kind == "string":
        return str(value)
    try:
        number = {"bool": bool, "int64": int, "float64": float}[kind](value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if kind != "int64" or abs(number) < 2**63 else None
