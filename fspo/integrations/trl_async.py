"""Log the batches of TRL's AsyncGRPOTrainer, for `observe`. The batches carry the sampler's log-probabilities.

AsyncGRPOTrainer uses each response in one update only and samples with earlier weights. It clips the ratio of a token's
present probability to the probability with which the sampler drew the token. The log takes the present policy for the
old policy too. So S is 0, and D + E is the present log-probability less the sampler's; D alone is unknown. The log's
rule is on the total ratio, and each update counts as one rollout.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl.experimental.async_grpo import AsyncGRPOTrainer

from fspo.integrations.trl_log import PREFIX, TrlLog
from fspo.integrations.trl_logged import Begin, LoggedTrainer
from fspo.objective import Mismatch, objective, token_columns
from fspo.rules import Rule


class Versioned(np.ndarray):
    """An array of token ids that also carries the version of the weights that drew them."""

    model_version: int = 0


class VersionedQueue:
    """Wrapper of a rollout worker's queue; it attaches to a sample's token ids the version of the sampling weights."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Take the next sample off the queue, with the version of the weights attached to its token ids."""
        sample = self.samples.get(*args, **kwargs)
        sample.input_ids = np.asarray(sample.input_ids).view(Versioned)
        sample.input_ids.model_version = sample.model_version
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self.samples, name)


class ObservedAsync(AsyncGRPOTrainer):
    """AsyncGRPOTrainer that also writes the gradient log; its loss stays TRL's own."""

    score_every: int = 0
    tokens: bool = False
    model: torch.nn.Module  # type: ignore[assignment]
    begin_log = LoggedTrainer.begin_log

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rule = Rule("token", min(self.epsilon_low, 1.0), self.epsilon_high, on="total", name="trl-async")
        self.log_rows = TrlLog(
            str(self.args.output_dir),
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
            rule=rule,
            metadata={"seed": self.args.seed},
        )
        # For each version of the weights, the number of updates that were done when the sampler received this version.
        self._published: dict[int, int] = {}
        self._responses = 0
        self._outputs: Any = None
        self.add_callback(Begin(self))

    def _sync_weight(self) -> None:
        super()._sync_weight()
        self._published[self.model_version] = self.state.global_step

    def get_train_dataloader(self) -> Any:
        """Return TRL's data loader, made to add response number, reward and more (`_described`) to batches."""
        if self.accelerator.is_main_process:
            self.rollout_queue = VersionedQueue(self.rollout_queue)
        loader = super().get_train_dataloader()
        # If accelerate has wrapped the data loader, take the data loader inside the wrapper.
        reader = getattr(loader, "base_dataloader", loader)
        collate = reader.collate_fn
        reader.collate_fn = lambda rows: collate(rows) | self._described(rows[0])
        return loader

    def _described(self, rows: list[Any]) -> dict[str, Tensor]:
        """Return columns of the gradient log for a batch's responses: tensors (processes, responses), zero-padded.

        ``rows`` has one item for each process: the packed row that holds the process's responses.
        """
        columns: dict[str, list[Tensor]] = {}
        for row in rows:
            ids, samples = range(self._responses, self._responses + len(row.samples)), row.samples
            self._responses += len(samples)
            versions = [sample["input_ids"].model_version for sample in samples]
            last = [
                int(sample["input_ids"][np.flatnonzero(sample["completion_mask"])[-1:]].sum()) for sample in samples
            ]
            found = {
                "response_id": list(ids),
                "prompt_id": [sample["group_id"] for sample in samples],
                "reward": [sample["metrics"].get("reward", np.nan) for sample in samples],
                "advantage": [sample["advantage"] for sample in samples],
                "truncated": [token not in self.eos_token_ids for token in last],
                "version": [self._published.get(version, self.state.global_step) for version in versions],
                "present": [True] * len(samples),
            }
            for name, values in found.items():
                columns.setdefault(PREFIX + name, []).append(torch.tensor(values))
        return {name: pad_sequence(parts, batch_first=True) for name, parts in columns.items()}

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Return TRL's loss of a microbatch, and log the microbatch's responses."""

        def run(*positional: Any, **named: Any) -> Any:
            self._outputs = model(*positional, **named)
            return self._outputs

        loss = super().compute_loss(cast(Any, run), inputs, *args, **kwargs)
        outputs, self._outputs = self._outputs, None
        self._log(inputs, outputs.log_probs.detach(), outputs.entropy.detach())
        return loss

    def _log(self, inputs: dict[str, Any], log_probs: Tensor, entropy: Tensor) -> None:
        """Add the rows of one microbatch to the gradient log, given the log-probs and entropies of its tokens."""
        selected, step, log = inputs["token_index"] >= 0, self.state.global_step, self.log_rows
        index, response = inputs["token_index"][selected], inputs["segment_id"][selected]
        present = inputs[PREFIX + "present"].bool()
        count = int(present.sum())
        lengths = torch.bincount(response, minlength=count)
        mask = torch.arange(int(lengths.max()), device=index.device) < lengths[:, None]

        # ``values`` is one row that holds the tokens of all responses. Return it as (B, T), one row for each response.
        def by_response(values: Tensor) -> Tensor:
            return torch.zeros(mask.shape, device=values.device).masked_scatter(mask, values.float())

        new, sampled = by_response(log_probs.flatten()[index]), by_response(inputs["old_log_probs"][selected])
        described = {name: x[present] for name, x in inputs.items() if name.startswith(PREFIX)}
        A = described[PREFIX + "advantage"].float()
        assert log.rule is not None
        mismatch = Mismatch.of(new, sampled, mask)
        records = objective(new, new, mask, A, log.rule, mismatch=mismatch).records
        if step != log.rollout:
            log.flush()
            log.rollout = log.start_step = step
        log.append(
            {**described, "advantages": A},
            records,
            step=step,
            times_used=0,
            entropy=by_response(entropy.flatten()[index]).sum(1) / lengths.clamp(min=1),
            scores=None,
            behaviour_version=described[PREFIX + "version"].cpu().numpy(),
            tokens=token_columns(new, new, mask, mismatch) if self.tokens else None,
        )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.log_rows.flush(keep=True)
        super()._save_checkpoint(model, trial)
