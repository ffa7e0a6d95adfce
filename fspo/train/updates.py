"""Log-probabilities and gradients of the clipped objective, computed by one process on its part of a minibatch.

A *shard* is a microbatch with its tensors and old log-probs. Old and new log-probs are computed by the same code on the
same shard, so S = 0 before the first update if two passes over the same weights agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from fspo.config import ObjectiveConfig
from fspo.distributed.layout import layout_of
from fspo.objective import Mismatch, denominator_for, log_ratios, objective, ratio_tokens
from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.policy.scores import Scores
from fspo.rollouts.batches import Microbatch, RolloutBatch
from fspo.rules import DriftStats, Rule, drift_stats

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shard:
    """A microbatch of B responses as tensors on the device, padded to T tokens.

    Attributes
    ----------
    micro : Microbatch
        The rows of the rollout that the shard holds.
    batch : dict of tensors (B, T)
        Token ids and masks.
    old, ref : tensors (B, T)
        Log-probs, nats, of the response tokens under the weights before the rollout's updates, and under the reference
        model. ref is None without a KL term.
    mismatch : Mismatch
        Token log-ratios (B, T), nats, of the old policy against the distribution that drew the tokens.
    advantages : tensor (B,), one for each response
    entropy : (B,) float64
        Mean entropy over the response's tokens, nats, at the weights of the old log-probs; NaN if entropy is not
        logged.
    scores : Scores, optional
        Scores of the responses at the weights just before the update, if they were computed.
    """

    micro: Microbatch
    batch: Tensors
    old: torch.Tensor
    ref: torch.Tensor | None
    mismatch: Mismatch
    advantages: torch.Tensor
    entropy: np.ndarray
    scores: Scores | None = None

    @property
    def mask(self) -> torch.Tensor:
        """Mask (B, T), true at the tokens of the responses."""
        return self.batch["response_mask"]


@dataclass(frozen=True)
class Record:
    """What one update recorded of the responses of a shard: ``rows`` holds log-ratios, weights and clip decisions,
    arrays (B,) by the names of the fields of `fspo.objective.Records`."""

    shard: Shard
    rows: dict[str, np.ndarray]

    @property
    def advantages(self) -> np.ndarray:
        """Advantages of the shard's responses (B,), float64."""
        return self.shard.advantages.cpu().numpy()


