"""How FSDP2 spreads a model: each process holds some rows of every parameter, its gradient and its optimizer moments.

accelerate shards the model in place (`torch.distributed.fsdp.fully_shard`). A forward pass gathers the parameters layer
by layer, and all processes take part. So every process must run the same number of passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule

from fspo.distributed.plain import Plain


class Fsdp2(Plain):
    """The layout of a model that FSDP2 has sharded: each process holds some rows of every parameter."""

    in_step = True

    def __init__(self, model: FSDPModule) -> None:
        self.model = model
        self.parts = [part for part in model.modules() if isinstance(part, FSDPModule)]  # type: ignore[attr-defined]

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather all parameters from the processes once, and keep them while the ``with`` block runs.

        Passes in the block make no gradients, and a process can run them alone. Every process must enter the block."""
        model = self.model
        # Until this context ends, no layer frees its gathered weights after a forward pass. Its end restores
        # accelerate's setting. If that setting frees weights after a forward pass, the root module and the output layer
        # are exempt: they keep their gathered weights until the backward pass.
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
        """Shard another model, which has no optimizer (such as the reference model), over processes as the policy is
        sharded, and return it."""
        return fsdp2_prepare_model(accelerator, model)

    def accumulating(
        self, accelerator: Accelerator, model: torch.nn.Module, *, last: bool
    ) -> AbstractContextManager[None]:
        """Return a context that does nothing, whatever ``last``: processes exchange gradients after every microbatch,
        so that each keeps only its part of them. If they did so only after an update's ``last`` microbatch, each would
        hold the gradient of all parameters until then."""
        return nullcontext()

    def settle(self) -> None:
        """Free the parameters that were gathered from all processes for a forward pass.

        FSDP2 leaves some of these gathered copies for the backward pass to free. After a forward pass without gradients
        no backward pass runs, so the copies would hold old values after an optimizer step."""
        for part in self.parts:
            part.reshard()
