"""TRL's `GRPOTrainer` with a clip rule: TRL generates, rewards and optimises, and `fspo.objective` gives the loss.

>>> from fspo.integrations.trl import FSPOConfig, FSPOTrainer
>>> args = FSPOConfig("out", rule="fspo", steps_per_generation=4)
>>> FSPOTrainer(model, reward_funcs=reward, args=args, train_dataset=data).train()

The gradient log of the run is written under ``output_dir``; ``python -m analysis out`` analyses it.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from fspo.base.errors import UserError
from fspo.integrations.trl_log import PREFIX, TrlLog, keep_steps_before
from fspo.integrations.trl_memory import UpdateMemory
from fspo.integrations.trl_options import FSPOConfig, installed_version
from fspo.objective import Records, denominator_for, objective
from fspo.policy.scores import Scores, score
from fspo.rules import Rule

__all__ = ["FSPOConfig", "FSPOTrainer"]

_FORWARD = [
    name
    for name in inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    if name
    not in (
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
        "compute_aux_loss",
    )
]  # fmt: skip
"""Names of further model inputs (images and the like), which TRL passes from its batches to the model."""


class _Begin(TrainerCallback):
    """Callback that prepares the gradient log at the start of training and flushes it at the end."""

    def __init__(self, trainer: FSPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.begin_log(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.log_rows.flush()


class FSPOTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` with the loss of a clip rule; it also writes the gradient log.

    The loss of an update is ``-sum(terms) / denominator`` over its microbatches and processes. The denominator is
    that of the generation batch, scaled to one update, as TRL's per-token normaliser is. So it does not depend on
    which responses share a microbatch.

    Parameters
    ----------
    args : FSPOConfig
    others
        As in `trl.GRPOTrainer`.

    Raises
    ------
    UserError
        If ``args`` is no FSPOConfig, its options would keep the rule from applying, or ``output_dir`` holds the log of
        another run.
    """

    args: FSPOConfig
    model: torch.nn.Module  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs).arguments.get("args")
        if not isinstance(config, FSPOConfig):
            raise UserError("FSPOTrainer takes its rule from args: pass args=FSPOConfig(...), not a GRPOConfig")
        config.check()
        super().__init__(*args, **kwargs)
        self.rule, self.objective_config = config.clip_rule(), config.objective()
        self._rewards: Tensor = torch.empty(0)
        self.memory = UpdateMemory(self.rule)
        model = self.accelerator.unwrap_model(self.model) if config.score_every else None
        self.log_rows = TrlLog(
            str(config.output_dir),
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
            rule=self.rule,
            metadata={"seed": config.seed, "trainer": f"trl {installed_version('trl')}"},
            model=model,
        )
        self.add_callback(_Begin(self))

    # -- methods that TRL calls --------------------------------------------------------------------------------------

    def begin_log(self, step: int) -> None:
        """Remove log rows that a resumed run will repeat, and set the rollout number; ``step``: updates done."""
        output = str(self.args.output_dir)
        if self.accelerator.is_main_process:
            keep_steps_before(output, step)
        self.accelerator.wait_for_everyone()
        self.log_rows.rollout = keep_steps_before(output, step) - 1

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.log_rows.flush(keep=True)  # before the checkpoint, which assumes these rows on disk
        if self.rule.adapt != "none" and self.args.should_save:
            self.memory.save(Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}")
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.rule.adapt != "none" and checkpoint is not None:
            self.memory.load(checkpoint)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._rewards = total.masked_fill(rewards.isnan().all(1), torch.nan)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        mask = _mask(output)
        local = torch.tensor(int(denominator_for(self.objective_config, mask)), device=mask.device)
        output[PREFIX + "denominator"] = self._sum(local)
        if self.model.training:
            self.log_rows.begin_rollout(self.state.global_step)
            self.memory.begin_rollout()
            rows, rank = len(mask), self.accelerator.process_index
            output |= self.log_rows.ids(rows, int(self.num_generations or 1), mask.device)
            output[PREFIX + "reward"] = self._rewards[rank * rows : (rank + 1) * rows].float()
            output[PREFIX + "truncated"] = self._truncated(output)
        return output

    def _truncated(self, output: dict[str, Any]) -> Tensor:
        """Return which responses were truncated: the last token is no end token, or TRL has masked the response out."""
        length = output["completion_mask"].sum(1)
        last = output["completion_ids"].gather(1, (length - 1).clamp(min=0)[:, None])[:, 0]
        ends = torch.tensor([*self.eos_token_ids, self._tokenizer.pad_token_id], device=last.device)
        return (length == 0) | ~torch.isin(last, ends)

    # -- the loss ----------------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        training = self.model.training
        width = inputs["completion_ids"].shape[1]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        mask = _mask(inputs)
        scores = self._score(inputs, ids, attention, mask) if training else None
        new, entropies, aux_loss = self._get_per_token_logps_and_entropies(
            model,
            ids,
            attention,
            width,
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in _FORWARD},
        )
        old = inputs.get("old_per_token_logps")
        old = new.detach() if old is None else old
        accumulation = self.current_gradient_accumulation_steps if training else 1
        since = self.state.global_step - self.log_rows.start_step
        rule = self.memory.online.rule
        loss, records = objective(
            new,
            old,
            mask,
            inputs["advantages"],
            rule,
            self.objective_config,
            m=self.memory.centre(inputs["advantages"]),
            denominator=self._denominator(inputs, mask, accumulation),
            ref=inputs.get("ref_per_token_logps"),
        )
        if aux_loss is not None:
            loss = loss + self.router_aux_loss_coef * aux_loss / accumulation
            mean = self._sum(aux_loss.detach()) / self.accelerator.num_processes
            self._metrics["train" if training else "eval"]["aux_loss"].append(mean.item())
        entropy = torch.where(mask, entropies.detach().float(), 0.0).sum(1)  # type: ignore[union-attr]
        advantages = inputs["advantages"].double().cpu().numpy()
        self._report("train" if training else "eval", records, entropy, rule)
        if training and PREFIX + "response_id" in inputs:
            if self.memory.needed:
                self.memory.add(inputs[PREFIX + "response_id"].cpu().numpy(), records, advantages)
                if self.accelerator.sync_gradients:  # the update's last microbatch
                    self.memory.end_update(moved=since > 0)
            sampled = inputs.get("sampling_per_token_logps")
            engine = None
            if sampled is not None:  # vLLM gives NaN where it has no log-probability
                engine = torch.where(mask, torch.nan_to_num((old - sampled).double(), nan=0.0), 0.0).sum(1)
            self.log_rows.append(
                inputs,
                records,
                step=self.state.global_step,
                times_used=self._step % self.args.generate_every // self.args.first_pass,
                entropy=entropy / records.length.clamp(min=1),
                engine_log_ratio=engine,
                scores=scores,
            )
        return loss

    def _sum(self, local: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return cast(Tensor, self.accelerator.reduce(local, "sum"))

    def _denominator(self, inputs: dict[str, Any], mask: Tensor, accumulation: int) -> float:
        total = inputs.get(PREFIX + "denominator")
        if not self.model.training or total is None:
            return denominator_for(self.objective_config, mask) * accumulation
        share = accumulation / self.args.first_pass  # share of one update in the generation batch
        return float(total) / self.accelerator.num_processes * share

    def _score(self, inputs: dict[str, Any], ids: Tensor, attention: Tensor, mask: Tensor) -> Scores | None:
        """Take scores at the last update of the first pass in every score_every-th rollout; else return None."""
        every, log = self.args.score_every, self.log_rows
        chosen = max(self.args.first_pass // self.args.gradient_accumulation_steps, 1) - 1
        if not every or log.rollout % every or self.state.global_step - log.start_step != chosen:
            return None
        if any(inputs.get(name) is not None for name in _FORWARD):
            raise UserError("the score pass reads text alone: set score_every=0 for batches with images")
        response = torch.cat([torch.zeros_like(inputs["prompt_mask"], dtype=torch.bool), mask], 1)
        return score(
            self.accelerator.unwrap_model(self.model),
            {"input_ids": ids, "attention_mask": attention, "response_mask": response},
            self.temperature,
            config=log.scores,
            seed=self.args.seed,
            rollout=log.rollout,
        )

    def _report(self, mode: str, records: Records, entropy: Tensor, rule: Rule) -> None:
        """Add metrics under TRL's names; clip shares are of responses (tokens for token rules) with A != 0."""
        found = self._metrics[mode]
        parts = [
            records.cut_low, records.cut_high, records.cut_dual, records.count, records.band_accept,
            torch.ones_like(records.length), records.capped, records.kl, entropy, records.length,
        ]  # fmt: skip
        sums = torch.stack([part.sum().double() for part in parts])
        low, high, dual, count, accept, rows, capped, kl, entropies, tokens = self._sum(sums).tolist()
        for name, cut in (("low", low), ("high", high), ("region", low + high), ("dual", dual)):
            found[f"clip_ratio/{name}_mean"].append(cut / max(count, 1.0))
        found["fspo/band_acceptance"].append(accept / rows)
        found["fspo/capped"].append(capped / rows)
        found["entropy"].append(entropies / max(tokens, 1.0))
        if self.beta != 0:
            found["kl"].append(kl / max(tokens, 1.0))
        if self.rule.needs_stats:
            found["fspo/drift_per_token"].append(records.drift.mean().item())
        if rule.adapt != "none":
            for name in ("range_lo", "range_hi", "gamma"):
                if (value := getattr(rule, name)) is not None:
                    found[f"rule/{name}"].append(value)


def _mask(batch: dict[str, Any]) -> Tensor:
    """Return the mask of the loss, bool (B, T): completion tokens except those that tools wrote."""
    mask = batch["completion_mask"].bool()
    return mask if batch.get("tool_mask") is None else mask & batch["tool_mask"].bool()
