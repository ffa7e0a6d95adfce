"""One rollout's updates: old log-probs, minibatches, clipped objective, scores, log rows.

The pieces of one process. A *shard* is a microbatch with its tensors and old log-probs; old and new log-probs come
from the same forward over the same shard, so S = 0 exactly before the first update.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from fspo.batches import Microbatch, RolloutBatch
from fspo.logprobs import make_batch, token_log_probs
from fspo.objective import ObjectiveConfig, denominator_for, objective
from fspo.rules import DriftSource, DriftStats, Rule, sign_sums, token_sums
from fspo.scores import ScoreConfig, Scores, plain_log_probs, score
from fspo.sharding import is_sharded

Tensors = dict[str, torch.Tensor]


@dataclass
class Shard:
    """A microbatch on the device.

    Attributes
    ----------
    micro : Microbatch
    batch : dict of tensors (B, T)
    old, ref : tensors (B, T)
        Old and reference log-probs; ref is None without a KL term.
    advantages : tensor (B,)
    entropy : (B,) float64
        Mean entropy of the behaviour policy, nats; NaN where not asked for.
    """

    micro: Microbatch
    batch: Tensors
    old: torch.Tensor
    ref: torch.Tensor | None
    advantages: torch.Tensor
    entropy: np.ndarray

    @property
    def mask(self) -> torch.Tensor:
        """Response tokens (B, T)."""
        return self.batch["response_mask"]


@dataclass
class Updater:
    """Computes gradients of the clipped objective on this process's shards.

    Parameters
    ----------
    accelerator : Accelerator
    model : torch.nn.Module
        The prepared (possibly wrapped) model.
    rule, objective : Rule, ObjectiveConfig
    temperature : float
        The sampling temperature: log-ratios belong to the policy that sampled.
    reference : torch.nn.Module, optional
        Frozen initial model for the KL term.
    logits : int, optional
        Most logits that exist at a time, as in `fspo.logprobs.token_log_probs`.
    """

    accelerator: Accelerator
    model: torch.nn.Module
    rule: Rule
    objective: ObjectiveConfig
    temperature: float
    pad_token_id: int
    padding_side: str = "right"
    entropy: bool = True
    reference: torch.nn.Module | None = None
    logits: int | None = None

    def log_probs(
        self, batch: Tensors, *, model: torch.nn.Module | None = None, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs and entropies (B, T) of response tokens, of the policy unless a model is given."""
        return token_log_probs(model or self.model, batch, self.temperature, entropy=entropy, logits=self.logits)

    def tensors(self, batch: RolloutBatch, rows: np.ndarray) -> Tensors:
        """Padded tensors of some rows, on the device."""
        made = make_batch(
            [batch.prompts[i].tolist() for i in rows],
            [batch.responses[i].tolist() for i in rows],
            self.pad_token_id,
            padding_side=self.padding_side,  # type: ignore[arg-type]
        )
        return {name: tensor.to(self.accelerator.device) for name, tensor in made.items()}

    @torch.no_grad()
    def shard(self, batch: RolloutBatch, micro: Microbatch) -> Shard:
        """Build a shard: its tensors and its old log-probs under the present parameters."""
        tensors = self.tensors(batch, micro.rows)
        old, entropy = self.log_probs(tensors, entropy=self.entropy)
        mean = np.full(len(micro.rows), np.nan)
        if entropy is not None:
            mean = (entropy.sum(1) / tensors["response_mask"].sum(1)).double().cpu().numpy()
        ref = None
        if self.reference is not None:
            ref, _ = self.log_probs(tensors, model=self.reference)
        advantages = torch.as_tensor(batch.advantages[micro.rows], device=old.device)
        return Shard(micro, tensors, old, ref, advantages, mean)

    @torch.no_grad()
    def drift_stats(self, shards: Sequence[Shard]) -> DriftStats:
        """Two-pass drift statistics of the global minibatch at the present parameters."""
        sums = np.zeros(7)
        for shard in shards:
            new, _ = self.log_probs(shard.batch)
            if shard.micro.dummy:  # run all the same: under FSDP2 every process must
                continue
            sums += self.drift_sums(torch.where(shard.mask, (new - shard.old).double(), 0.0), shard)
        return self.global_stats(sums, "two_pass")

    def drift_sums(self, s: torch.Tensor, shard: Shard) -> np.ndarray:
        """What one shard's log-ratios (B, T), 0 outside the mask, add to the sums of `global_stats` (7,)."""
        parts = token_sums(s, shard.mask)
        return np.array(
            [*(float(part.sum()) for part in parts), *sign_sums(s.sum(-1), parts[2], shard.advantages.double())]
        )

    def sums(self, records: Sequence[tuple[Shard, dict[str, np.ndarray]]]) -> DriftStats:
        """Drift statistics of a minibatch from its records, for the next one (lagged)."""
        sums = np.zeros(7)
        for shard, record in records:
            A = shard.advantages.cpu().numpy()
            sums[:3] += [float(record[name].sum()) for name in ("k3_sum", "sum_sq_log_ratio", "length")]
            sums[3:] += sign_sums(record["log_ratio"], record["length"], A)
        return self.global_stats(sums, "lagged")

    def global_stats(self, sums: np.ndarray, source: DriftSource) -> DriftStats:
        """Drift statistics of all processes from each one's sums (7,), in the order of DriftStats."""
        local = torch.tensor(sums, dtype=torch.float64, device=self.accelerator.device)
        k3, square, tokens, *by_sign = self.accelerator.reduce(local, "sum").tolist()  # type: ignore[union-attr]
        return DriftStats(k3, square, tokens, source, *by_sign)

    def accumulate(
        self, shards: Sequence[Shard], stats: DriftStats | None, rule: Rule | None = None
    ) -> list[tuple[Shard, dict[str, np.ndarray]]]:
        """Add the minibatch's gradient to the parameters' ``.grad`` and return the records of each real shard.

        The loss is divided by the minibatch's global denominator, so the gradient does not depend on how rows are
        cut into microbatches and processes. Shards without a gradient run forward only.

        Parameters
        ----------
        rule : Rule, optional
            This update's rule where it changes from one to the next (fspo/adaptive.py).
        """
        rule = self.rule if rule is None else rule
        local = sum(denominator_for(self.objective, s.mask) for s in shards if not s.micro.dummy)
        total = torch.tensor(local, dtype=torch.float64, device=self.accelerator.device)
        denominator = float(self.accelerator.reduce(total, "sum"))  # type: ignore[arg-type]
        training = [s for s in shards if s.micro.trains]
        found = []
        for shard in shards:
            trains = shard.micro.trains
            last = trains and shard is training[-1]
            # FSDP2 adds up shards of the gradient: without its reduction each process would hold a whole one.
            silent = nullcontext() if last or is_sharded(self.model) else self.accelerator.no_sync(self.model)
            with silent, torch.set_grad_enabled(trains):
                new, _ = self.log_probs(shard.batch)
                loss, records = objective(
                    new,
                    shard.old,
                    shard.mask,
                    shard.advantages,
                    rule,
                    self.objective,
                    stats=stats,
                    denominator=denominator,
                    ref=shard.ref,
                )
                if trains:  # gradients are averaged over processes; the denominator is already global
                    scale = 0.0 if shard.micro.dummy else float(self.accelerator.num_processes)
                    self.accelerator.backward(loss * scale)
            if not shard.micro.dummy:
                found.append((shard, records.to_numpy()))
        return found

    def records(self, shard: Shard) -> dict[str, np.ndarray]:
        """Records of a shard whose responses the present parameters sampled: S is 0 and nothing is cut."""
        _, records = objective(shard.old, shard.old, shard.mask, shard.advantages, Rule("none"))
        return records.to_numpy()


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
        if shard.micro.trains and (not shard.micro.dummy or is_sharded(model)):  # FSDP2: as many passes everywhere
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
