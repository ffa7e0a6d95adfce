"""The layout of a model that is not sharded: one process, or data-parallel processes, each with all parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from accelerate import Accelerator

from fspo.distributed.tensors import whole


class Plain:
    """How a model lies in processes that are not sharded: each holds all parameters (in `Fsdp2`: a part)."""

    in_step = False
    """Whether every process must run the same number of forward passes, because a pass gathers parameters from all."""

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: no weights need be gathered, as every process holds all of them."""
        return nullcontext()

    def shard(self, accelerator: Accelerator, model: torch.nn.Module) -> torch.nn.Module:
        """Move a second model, which has no optimizer, to the device of this process, and return it."""
        return model.to(accelerator.device)

    def accumulating(
        self, accelerator: Accelerator, model: torch.nn.Module, *, last: bool
    ) -> AbstractContextManager[None]:
        """Return the context of a microbatch's passes. Its gradients are added up in this process; processes average
        the sums only in the ``last`` microbatch of an update that has a gradient."""
        return nullcontext() if last else accelerator.no_sync(model)  # type: ignore[return-value]

    def settle(self) -> None:
        """Do nothing, because no pass gathers parameters."""

    def clip_gradient(self, accelerator: Accelerator, model: torch.nn.Module, max_norm: float) -> float:
        """Scale the gradient over all processes down to the norm ``max_norm`` where it is larger, and return its norm
        before.

        Call it right before the optimizer's step: parameters that forward passes gathered are freed here."""
        self.settle()
        return float(whole(accelerator.clip_grad_norm_(model.parameters(), max_norm)))
