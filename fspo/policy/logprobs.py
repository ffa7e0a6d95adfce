"""Log-probabilities of response tokens under a causal language model, with little memory.

Training, scores and memory measurements all use this code. Old and new log-probabilities must both be computed
here with the same batch: then S is exactly 0 before the first update."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Integer, Shaped
from torch import Tensor, nn

from fspo.base.errors import UserError
from fspo.policy.linear_logprobs import linear_log_probs, tile_shape
from fspo.policy.score_hooks import ScoreHooks

BIG_VOCABULARY = 8192
"""Vocabulary size from which logits are always computed tile by tile.

A model with a smaller vocabulary computes all logits at once if they fit in one tile."""
_PROBE = (3.0, -70.0, 1024.0)
"""Test numbers appended to the output layer's result: if the model returns them unchanged, it does not alter logits."""
# Models found to change the logits after the output layer (scaling, soft caps). For them log-probs cannot be computed
# inside that layer, so all logits are computed at once.
_WHOLE: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def make_batch(
    prompts: Sequence[Sequence[int] | Integer[np.ndarray, " _"]],
    responses: Sequence[Sequence[int] | Integer[np.ndarray, " _"]],
    pad_token_id: int,
) -> dict[str, Shaped[Tensor, "N T"]]:
    """Make one batch of pairs of a prompt and its response, padded on the right.

    Parameters
    ----------
    prompts, responses : sequences of N token id sequences
        A prompt has at least one token: the first response token is predicted from it.
    pad_token_id : int
        Any id of the vocabulary; the masks and not this id tell where padding is.

    Returns
    -------
    dict of Tensor (N, T)
        Under these names: ``input_ids``, ``attention_mask`` (int64), ``position_ids`` (0 on each sequence's first
        token), ``response_mask`` (bool, on the token's own position).

    Raises
    ------
    UserError
        For an empty prompt.
    """
    if any(len(prompt) == 0 for prompt in prompts):
        raise UserError("an empty prompt predicts nothing: begin it with the tokenizer's bos or eos token")
    sizes = [(len(p), len(r)) for p, r in zip(prompts, responses, strict=True)]
    width = max(p + r for p, r in sizes)
    input_ids = torch.full((len(sizes), width), pad_token_id, dtype=torch.int64)
    attention_mask, response_mask = torch.zeros_like(input_ids), torch.zeros_like(input_ids, dtype=torch.bool)
    for i, (p, r) in enumerate(sizes):
        input_ids[i, :p] = torch.as_tensor(prompts[i], dtype=torch.int64)
        input_ids[i, p : p + r] = torch.as_tensor(responses[i], dtype=torch.int64)
        attention_mask[i, : p + r] = 1
        response_mask[i, p : p + r] = True
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
        "response_mask": response_mask,
    }


