"""The noise floor: one rollout at learning rate 0, whose log-probabilities are computed again in several ways.

The weights do not change, so the log-ratio S is 0 in exact arithmetic. A measured S that is not 0 comes from the
training pass, the padding and composition of a batch, or another sampler. If a run's clip rate is no higher than the
clip rate of these measured S, the run's clip rate says nothing about the rule.
``fspo train --config RUN/config.yaml --noise-floor`` measures the noise floor on the run's own model and task. It
writes the log ``RUN/noise/gradlog``, which ``fspo analyse`` draws beside the run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from fspo import gradlog
from fspo.base.errors import UserError
from fspo.config import TrainConfig
from fspo.distributed.layout import asked_for
from fspo.gradlog.run_folder import CONFIG, MODEL, NOISE
from fspo.models.shapes import EMBEDDED
from fspo.objective import log_ratios, objective
from fspo.rollouts.batches import RolloutBatch, plan_microbatches
from fspo.rollouts.metric_sums import Counts
from fspo.rules import DriftStats, drift_stats
from fspo.train.log_rows import UpdateColumns, log_rows, responses_of
from fspo.train.trainer import Trainer
from fspo.train.updates import Shard, Updater

SOURCE = "source"
"""Column ``user.source`` of the log: in which way the row's log-probabilities were computed again."""

SOURCES = {
    "training": "the pass that training differentiates",
    "alone": "each response in a batch of its own",
    "engine": "the sampler's own log-probabilities",
}
"""The sources of noise: name in the log's column ``user.source`` -> description in words, for a table."""


def computed_by(source: str, updater: Updater, batch: RolloutBatch, shard: Shard) -> torch.Tensor:
    """Return the log-probs (B, T), nats, of a shard's responses, computed again as ``source`` says, at the positions of
    the shard's tokens: "training" by the pass that training differentiates, "alone" with each response in a batch of
    its own; "engine" returns the sampler's, not computed again."""
    if source == "engine":
        return shard.old.double() - shard.mismatch.behaviour
    if source == "training":
        with torch.enable_grad(), updater.accelerator.no_sync(updater.model):
            return updater.log_probs(shard.batch)[0].detach()
    found = []
    for row, mask in zip(shard.micro.rows, shard.mask, strict=True):
        alone = updater.tensors(batch, np.array([row]))
        values = updater.log_probs(alone)[0][alone["response_mask"]]
        found.append(torch.zeros_like(mask, dtype=values.dtype).masked_scatter(mask, values))
    return torch.stack(found)


def noise_config(config: TrainConfig) -> TrainConfig:
    """Return the configuration of a measurement of a run's noise floor, made from the run's configuration.

    The measurement uses the trained model if the run has exported one, and writes to a folder inside the run folder.

    Raises UserError if that folder holds a measurement already, or if accelerate would shard the model. With sharded
    weights every process must run the same number of passes, and the sources of noise run different numbers on each
    process."""
    if asked_for("FSDP"):
        raise UserError("the noise floor is measured on whole models: start it without FSDP")
    run, folder = Path(config.output), Path(config.output) / NOISE
    if (folder / CONFIG).exists():
        raise UserError(f"{folder} holds a measurement already: remove it to measure again")
    model = config.model
    if (run / MODEL / "config.json").is_file():
        model = replace(model, name_or_path=str(run / MODEL), tokenizer=None)
    elif model.name_or_path == EMBEDDED:
        print(f"{run} has no exported model yet: measuring the model that training starts from", file=sys.stderr)
    return replace(
        config,
        output=str(folder),
        model=model,
        resume=False,
        rollouts=1,
        trackers=(),
        optim=replace(config.optim, learning_rate=0.0),
        eval=replace(config.eval, every=0),
        log=replace(config.log, score_every=0),
    )


@torch.no_grad()
def measure(config: TrainConfig, **parts: Any) -> Path:
    """Sample one rollout, log S for every source of noise, and return the folder of the measurement.

    The log's rows have the phase ``noise`` and name their source in the column ``user.source``. Rows of the source
    ``engine`` compare the trainer's log-probs with the sampler's. ``parts`` (model, tokenizer, task) are handed to the
    trainer."""
    trainer = Trainer(noise_config(config), **parts)
    updater, batch = trainer.updater, trainer.sample(0, Counts())
    plan = plan_microbatches(
        np.arange(len(batch)),
        batch.total_lengths,
        np.ones(len(batch), bool),
        config.batch.tokens,
        rank=trainer.accelerator.process_index,
        world=trainer.accelerator.num_processes,
    )
    shards = [updater.shard(batch, micro) for micro in plan if not micro.dummy]
    writer = gradlog.GradLogWriter(
        trainer.run,
        rank=trainer.accelerator.process_index,
        metadata={"rule": trainer.rule.to_dict(), "seed": config.seed, "sources": SOURCES},
        user_columns={SOURCE: "string"},
    )
    for source in tqdm(SOURCES, desc="noise floor", unit="source", disable=not trainer.is_main):
        _log(writer, updater, batch, shards, source, [computed_by(source, updater, batch, shard) for shard in shards])
    writer.flush(0)
    trainer.accelerator.wait_for_everyone()
    return trainer.run


def _log(
    writer: gradlog.GradLogWriter,
    updater: Updater,
    batch: RolloutBatch,
    shards: list[Shard],
    name: str,
    values: list[torch.Tensor],
) -> None:
    """Log each response's S for the source of noise ``name``: ``values`` are its log-probs (B, T) of each shard."""
    rule, stats = replace(updater.rule, drift_source="two_pass"), None
    if rule.needs_stats:
        stats = DriftStats()
        for shard, new in zip(shards, values, strict=True):
            stats += drift_stats(log_ratios(new.double(), shard.old, shard.mask), shard.mask)
        stats = updater.over_processes(stats)
    for shard, new in zip(shards, values, strict=True):
        old, m, kl = shard.old.to(new.dtype), rule.centre(stats), updater.objective
        out = objective(new, old, shard.mask, shard.advantages, rule, kl, m=m, ref=new, mismatch=shard.mismatch)
        writer.append(
            log_rows(
                UpdateColumns(0, 0, batch.behaviour_version, rule, "noise"),
                responses_of(batch, shard),
                out.records.to_numpy(),
                user={SOURCE: [name] * len(shard.micro.rows)},
            )
        )
