"""The trainer: it samples rollouts, makes several updates on each, and logs every response.

One rollout is: prompts -> responses -> rewards -> advantages -> old log-probs -> minibatch updates (at chosen updates
the responses are scored first) -> rows of the gradient log -> metrics. All noise is a function of the seed and of
numbers kept in the checkpoint. So a resumed run repeats, bit for bit, the rollouts that were lost after its checkpoint.
"""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import set_seed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo import gradlog
from fspo.base.errors import UserError
from fspo.base.memory import return_freed_memory
from fspo.base.options import save
from fspo.config import TrainConfig
from fspo.distributed.layout import layout_of
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import CONFIG, MODEL
from fspo.objective import ratio_stats
from fspo.rollouts.batches import RolloutBatch, plan_microbatches, plan_minibatches
from fspo.rollouts.collect import Collector, write_samples
from fspo.rollouts.draw import draw
from fspo.rollouts.metric_sums import Counts
from fspo.rules import DriftStats
from fspo.rules.online import OnlineRule
from fspo.tasks import Task, make_task
from fspo.train import checkpoint, skipped_updates
from fspo.train.checkpoint import TrainState
from fspo.train.folder_owner import claim_folder, release_folder
from fspo.train.held_out import evaluate
from fspo.train.launch import load_policy, make_accelerator
from fspo.train.metrics import add_update
from fspo.train.optimizers import learning_rate, make_optimizer
from fspo.train.past_weights import Versions
from fspo.train.reporter import Reporter
from fspo.train.resume import unreadable
from fspo.train.score_log import ScoreLog
from fspo.train.updates import Shard, Updater


