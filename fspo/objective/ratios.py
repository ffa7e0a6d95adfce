"""Log-ratios of tokens and responses: of the update, and of the mismatch between sampler and old policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from fspo.base.errors import UserError
from fspo.rules import Ratio


def log_ratios(new: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the token log-ratios ``s_t = new - old`` (B, T) in float32 or better, exactly 0 outside the mask.

    Parameters
    ----------
    new, old : Tensor (B, T)
        Log-probabilities of the tokens, nats. No gradient passes through ``old``. Entries outside the mask, NaN and
        infinities included, reach neither the value nor the gradient.
    mask : Tensor (B, T), bool
        True on response tokens; holes are allowed.
    """
    dtype = torch.promote_types(torch.promote_types(new.dtype, old.dtype), torch.float32)
    return torch.where(mask, new.to(dtype), 0.0) - torch.where(mask, old.detach().to(dtype), 0.0)


class Mismatch(NamedTuple):
    """How far the distribution that drew the tokens is from the old policy: token log-ratios (B, T), float64, nats,
    without gradient, 0 outside the mask.

    Attributes
    ----------
    behaviour : Tensor (B, T)
        d_t + e_t, the token's old log-probability less the sampler's: policy lag d_t and engine log-ratio e_t together.
    engine : Tensor (B, T) or None
        e_t, the log-probability that the trainer computes with the weights that sampled, less the sampler's; None if it
        is unknown.
    missing : Tensor (B,), int64
        Number of tokens whose log-probability the sampler did not give (NaN, infinite): e_t (or d_t + e_t) is set to 0.
    """

    behaviour: Float64[Tensor, "B T"]
    engine: Float64[Tensor, "B T"] | None
    missing: Int64[Tensor, " B"]

    @classmethod
    def of(
        cls,
        old: Float[Tensor, "B T"],
        sampler: Float[Tensor, "B T"],
        mask: Shaped[Tensor, "B T"],
        version: Float[Tensor, "B T"] | None = None,
    ) -> Mismatch:
        """Make the `Mismatch` between the old log-probs ``old`` and those of ``sampler``, both (B, T), nats.

        Parameters
        ----------
        version : Tensor (B, T), optional
            Log-probs, nats, that the trainer computes with the weights that sampled; if the old weights sampled, pass
            ``old``. Without ``version`` only the sum of policy lag and engine log-ratio is known: ``engine`` is None.
        """
        mask = mask.to(torch.bool)
        old, sampler = old.detach().double(), sampler.detach().double()
        same = old if version is None else version.detach().double()
        known = torch.isfinite(sampler)
        sampler = torch.where(known, sampler, same)
        behaviour = torch.where(mask, old - sampler, 0.0)
        engine = None if version is None else torch.where(mask, same - sampler, 0.0)
        return cls(behaviour, engine, (mask & ~known).sum(-1))


def ratio_tokens(on: Ratio, s: Float[Tensor, "B T"], mismatch: Mismatch | None) -> Float64[Tensor, "B T"]:
    """Return the token log-ratios (B, T) of the ratio ``on`` ("update", "engine" or "behaviour"), float64, nats,
    without gradient.

    ``s`` are the token log-ratios of the update (new less old); the other ratios also need ``mismatch``, or they raise
    UserError."""
    s = s.detach().to(torch.float64)
    if on == "update":
        return s
    if mismatch is None:
        raise UserError(
            f"the ratio {on!r} needs the sampler's log-probs: pass mismatch=Mismatch.of(old, sampler, mask)"
        )
    if on == "engine" and mismatch.engine is None:
        raise UserError(
            "the ratio 'engine' needs the log-probs of the weights that sampled: pass Mismatch.of(..., version=...), "
            "or take on='behaviour'"
        )
    return {"engine": mismatch.engine, "behaviour": mismatch.behaviour}[on]
