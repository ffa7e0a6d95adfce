"""The trainer: rollouts with a frozen behaviour policy, several updates each, every response logged.

One rollout is: prompts -> responses -> rewards -> advantages -> old log-probs -> minibatch updates (on chosen ones a
score pass first) -> rows of the gradient log -> metrics. All noise is a function of the seed and of numbers kept in
the checkpoint, so a resumed run repeats what it lost bit by bit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo import checkpoint, gradlog
from fspo.batches import RolloutBatch, plan_microbatches, plan_minibatches
from fspo.checkpoint import TrainState
from fspo.collect import Collector, give_advantages
from fspo.config import TrainConfig
from fspo.errors import UserError
from fspo.evaluate import evaluate
from fspo.launch import claim_folder, make_accelerator
from fspo.metrics import MetricsFile, Ratios, add_update_rows, finished, live_lemma, strata_sums
from fspo.models import EMBEDDED, check_vocabulary, load_model, load_tokenizer
from fspo.rules import DriftStats
from fspo.scores import Scores
from fspo.tasks import Task, make_task, prompt_order
from fspo.updates import Shard, Updater, log_rows, score_shards
from fspo.warmup import warm_up


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
        self.task = task or make_task(config.task.name, config.task.options)
        source = self._model_source() if model is None else ""
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
        self.optimizer = torch.optim.AdamW(
            [p for p in raw.parameters() if p.requires_grad],
            lr=config.optim.learning_rate,
            betas=(config.optim.beta1, config.optim.beta2),
            weight_decay=config.optim.weight_decay,
        )
        self.raw = raw
        self.state = self._restore()
        self.model, self.optimizer = self.accelerator.prepare(raw, self.optimizer)
        if reference is not None:
            reference = reference.to(self.accelerator.device)
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
        self.metrics = MetricsFile(self.run)
        self.writer = self._writer()
        self._seconds: dict[str, float] = {}

    # -- the run folder ------------------------------------------------------------------------------------------

    def _model_source(self) -> str | Path:
        config = self.config
        if config.model.name_or_path != EMBEDDED:
            return config.model.name_or_path
        if config.task.name != "chain-add":
            raise UserError(
                "the embedded model knows task 'chain-add' alone: name a pretrained model with --model.name_or_path"
            )
        found: Path | None = None
        if self.is_main:  # the others find it in the cache
            found = warm_up(config.warmup, config.task.options)
        self.accelerator.wait_for_everyone()
        return found or warm_up(config.warmup, config.task.options)

    def _restore(self) -> TrainState:
        found = checkpoint.list_checkpoints(self.run) if self.config.resume else []
        state = checkpoint.load(found[-1], self.raw, self.optimizer) if found else TrainState()
        if self.is_main:
            MetricsFile(self.run).keep_before(state.rollout)
            gradlog.discard_from(self.run, state.rollout)
        self.accelerator.wait_for_everyone()
        return state

    def _writer(self) -> gradlog.GradLogWriter:
        scores, info = self.config.log.scores, self.task.example("train", 0).info
        kinds = {int: "int32", float: "float32", str: "string", bool: "bool"}
        exact = scores.mode == "exact"
        width = sum(p.numel() for p in self.raw.parameters() if p.requires_grad) if exact else (scores.width or 0)
        return gradlog.GradLogWriter(
            self.run,
            rank=self.accelerator.process_index,
            width=width if self.config.log.score_every else 0,
            exact=exact,
            metadata={"rule": self.rule.to_dict(), "seed": self.config.seed, "scores": asdict(scores)},
            user_columns={name: kinds.get(type(value), "string") for name, value in info.items()},
        )

    # -- training ------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, float]:
        """Run all rollouts that are left; the last rollout's metrics (or of the last evaluation)."""
        config, accelerator = self.config, self.accelerator
        for warning in config.warnings():
            accelerator.print(f"warning: {warning}")
        if config.trackers:
            accelerator.init_trackers(
                "fspo",
                init_kwargs={"tensorboard": {"purge_step": self.state.step}}
                if "tensorboard" in config.trackers
                else {},
            )
        last: dict[str, float] = {}
        if self.state.rollout == 0 and config.eval.every:
            last = self._evaluate(0)
        bar = tqdm(
            total=config.rollouts,
            initial=self.state.rollout,
            desc=f"train {self.rule.label}",
            unit="rollout",
            disable=not self.is_main,
            dynamic_ncols=True,
        )
        for rollout in range(self.state.rollout, config.rollouts):
            last = self._rollout(rollout, bar)
            done = rollout + 1
            if config.eval.every and (done % config.eval.every == 0 or done == config.rollouts):
                last |= self._evaluate(done)
            every = config.checkpoint_every
            if done == config.rollouts or (every and done % every == 0):
                self._checkpoint()
        bar.close()
        if self.is_main and not (self.run / "model").exists():
            part = self.run / "model.part"
            self.raw.save_pretrained(part)
            self.tokenizer.save_pretrained(part)
            part.rename(self.run / "model")
        accelerator.end_training()
        return last

    def _rollout(self, rollout: int, bar: tqdm) -> dict[str, float]:
        began, config = time.perf_counter(), self.config
        self._seconds = self.collector.seconds = {}
        ratios = Ratios()
        bar.set_postfix_str("sampling")
        batch = self.sample(rollout, ratios)
        with self._timed("old_log_probs"):
            minibatches = [
                self.shards(batch, rows) for rows in plan_minibatches(batch, config.batch.minibatches, config.seed)
            ]
        updates = [(epoch, i) for epoch in range(config.batch.epochs) for i in range(len(minibatches))]
        live: dict[str, float] = {}
        for done, (epoch, i) in enumerate(updates):
            bar.set_postfix_str(f"update {done + 1}/{len(updates)}")
            live |= self.update(batch, minibatches[i], ratios, since=done, epoch=epoch)
        self.writer.flush(rollout)
        self.state = replace(self.state, rollout=rollout + 1)
        values = self._finish(ratios) | live
        values["step_time"] = time.perf_counter() - began
        values |= {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        self._report("train", rollout, values)
        bar.update()
        bar.set_description_str(
            f"train {self.rule.label} reward {values['reward']:.3f} "
            f"clip {values['clip_ratio/region_mean']:.3f} length {values['completions/mean_length']:.0f}"
        )
        return values

    def sample(self, rollout: int, ratios: Ratios) -> RolloutBatch:
        """Sample and verify a rollout, with advantages."""
        config = self.config
        ids = np.arange(rollout * config.batch.prompts, (rollout + 1) * config.batch.prompts)
        indices = prompt_order(self.task.size("train"), config.seed, int(ids[0]), len(ids))
        prompts = self.collector.prompts("train", indices, ids)
        batch = self.collector.collect(
            self.raw, prompts, config.batch.responses, stream="train", rollout=rollout, step=self.state.step
        )
        groups = give_advantages(batch, config.rule.advantage_estimator())
        if not self.is_main:
            return batch  # every process holds the same batch: one of them counts it
        n = len(batch)
        spread = (
            [batch.rewards[batch.prompt_ids == p].std(ddof=1) for p in np.unique(batch.prompt_ids)]
            if n > len(ids)
            else []
        )
        ratios.add("reward", batch.rewards.sum(), n)
        ratios.add("reward_std", sum(spread), len(spread))
        ratios.add("frac_reward_zero_std", groups.num_zero_std_groups, groups.num_groups)
        ratios.add("completions/mean_length", batch.lengths.sum(), n)
        ratios.add("completions/clipped_ratio", batch.truncated.sum(), n)
        ratios.add("verifier/timeout", (batch.reward_status == "timeout").sum(), n)
        ratios.add("verifier/error", (batch.reward_status == "error").sum(), n)
        ratios.add("prompts/too_long", prompts.too_long, len(ids))
        self.state.num_tokens += int(batch.lengths.sum())
        return batch

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
        stats = self._stats(shards, since)
        scored = self._scored(batch.rollout, since)
        scores: dict[int, Scores] = {}
        if scored:
            with self._timed("scores"):
                scores = self._score(batch.rollout, shards)
            if config.log.audit_every and batch.rollout % config.log.audit_every == 0:
                with self._timed("audit"):
                    self._audit(batch, shards)
        with self._timed("update"):
            records = self.updater.accumulate(shards, stats)
            norm = self._step(ratios)
        self._write_rows(
            batch,
            records,
            scores,
            phase="train",
            updates_since_rollout=since,
            times_used=epoch,
            drift=self.rule.drift_per_token(stats),
            drift_source=self.rule.drift_source if self.rule.needs_stats else "none",
        )
        strata: dict[str, np.ndarray] = {}
        for shard, record in records:
            advantages, taken = batch.advantages[shard.micro.rows], scores.get(id(shard))
            add_update_rows(ratios, record | {"advantage": advantages}, config.log.length_edges, moved=since > 0)
            if epoch == 0:
                ratios.add("entropy", np.nansum(shard.entropy), np.isfinite(shard.entropy).sum())
            if config.rule.kl_coef > 0:
                ratios.add("kl", record["kl"].sum(), record["length"].sum())
            if taken is not None and self.rule.level == "sequence":
                _add(strata, self._strata(record, advantages, taken))
        if self.is_main:
            ratios.add("grad_norm", norm)
        self.state = replace(self.state, step=self.state.step + 1)
        if self.rule.needs_stats and self.rule.drift_source == "lagged":
            self.state.lagged = asdict(self.updater.sums([record for _, record in records]))
        return self._live(strata) if scored else {}

    def _stats(self, shards: list[Shard], since: int) -> DriftStats | None:
        if not self.rule.needs_stats:
            return None
        if since == 0:  # every log-ratio is exactly 0 before the first update
            return DriftStats(source=self.rule.drift_source)
        if self.rule.drift_source == "lagged":
            return DriftStats(**(self.state.lagged or {}))
        with self._timed("drift"):
            return self.updater.drift_stats(shards)

    def _step(self, ratios: Ratios) -> float:
        """Clip the gradient and update; a non-finite gradient is skipped on all processes alike."""
        config, accelerator = self.config.optim, self.accelerator
        rate = config.learning_rate * min(1.0, (self.state.step + 1) / max(config.warmup_updates, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = accelerator.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        value = float(norm) if norm is not None else 0.0
        if np.isfinite(value):
            self.optimizer.step()
        else:
            self.state.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self.is_main:
            ratios.add("learning_rate", rate)
            ratios.add("skipped_updates", float(not np.isfinite(value)))
        if self.state.skipped > config.max_skipped_updates:
            raise UserError(
                f"{self.state.skipped} updates had a non-finite gradient: lower optim.learning_rate, raise "
                "optim.warmup_updates, or go back to an earlier checkpoint"
            )
        return value if np.isfinite(value) else 0.0

    def _scored(self, rollout: int, since: int) -> bool:
        log, per_pass = self.config.log, self.config.batch.minibatches
        wanted = {m + per_pass if m < 0 else m for m in log.score_minibatches}
        return bool(log.score_every) and rollout % log.score_every == 0 and since in wanted

    # -- scores, audits, evaluation --------------------------------------------------------------------------------

    def _strata(self, record: dict[str, np.ndarray], advantages: np.ndarray, taken: Scores) -> dict[str, np.ndarray]:
        good = np.array(taken.status) == "ok"
        rows = {name: record[name][good] for name in ("length", "weight", "multiplier")}
        rows["clipped_weight"] = rows["weight"] * rows["multiplier"]
        psi = taken.unit[good].astype(np.float64) * taken.norm[good, None].astype(np.float64)
        return strata_sums(rows | {"advantage": advantages[good]}, psi, self.config.log.length_edges)

    def _live(self, strata: dict[str, np.ndarray]) -> dict[str, float]:
        """T7 on the scored minibatch, over all processes."""
        if self.rule.level != "sequence":
            return {}
        total: dict[str, np.ndarray] = {}
        for part in gather_object([strata]):
            _add(total, part)
        return live_lemma(total, drop=self.rule.outside == "drop")[1] if total else {}

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
        give_advantages(fresh, "rloo" if self.config.batch.responses > 1 else "dr_grpo")
        shards = self.shards(fresh, np.arange(len(fresh)))
        with torch.no_grad():
            records = [(shard, self.updater.records(shard)) for shard in shards if not shard.micro.dummy]
        self._write_rows(fresh, records, self._score(fresh.rollout, shards), phase="audit", drift_source="none")

    def _score(self, rollout: int, shards: list[Shard]) -> dict[int, Scores]:
        """Scores of the responses with a gradient, by the shard's id()."""
        log = self.config.log
        found = score_shards(
            self.raw,
            shards,
            temperature=self.config.sampling.temperature,
            config=log.scores,
            seed=self.config.seed,
            rollout=rollout,
        )
        return {id(shards[i]): scores for i, scores in found.items()}

    def _write_rows(
        self,
        batch: RolloutBatch,
        records: list[tuple[Shard, dict[str, np.ndarray]]],
        scores: dict[int, Scores],
        **shared: Any,
    ) -> None:
        step = self.state.step
        common = {
            "step": step,
            "policy_version": step,
            "rule": self.rule.label,
            "updates_since_rollout": 0,
            "times_used": 0,
        }
        for shard, record in records:
            self.writer.append(
                log_rows(
                    batch,
                    shard.micro.rows,
                    record,
                    shared=common | shared,
                    entropy=shard.entropy,
                    old_log_prob=shard.old.double().sum(1).cpu().numpy(),
                    scores=scores.get(id(shard)),
                )
            )

    def _evaluate(self, done: int) -> dict[str, float]:
        with self._timed("eval"):
            values = evaluate(
                self.raw,
                self.collector,
                prompts=self.config.eval.prompts,
                temperature=self.config.eval.temperature,
                step=self.state.step,
                length_edges=self.config.log.length_edges,
            )
        self._report("eval", done, values)
        return values

    # -- reports and checkpoints ------------------------------------------------------------------------------------

    def _finish(self, ratios: Ratios) -> dict[str, float]:
        """Add the ratios of all processes and divide once."""
        merged = Ratios()
        for pairs in gather_object([ratios.pairs()]):
            merged.merge(pairs)
        return finished(merged, self.config.log.length_edges) | {"num_tokens": self.state.num_tokens}

    def _report(self, phase: str, rollout: int, values: dict[str, float]) -> None:
        if self.is_main:
            self.metrics.write({"rollout": rollout, "step": self.state.step, "phase": phase, **values})
        self.accelerator.log(values, step=self.state.step)

    def _checkpoint(self) -> None:
        self.accelerator.wait_for_everyone()
        if self.is_main:
            checkpoint.save(self.run, self.raw, self.optimizer, self.state, self.config.keep_checkpoints)
        self.accelerator.wait_for_everyone()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began


def _add(total: dict[str, np.ndarray], part: dict[str, np.ndarray]) -> None:
    for name, value in part.items():
        total[name] = total[name] + value if name in total else value
