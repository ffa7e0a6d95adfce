"""TRL's GRPOTrainer with the gradient log: the base class of FSPOTrainer and of the trainers that `observe` makes."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from fspo.integrations.trl_log import PREFIX, TrlLog, keep_steps_before
from fspo.objective import Mismatch, Records
from fspo.policy.scores import Scores, score
from fspo.rules import Rule

FORWARD = [
    name
    for name in inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    if name
    not in (
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
        "compute_aux_loss",
    )
]  # fmt: skip
"""Names of the model's inputs beside text (images and the like), which TRL passes to the model from its batches."""


class Begin(TrainerCallback):
    """Callback that prepares the gradient log at the start of training and flushes it at the end."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Prepare the gradient log when training begins."""
        self.trainer.begin_log(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the last rollout's log rows when training ends."""
        self.trainer.log_rows.flush()


class LoggedTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` that writes the gradient log; it hands each response's reward and number on to the loss."""

    args: GRPOConfig
    model: torch.nn.Module  # type: ignore[assignment]
    score_every: int = 0

    def open_log(self, rule: Rule | None, correction: Rule | None) -> None:
        """Make the log's writer.

        ``rule`` and ``correction`` are those that the loss applies. Each is None if the loss applies none, or one that
        no rule of this project reproduces.
        """
        self._rewards: Tensor | None = None
        self.log_rows = TrlLog(
            str(self.args.output_dir),
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
            rule=rule,
            correction=correction,
            label=f"trl-{self.loss_type}",
            metadata={"seed": self.args.seed},
            model=self.accelerator.unwrap_model(self.model) if self.score_every else None,
        )
        self.add_callback(Begin(self))

    def begin_log(self, step: int) -> None:
        """Remove the log rows of updates >= ``step``, which a resumed run repeats; set the next rollout's number."""
        output = str(self.args.output_dir)
        if self.accelerator.is_main_process:
            keep_steps_before(output, step)
        self.accelerator.wait_for_everyone()
        self.log_rows.rollout = keep_steps_before(output, step) - 1

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # A run resumed from this checkpoint repeats no earlier update, so the rows of earlier updates must be on disk.
        self.log_rows.flush(keep=True)
        super()._save_checkpoint(model, trial)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._rewards = total.masked_fill(rewards.isnan().all(1), torch.nan)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.log_rows.begin_rollout(self.state.global_step)
            device, rows, rank = output["completion_ids"].device, len(output["completion_ids"]), self.log_rows.rank
            output |= self.log_rows.ids(rows, int(self.num_generations or 1), device)
            rewards = torch.full((rows,), torch.nan, device=device)
            if self._rewards is not None:
                rewards = self._rewards[rank * rows : (rank + 1) * rows].float()
            output[PREFIX + "reward"], output[PREFIX + "truncated"] = rewards, self._truncated(output)
        return output

    def _truncated(self, output: dict[str, Any]) -> Tensor:
        """Return a mask of truncated responses.

        They are those whose last token is neither an end nor a pad token, and those of which TRL masks all tokens.
        """
        length = output["completion_mask"].sum(1)
        last = output["completion_ids"].gather(1, (length - 1).clamp(min=0)[:, None])[:, 0]
        ends = torch.tensor([*self.eos_token_ids, self._tokenizer.pad_token_id], device=last.device)
        return (length == 0) | ~torch.isin(last, ends)

    def log_microbatch(
        self,
        inputs: dict[str, Any],
        records: Records,
        entropy: Tensor | None,
        scores: Scores | None,
        tokens: dict[str, list[np.ndarray]] | None = None,
    ) -> None:
        """Add the rows of one microbatch to the gradient log.

        Parameters
        ----------
        inputs : dict
            TRL's microbatch.
        entropy : Tensor (B,), optional
            Sum of the policy's entropy over a response's tokens, nats.
        tokens : dict, optional
            Columns of token log-ratios (`fspo.objective.token_columns`).
        """
        if PREFIX + "response_id" not in inputs:  # responses of an evaluation are not logged
            return
        first_pass = self.args.steps_per_generation or self.args.gradient_accumulation_steps
        self.log_rows.append(
            inputs,
            records,
            step=self.state.global_step,
            times_used=self._step % (first_pass * self.num_iterations) // first_pass,
            entropy=None if entropy is None else entropy / records.length.clamp(min=1),
            scores=scores,
            tokens=tokens,
        )

    def take_scores(self, inputs: dict[str, Any]) -> Scores | None:
        """Return the scores of a microbatch's responses, or None if none are taken at this update.

        They are taken at the last update of the first pass over a rollout, in every ``score_every``-th rollout.
        """
        log = self.log_rows
        first_pass = self.args.steps_per_generation or self.args.gradient_accumulation_steps
        chosen = max(first_pass // self.args.gradient_accumulation_steps, 1) - 1
        if not self.score_every or log.rollout % self.score_every or self.state.global_step - log.start_step != chosen:
            return None
        if any(inputs.get(name) is not None for name in FORWARD):
            warnings.warn("the score pass reads text alone: no scores of batches with images", stacklevel=2)
            return None
        mask = loss_mask(inputs)
        return score(
            self.accelerator.unwrap_model(self.model),
            {
                "input_ids": torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
                "attention_mask": torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
                "response_mask": torch.cat([torch.zeros_like(inputs["prompt_mask"], dtype=torch.bool), mask], 1),
            },
            self.temperature,
            config=log.scores,
            seed=self.args.seed,
            rollout=log.rollout,
        )


def mismatch(batch: dict[str, Any], old: Tensor) -> Mismatch | None:
    """Return the mismatch between the trainer's old log-probabilities ``old`` (B, T), nats, and the sampler's; None if
    the batch has no log-probabilities of the sampler.

    TRL sends the trainer's weights to the sampler before every generation, so the staleness D is 0.
    """
    sampled = batch.get("sampling_per_token_logps")
    return None if sampled is None else Mismatch.of(old, sampled, loss_mask(batch), version=old)


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """Return the mask of the loss, bool (B, T): completion tokens except those that tools wrote."""
    mask = batch["completion_mask"].bool()
    return mask if batch.get("tool_mask") is None else mask & batch["tool_mask"].bool()
