"""The layout of one process, and of data parallel ones: each holds the whole model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from accelerate import Accelerator


class Plain:
    """Every process holds the whole model (`fspo.distributed.layout.Layout`)."""

    in_step = False

    def gathered(self) -> AbstractContextManager[None]:
        """Weights are whole already."""
        return nullcontext()

    def shard(self, accelerator: Accelerator, model: torch.nn.Module) -> torch.nn.Module:
        """A model without an optimizer, on this process's device."""
        return model.to(accelerator.device)

    def accumulating(
        self, accelerator: Accelerator, model: torch.nn.Module, *, last: bool
    ) -> AbstractContextManager[None]:
        """Gradients are added up on each process and averaged over processes in the last microbatch."""
        return nullcontext() if last else accelerator.no_sync(model)  # type: ignore[return-value]

    def clip_gradient(self, accelerator: Accelerator, model: torch.nn.Module, max_norm: float) -> float:
        """Clip the gradient's norm; the norm before."""
        return float(accelerator.clip_grad_norm_(model.parameters(), max_norm))  # type: ignore[arg-type]