def token_log_probs(
    model: nn.Module,
    batch: Mapping[str, Shaped[Tensor, "B T"]],
    temperature: float = 1.0,
    *,
    entropy: bool = False,
    logits: int | None = None,
    scores: ScoreHooks | None = None,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"] | None]:
    """Compute the log-probability of each response token given all tokens before it.

    The output layer runs only on positions that predict response tokens. If the vocabulary has 8,192 entries or more,
    or the logits do not fit in one tile, only one tile of the logits exists at a time. Tiles are computed inside the
    output layer's forward, so that DDP and FSDP2 see that layer run, and again in the backward pass. An output layer
    that is not a plain Linear (as with LoRA on it) computes all logits at once, and so does a model that changes its
    logits after that layer (soft caps, scales), with a warning.

    Parameters
    ----------
    model : Module
        A Hugging Face causal language model, also inside peft or DDP.
    batch : mapping
        Token ids, masks and positions, as `make_batch` makes them; ``position_ids`` is not passed to models that take
        none (ALiBi).
    temperature : float
        The sampler's temperature, > 0: logits are divided by it.
    entropy : bool
        Whether to return the entropy of each response token's distribution too.
    logits : int, optional
        Largest number of logits (tokens x vocabulary) in a tile; by default 2^20 on a CPU and 2^24 elsewhere.
    scores : ScoreHooks, optional
        The hooks inside whose ``with`` block this pass runs, if any. If they are not passed here, their hook on the
        output layer is taken for a hook of other code, and all logits are computed at once.

    Returns
    -------
    log_probs : Tensor (B, T), float32 (float64 for a float64 model)
        Nats, on the token's own position, 0 outside ``response_mask``.
    entropies : Tensor (B, T) or None
        Entropy of each response token's distribution, nats, without gradient, 0 outside the mask.

    Raises
    ------
    UserError
        For a temperature <= 0 or a response token with nothing before it.
    """
    if not temperature > 0:
        raise UserError(f"temperature {temperature} must be > 0: log-probabilities of a greedy policy do not exist")
    mask = batch["response_mask"].to(torch.bool)
    if bool(mask[:, 0].any()):
        raise UserError("a response token stands in the first column, so nothing predicts it: give each row a prompt")
    predicting = mask[:, 1:]
    columns = predicting.any(0).nonzero().squeeze(-1)
    if columns.numel() == 0:
        # Compute one position even if no row has a response token: in data-parallel training the other processes wait
        # for the gradient of this process.
        columns = torch.zeros(1, dtype=torch.int64, device=mask.device)
    targets = batch["input_ids"][mask]
    asked = _Asked(predicting, columns, targets, temperature, entropy, logits, scores)
    values, entropies = asked.of(model, batch)
    log_probs = values.new_zeros(mask.shape).masked_scatter(mask, values)
    if entropies is None:
        return log_probs, None
    return log_probs, entropies.new_zeros(mask.shape).masked_scatter(mask, entropies)


def _select(
    logits: Float[Tensor, "N V"], targets: Int64[Tensor, " N"], temperature: float, entropy: bool
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"] | None]:
    """Return, nats, log-probs (N,) of the targets from logits (N, V), and the distributions' entropies (N,) or None."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    values = -F.cross_entropy(logits, targets, reduction="none")
    if not entropy:
        return values, None
    with torch.no_grad():
        log_p = logits.detach().log_softmax(-1)
        # Limit log-probs to finite numbers, because for a token of probability 0 the product 0 * -infinity would be
        # NaN.
        return values, -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)


@dataclass(frozen=True)
class _Asked:
    """One call of `token_log_probs`: the response tokens whose log-probs are wanted, and the call's options."""

    predicting: Bool[Tensor, "B _"]  # (B, T - 1), true at each position that predicts a response token
    columns: Int64[Tensor, " _"]  # (K,), the positions at which at least one row predicts a response token
    targets: Int64[Tensor, " N"]  # (N,), ids of the response tokens whose log-probs are wanted
    temperature: float
    entropy: bool
    logits: int | None
    scores: ScoreHooks | None

    def of(
        self, model: nn.Module, batch: Mapping[str, Shaped[Tensor, "B T"]]
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"] | None]:
        """Run the model on the batch; return the wanted tokens' log-probs (N,) and entropies (N,), or None."""
        core = _core(model)
        parameters = inspect.signature(core.forward).parameters
        inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        if "position_ids" in parameters:
            inputs["position_ids"] = batch["position_ids"]
        if "use_cache" in parameters:
            inputs["use_cache"] = False
        if keeps := "logits_to_keep" in parameters:
            inputs["logits_to_keep"] = self.columns
        head = _output_layer(core, self.scores)
        if head is not None and self._too_many(head):
            with _answering(head, self, keeps) as entropies:
                answer = model(**inputs).logits
            if (values := _untouched(answer, len(self.targets))) is not None:
                return values, entropies[0]
            _WHOLE.add(core)
            warnings.warn(
                f"{type(core).__name__} changes its logits after the output layer: they are made whole, tokens x "
                "vocabulary; lower batch.tokens where that takes too much memory",
                stacklevel=3,
            )
        features = model(**inputs).logits
        values, entropies = _select(self.selected(features, keeps), self.targets, self.temperature, self.entropy)
        return values + 0.0 * features.sum() if len(values) == 0 else values, entropies

    def selected(self, features: Float[Tensor, "B _ F"], keeps: bool) -> Float[Tensor, "N F"]:
        """Select hidden states or logits (N, F) at the N positions that predict a response token.

        They are taken from ``features`` (B, positions, F), which the model gave at the positions `columns` alone if
        ``keeps`` is true, else at every position."""
        return (features if keeps else features[:, self.columns])[self.predicting[:, self.columns]]

    def rows(self) -> Int64[Tensor, " N"]:
        """Return for each of the N response tokens the index of its response in the batch, 0 to B - 1, as (N,)."""
        return self.predicting.nonzero()[:, 0]

    def _too_many(self, head: nn.Linear) -> bool:
        size = max(len(self.targets), 1), len(head.weight)
        return size[1] >= BIG_VOCABULARY or tile_shape(*size, self.targets.device, self.logits) != size

    def answer(self, head: nn.Linear, hidden: Float[Tensor, "N H"]) -> tuple[Tensor, Any]:
        """Return the wanted tokens' log-probs (N,), which the output layer ``head`` returns in place of logits, and
        entropies (N,), None if not asked for. ``hidden`` (N, H) is the layer's input at the positions that predict the
        wanted tokens."""
        return linear_log_probs(
            hidden,
            head.weight,
            head.bias,
            self.targets,
            self.temperature,
            entropy=self.entropy,
            tile=tile_shape(len(self.targets), len(head.weight), hidden.device, self.logits),
            listener=self.scores.listener(head, hidden, self.rows()) if self.scores is not None else None,
        )


def _core(model: nn.Module) -> nn.Module:
    """Return the causal LM inside DDP and peft wrappers."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = cast(nn.Module, model.module)
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def _output_layer(core: nn.Module, scores: ScoreHooks | None) -> nn.Linear | None:
    """Return the output layer if log-probs may be computed inside it; None if it is no plain Linear, if code other than
    ``scores`` has hooked it, or if the model is known to change the logits after it."""
    if core in _WHOLE or not hasattr(core, "get_output_embeddings"):
        return None
    head = core.get_output_embeddings()  # type: ignore[operator]
    if type(head).forward is not nn.Linear.forward or "forward" in vars(head):
        return None
    # Other code that has hooked the output layer expects logits from it, so log-probs must not take their place. Hooks
    # of torch.distributed are harmless: they only gather sharded weights.
    hooks = [*head._forward_hooks.values(), *head._forward_pre_hooks.values()]
    foreign = [
        hook
        for hook in hooks
        if not (scores is not None and scores.owns(hook)) and not str(hook.__module__).startswith("torch.distributed.")
    ]
    return None if foreign or head._backward_hooks or head._backward_pre_hooks else head


@contextmanager
def _answering(head: nn.Linear, asked: _Asked, keeps: bool) -> Iterator[list[Tensor | None]]:
    """Let the output layer return (1, 1, N + 3) inside the ``with`` block: N log-probs, then the test numbers `_PROBE`.

    The N tokens are those of ``asked``; ``keeps`` is as in `_Asked.selected`. If the model's output has other test
    numbers, it changes logits after this layer. The yielded list receives the tokens' entropies, None if not asked for.
    """
    entropies: list[Tensor | None] = []

    def forward(hidden: Tensor) -> Tensor:
        values, entropy = asked.answer(head, asked.selected(hidden, keeps))
        entropies.append(entropy)
        return torch.cat([values, values.new_tensor(_PROBE)]).view(1, 1, -1)

    vars(head)["forward"] = forward
    try:
        yield entropies
    finally:
        del head.forward


def _untouched(answer: Tensor, count: int) -> Float[Tensor, " N"] | None:
    """Return the N = ``count`` log-probs in a model's output ``answer``, (1, 1, N + 3) from `_answering`; None if the
    test numbers after them have changed: then the model has changed the log-probs too, as it changes its logits."""
    probe = torch.tensor(_PROBE, dtype=answer.dtype, device=answer.device)
    exact = answer.dtype in (torch.float32, torch.float64) and answer.shape == (1, 1, count + len(probe))
    return answer[0, 0, :count] if exact and torch.equal(answer[0, 0, count:].detach(), probe) else None
