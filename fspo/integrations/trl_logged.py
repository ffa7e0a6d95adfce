"""The gradient log of a trainer of TRL: the mixin of FSPOTrainer and of the trainers that `observe` makes.

The log lies under ``output_dir/gradlog`` and has one row for each response and update."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from fspo.base.command_line import next_step
from fspo.base.errors import UserError
from fspo.base.files import whole_file
from fspo.config import ScoreConfig
from fspo.gradlog import GradLogWriter
from fspo.gradlog.files import log_paths, rollout_of
from fspo.integrations.trl_rules import correction_of
from fspo.objective import Mismatch, Records
from fspo.objective.records import token_mean
from fspo.policy.score_hooks import ScoreHooks
from fspo.policy.scores import Scores, score
from fspo.rules import Rule
from fspo.train.log_rows import ResponseColumns, UpdateColumns, log_rows

_SCORES = ScoreConfig()
PREFIX = "fspo_"
"""Prefix of the names of the tensors that this project adds to TRL's batches; TRL shuffles them with the responses."""
REPLACED = (
    *("_calculate_rewards", "_compute_loss", "_generate_and_score_completions"),
    *("_get_per_token_logps_and_entropies", "_load_optimizer_and_scheduler", "_save_checkpoint"),
)
"""Private methods of TRL's trainers that this project extends or calls."""
_Trainer = GRPOTrainer if TYPE_CHECKING else object  # the mixin stands before GRPOTrainer, or RLOOTrainer


def missing_methods(trainer: type = GRPOTrainer) -> list[str]:
    """Return the names of the methods of ``trainer`` that this project replaces and that the installed TRL lacks."""
    return [name for name in REPLACED if not hasattr(trainer, name)]


def model_inputs(batch: dict[str, Any]) -> dict[str, Any]:
    """Return by name what TRL passes to the model from its ``batch`` beside the text, such as images; None for an input
    that the batch lacks."""
    text = {"self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"}
    options = {"compute_entropy", "compute_aux_loss"}
    parameters = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    return {name: batch.get(name) for name in parameters if name not in text | options}


