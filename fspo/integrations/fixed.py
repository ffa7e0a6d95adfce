"""Checks and rules for trainers whose loss function sees only one microbatch, or one response, at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.rules import Rule, preset

PARTS = ("range_lo", "range_hi", "gamma", "drift", "outside", "dual")
"""Parts of a preset that can be changed in a trainer whose loss sees only one microbatch at a time."""


def fixed_rule(name: str, parts: Mapping[str, Any], shows: str) -> Rule:
    """Return the rule of preset ``name`` with some parts changed, such as its range (the value None keeps a part).

    ``parts`` may have the names in `PARTS`.

    Parameters
    ----------
    shows : str
        Clause for error messages that says what the trainer passes to a loss function, for example "verl shows a loss
        one microbatch".

    Raises
    ------
    UserError
        If the preset does not exist, or its band needs all responses of an update at once.
    """
    rule = preset(name, **{part: value for part, value in parts.items() if value is not None}).rule
    if rule.needs_stats:
        raise UserError(
            f"rule {rule.label!r} centres its band on the whole minibatch, of which {shows}: set drift=none"
        )
    if rule.adapt != "none":
        raise UserError(
            f"rule {rule.label!r} learns its band from whole updates, of which {shows}: "
            "take a preset with a fixed range"
        )
    return rule


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
