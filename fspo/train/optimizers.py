"""The optimizer, AdamW, and the schedule of its learning rate."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from fspo.config import OptimConfig


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> torch.optim.AdamW:
    """Build AdamW with the configuration's settings for the ``parameters`` that need a gradient."""
    # PyTorch's fused AdamW makes no temporary tensors, which would be as large as the largest parameter.
    return torch.optim.AdamW(
        [p for p in parameters if p.requires_grad],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate(step: int, config: OptimConfig) -> float:
    """Return the learning rate after ``step`` updates: it grows linearly from 0 over the warm-up, then stays."""
    return config.learning_rate * min(1.0, (step + 1) / max(config.warmup_updates, 1))
