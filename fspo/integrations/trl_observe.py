"""Make a TRL run write the gradient log under ``output_dir``, with TRL's loss and options unchanged: `observe`.

>>> from fspo.integrations.trl import observe
>>> observe(GRPOTrainer)(model, reward_funcs=reward, args=args, train_dataset=data).train()  # doctest: +SKIP"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer, RLOOTrainer

from fspo.base.errors import UserError, unknown_name
from fspo.integrations.trl_logged import PREFIX, LoggedTrainer, loss_mask, mismatch, missing_methods
from fspo.integrations.trl_rules import FURTHER_CUTS, clip_of
from fspo.objective import objective
from fspo.rules import Rule

Reason = Callable[[str], str | None]
"""Function of the run's folder that returns why training should end, or None."""
STOPS = {"critical": "analysis.live.stop", "warning": "analysis.live.stop"}
"""Functions of analysis/live/stop.py that `observe` takes by name."""


def observe(trainer: type, *, score_every: int = 0, stop_on: str | Reason | None = None) -> type:
    """Return a subclass of TRL's trainer that also writes the gradient log and trains exactly as that trainer.

    The log has a row for each response and update: S, A, L, versions, the reward (RLOOTrainer: less the KL penalty),
    whether the response was truncated and, where the sampler gave log-probabilities (vLLM, or a ``rollout_func``), the
    engine's log-ratio. The log's rule is TRL's own clip; if no rule of this project does the same, the columns that say
    what the rule did are null. No option is refused: a warning of one line says what cannot be logged.

    Parameters
    ----------
    trainer : type
        `trl.GRPOTrainer`, `trl.RLOOTrainer` or a subclass of one of them.
    score_every : int
        Number of rollouts from one score pass to the next; 0 for never.
    stop_on : str or function, optional
        "critical" or "warning" (issues of ``fspo doctor``), or a function that takes the run's folder and returns a
        reason to stop, or None. It is asked once a rollout, about the rollouts before; when it gives a reason, TRL
        writes a checkpoint after the step and training ends with a warning that says the reason.

    Raises
    ------
    UserError
        If ``trainer`` is another class, or ``stop_on`` another name. When training begins: if ``output_dir`` holds the
        log of another run.
    """
    if not (isinstance(trainer, type) and issubclass(trainer, (GRPOTrainer, RLOOTrainer))):
        raise UserError(f"observe takes trl.GRPOTrainer, trl.RLOOTrainer or a subclass of them: {trainer!r} is none")
    for name in missing_methods(trainer):
        warnings.warn(f"{trainer.__name__} has no {name} any more: the log lacks what it gave", stacklevel=2)
    reason: Any = stop_on
    if isinstance(stop_on, str):
        if stop_on not in STOPS:
            raise unknown_name("stop_on", stop_on, tuple(STOPS))
        reason = getattr(import_module(STOPS[stop_on]), stop_on)
    options = {"score_every": score_every, "reason": reason and staticmethod(reason)}  # called without self
    return type(f"Observed{trainer.__name__}", (_ObservedTrainer, trainer), options)


class _Stop(TrainerCallback):
    """Callback that asks for a reason to stop after each rollout's first update, and ends training if it gets one."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.asked = trainer, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask, at a rollout's first update, about the log of earlier ones; given a reason, end it on every process."""
        if self.asked == self.trainer.log_rollout:
            return
        self.asked = self.trainer.log_rollout
        told = [self.trainer.reason(str(args.output_dir)) if state.is_world_process_zero else None]
        broadcast_object_list(told)
        if told[0] is not None:
            warnings.warn(f"training ends after step {state.global_step}: {told[0]}", stacklevel=2)
            control.should_training_stop = control.should_save = True


class _ObservedTrainer(LoggedTrainer):
    """A mixin that lets a trainer's loss run unchanged and keeps the log-probabilities that the loss computed."""

    reason: Reason | None = None
    _seen: tuple[Any, ...] = ()  # what TRL's method returned: log-probabilities (B, T), entropies, ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rule = clip_of(self.args)
        if rule is None:
            warnings.warn(
                f"no clip rule does what loss_type={self.loss_type!r} does with these bounds: S, A and L are logged, "
                "and the columns of the rule are null",
                stacklevel=2,
            )
        for name, off in FURTHER_CUTS.items():
            if getattr(self.args, name, off) != off:
                warnings.warn(f"the logged multiplier is the clip's: {name} masks further tokens", stacklevel=2)
        if self.first_pass * self.num_iterations <= self.args.gradient_accumulation_steps:
            warnings.warn(
                "one update a rollout: S is 0 in every row and no rule clips; set steps_per_generation above "
                "gradient_accumulation_steps, or num_iterations above 1",
                stacklevel=2,
            )
        self.open_log(rule)
        if self.reason is not None:
            self.add_callback(_Stop(self))

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        self._seen += (super()._get_per_token_logps_and_entropies(*args, **kwargs),)
        return self._seen[-1]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._seen = ()
        output = super()._generate_and_score_completions(inputs)
        if self.model.training and "old_logps" in output:  # RLOOTrainer hands on sums alone, and penalises the reward
            old, *reference = (logps for logps, *_ in self._seen)
            output[PREFIX + "old"], reward = old, PREFIX + "reward"
            if ends := getattr(self, "reward_clip_range", None):
                output[reward] = output[reward].clamp(*ends)
            for ref in reference:
                output[reward] = output[reward] - self.beta * ((old - ref) * output["completion_mask"]).sum(1)
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        scores = self.take_scores(inputs)
        self._seen = ()
        loss = super()._compute_loss(model, inputs)
        if not self._seen:
            warnings.warn("the loss computed no log-probabilities through TRL's method: no row is logged", stacklevel=2)
            return loss
        seen = self._seen[0]
        new, mask, A = seen[0].detach(), loss_mask(inputs), inputs["advantages"].detach().float()
        if A.ndim == 2:
            warnings.warn("advantages differ between the tokens of a response: their mean is logged", stacklevel=2)
            A = (A * mask).sum(1) / mask.sum(1).clamp(min=1)
        old = inputs.get("old_per_token_logps", inputs.get(PREFIX + "old"))
        old = new if old is None else old
        sampled = mismatch(inputs, old)
        correction = None if sampled is None else self.log_correction
        records = objective(
            new, old, mask, A, self.log_rule or Rule("none"), mismatch=sampled, correction=correction
        ).records
        entropy = None if seen[1] is None else torch.where(mask, seen[1].detach().float(), 0.0).sum(1)
        self.log_microbatch({**inputs, "advantages": A}, records, entropy, scores)
        return loss
