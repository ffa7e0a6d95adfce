"""What the trainer records of single responses: scores, audits, and the rows of the gradient log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from fspo import gradlog
from fspo.base.errors import UserError
from fspo.config import TrainConfig
from fspo.distributed.layout import layout_of
from fspo.policy.score_check import MEMORY_LIMIT, coverage
from fspo.policy.score_hooks import ScoreHooks
from fspo.policy.scores import ScoreConfig, Scores, plain_log_probs, score
from fspo.rollouts.batches import RolloutBatch
from fspo.rules import Rule
from fspo.tasks import Task
from fspo.train.metrics import live_lemma, strata_sums
from fspo.train.updates import Records, Shard, Updater

COVERAGE_RESPONSES = 4
"""Responses whose full gradients are held at one time to measure the sketch."""
_ARROW_KINDS: tuple[tuple[type, str], ...] = ((bool, "bool"), (int, "int64"), (float, "float64"))


class ScoreLog:
    """Takes scores on chosen updates and writes this process's rows of the gradient log.

    Parameters
    ----------
    config : TrainConfig
    rule : Rule
        The rule that trains.
    model : PreTrainedModel
        Unwrapped.
    updater : Updater
    task : Task
        Its first training example's ``info`` gives the log its ``user.*`` columns.
    """

    def __init__(self, config: TrainConfig, rule: Rule, model: PreTrainedModel, updater: Updater, task: Task) -> None:
        self.config, self.rule, self.model, self.updater = config, rule, model, updater
        self.user_columns = {name: _kind(value) for name, value in task.example("train", 0).info.items()}
        self._warned = False
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if config.log.coverage_every and 4 * trainable * COVERAGE_RESPONSES > MEMORY_LIMIT:
            raise UserError(
                f"log.coverage_every needs full gradients of {COVERAGE_RESPONSES} responses in {trainable / 1e9:.1f}e9 "
                "parameters: set it to 0 and measure the sketch on a smaller model of the same family"
            )
        scores = config.log.scores
        self.writer = gradlog.GradLogWriter(
            config.output,
            rank=updater.accelerator.process_index,
            width=self._width(trainable) if config.log.score_every else 0,
            exact=scores.mode == "exact",
            metadata={"rule": rule.to_dict(), "seed": config.seed, "scores": asdict(scores)},
            user_columns=self.user_columns,
        )

    def _width(self, trainable: int) -> int:
        scores = self.config.log.scores
        if scores.mode == "exact":
            return trainable
        return ScoreHooks(self.model, width=scores.width, projection=scores.projection).sketcher.width

    def wanted(self, rollout: int, since: int) -> bool:
        """Whether the responses of update ``since`` of this rollout are scored."""
        log = self.config.log
        return bool(log.score_every) and rollout % log.score_every == 0 and since in self.config.scored_updates()

    def audited(self, rollout: int, since: int) -> bool:
        """Whether an audit goes with this update: the last scored one of the first pass, once in audit_every."""
        log, first_pass = self.config.log, range(self.config.batch.minibatches)
        chosen = [m for m in self.config.scored_updates() if m in first_pass]
        due = bool(log.audit_every) and rollout % log.audit_every == 0
        return due and self.wanted(rollout, since) and since == max(chosen, default=-1)

    def measured(self, rollout: int, since: int) -> bool:
        """Whether the sketch is measured on this update: the last scored one, once in coverage_every."""
        every = self.config.log.coverage_every
        due = bool(every) and rollout % every == 0
        return due and self.wanted(rollout, since) and since == max(self.config.scored_updates())

    def take(self, rollout: int, shards: list[Shard]) -> dict[int, Scores]:
        """Scores of the responses with a gradient, by the shard's id()."""
        config = self.config
        found = score_shards(
            self.model,
            shards,
            temperature=config.sampling.temperature,
            config=config.log.scores,
            seed=config.seed,
            rollout=rollout,
            logits=self.updater.logits,
        )
        missing = next((scores.uncovered for scores in found.values() if scores.uncovered), None)
        if missing and not self._warned and self.updater.accelerator.is_main_process:
            self._warned = True
            names = ", ".join(f"{name} ({why})" for name, why in list(missing.items())[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            tqdm.write(
                f"warning: the scores leave out {names}{more}: see score/coverage (log.coverage_every), or set "
                "log.scores.mode to exact for a small model",
                file=sys.stderr,
            )
        return {id(shards[i]): scores for i, scores in found.items()}

    def measure_sketch(self, batch: RolloutBatch, shards: list[Shard]) -> dict[str, float]:
        """Covered share of ||psi||^2 and error of a pair's cosine, on a few of the main process's scored responses."""
        config = self.config
        if not self.updater.accelerator.is_main_process:
            return {}
        scored = [s.micro.rows for s in shards if s.micro.trains and not s.micro.dummy]
        if not scored:
            return {}
        rows = np.concatenate(scored)
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, COVERAGE_RESPONSES).round().astype(int))]
        found = coverage(
            self.model,
            self.updater.tensors(batch, rows),
            config.sampling.temperature,
            config=config.log.scores,
            seed=config.seed,
            rollout=batch.rollout,
        )
        share = found.share[np.isfinite(found.share)]
        values = {"score/coverage": float(share.mean())} if len(share) else {}
        return values | {"score/cosine_error": found.pair_cosine_rmse}

    def fresh_rows(self, fresh: RolloutBatch, shards: list[Shard], step: int) -> None:
        """Score and log an audit: responses that the present parameters have just sampled, so S = 0 and w = 1."""
        with torch.no_grad():
            records = [(shard, self.updater.records(shard)) for shard in shards if not shard.micro.dummy]
        self.rows(fresh, records, self.take(fresh.rollout, shards), step=step, phase="audit", drift_source="none")

    def rows(
        self, batch: RolloutBatch, records: Records, scores: dict[int, Scores], *, step: int, **shared: Any
    ) -> None:
        """Add rows to the log; ``shared`` are columns that all of them have in common."""
        common = {
            "step": step,
            "policy_version": step,
            "rule": self.rule.label,
            "updates_since_rollout": 0,
            "times_used": 0,
        }
        for shard, record in records:
            rows = shard.micro.rows
            self.writer.append(
                log_rows(
                    batch,
                    rows,
                    record,
                    shared=common | shared,
                    entropy=shard.entropy,
                    old_log_prob=shard.old.double().sum(1).cpu().numpy(),
                    scores=scores.get(id(shard)),
                    user={
                        name: [_user_value(value, kind) for value in batch.info[name][rows]]
                        for name, kind in self.user_columns.items()
                        if name in batch.info
                    },
                )
            )

    def flush(self, rollout: int) -> None:
        """Write the rollout's file."""
        self.writer.flush(rollout)

    def live(self, batch: RolloutBatch, records: Records, scores: dict[int, Scores]) -> dict[str, float]:
        """T7 on a scored minibatch, over all processes (docs/theory.md section 5, live form).

        Token and prefix rules have no sequence weight and give nothing.
        """
        if self.rule.level != "sequence":
            return {}
        strata: dict[str, np.ndarray] = {}
        for shard, record in records:
            if (taken := scores.get(id(shard))) is not None:
                _add(strata, self._strata(record, batch.advantages[shard.micro.rows], taken))
        total: dict[str, np.ndarray] = {}
        for part in gather_object([strata]):
            _add(total, part)
        return live_lemma(total, drop=self.rule.outside == "drop")[1] if total else {}

    def _strata(self, record: dict[str, np.ndarray], advantages: np.ndarray, taken: Scores) -> dict[str, np.ndarray]:
        good = np.array(taken.status) == "ok"
        rows = {name: record[name][good] for name in ("length", "weight", "clipped_weight", "multiplier")}
        # What stands before psi in the gradient beside w and A: gspo's 1/L, and L under token weighting.
        power = int(self.updater.objective.aggregation in ("token", "constant")) - int(self.rule.weight == "geometric")
        for name in ("weight", "clipped_weight"):
            rows[name] = rows[name] * rows["length"].astype(np.float64) ** power
        psi = taken.unit[good].astype(np.float64) * taken.norm[good, None].astype(np.float64)
        return strata_sums(rows | {"advantage": advantages[good]}, psi, self.config.log.length_edges)


