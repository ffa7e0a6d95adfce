"""Copies of a model in lower precision, from which responses are sampled."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import PreTrainedModel

from fspo.base.errors import UserError
from fspo.config import Precision

INT8 = 127
"""Largest integer of symmetric int8 quantisation."""


def lowered(model: PreTrainedModel, precision: Precision) -> PreTrainedModel:
    """Return a copy of the model for sampling, all in bfloat16 or with int8 weights; the model itself for ``"same"``.

    With ``"int8"`` the weight of each linear layer but the output layer is rounded to a multiple of its row's step,
    which is the row's largest absolute value / 127. Weights and activations are multiplied in the model's type, as by
    kernels for int8 weights. Activations are not rounded: torch's dynamic quantisation takes one scale for a whole
    batch, so the distribution of a response would depend on the responses beside it. Parameters that keep their values
    are shared with the model. Raises UserError for ``"int8"`` if no layer is a `torch.nn.Linear`, as in GPT-2."""
    if precision == "same":
        return model
    if precision == "bfloat16":
        values = {p: p.detach().bfloat16() for p in model.parameters()}
    else:
        head = model.get_output_embeddings()
        linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
        if not linear:
            raise UserError("this model has no linear layers to round to int8: use sampling.precision bfloat16 or same")
        values = {p: p for p in model.parameters()} | {p: _int8(p.detach()) for p in linear}
    # Tell deepcopy which tensor is the copy of each parameter, so that it makes no copies in the model's own precision.
    memo = {id(p): p if value is p else nn.Parameter(value, requires_grad=False) for p, value in values.items()}
    return copy.deepcopy(model, memo)


def _int8(weight: torch.Tensor) -> torch.Tensor:
    """Round a weight matrix (out, in) to int8 multiples of one step for each row; keep its type."""
    step = (weight.abs().amax(1, keepdim=True) / INT8).clamp(min=torch.finfo(weight.dtype).tiny)
    return (weight / step).round() * step