class Begin(TrainerCallback):
    """Callback that prepares the gradient log when training starts, and writes its last rollout when training ends."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Prepare the gradient log when training begins: remove rows that a resumed run repeats."""
        self.trainer.begin_log(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the last rollout's log rows when training ends, and print the next step."""
        self.trainer.log_writer.flush(self.trainer.log_rollout)
        if state.is_world_process_zero:
            print(next_step("doctor", [args.output_dir]))


class LoggedTrainer(_Trainer):
    """Mixin by which TRL's trainers write the gradient log; it hands reward and number of each response to the loss.

    Attributes
    ----------
    log_rule, log_correction : Rule, optional
        The clip rule of the loss, and TRL's correction of vLLM's mismatch. Each is None if the loss applies none, or
        one that no rule of this project reproduces; without a clip rule the columns that say what the rule did (lo, hi,
        side, ...) are null.
    corrected : bool
        Whether TRL's correction multiplies the loss of each token by a factor.
    log_rollout : int
        Number of the present rollout.
    log_start : int
        Number of updates made before the present rollout.
    """

    args: GRPOConfig
    model: torch.nn.Module  # type: ignore[assignment]
    score_every: int = 0

    def open_log(self, rule: Rule | None) -> None:
        """Make the log's writer for a loss that applies ``rule``, and TRL's correction if its options ask for one."""
        corrects = self.use_vllm and getattr(self, "vllm_importance_sampling_correction", False)
        # The loss type "vespo" corrects the mismatch inside its weight, so there is no separate correction to log.
        self.corrected = corrects and self.loss_type != "vespo"
        correction = correction_of(self.args) if self.corrected else None
        if self.corrected and correction is None:
            warnings.warn(
                f"no correction does what {self.vllm_importance_sampling_mode!r} does with these bounds: its factors "
                "are logged, and its edges are null",
                stacklevel=3,
            )
        self._rewards: Tensor | None = None
        self.log_rule, self.log_correction = rule, correction
        self.log_rollout, self.log_start = -1, 0
        width = 0
        if self.score_every:
            model = self.accelerator.unwrap_model(self.model)
            width = ScoreHooks(model, width=_SCORES.width, projection=_SCORES.projection).sketcher.width
        header = {"scores": asdict(_SCORES), "trainer": f"trl {version('trl')}", "seed": self.args.seed}
        header |= {name: r.to_dict() for name, r in (("rule", rule), ("correction", correction)) if r is not None}
        rank = self.accelerator.process_index
        self.log_writer = GradLogWriter(str(self.args.output_dir), rank=rank, width=width, metadata=header)
        self.add_callback(Begin(self))

    def begin_log(self, step: int) -> None:
        """Remove the log rows of updates >= ``step``, which a resumed run repeats; set the next rollout's number."""
        output = str(self.args.output_dir)
        if self.accelerator.is_main_process:
            keep_steps_before(output, step)
        self.accelerator.wait_for_everyone()
        self.log_rollout = keep_steps_before(output, step) - 1

    @property
    def first_pass(self) -> int:
        """Number of microbatches (forward and backward passes) in one pass over the responses of a generation batch."""
        return int(self.args.steps_per_generation or self.args.gradient_accumulation_steps)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # A run resumed from this checkpoint repeats no earlier update, so the rows of earlier updates must be on disk.
        self.log_writer.flush(self.log_rollout, keep=True)
        super()._save_checkpoint(model, trial)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._rewards = total.masked_fill(rewards.isnan().all(1), torch.nan)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.log_writer.flush(self.log_rollout)
            self.log_rollout, self.log_start = self.log_rollout + 1, self.state.global_step
            device, rows, rank = output["completion_ids"].device, len(output["completion_ids"]), self.log_writer.rank
            first = self.log_rollout * rows * self.accelerator.num_processes  # numbers are unique over the run
            index = first + rank * rows + torch.arange(rows, device=device)
            rewards = torch.full((rows,), torch.nan, device=device)
            if self._rewards is not None:
                rewards = self._rewards[rank * rows : (rank + 1) * rows].float()
            added = {
                "prompt_id": index // int(self.num_generations or 1),  # the responses to a prompt follow each other
                "response_id": index,
                "reward": rewards,
                "truncated": self._truncated(output),
            }
            output |= {PREFIX + name: column for name, column in added.items()}
        return output

    def _truncated(self, output: dict[str, Any]) -> Tensor:
        """Return a mask (B,) of truncated responses.

        They are those whose last token is neither an end nor a pad token, and those whose tokens TRL has all masked."""
        length = output["completion_mask"].sum(1)
        last = output["completion_ids"].gather(1, (length - 1).clamp(min=0)[:, None])[:, 0]
        ends = torch.tensor([*self.eos_token_ids, self._tokenizer.pad_token_id], device=last.device)
        return (length == 0) | ~torch.isin(last, ends)

    def correction_factor(self, inputs: dict[str, Any], mask: Tensor) -> Tensor | None:
        """Return the factor (B, T) by which TRL's correction multiplies each token's loss, for TRL's microbatch
        ``inputs``; None if TRL corrects nothing."""
        return inputs["importance_sampling_ratio"].expand(mask.shape) if self.corrected else None

    def log_microbatch(
        self, inputs: dict[str, Any], records: Records, entropy: Tensor | None, scores: Scores | None
    ) -> None:
        """Add the rows of one microbatch to the gradient log, from what the rule did (``records``) and the responses'
        scores, if taken.

        Parameters
        ----------
        inputs : dict
            TRL's microbatch, tensors by name.
        entropy : Tensor (B,), optional
            Sum of the policy's entropy over a response's tokens, nats.
        """
        if PREFIX + "response_id" not in inputs:  # responses of an evaluation are not logged
            return
        step, mask = self.state.global_step, loss_mask(inputs)
        factor = self.correction_factor(inputs, mask)
        if factor is not None and records.correction_weight is None:
            records = replace(records, correction_weight=token_mean(factor, mask))
        carried = ("prompt_id", "response_id", "reward", "truncated")
        responses = ResponseColumns(
            **{name: inputs[PREFIX + name].cpu().numpy() for name in carried},
            advantage=inputs["advantages"].float().cpu().numpy(),
            entropy=None if entropy is None else (entropy / records.length.clamp(min=1)).cpu().numpy(),
        )
        update = UpdateColumns(
            rollout=self.log_rollout,
            step=step,
            behaviour_version=self.log_start,
            rule=self.log_rule or Rule("none", name=f"trl-{self.loss_type}"),
            updates_since_rollout=step - self.log_start,
            times_used=self._step % (self.first_pass * self.num_iterations) // self.first_pass,
        )
        known = self.log_rule is not None
        rows = log_rows(update, responses, records.to_numpy(), scores=scores, known=known)
        self.log_writer.append(rows)

    def take_scores(self, inputs: dict[str, Any]) -> Scores | None:
        """Return the scores of the responses in TRL's microbatch ``inputs``, or None if none are taken at this update.

        They are taken at the last update of the first pass over a rollout, in every ``score_every``-th rollout."""
        chosen = max(self.first_pass // self.args.gradient_accumulation_steps, 1) - 1
        since = self.state.global_step - self.log_start
        if not self.score_every or self.log_rollout % self.score_every or since != chosen:
            return None
        if any(value is not None for value in model_inputs(inputs).values()):
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
            config=_SCORES,
            seed=self.args.seed,
            rollout=self.log_rollout,
        )


def keep_steps_before(run: str | Path, step: int) -> int:
    """Remove log rows of updates >= ``step``, which a resumed run repeats; return the number of the next rollout.

    Raises UserError if ``step`` is 0 and the folder already holds a log, which then belongs to another run."""
    following = 0
    for path in log_paths(run):
        if step == 0:
            raise UserError(
                f"{path.parent} holds the gradient log of another run: choose another output_dir, or go on with "
                "train(resume_from_checkpoint=True)"
            )
        table = pq.read_table(path)
        kept = table.filter(pc.less(table["step"], step))  # type: ignore[attr-defined]
        if not len(kept):
            path.unlink()
            continue
        if len(kept) < len(table):
            with whole_file(path) as part:
                pq.write_table(kept, part, compression="zstd")
        following = max(following, 1 + rollout_of(path))
    return following


def mismatch(batch: dict[str, Any], old: Tensor) -> Mismatch | None:
    """Return the mismatch between the trainer's old log-probabilities ``old`` (B, T), nats, and the sampler's in TRL's
    microbatch ``batch``; None if the microbatch has no log-probabilities of the sampler.

    TRL sends the trainer's weights to the sampler before every generation, so the policy lag D is 0."""
    sampled = batch.get("sampling_per_token_logps")
    return None if sampled is None else Mismatch.of(old, sampled, loss_mask(batch), version=old)


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """Return the mask of the loss, bool (B, T), of TRL's microbatch: completion tokens except those that tools
    wrote."""
    mask = batch["completion_mask"].bool()
    return mask if batch.get("tool_mask") is None else mask & batch["tool_mask"].bool()
