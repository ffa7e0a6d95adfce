"""The layout of FSDP2: each process holds some rows of every parameter, of its gradient and of its moments.

accelerate shards the model in place (`torch.distributed.fsdp.fully_shard`). A forward pass gathers the parameters layer
by layer, with all processes at once: sharded code must run the same number of passes everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule

from fspo.distributed.tensors import whole


class Fsdp2:
    """Parameters in shards (`fspo.distributed.layout.Layout`)."""

    in_step = True

    def __init__(self, model: FSDPModule) -> None:
        self.model = model
        self.parts = [part for part in model.modules() if isinstance(part, FSDPModule)]  # type: ignore[attr-defined]

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather all parameters once and keep them while the block runs."""
        model = self.model
        # Where accelerate keeps weights from the forward to the backward pass: at the root and the output layer.
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore
        plugin = AcceleratorState().fsdp_plugin
        again = plugin is None or bool(plugin.reshard_after_forward)
        for part in self.parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in self.parts:
                part.reshard()
                part.set_reshard_after_forward(again and part is not model and part is not head, recurse=False)

    def shard(self, accelerator: Accelerator, model: torch.nn.Module) -> torch.nn.Module:
        """A model without an optimizer, spread as the policy is."""
        return fsdp2_prepare_model(accelerator, model)

    def accumulating(
        self, accelerator: Accelerator, model: torch.nn.Module, *, last: bool
    ) -> AbstractContextManager[None]:
        """Shards of the gradient are added up: without the reduction each process would hold a whole gradient."""
        return nullcontext()

    def clip_gradient(self, accelerator: Accelerator, model: torch.nn.Module, max_norm: float) -> float:
        """Clip the gradient's norm; the norm before.

        Gathered parameters are let go of first, because the optimizer's step would leave them behind the new ones.
        (Passes without gradients end with the output layer still gathered: accelerate expects a backward pass.)
        """
        for part in self.parts:
            part.reshard()
        return float(whole(accelerator.clip_grad_norm_(model.parameters(), max_norm)))
