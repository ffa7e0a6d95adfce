"""Run in two processes by test_scores_distributed: scores of a rank's rows under DDP and FSDP2, written to a folder.

``main(FOLDER)`` writes ``CASE-RANK.npz`` for each case of ``CASES``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from score_models import VOCAB, batch_of, build
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fspo.policy import logprobs
from fspo.policy.logprobs import token_log_probs
from fspo.policy.scores import score

ROWS = 6


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def by_layer(model: Any) -> nn.Module:
    """What accelerate does: each decoder layer, then the rest."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def each_alone(model: Any) -> nn.Module:
    """Every module with weights on its own, which are gathered for its own forward and backward only."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for module in list(model.modules()):
        if any(True for _ in module.parameters(recurse=False)):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def checkpointed(model: Any) -> nn.Module:
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return by_layer(model)


CASES: dict[str, tuple[str, Callable[[Any], nn.Module]]] = {
    "ddp": ("qwen3", ddp),
    "fsdp-tied": ("qwen3-tied", by_layer),
    "fsdp-checkpointed": ("qwen3", checkpointed),
    "fsdp-tiles-each-alone": ("qwen3", each_alone),
    "fsdp-tiles-tied": ("qwen3-tied", by_layer),
    "fsdp-biases": ("gpt2", lambda model: fully_shard(model)),
}


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    tiled, counted = logprobs.linear_log_probs, []

    def count(hidden: torch.Tensor, weight: torch.Tensor, *rest: Any, **options: Any) -> Any:
        counted.append(tuple(weight.shape))
        return tiled(hidden, weight, *rest, **options)

    logprobs.linear_log_probs = count
    rank, world = distributed.get_rank(), distributed.get_world_size()
    mine = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    for name, (kind, wrap) in CASES.items():
        model = wrap(build(kind))
        batch = {field: x[mine] for field, x in batch_of(ROWS).items()}
        logits = 40 if "tiles" in name else None
        counted.clear()
        taken = score(model, batch, rollout=3, logits=logits)
        # Training goes on afterwards, and nothing of the score pass is left in the gradients.
        assert all(p.grad is None for p in model.parameters())
        model.eval()
        token_log_probs(model, batch, 0.8, logits=logits)[0].sum().backward()
        gradient = torch.stack([torch.linalg.vector_norm(full(p.grad)) for p in model.parameters()])
        assert counted == ([(VOCAB, 16)] * 2 if logits else [])  # tiles of the gathered weight
        np.savez(
            folder / f"{name}-{rank}.npz",
            norm=taken.norm,
            unit=taken.unit,
            uncovered=np.array(sorted(taken.uncovered)),
            gradient=gradient.numpy(),
        )
    distributed.destroy_process_group()


def full(x: Any) -> torch.Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x
