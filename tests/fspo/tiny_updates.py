"""What the tests of a tiny run's updates share: a rollout, moved weights, gradients, log-probabilities worked apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fspo.rollouts.batches import RolloutBatch
from fspo.rollouts.metric_sums import Counts


def made_batch(responses: Sequence[np.ndarray], group: int, **fields: Any) -> RolloutBatch:
    """A rollout of given responses, ``group`` to each prompt; all that is not given is 0, sound or of equal length."""
    n = len(responses)
    default = (
        {"rollout": 0, "behaviour_version": 0, "prompts": [np.arange(3)] * n}
        | {"sampler_log_probs": [np.zeros(len(x)) for x in responses], "truncated": np.zeros(n, bool)}
        | {"rewards": np.zeros(n), "advantages": np.zeros(n), "reward_status": np.full(n, "ok")}
        | {"prompt_ids": np.arange(n) // group, "response_ids": np.arange(n), "info": {}}
    )
    return RolloutBatch(responses=list(responses), **default | fields)


def rollout(trainer: Any) -> RolloutBatch:
    batch = trainer.sample(0, Counts())
    assert (batch.advantages != 0).any()
    return batch


def move(model: Any, size: float = 0.02, seed: int = 1) -> None:
    """Shift all weights, so that log-counts leave 0."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += size * torch.randn(p.shape, generator=noise, dtype=torch.float64).to(p.dtype)


def gradients(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


def log_probs(model: Any, prompt: np.ndarray, response: np.ndarray) -> torch.Tensor:
    """Log-probabilities of one response, without padding or masks."""
    ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.from_numpy(response)[:, None])[:, 0]