def score_shards(
    model: torch.nn.Module,
    shards: Sequence[Shard],
    *,
    temperature: float,
    config: ScoreConfig,
    seed: int,
    rollout: int,
    logits: int | None = None,
) -> dict[int, Scores]:
    """Scores of every response with A != 0, by shard index; ``model`` is the unwrapped one."""
    log_probs = partial(plain_log_probs, logits=logits)
    found = {}
    for i, shard in enumerate(shards):
        if shard.micro.trains and (not shard.micro.dummy or layout_of(model).in_step):
            scores = score(
                model, shard.batch, temperature, config=config, seed=seed, rollout=rollout, log_probs=log_probs
            )
            if not shard.micro.dummy:
                found[i] = scores
    return found


def log_rows(
    batch: RolloutBatch,
    rows: np.ndarray,
    records: dict[str, np.ndarray],
    *,
    shared: dict[str, Any],
    entropy: np.ndarray,
    old_log_prob: np.ndarray,
    scores: Scores | None,
    user: dict[str, list[Any]] | None = None,
) -> dict[str, Any]:
    """Columns of the gradient log for some rows of a batch.

    Parameters
    ----------
    rows : (n,) int
    records : dict of (n,) arrays
        From `fspo.objective.Records`.
    shared : dict
        Scalars: step, phase, versions, rule, drift and so on.
    old_log_prob : (n,)
        Summed old log-probability of the trainer, nats.
    user : dict of lists, optional
        The task's own columns for these rows.
    """
    kept = (
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
    n = len(rows)
    return {
        **shared,
        **{name: records[name] for name in kept},
        **({"drift": records["drift"]} if "drift" in records else {}),
        "rollout": np.full(n, batch.rollout),
        "behaviour_version": batch.behaviour_version,
        "prompt_id": batch.prompt_ids[rows],
        "response_id": batch.response_ids[rows],
        "truncated": batch.truncated[rows],
        "entropy": entropy,
        "engine_log_ratio": old_log_prob - batch.sampler_log_prob[rows],
        "reward": batch.rewards[rows],
        "advantage": batch.advantages[rows],
        "score_status": np.full(n, "not_taken") if scores is None else np.array(scores.status),
        **({} if scores is None else {"score_norm": scores.norm, "score_unit": scores.unit}),
        **{f"user.{name}": values for name, values in (user or {}).items()},
    }


def _kind(value: Any) -> str:
    return next((kind for cls, kind in _ARROW_KINDS if isinstance(value, cls)), "string")


def _user_value(value: Any, kind: str) -> Any:
    """A value of the task's own column in the column's type; null where it does not fit (tasks mix types)."""
    if value is None:
        return None
    if kind == "string":
        return str(value)
    try:
        number = {"bool": bool, "int64": int, "float64": float}[kind](value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if kind != "int64" or abs(number) < 2**63 else None


def _add(total: dict[str, np.ndarray], part: dict[str, np.ndarray]) -> None:
    for name, value in part.items():
        total[name] = total[name] + value if name in total else value
