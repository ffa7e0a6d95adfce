"""The trainer: rollouts with a frozen behaviour policy, several updates each, every response logged.

One rollout is: prompts -> responses -> rewards -> advantages -> old log-probs -> minibatch updates (on chosen ones a
score pass first) -> rows of the gradient log -> metrics. All noise is a function of the seed and of numbers kept in
the checkpoint, so a resumed run repeats what it lost bit by bit.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object, set_seed
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo import checkpoint, gradlog, guard
from fspo.adaptive import OnlineRule
from fspo.batches import RolloutBatch, plan_microbatches, plan_minibatches
from fspo.checkpoint import TrainState
from fspo.collect import Collector, give_advantages, write_samples
from fspo.config import TrainConfig
from fspo.draw import draw
from fspo.errors import UserError
from fspo.evaluate import evaluate
from fspo.files import writing
from fspo.launch import claim_folder, init_trackers, make_accelerator, model_source, save_config
from fspo.metrics import MetricsFile, Ratios, add_update_rows, finished
from fspo.models import check_vocabulary, load_model, load_tokenizer
from fspo.optimizers import make_optimizer, optimizer_step, set_learning_rate
from fspo.rules import DriftStats
from fspo.score_log import ScoreLog
from fspo.score_sites import whole
from fspo.scores import Scores
from fspo.sharding import is_sharded, shard_frozen, spread
from fspo.tasks import Task, make_task, prompt_order
from fspo.updates import Shard, Updater


class Trainer:
    """Trains a policy under one clip rule and logs what the rule did.

    Parameters
    ----------
    config : TrainConfig
    model, tokenizer, task : optional
        Use these instead of those that the configuration names.

    Raises
    ------
    UserError
        For a run folder that holds another run, a wrong number of processes, or anything that cannot be loaded.
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
        if config.threads:
            torch.set_num_threads(config.threads)
        self.accelerator = make_accelerator(config)
        self.is_main = self.accelerator.is_main_process
        self.rule = config.rule.rule()
        claim_folder(self.accelerator, config)
        set_seed(config.seed)  # for weights that a checkpoint lacks; nothing else draws from torch
        self.task = task or make_task(config.task.name, config.task.options)
        if config.eval.every and self.task.size("eval") == 0:
            raise UserError("the task holds out no example: set eval.every to 0, or give it held-out rows")
        source = model_source(config, self.accelerator) if model is None else ""
        self.tokenizer = tokenizer or load_tokenizer(config.model.tokenizer or source)
        raw = model or load_model(
            source,
            config.model.dtype,
            attn_implementation=config.model.attn_implementation,
            gradient_checkpointing=config.model.gradient_checkpointing,
            lora=config.model.lora,
            seed=config.seed,
        )
        check_vocabulary(raw, self.tokenizer)
        raw.train()  # dropout is off; gradient checkpointing works in train mode only
        reference = copy.deepcopy(raw).requires_grad_(False) if config.rule.kl_coef > 0 else None
        self.optimizer = make_optimizer(
            raw.parameters(), config.optim, accelerated=self.accelerator.device.type != "cpu"
        )
        self.raw = raw
        self.model, self.optimizer = self.accelerator.prepare(raw, self.optimizer)
        self._check_sharded()
        self.state = self._restore()
        self.online = OnlineRule(self.rule, self.state.online)
        if reference is not None:
            reference = shard_frozen(self.accelerator, reference)
        self.updater = Updater(
            self.accelerator,
            self.model,
            self.rule,
            config.rule.objective(),
            config.sampling.temperature,
            pad_token_id=int(self.tokenizer.pad_token_id),  # type: ignore[arg-type]
            padding_side=config.batch.padding_side,
            entropy=config.log.entropy,
            reference=reference,
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
        self.metrics = MetricsFile(self.run)
        self._seconds: dict[str, float] = {}
        self._bar: tqdm | None = None
        self._said_too_long = False
        save_config(self.accelerator, config)

    def _check_sharded(self) -> None:
        log = self.config.log
        if is_sharded(self.raw) and (log.coverage_every or log.scores.mode == "exact" or log.scores.microbatch_tokens):
            raise UserError(
                "under FSDP2 every process must run the same passes over whole microbatches: set log.coverage_every to "
                "0, log.scores.mode to sketch and log.scores.microbatch_tokens to null"
            )

    def _restore(self) -> TrainState:
        found = checkpoint.list_checkpoints(self.run) if self.config.resume else []
        state = checkpoint.load(found[-1], self.raw, self.optimizer) if found else TrainState()
        if self.is_main and self.config.resume:
            MetricsFile(self.run).keep_before(state.rollout)
            gradlog.discard_from(self.run, state.rollout)
        self.accelerator.wait_for_everyone()
        return state

    # -- training ------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, float]:
        """Run all rollouts that are left; the last rollout's metrics (and the last evaluation's)."""
        config = self.config
        if self.is_main:
            for warning in config.warnings():
                tqdm.write(f"warning: {warning}", file=sys.stderr)
        init_trackers(self.accelerator, config, self.state.step)
        with tqdm(
            total=config.rollouts,
            initial=self.state.rollout,
            desc=f"train {self.rule.label}",
            unit="rollout",
            disable=not self.is_main,
            dynamic_ncols=True,
        ) as self._bar:  # closed before an error is printed: it gets a line of its own
            last = self._rollouts()
        self.accelerator.end_training()
        return last

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
            if done == config.rollouts:  # before the checkpoint: a kill in between repeats both
                self._export()
            every = config.checkpoint_every
            if done == config.rollouts or (every and done % every == 0):
                self._checkpoint()
        if not (self.run / checkpoint.EXPORT).exists():
            self._export()
        return last

    def _rollout(self, rollout: int) -> dict[str, float]:
        began, config = time.perf_counter(), self.config
        self._seconds = self.collector.seconds = {}
        ratios = Ratios()
        batch = self.sample(rollout, ratios)
        if self.is_main:
            write_samples(self.run, batch, self.tokenizer, config.log.samples)
        self._say("old log-probs")
        with self._timed("old_log_probs"):
            minibatches = [
                self.shards(batch, rows) for rows in plan_minibatches(batch, config.batch.minibatches, config.seed)
            ]
        updates = [(epoch, i) for epoch in range(config.batch.epochs) for i in range(len(minibatches))]
        live: dict[str, float] = {}
        for done, (epoch, i) in enumerate(updates):
            self._say(f"update {done + 1}/{len(updates)}")
            live |= self.update(batch, minibatches[i], ratios, since=done, epoch=epoch)
        self.log.flush(rollout)
        self.online.end_rollout()
        online = self.online.state if self.rule.adapt != "none" else None
        self.state = replace(self.state, rollout=rollout + 1, online=online)
        values = self._finish(ratios) | live
        values["step_time"] = time.perf_counter() - began
        values |= {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        self._report("train", rollout, values)
        if self._bar is not None:
            self._bar.set_description_str(
                f"train {self.rule.label} reward {values['reward']:.3f} "
                f"clip {values.get('clip_ratio/region_mean', 0.0):.3f} length {values['completions/mean_length']:.0f}",
                refresh=False,
            )
            self._bar.update()
        return values

    def sample(self, rollout: int, ratios: Ratios) -> RolloutBatch:
        """Sample and verify a rollout, with advantages."""
        config, position = self.config, self.state.prompts
        drawn = draw(
            self.collector,
            self.raw,
            config,
            rollout=rollout,
            step=self.state.step,
            position=rollout * config.batch.prompts if position is None else position,
            progress=self._sampling_progress,
        )
        status = drawn.batch.reward_status
        if (status != "ok").all():
            raise UserError(
                f"the reward of all {len(status)} responses of rollout {rollout} failed ({status[0]}), so nothing can "
                "be learned from it: correct the reward function (see its message above) and go on with --resume true"
            )
        tokens = self.state.num_tokens + int(drawn.batch.total_lengths.sum())
        self.state = replace(self.state, num_tokens=tokens, prompts=drawn.position)
        if self.is_main:  # every process holds the same batch: one of them counts it
            drawn.count(ratios, config)
            if drawn.too_long and not self._said_too_long:
                self._said_too_long = True
                tqdm.write(
                    f"warning: {drawn.too_long} of {drawn.passed} prompts exceed task.max_prompt_tokens="
                    f"{config.task.max_prompt_tokens}: passed over, counted as prompts/too_long",
                    file=sys.stderr,
                )
        return drawn.batch

    def shards(self, batch: RolloutBatch, rows: np.ndarray) -> list[Shard]:
        """This process's shards of one minibatch, with old log-probs under the present parameters."""
        needed = batch.advantages != 0 if self.config.rule.kl_coef == 0 else np.ones(len(batch), bool)
        plan = plan_microbatches(
            rows,
            batch.total_lengths,
            needed,
            self.config.batch.tokens,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
        )
        return [self.updater.shard(batch, micro) for micro in plan]

    def update(
        self, batch: RolloutBatch, shards: list[Shard], ratios: Ratios, *, since: int, epoch: int
    ) -> dict[str, float]:
        """One optimizer update on a minibatch, with its score pass, log rows and metrics."""
        config = self.config
        stats, step = self._stats(shards, since), self.state.step
        scored = self.log.wanted(batch.rollout, since)
        scores: dict[int, Scores] = {}
        if scored:
            with self._timed("scores"):
                scores = self.log.take(batch.rollout, shards)
        measured: dict[str, float] = {}
        if self.log.measured(batch.rollout, since):
            with self._timed("coverage"):
                measured = self.log.measure_sketch(batch, shards)
        if self.log.audited(batch.rollout, since):
            with self._timed("audit"):
                self._audit(batch, shards)
        rule = self.online.rule
        with self._timed("update"):
            records = self.updater.accumulate(shards, stats, rule)
            cause = self._step(ratios, guard.find(self.accelerator, records))
        if cause is None and rule.adapt != "none" and since > 0:  # before the first update S is 0
            self._learn(records, stats)
        for shard, record in records:
            A = batch.advantages[shard.micro.rows]
            record["drift"] = np.broadcast_to(rule.drift_per_token(stats, A), A.shape).astype(np.float64)
        self.log.rows(
            batch,
            records,
            scores,
            step=step,
            phase="train",
            updates_since_rollout=since,
            times_used=epoch,
            drift_source=self.rule.drift_source if self.rule.needs_stats else "none",
        )
        for shard, record in records:
            rows = record | {"advantage": batch.advantages[shard.micro.rows]}
            add_update_rows(ratios, rows, config.log.length_edges, moved=since > 0)
            if epoch == 0 and config.log.entropy:
                ratios.add("entropy", (shard.entropy * record["length"]).sum(), record["length"].sum())
            if config.rule.kl_coef > 0:
                ratios.add("kl", record["kl"].sum(), record["length"].sum())
            if rule.needs_stats and since > 0:
                ratios.add("drift_per_token", record["drift"].sum(), len(record["drift"]))
        if self.is_main and rule.adapt != "none":
            for name in ("range_lo", "range_hi", "gamma"):
                if (value := getattr(rule, name)) is not None:
                    ratios.add(f"rule/{name}", value)
        self.state = replace(self.state, step=step + 1)
        if cause != "loss" and self.rule.needs_stats and self.rule.drift_source == "lagged":
            self.state = replace(self.state, lagged=asdict(self.updater.sums(records)))
        return measured | self.log.live(batch, records, scores) if scored else {}

    def _learn(self, records: list[tuple[Shard, dict[str, np.ndarray]]], stats: DriftStats | None) -> None:
        """Show the update's rows, of all processes, to the band that follows its target: alike on each of them."""
        parts = gather_object(
            [
                (shard.micro.rows, record["log_ratio"], record["length"], shard.advantages.cpu().numpy())
                for shard, record in records
            ]
        )
        rows, S, n, A = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rows)  # however they were cut into microbatches and processes
        self.online.observe(S[order], n[order], A[order], stats)

    def _stats(self, shards: list[Shard], since: int) -> DriftStats | None:
        if not self.rule.needs_stats:
            return None
        if since == 0:  # every log-ratio is exactly 0 before the first update
            return DriftStats(source=self.rule.drift_source)
        if self.rule.drift_source == "lagged":
            return DriftStats(**(self.state.lagged or {}))
        with self._timed("drift"):
            return self.updater.drift_stats(shards)

    def _step(self, ratios: Ratios, cause: str | None) -> str | None:
        """Clip the gradient and update, or skip the update on all processes alike; why it was skipped."""
        config, accelerator = self.config.optim, self.accelerator
        rate = config.learning_rate * min(1.0, (self.state.step + 1) / max(config.warmup_updates, 1))
        set_learning_rate(self.optimizer, rate)
        spread(self.raw)
        norm = accelerator.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        value = float(whole(norm)) if norm is not None else 0.0
        if cause is None and not np.isfinite(value):
            cause = "gradient"
        if cause is None:
            optimizer_step(self.optimizer, config.name, self.config.seed, self.state.step)
        else:
            self.state = replace(self.state, skipped=self.state.skipped + 1)
        self.optimizer.zero_grad(set_to_none=True)
        if self.is_main:
            ratios.add("grad_norm", value if cause is None else 0.0, cause is None)
            ratios.add("learning_rate", rate)
            ratios.add("skipped_updates", cause is not None)
            for name in guard.CAUSES:
                ratios.add(f"skipped/{name}", cause == name)
        if cause is not None:
            guard.stop_if_many(self.state.skipped, config.max_skipped_updates, self.state.step, cause)
        return cause

    # -- audits, evaluation, reports, checkpoints ------------------------------------------------------------------

    def _audit(self, batch: RolloutBatch, shards: list[Shard]) -> None:
        """Log fresh responses to the scored minibatch's prompts at the parameters that it is scored at.

        The minibatch is at first use, so its weighted gradient and the fresh one (w = 1) estimate the same update
        (docs/theory.md section 5, "Which truth").
        """
        rows = np.concatenate(gather_object([np.concatenate([s.micro.rows for s in shards])]))
        ids = np.unique(batch.prompt_ids[rows])
        first, count = int(ids.min()), int(ids.max() - ids.min()) + 1
        indices = prompt_order(self.task.size("train"), self.config.seed, first, count)[ids - first]
        fresh = self.collector.collect(
            self.raw,
            self.collector.prompts("train", indices, ids),
            self.config.batch.responses,
            stream="audit",
            rollout=batch.rollout,
            step=self.state.step,
        )
        give_advantages(fresh, "rloo" if self.config.batch.responses > 1 else "dr_grpo", self.config.batch.drop)
        self.log.fresh_rows(fresh, self.shards(fresh, np.arange(len(fresh))), self.state.step)

    def _evaluate(self, done: int) -> dict[str, float]:
        self._say("evaluation")
        self._seconds = self.collector.seconds = {}
        with self._timed("eval"):
            values = evaluate(
                self.raw,
                self.collector,
                prompts=self.config.eval.prompts,
                temperature=self.config.eval.temperature,
                step=self.state.step,
                length_edges=self.config.log.length_edges,
            )
        self._report("eval", done, values | {"time/eval": self._seconds["eval"]})
        return values

    def _finish(self, ratios: Ratios) -> dict[str, float]:
        """Add the ratios of all processes and divide once."""
        merged = Ratios()
        for pairs in gather_object([ratios.pairs()]):
            merged.merge(pairs)
        return finished(merged, self.config.log.length_edges) | {"num_tokens": self.state.num_tokens}

    def _report(self, phase: str, rollout: int, values: dict[str, float]) -> None:
        if self.is_main:
            self.metrics.write({"rollout": rollout, "step": self.state.step, "phase": phase, **values})
        with writing(self.run):
            self.accelerator.log({k: v for k, v in values.items() if np.isfinite(v)}, step=self.state.step)

    def _checkpoint(self) -> None:
        self.accelerator.wait_for_everyone()
        keep = self.config.keep_checkpoints
        checkpoint.save(self.run, self.raw, self.optimizer, self.state, keep, writes=self.is_main)
        self.accelerator.wait_for_everyone()

    def _export(self) -> None:
        checkpoint.export(self.run, self.raw, self.tokenizer, writes=self.is_main)
        self.accelerator.wait_for_everyone()

    def _say(self, what: str) -> None:
        """Name the present work in the progress bar; logs that are no terminal are spared."""
        if self._bar is not None:
            self._bar.set_postfix_str(what, refresh=sys.stderr.isatty())

    def _sampling_progress(self, total: int) -> Callable[[int, int], None]:
        total = -(-total // self.accelerator.num_processes)
        done = 0

        def progress(responses: int, tokens: int) -> None:
            nonlocal done
            done += responses
            self._say(f"sampling {done}/{total}")

        self._say(f"sampling 0/{total}")
        return progress

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began
