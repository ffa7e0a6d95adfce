"""What trainers share that show a loss function one microbatch, or one response, at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fspo.base.errors import UserError
from fspo.rules import Rule, preset

PARTS = ("range_lo", "range_hi", "gamma", "drift", "outside", "dual")
"""Parts of a rule that can be changed there."""


def fixed_rule(name: str, parts: Mapping[str, Any], shows: str) -> Rule:
    """A preset with some of `PARTS` changed (None: as they are), refused where its band needs a whole update.

    Parameters
    ----------
    shows : str
        Who shows what, for the message: "verl shows a loss one microbatch".

    Raises
    ------
    UserError
        For a rule that does not exist or cannot work there.
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


def one_each(advantages: Tensor, mask: Tensor, cure: str) -> Tensor:
    """The advantage of each response (B,) from one that is repeated over its tokens (B, T), float64.

    Raises
    ------
    UserError
        If advantages differ within a response; ``cure`` ends the message.
    """
    inside = torch.where(mask, advantages.detach().double(), 0.0)
    mean = inside.sum(1) / mask.sum(1).clamp(min=1)
    if bool((torch.where(mask, (inside - mean[:, None]).abs(), 0.0) > 1e-4 * (1 + mean.abs()[:, None])).any()):
        raise UserError(f"advantages differ within a response, and a rule on responses needs one for each: {cure}")
    return mean