@dataclass
class Updater:
    """Computes the gradients of the clipped objective for this process's part of a minibatch.

    Parameters
    ----------
    model : torch.nn.Module
        The policy, possibly wrapped by accelerate.
    rule, correction : Rule
        The clip rule, and the correction of the mismatch between sampler and trainer (None: no correction).
    objective : ObjectiveConfig
        How the terms of responses or tokens are averaged into one loss, and the weight of the KL term.
    temperature : float
        The sampling temperature. Log-probs are computed at this temperature, because log-ratios compare with the policy
        that sampled.
    entropy : bool
        Whether the policy's entropy is computed together with the old log-probs.
    reference : torch.nn.Module, optional
        Frozen initial model for the KL term.
    logits : int, optional
        Largest number of logits (tokens x vocabulary) held in memory at a time.
    """

    accelerator: Accelerator
    model: torch.nn.Module
    rule: Rule
    objective: ObjectiveConfig
    temperature: float
    pad_token_id: int
    entropy: bool = True
    reference: torch.nn.Module | None = None
    correction: Rule | None = None
    logits: int | None = None

    def log_probs(
        self, batch: Tensors, *, model: torch.nn.Module | None = None, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute log-probs and entropies (B, T), nats, of response tokens under ``model``, by default the policy. The
        entropies are None unless ``entropy`` is true."""
        model = model or self.model
        return token_log_probs(model, batch, self.temperature, entropy=entropy, logits=self.logits)

    def tensors(self, batch: RolloutBatch, rows: np.ndarray) -> Tensors:
        """Pad the prompts and responses at ``rows`` of a rollout and return token ids and masks, (B, T), as tensors on
        the device."""
        prompts, responses = ([parts[i].tolist() for i in rows] for parts in (batch.prompts, batch.responses))
        made = make_batch(prompts, responses, self.pad_token_id)
        return {name: tensor.to(self.accelerator.device) for name, tensor in made.items()}

    @torch.no_grad()
    def shard(self, batch: RolloutBatch, micro: Microbatch, version: torch.Tensor | None = None) -> Shard:
        """Build the shard of a microbatch, with log-probs under the present weights as the old ones.

        Parameters
        ----------
        version : tensor (B, T), optional
            Log-probs of the response tokens under the weights that sampled, nats; None if the present weights did, so
            that these log-probs are the old ones.
        """
        tensors = self.tensors(batch, micro.rows)
        old, entropy = self.log_probs(tensors, entropy=self.entropy)
        mean = np.full(len(micro.rows), np.nan)
        if entropy is not None:
            mean = (entropy.sum(1) / tensors["response_mask"].sum(1)).double().cpu().numpy()
        ref = None
        if self.reference is not None:
            ref, _ = self.log_probs(tensors, model=self.reference)
        mask = tensors["response_mask"]
        sampler = torch.as_tensor(np.concatenate([batch.sampler_log_probs[i] for i in micro.rows]), device=old.device)
        sampler = torch.zeros_like(old, dtype=torch.float64).masked_scatter(mask, sampler.double())
        advantages = torch.as_tensor(batch.advantages[micro.rows], device=old.device)
        mismatch = Mismatch.of(old, sampler, mask, old if version is None else version)
        return Shard(micro, tensors, old, ref, mismatch, advantages, mean)

    @torch.no_grad()
    def drift_stats(self, shards: Sequence[Shard]) -> DriftStats:
        """Compute the drift statistics of a minibatch, from which the rule's drift is estimated.

        They are the number of response tokens and the sums over them of s_t^2 and k3, over all processes; s_t is the
        token log-ratio. This takes a forward pass at the present weights, because the band's centre must be known
        before the pass that computes the gradient."""
        sums = DriftStats()
        for shard in shards:
            new, _ = self.log_probs(shard.batch)
            # A dummy microbatch gives a process without work as many passes as the other processes. It too is passed
            # through the model: with sharded weights every process must run the same number of passes.
            if not shard.micro.dummy:
                sums += drift_stats(log_ratios(new, shard.old, shard.mask).double(), shard.mask)
        return self.over_processes(sums)

    def correction_stats(self, shards: Sequence[Shard]) -> DriftStats | None:
        """Compute the drift statistics of a minibatch, from which the correction's drift is estimated.

        They are the number of response tokens and the sums over them of x_t^2 and of exp(x_t) - 1 - x_t, over all
        processes; x_t is the token log-ratio that the correction acts on. Updates do not change x_t, so no forward pass
        is needed. The result is None if there is no correction or it has no drift."""
        if self.correction is None or not self.correction.needs_stats:
            return None
        sums = DriftStats()
        for shard in shards:
            if not shard.micro.dummy:
                tokens = ratio_tokens(self.correction.on, shard.old, shard.mismatch)
                sums += drift_stats(tokens, shard.mask)
        return self.over_processes(sums)

    def global_rows(self, records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gather log-ratio (nats), length (tokens) and advantage of a minibatch's n responses from all processes, (n,);
        ``records`` are those of this process.

        The responses of all processes are sorted by row number, so every process gets the same arrays, however the rows
        were divided into microbatches."""
        parts = gather_object(
            [
                (record.shard.micro.rows, record.rows["log_ratio"], record.rows["length"], record.advantages)
                for record in records
            ]
        )
        rows, S, n, A = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rows)
        return S[order], n[order], A[order]

    def over_processes(self, sums: DriftStats) -> DriftStats:
        """Return the drift statistics ``sums`` of this process added to those of all others."""
        local = torch.tensor(astuple(sums), dtype=torch.float64, device=self.accelerator.device)
        return DriftStats(*self.accelerator.reduce(local, "sum").tolist())  # type: ignore[union-attr]

    def accumulate(
        self, shards: Sequence[Shard], stats: DriftStats | None, rule: Rule | None = None, *, first: bool = False
    ) -> list[Record]:
        """Add a minibatch's gradient to the parameters' ``.grad`` and return a record of each shard that is not a
        dummy.

        A dummy shard adds 0 to the loss; it gives a process without work as many passes as the others. The loss is
        divided by a denominator that counts the minibatch's rows of all processes. So the gradient does not depend on
        how rows are divided into microbatches and over processes.

        A shard that trains (A != 0, or a KL term) gets a forward and a backward pass, in a rollout's first update too.
        So its logged S shows there whether two passes over the same weights agree. Another shard gets a forward pass
        alone, and in a rollout's first update no pass, because its new log-probs are then the old ones.

        Parameters
        ----------
        stats : DriftStats, optional
            Drift statistics of the minibatch, from `drift_stats`; needed if the rule has a drift.
        rule : Rule, optional
            The rule of this update, for a rule that changes between updates (fspo/rules/online.py); by default the
            Updater's rule.
        first : bool
            Whether the weights have not changed since the old log-probs were computed.
        """
        rule = self.rule if rule is None else rule
        local = sum(denominator_for(self.objective, s.mask) for s in shards if not s.micro.dummy)
        total = torch.tensor(local, dtype=torch.float64, device=self.accelerator.device)
        denominator = float(self.accelerator.reduce(total, "sum"))  # type: ignore[arg-type]
        training = [s for s in shards if s.micro.trains]
        layout = layout_of(self.model)
        correction_stats = self.correction_stats(shards)
        found = []
        for shard in shards:
            trains = shard.micro.trains
            last = trains and shard is training[-1]
            accumulating = layout.accumulating(self.accelerator, self.model, last=last)
            with accumulating, torch.set_grad_enabled(trains):
                new = self.log_probs(shard.batch)[0] if trains or not first else shard.old
                loss, records = objective(
                    new,
                    shard.old,
                    shard.mask,
                    shard.advantages,
                    rule,
                    self.objective,
                    m=rule.centre(stats),
                    denominator=denominator,
                    ref=shard.ref,
                    mismatch=shard.mismatch,
                    correction=self.correction,
                    correction_m=self.correction and self.correction.centre(correction_stats),
                )
                if trains:
                    # Data parallelism averages gradients over processes, but the loss's denominator already counts the
                    # rows of all processes. So the loss is multiplied by the number of processes.
                    scale = 0.0 if shard.micro.dummy else float(self.accelerator.num_processes)
                    self.accelerator.backward(loss * scale)
            if not shard.micro.dummy:
                found.append(Record(shard, records.to_numpy()))
        return found
