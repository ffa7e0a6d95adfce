# pyright: reportMissingImports=false
"""Read the rollout that verl hands to its actor (masks, versions, rewards, A), and add our correction's factors to it.

verl 0.9.1 has two trainers. The default one (``trainer.use_v1``) hands over nested tensors with the rewards in
``rm_scores``, the versions in ``extra_fields`` and the mask before rejection in ``loss_mask``. The older one hands over
padded tensors with ``token_level_scores``, ``min_global_steps`` and ``max_global_steps``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_to_nested

from fspo.base.errors import UserError
from fspo.objective import Mismatch, apply_rule, objective, ratio_tokens
from fspo.rules import DriftStats, Rule

FACTOR = "rollout_is_weights"
"""Name of verl's column with the factor that a correction gives each token."""
_ESTIMATORS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("grpo", {"norm_adv_by_std_in_grpo": True}),
    ("grpo", {"norm_adv_by_std_in_grpo": False}),
    ("rloo", {}),
)
"""verl's advantage estimators, with their options, that make A from the rewards of a group alone."""


def token_mean(advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean advantage over each response's tokens, float64 (B,), and whether it differs by token (B,)."""
    inside = torch.where(mask, advantages.detach().double(), 0.0)
    mean = inside.sum(1) / mask.sum(1).clamp(min=1)
    far = (inside - mean[:, None]).abs() > 1e-4 * (1 + mean.abs()[:, None])
    return mean, (far & mask).any(1)


def one_each(advantages: Tensor, mask: Tensor, cure: str) -> Tensor:
    """Return the advantage of each response, float64 (B,), from advantages repeated over its tokens (B, T).

    Raises
    ------
    UserError
        If advantages differ within a response; the message ends with ``cure``, what the user should change.
    """
    mean, differ = token_mean(advantages, mask)
    if bool(differ.any()):
        raise UserError(f"advantages differ within a response, and a rule on responses needs one for each: {cure}")
    return mean


def padded(data: Any, *names: str) -> Any:
    """Return the columns ``names`` that the batch ``data`` has, nested ones padded to tensors (B, T)."""
    return data.select(*(name for name in names if name in data)).to_padded_tensor()


def whole_mask(data: Any, kept: Tensor) -> Tensor:
    """Return the mask (B, T) of the tokens that the policy drew, including those that verl's rejection masked.

    ``kept`` (B, T) is the mask of the loss. It is returned if the batch does not say which tokens the policy drew, as
    with verl's older trainer in a conversation of several turns.
    """
    if data["response_mask"].is_nested:
        return padded(data, "loss_mask")["loss_mask"].to(torch.bool) if "loss_mask" in data else kept
    if tu.get(data, "multi_turn", True):
        return kept
    length = data["attention_mask"][:, data["prompts"].shape[1] :].sum(1)
    return torch.arange(kept.shape[1], device=kept.device) < length[:, None].to(kept.device)


def versions(data: Any, rollout: int) -> np.ndarray:
    """Return the versions of the weights that sampled each response's first and last token, float64 (2, B).

    verl numbers the versions of the weights by rollouts. A version is unknown, and NaN is returned, if its number is
    missing, negative or above ``rollout``.
    """
    fields, found = tu.get(data, "extra_fields"), []
    for name in ("min_global_steps", "max_global_steps"):
        column = tu.get(data, name)
        if column is None:
            column = [None] * len(data) if fields is None else [(field or {}).get(name) for field in fields]
        found.append([np.nan if value is None else float(value) for value in column])
    numbers = np.array(found)
    numbers[(numbers < 0) | (numbers > rollout)] = np.nan
    return numbers


def sampled_now(numbers: np.ndarray, rollout: int) -> np.ndarray:
    """Return whether the weights of this rollout sampled all of a response (B,); ``numbers`` come from `versions`."""
    return (numbers == rollout).all(0)


def rewards(data: Any, *names: str) -> np.ndarray | None:
    """Return each response's reward, float64 (B,): the sum of its tokens' rewards.

    The tokens' rewards are in the first of the columns ``names`` that the batch has. Return None if it has none of
    them.
    """
    name = next((name for name in names if name in data), None)
    return None if name is None else padded(data, name)[name].sum(1).double().cpu().numpy()


def before_rejection(
    advantages: np.ndarray, rejected: np.ndarray, reward: np.ndarray | None, prompt: np.ndarray | list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the advantages of rejected responses again, because verl has multiplied them by a mask that is 0.

    They are computed from the rewards of their groups, by the estimator of verl (`_ESTIMATORS`) that reproduces the
    advantages of all responses that were not rejected. If no estimator does, or if several do and give the rejected
    responses different advantages, the rejected responses keep A = 0.

    Parameters
    ----------
    advantages : array (N,)
        Advantages of all responses of a rollout, on all processes.
    rejected : array (N,), bool
        Which responses verl's rejection masked whole.
    reward : array (N,), optional
        Rewards from which the estimator made the advantages; None if verl does not hand them over.
    prompt : array or list (N,)
        Name of each response's prompt.

    Returns
    -------
    advantages : array (N,)
    remade : array (N,), bool
        Which advantages were computed again.
    """
    none = np.zeros(len(advantages), np.bool_)
    kept = ~rejected
    if reward is None or not rejected.any():
        return advantages, none
    tensor = torch.tensor(reward, dtype=torch.float32)[:, None]
    index, fitting = np.array(prompt, dtype=object), []
    for name, options in _ESTIMATORS:
        made = get_adv_estimator_fn(name)(
            token_level_rewards=tensor, response_mask=torch.ones_like(tensor), index=index, **options
        )[0][:, 0].numpy()
        if np.allclose(made[kept], advantages[kept], rtol=1e-3, atol=1e-4):
            fitting.append(made.astype(np.float64))
    if not fitting or any(not np.allclose(made, fitting[0], rtol=1e-3, atol=1e-4) for made in fitting):
        return advantages, none
    return np.where(rejected, fitting[0], advantages), rejected


def gathered(engine: Any, value: Any) -> list[Any]:
    """Return ``value`` of each data-parallel process of a verl engine, in the order of their ranks."""
    group = engine.get_data_parallel_group()
    found: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, value, group)
    return found


def weigh(data: Any, correction: Rule, engine: Any, rollout: int) -> Tensor | None:
    """Put our correction's factor of each token into the rollout's column `FACTOR`; return the band's centre (B,).

    The centre of the correction's band, nats per token, is estimated from the rollout's responses on all processes; it
    is None without a drift. Updates change neither the old log-probs nor the sampler's, so factors and centre are
    computed once for all updates on the rollout.

    Raises
    ------
    UserError
        If a correction by verl weighs the responses too, if verl hands over no log-probs of the sampler, or if the
        correction is on the engine ratio and other weights than those of this rollout sampled a response.
    """
    if FACTOR in data:
        raise UserError(
            f"algorithm.rollout_correction.rollout_is and policy_loss.correction {correction.label!r} would both weigh "
            "a response: leave one out"
        )
    if "rollout_log_probs" not in data:
        raise UserError(
            f"policy_loss.correction {correction.label!r} needs the sampler's log-probs: set "
            "actor_rollout_ref.rollout.calculate_log_probs=true"
        )
    batch = padded(data, "response_mask", "old_log_probs", "advantages", "rollout_log_probs")
    mask, old = batch["response_mask"].to(torch.bool), batch["old_log_probs"]
    A = token_mean(batch["advantages"], mask)[0]
    mismatch = Mismatch.of(old, batch["rollout_log_probs"], mask, old)
    stats = objective(old, old, mask, A, Rule("none"), mismatch=mismatch).records.drift_stats(A, correction.on)
    stale = int((~sampled_now(versions(data, rollout), rollout) & mask.any(1).cpu().numpy()).sum())
    parts = gathered(engine, (stats, stale))
    if correction.on == "engine" and (stale := sum(part[1] for part in parts)):
        raise UserError(
            f"correction {correction.label!r} on='engine' needs log-probs of the weights that sampled, and {stale} "
            "responses were sampled by earlier or unknown weights, of which verl keeps none: set "
            "policy_loss.correction.on=behaviour"
        )
    centre = None
    if correction.needs_stats:
        centre = torch.zeros_like(A) + correction.centre(sum((part[0] for part in parts), DriftStats()), A)
    factor = apply_rule(correction, ratio_tokens(correction.on, old, mismatch), mask, A, centre).clipped_weight
    factor = ((factor if factor.ndim == 2 else factor[:, None]) * mask).to(old.dtype)
    like = data["response_mask"]
    data[FACTOR] = response_to_nested(factor, like) if like.is_nested else factor
    return centre


def mean_factor(weights: Tensor | None, kept: Tensor, mask: Tensor) -> np.ndarray:
    """Return the mean over each response's tokens (``mask``) of the factor that a correction gave them, (B,).

    ``weights`` are the factors of the tokens, 1 by default. A token that verl masks (not in ``kept``) counts as 0.
    """
    factor = kept.double() if weights is None else weights.double() * kept
    return (factor.sum(1) / mask.sum(1).clamp(min=1)).cpu().numpy()