class Trainer:
    """Trains a policy under one clip rule, as ``config`` says, and logs what the rule did.

    Parameters
    ----------
    model, tokenizer, task : optional
        Used instead of the model, tokenizer and task that the configuration names.

    Raises
    ------
    UserError
        If the run folder holds another run, the number of processes is wrong, or the model, the tokenizer or the task
        cannot be loaded.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        task: Task | None = None,
    ) -> None:
        self.config = config
        self.run = Path(config.output)
        if config.torch_threads:
            torch.set_num_threads(config.torch_threads)
        self.accelerator = make_accelerator(config)
        self.is_main = self.accelerator.is_main_process
        self.rule = config.rule.rule()
        claim_folder(self.accelerator, config)
        # Seed torch's generator: weights that the model's files lack are drawn from it. Nothing else draws from it.
        set_seed(config.seed)
        self.task = task or make_task(config.task.name, config.task.options)
        if config.eval.every and self.task.size("eval") == 0:
            raise UserError("the task holds out no example: set eval.every to 0, or give it held-out rows")
        raw, self.tokenizer = load_policy(self.accelerator, config, model, tokenizer)
        reference = copy.deepcopy(raw).requires_grad_(False) if config.rule.kl_coef > 0 else None
        self.optimizer = make_optimizer(raw.parameters(), config.optim)
        self.raw = raw
        self.model, self.optimizer = self.accelerator.prepare(raw, self.optimizer)
        self.layout = layout_of(raw)
        if self.layout.in_step and config.sampling.precision != "same":
            raise UserError(
                f"sampling.precision {config.sampling.precision} copies weights that FSDP2 shards: set it to same"
            )
        self.versions = Versions(raw, config.batch.staleness)
        self.state = self._restore()
        self.versions.add(self.state.step)
        self.online = OnlineRule(self.rule, self.state.online)
        if reference is not None:
            reference = self.layout.shard(self.accelerator, reference)
        self.updater = Updater(
            self.accelerator,
            self.model,
            self.rule,
            config.rule.objective(),
            config.sampling.temperature,
            pad_token_id=int(self.tokenizer.pad_token_id),  # type: ignore[arg-type]
            entropy=config.log.entropy,
            reference=reference,
            correction=config.correction.rule(),
            logits=config.batch.logits,
        )
        self.collector = Collector(
            self.task,
            self.tokenizer,
            config.sampling,
            config.seed,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
            chat_template=config.task.chat_template,
            max_prompt_tokens=config.task.max_prompt_tokens,
        )
        self.log = ScoreLog(config, self.rule, self.raw, self.updater, self.task)
        self.reporter = Reporter(self.accelerator, config)
        if self.is_main:  # a run that cannot start leaves no config.yaml
            save(config, self.run / CONFIG)
        self.accelerator.wait_for_everyone()

    def _restore(self) -> TrainState:
        found = checkpoint.list_checkpoints(self.run) if self.config.resume else []
        state = TrainState()
        if found:
            state = checkpoint.load(found[-1], self.raw, self.optimizer, at_past=self.versions.add)
        if state.rollout > self.config.rollouts:
            raise UserError(f"{self.run} has {state.rollout} rollouts already: name more with --rollouts")
        self.torn = unreadable(self.run, state.rollout)
        self.accelerator.wait_for_everyone()  # every process has read the folder as it was
        if self.is_main and self.config.resume:
            MetricsFile(self.run).keep_before(state.rollout)
            gradlog.discard_from(self.run, state.rollout)
        self.accelerator.wait_for_everyone()
        return state

    def train(self) -> dict[str, float]:
        """Run all rollouts that are left and return the metrics of the last rollout and of the last evaluation."""
        try:
            for warning in (*self.torn, *self.config.warnings()):
                self.reporter.warn(warning, warning)
            with self.reporter.training(self.rule.label, self.state.rollout, self.state.step):
                return self._rollouts()
        finally:
            release_folder(self.run)

    def _rollouts(self) -> dict[str, float]:
        config = self.config
        last: dict[str, float] = {}
        if self.state.rollout == 0 and config.eval.every:
            last = self._evaluate(0)
        for rollout in range(self.state.rollout, config.rollouts):
            last = self._rollout(rollout)
            done = rollout + 1
            if config.eval.every and (done % config.eval.every == 0 or done == config.rollouts):
                last |= self._evaluate(done)
            # Export the model before the last checkpoint is written: a run killed between the two then starts from an
            # older checkpoint when it is resumed, and exports the model again.
            if done == config.rollouts:
                self._export()
            every = config.checkpoint_every
            if done == config.rollouts or (every and done % every == 0):
                self._checkpoint()
        if not (self.run / MODEL).exists():
            self._export()
        return last

    def _rollout(self, rollout: int) -> dict[str, float]:
        began, config = time.perf_counter(), self.config
        self.collector.seconds = self.reporter.restart_clock()
        counts = Counts()
        self.reporter.say("sampling")
        batch = self.sample(rollout, counts)
        if self.is_main:
            write_samples(self.run, batch, self.tokenizer, config.log.samples)
        self.reporter.say("old log-probs")
        with self.reporter.timed("old_log_probs"):
            minibatches = [
                self.shards(batch, rows) for rows in plan_minibatches(batch, config.batch.minibatches, config.seed)
            ]
        return_freed_memory()
        updates = [(epoch, i) for epoch in range(config.batch.epochs) for i in range(len(minibatches))]
        for done, (epoch, i) in enumerate(updates):
            self.reporter.say(f"update {done + 1}/{len(updates)}")
            self.update(batch, minibatches[i], counts, since=done, epoch=epoch)
        self.log.flush(rollout)
        online = self.online.state if self.rule.adapt != "none" else None
        self.state = replace(self.state, rollout=rollout + 1, online=online)
        self.versions.add(self.state.step)
        values = self.reporter.divide(counts) | {metric.NUM_TOKENS: self.state.num_tokens}
        values |= {metric.STEP_TIME: time.perf_counter() - began} | self.reporter.times()
        self.reporter.write("train", rollout, self.state.step, values)
        self.reporter.rollout_done(self.rule.label, values)
        return values

    def sample(self, rollout: int, counts: Counts) -> RolloutBatch:
        """Sample a rollout, judge its responses, and return the rollout with rewards and advantages.

        On the main process the metrics of rewards, lengths, verifier failures and skipped prompts go to ``counts``.

        Raises UserError if the verifier failed on every response."""
        config = self.config
        with self.versions.sampling_weights():
            drawn = draw(
                self.collector,
                self.raw,
                config,
                rollout=rollout,
                step=self.versions.sampling,
                position=self.state.prompts,
            )
        status = drawn.batch.reward_status
        if (status != "ok").all():
            raise UserError(
                f"the reward of all {len(status)} responses of rollout {rollout} failed ({status[0]}), so nothing can "
                "be learned from it: correct the reward function (see its message above) and go on with --resume true"
            )
        tokens = self.state.num_tokens + int(drawn.batch.total_lengths.sum())
        self.state = replace(self.state, num_tokens=tokens, prompts=drawn.position)
        if self.is_main:  # the main process alone counts the responses, because every process holds all of them
            drawn.count(counts, config)
            if drawn.too_long:
                self.reporter.warn(
                    "too long",
                    f"{drawn.too_long} of {drawn.passed} prompts exceed task.max_prompt_tokens="
                    f"{config.task.max_prompt_tokens}: passed over, counted as prompts/too_long",
                )
        return drawn.batch

    def shards(self, batch: RolloutBatch, rows: np.ndarray) -> list[Shard]:
        """Build this process's shards of one minibatch; ``rows`` are the minibatch's row numbers in ``batch``.

        The old log-probs are those under the present weights, so call this before the rollout's first update. If past
        weights sampled the responses, the log-probs under them are computed too."""
        needed = batch.advantages != 0 if self.config.rule.kl_coef == 0 else np.ones(len(batch), bool)
        plan = plan_microbatches(
            rows,
            batch.total_lengths,
            needed,
            self.config.batch.tokens,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
        )
        version: list[torch.Tensor | None] = [None] * len(plan)
        if batch.behaviour_version != self.state.step:
            with torch.no_grad(), self.versions.sampling_weights():
                version = [self.updater.log_probs(self.updater.tensors(batch, micro.rows))[0] for micro in plan]
        return [self.updater.shard(batch, micro, at) for micro, at in zip(plan, version, strict=True)]

    def update(self, batch: RolloutBatch, shards: list[Shard], counts: Counts, *, since: int, epoch: int) -> None:
        """Make one optimizer update on a minibatch; take scores if they are due, log the rows and count the metrics.
        Before this update there were ``since`` updates since the rollout, and ``epoch`` passes over the rollout."""
        config = self.config
        stats, step = self._stats(shards, since), self.state.step
        if self.log.wanted(batch.rollout, since):
            with self.reporter.timed("scores"):
                shards = self.log.scored(batch.rollout, shards)
            return_freed_memory()
        rule = self.online.rule
        with self.reporter.timed("update"):
            records = self.updater.accumulate(shards, stats, rule, first=since == 0)
            cause = self._step(counts, skipped_updates.find(self.accelerator, records))
        return_freed_memory()
        if cause is None and rule.adapt != "none" and since > 0:
            # The adaptive band learns from every update that was not skipped, but not from a rollout's first update,
            # because every S is 0 there.
            S, n, A = self.updater.global_rows(records)
            self.online.observe(S, n, A, rule.centre(stats))
        self.log.update(batch, records, step=step, since=since, epoch=epoch)
        add_update(counts, records, rule, config, since=since, epoch=epoch)
        if self.is_main and rule.adapt != "none":
            for name in ("range_lo", "range_hi", "gamma", "gamma_hi"):
                if (value := getattr(rule, name)) is not None:
                    counts.add(metric.ADAPTED + name, value)
        self.state = replace(self.state, step=step + 1)
        if cause != "loss" and self.rule.needs_stats and self.rule.drift_source == "lagged":
            sums = sum((ratio_stats(record.rows) for record in records), DriftStats())
            self.state = replace(self.state, lagged=asdict(self.updater.over_processes(sums)))

    def _stats(self, shards: list[Shard], since: int) -> DriftStats | None:
        if not self.rule.needs_stats:
            return None
        if since == 0:  # S = 0 at a first update, so the drift's sums are 0
            return DriftStats()
        if self.rule.drift_source == "lagged":
            return DriftStats(**(self.state.lagged or {}))
        with self.reporter.timed("drift"):
            return self.updater.drift_stats(shards)

    def _step(self, counts: Counts, cause: str | None) -> str | None:
        """Clip the gradient's norm and update the weights, or skip the update on all processes alike.

        Returns why the update was skipped (a key of `fspo.train.skipped_updates.CAUSES`), or None if it was made."""
        config = self.config.optim
        rate = learning_rate(self.state.step, config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = self.layout.clip_gradient(self.accelerator, self.model, config.max_grad_norm)
        if cause is None and not np.isfinite(norm):
            cause = "gradient"
        if cause is not None:
            self.state = replace(self.state, skipped=self.state.skipped + 1)
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.is_main:
            counts.add(metric.GRAD_NORM, norm if cause is None else 0.0, cause is None)
            counts.add(metric.LEARNING_RATE, rate)
            counts.add(metric.SKIPPED_UPDATES, cause is not None)
            for name in skipped_updates.CAUSES:
                counts.add(metric.SKIPPED + name, cause == name)
        if cause is not None:
            skipped_updates.stop_if_many(self.state.skipped, config.max_skipped_updates, self.state.step, cause)
        return cause

    def _evaluate(self, done: int) -> dict[str, float]:
        self.reporter.say("evaluation")
        self.collector.seconds = self.reporter.restart_clock()
        with self.reporter.timed("eval"):
            values = evaluate(self.raw, self.collector, self.config, self.state.step)
        self.reporter.write(
            "eval", done, self.state.step, values | {metric.TIME + "eval": self.reporter.seconds["eval"]}
        )
        return values

    def _checkpoint(self) -> None:
        return_freed_memory()
        self.accelerator.wait_for_everyone()
        past, keep = self.versions.past(), self.config.keep_checkpoints
        checkpoint.save(self.run, self.raw, self.optimizer, self.state, keep, past=past, writes=self.is_main)
        self.accelerator.wait_for_everyone()

    def _export(self) -> None:
        checkpoint.export(self.run, self.raw, self.tokenizer, writes=self.is_main)
        self.accelerator.wait_for_everyone()
