"""The score psi = grad log pi(y) of every response of a batch, as a sketch.

`score` makes one forward and one backward pass. The backward pass stops at the embeddings and writes no gradient of a
parameter. docs/theory.md section 1 defines psi and S."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from accelerate.utils import extract_model_from_parallel
from jaxtyping import Float, Float32, Shaped
from torch import nn

from fspo.config import ScoreConfig
from fspo.policy.logprobs import token_log_probs
from fspo.policy.score_hooks import ScoreHooks


@dataclass
class Scores:
    """Sketches of the scores (gradients of the log-probability) of B responses.

    Attributes
    ----------
    norm : ndarray, shape (B,), float32
        Norm of the sketch of psi, not of psi. So norm_i norm_j <unit_i, unit_j> = <sketch_i, sketch_j> is an unbiased
        estimate of the inner product of two scores. NaN where the score failed.
    unit : ndarray, shape (B, D), float16
        Sketch divided by its norm. NaN where the score failed; files must hold nulls there, never zeros.
    status : list of str, length B
        "ok", or "failed" where the score is not finite or the response has no token.
    uncovered : dict of str to str
        Each trainable parameter that the scores leave out, and the reason.
    """

    norm: Float32[np.ndarray, " B"]
    unit: Float[np.ndarray, "B D"]
    status: list[str]
    uncovered: dict[str, str]


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block, put the model in eval mode, without switching gradient checkpointing off.

    Layers with gradient checkpointing and no dropout stay in train mode, because checkpointing works only there. The
    training flag of each module is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    for module, training in modes:
        drops = any("drop" in n and isinstance(v, float) and v > 0 for n, v in vars(module).items())
        if training and not drops and getattr(module, "gradient_checkpointing", False):
            module.training = True
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def score(
    model: nn.Module,
    batch: Mapping[str, Shaped[torch.Tensor, "B T"]],
    temperature: float = 1.0,
    *,
    config: ScoreConfig | None = None,
    seed: int = 0,
    rollout: int = 0,
    logits: int | None = None,
) -> Scores:
    """Compute a sketch of the score psi = grad log pi(y) of every response of a batch at the model's present
    parameters.

    Parameters
    ----------
    model : nn.Module
        Any Hugging Face causal LM, wrapped or not. Parameters, their ``.grad`` and training modes are left as they
        were; dropout is off.
    batch : mapping of Tensors of shape (B, T)
        input_ids, attention_mask, position_ids (optional) and response_mask (bool, True on each response token's own
        position; holes allowed).
    temperature : float
        Divides the logits, as in the loss.
    config : ScoreConfig, optional
        Size of the sketches.
    seed, rollout : int
        Calls with the same seed and rollout use the same projections, so their scores can be compared.
    logits : int, optional
        Largest number of logits (tokens x vocabulary) held in memory at a time.

    Raises
    ------
    UserError
        For a model that cannot be hooked (see `ScoreHooks`).
    """
    config = config or ScoreConfig()
    # If the batch has no position ids, make them: a model would otherwise count the padding on the left as positions.
    batch = {"position_ids": (batch["attention_mask"].long().cumsum(1) - 1).clamp(min=0)} | dict(batch)
    mask, model = batch["response_mask"].bool(), extract_model_from_parallel(model)
    hooks = ScoreHooks(model, width=config.width, projection=config.projection, seed=seed, rollout=rollout)
    with torch.enable_grad(), _without_dropout(model), hooks:
        tokens, _ = token_log_probs(model, batch, temperature, logits=logits, scores=hooks)
        log_prob = tokens.masked_fill(~mask, 0.0).sum(1)
        vectors, uncovered = hooks.backward(log_prob).double().cpu().numpy(), hooks.uncovered
    with np.errstate(all="ignore"):
        norm = np.linalg.norm(vectors, axis=1)
        good = np.isfinite(norm) & (log_prob.detach().isfinite() & mask.any(1)).cpu().numpy()
        good &= norm <= np.finfo(np.float32).max
        unit = vectors / np.where(norm > 0, norm, 1.0)[:, None]
    norm[~good], unit[~good] = np.nan, np.nan
    return Scores(
        norm=norm.astype(np.float32),
        unit=unit.astype(np.float16),
        status=["ok" if g else "failed" for g in good],
        uncovered=uncovered,
    )
