"""TRL's `GRPOTrainer` with a clip rule: TRL generates, rewards and optimises, and `fspo.objective` gives the loss.

`observe` changes no loss: it makes TRL's own trainer, with TRL's loss, write the same gradient log.

>>> from fspo.integrations.trl import FSPOConfig, FSPOTrainer
>>> args = FSPOConfig("out", rule="fspo", steps_per_generation=4)
>>> FSPOTrainer(model, reward_funcs=reward, args=args, train_dataset=data).train()

The gradient log of the run is written under ``output_dir``; ``fspo analyse out`` analyses it."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from trl import GRPOTrainer

from fspo.base.errors import UserError
from fspo.integrations.shared import UpdateMemory, remembers
from fspo.integrations.trl_logged import PREFIX, LoggedTrainer, loss_mask, mismatch, missing_methods, model_inputs
from fspo.integrations.trl_observe import observe
from fspo.integrations.trl_options import FSPOConfig
from fspo.objective import Records, denominator_for, objective
from fspo.rules import Rule

__all__ = ["FSPOConfig", "FSPOTrainer", "observe"]


class FSPOTrainer(LoggedTrainer, GRPOTrainer):
    """`trl.GRPOTrainer` with the loss of a clip rule; it also writes the gradient log.

    The loss of an update is minus the sum of the objective's terms over all its microbatches and processes, divided by
    one number: the count of responses (or of tokens, depending on the aggregation) in the generation batch, times the
    share of the batch that one update uses. So the loss does not depend on which responses share a microbatch.

    Parameters
    ----------
    args : FSPOConfig
        TRL's options and those of the rule.
    others
        All other arguments are those of `trl.GRPOTrainer`.

    Raises
    ------
    UserError
        If ``args`` is no FSPOConfig, if its options would keep the rule from applying, if the installed release of TRL
        lacks a method that is replaced here, or if ``output_dir`` holds the log of another run.
    """

    args: FSPOConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs).arguments.get("args")
        if not isinstance(config, FSPOConfig):
            raise UserError("FSPOTrainer takes its rule from args: pass args=FSPOConfig(...), not a GRPOConfig")
        config.check()
        if missing := missing_methods():
            raise UserError(
                f"TRL {version('trl')} has no GRPOTrainer.{missing[0]} any more, which FSPOTrainer replaces: install a "
                "release that was tested: pip install 'trl==1.16.*'"
            )
        super().__init__(*args, **kwargs)
        self.rule, self.objective_config = config.clip_rule(), config.objective()
        self.memory = UpdateMemory(self.rule)
        self.score_every = config.score_every
        self.open_log(self.rule)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:
            self.memory.save(Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}")
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self.memory.load(checkpoint)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        mask = loss_mask(output)
        local = torch.tensor(int(denominator_for(self.objective_config, mask)), device=mask.device)
        output[PREFIX + "denominator"] = self._sum(local)
        if self.model.training:
            self.memory.begin_rollout()
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        training, mask = self.model.training, loss_mask(inputs)
        scores = self.take_scores(inputs) if training else None
        new, entropies, aux_loss = self._log_probs(
            model, inputs, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        old = inputs.get("old_per_token_logps")
        old = new.detach() if old is None else old
        accumulation = self.current_gradient_accumulation_steps if training else 1
        since = self.state.global_step - self.log_start
        rule = self.memory.online.rule
        loss, records = objective(
            new,
            old,
            mask,
            inputs["advantages"],
            rule,
            self.objective_config,
            m=self.memory.centre,
            denominator=self._denominator(inputs, mask, accumulation),
            ref=inputs.get("ref_per_token_logps"),
            mismatch=mismatch(inputs, old),
            factor=self.correction_factor(inputs, mask),
        )
        if aux_loss is not None:
            loss = loss + self.router_aux_loss_coef * aux_loss / accumulation
            mean = self._sum(aux_loss.detach()) / self.accelerator.num_processes
            self._metrics["train" if training else "eval"]["aux_loss"].append(mean.item())
        entropy = torch.where(mask, entropies.detach().float(), 0.0).sum(1)  # type: ignore[union-attr]
        self._report("train" if training else "eval", records, entropy, rule)
        if training:
            if remembers(self.rule) and PREFIX + "response_id" in inputs:
                advantages = inputs["advantages"].double().cpu().numpy()
                self.memory.add(inputs[PREFIX + "response_id"].cpu().numpy(), records, advantages)
                if self.accelerator.sync_gradients:  # true at the last microbatch of an update
                    self.memory.end_update(moved=since > 0)
            self.log_microbatch(inputs, records, entropy, scores)
        return loss

    def _log_probs(self, model: Any, batch: dict[str, Any], **options: Any) -> Any:
        """Compute log-probabilities (B, T), entropies and the router's auxiliary loss of a batch by TRL's method."""
        return self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
            batch["completion_ids"].shape[1],
            **model_inputs(batch),
            **options,
        )

    def _sum(self, local: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        return cast(Tensor, self.accelerator.reduce(local, "sum"))

    def _denominator(self, inputs: dict[str, Any], mask: Tensor, accumulation: int) -> float:
        total = inputs.get(PREFIX + "denominator")
        if not self.model.training or total is None:
            return denominator_for(self.objective_config, mask) * accumulation
        share = accumulation / self.first_pass  # share of a generation batch that one update uses
        return float(total) / self.accelerator.num_processes * share

    def _report(self, mode: str, records: Records, entropy: Tensor, rule: Rule) -> None:
        """Add to TRL's metrics of ``mode`` ("train", "eval"): clip shares, band acceptance, the share of responses
        with a capped weight, entropy (from its sums over tokens, nats, (B,)), KL, drift, and an adaptive rule's range.
        A clip share is the share of clipped responses among those with A != 0. Under a rule on tokens it is the share
        of clipped tokens among the tokens of these responses."""
        found = self._metrics[mode]
        parts = [
            records.clipped_low, records.clipped_high, records.clipped_dual, records.count, records.band_accept,
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
            for name in ("range_lo", "range_hi", "gamma", "gamma_hi"):
                if (value := getattr(rule, name)) is not None:
                    found[f"rule/{name}"].append(value)
