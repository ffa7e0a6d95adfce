"""Options of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fspo.config.option_ranges import Ranged, number


@dataclass(frozen=True)
class OptimConfig(Ranged, group="optim"):
    """The optimizer and its settings.

    Parameters
    ----------
    learning_rate : float
        Learning rate after the warm-up; it stays constant.
    warmup_updates : int
        Updates over which the learning rate grows linearly from 0. Without a warm-up a small model may diverge at the
        first updates.
    beta1 : float
        Decay of AdamW's mean of gradients.
    beta2 : float
        Decay of AdamW's mean of squared gradients.
    weight_decay : float
        Decoupled weight decay, as in torch.optim.AdamW.
    max_grad_norm : float
        Largest norm of the gradient; a gradient with a larger norm is scaled down to it. .inf clips nothing.
    max_skipped_updates : int
        Number of skipped updates after which the next one stops the run. An update is skipped on all processes if its
        loss or gradient is not finite, or an importance weight beyond e^20 is not clipped.
    """

    learning_rate: float = number(2e-4, 0, 1)
    warmup_updates: int = number(24, 0)
    beta1: float = number(0.9, 0, 1, below=True)
    beta2: float = number(0.95, 0, 1, below=True)
    weight_decay: float = number(0.0, 0, 10)
    max_grad_norm: float = number(1.0, 0, 1e9, above=True, also=(inf,))
    max_skipped_updates: int = number(10, 0)
