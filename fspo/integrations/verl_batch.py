# pyright: reportMissingImports=false
"""Read the rollout that verl hands to its actor: masks, versions of the weights, rewards, advantages.

verl 0.9.1 has two trainers. The default one (``trainer.use_v1``) hands over nested tensors with the rewards in
``rm_scores``, the versions in ``extra_fields`` and the mask before rejection in ``loss_mask``. The older one hands over
padded tensors with ``token_level_scores``, ``min_global_steps`` and ``max_global_steps``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu

FACTOR = "rollout_is_weights"
"""Name of verl's column with the factor that a correction gives each token."""


def token_mean(advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean advantage of each response's tokens, float64 (B,), and whether those advantages differ (B,)."""
    inside = torch.where(mask, advantages.detach().double(), 0.0)
    mean = inside.sum(1) / mask.sum(1).clamp(min=1)
    far = (inside - mean[:, None]).abs() > 1e-4 * (1 + mean.abs()[:, None])
    return mean, (far & mask).any(1)


def padded(data: Any, *names: str) -> Any:
    """Return the columns ``names`` that verl's batch ``data`` has, by name; nested ones are padded to tensors (B,
    T)."""
    return data.select(*(name for name in names if name in data)).to_padded_tensor()


def whole_mask(data: Any, kept: Tensor) -> Tensor:
    """Return the mask (B, T) of the tokens in verl's batch ``data`` that the policy drew, including those that verl's
    rejection masked.

    ``kept`` (B, T) is the mask of the loss. It is returned if the batch does not say which tokens the policy drew, as
    with verl's older trainer in a conversation of several turns."""
    if data["response_mask"].is_nested:
        return padded(data, "loss_mask")["loss_mask"].to(torch.bool) if "loss_mask" in data else kept
    if tu.get(data, "multi_turn", True):
        return kept
    length = data["attention_mask"][:, data["prompts"].shape[1] :].sum(1)
    return torch.arange(kept.shape[1], device=kept.device) < length[:, None].to(kept.device)


def versions(data: Any, rollout: int) -> np.ndarray:
    """Return the versions of the weights that sampled each response's first and last token, float64 (2, B).

    verl numbers the versions of the weights by rollouts. A version is unknown, and NaN is returned, if its number is
    missing, negative or above ``rollout``."""
    fields, found = tu.get(data, "extra_fields"), []
    for name in ("min_global_steps", "max_global_steps"):
        column = tu.get(data, name)
        if column is None:
            column = [None] * len(data) if fields is None else [(field or {}).get(name) for field in fields]
        found.append([np.nan if value is None else float(value) for value in column])
    numbers = np.array(found)
    numbers[(numbers < 0) | (numbers > rollout)] = np.nan
    return numbers


def rewards(data: Any) -> np.ndarray | None:
    """Return each response's reward, float64 (B,): the sum of its tokens' rewards in verl's batch; None if the batch
    has no rewards."""
    name = next((name for name in ("token_level_scores", "rm_scores") if name in data), None)
    return None if name is None else padded(data, name)[name].sum(1).double().cpu().numpy()


def gathered(engine: Any, own: list[Any]) -> list[Any]:
    """Return the items of the lists that all data-parallel processes of a verl engine pass as ``own``, in the order of
    their ranks."""
    group = engine.get_data_parallel_group()
    found: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, own, group)
    return [item for items in found for item in items]


def mean_factor(weights: Tensor | None, kept: Tensor, mask: Tensor) -> np.ndarray:
    """Return for each response the mean over its tokens (``mask``) of the correction's factor, (B,).

    ``weights`` (B, T) are the factors, None for 1. A token that verl masked (in ``mask``, not in ``kept``) has 0."""
    factor = kept.double() if weights is None else weights.double() * kept
    return (factor.sum(1) / mask.sum(1).clamp(min=1)).cpu().numpy()
