"""Log-probabilities of response tokens under a causal language model, lean in memory, one code path for all uses.

Old and new log-probabilities must come from here with the same batch: then S is exactly 0 before the first update.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fspo.errors import UserError
from fspo.score_sites import flat_rows

CHUNK_ELEMENTS = 2**24
"""Logits that are float32 at one time: 64 MiB. A vocabulary of 250k goes through in chunks of 67 tokens."""
BIG_VOCABULARY = 8192
"""From here on the output layer runs chunk by chunk; below, it runs once inside the model."""
# Models whose forward does something to the logits after the output layer (scaling, soft caps) or cannot be split.
_forced_chunk: int | None = None
_WHOLE: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def make_batch(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    pad_token_id: int,
    padding_side: Literal["right", "left"] = "right",
    device: torch.device | str | None = None,
) -> dict[str, Tensor]:
    """Pad prompt + response pairs to one batch.

    Parameters
    ----------
    prompts, responses : sequences of N token id sequences
        A prompt has at least one token: the first response token is predicted from it.
    pad_token_id : int
        Any id of the vocabulary; masks, not its value, mark padding.

    Returns
    -------
    dict of Tensor (N, T)
        ``input_ids``, ``attention_mask`` (int64), ``position_ids`` (0 on each sequence's first token, whatever the
        padding side), ``response_mask`` (bool, on the token's own position).

    Raises
    ------
    UserError
        For an empty prompt, no rows, lists of different lengths or an unknown side.
    """
    if padding_side not in ("right", "left"):
        raise UserError(f"padding_side {padding_side!r}: use 'right' or 'left'")
    if len(prompts) != len(responses) or not len(prompts):
        raise UserError(f"{len(prompts)} prompts and {len(responses)} responses: give one response for each prompt")
    if any(len(prompt) == 0 for prompt in prompts):
        raise UserError("an empty prompt predicts nothing: begin it with the tokenizer's bos or eos token")
    sizes = [(len(p), len(r)) for p, r in zip(prompts, responses, strict=True)]
    width = max(p + r for p, r in sizes)
    input_ids = torch.full((len(sizes), width), pad_token_id, dtype=torch.int64)
    attention_mask, response_mask = torch.zeros_like(input_ids), torch.zeros_like(input_ids, dtype=torch.bool)
    for i, (p, r) in enumerate(sizes):
        start = width - p - r if padding_side == "left" else 0
        input_ids[i, start : start + p] = torch.as_tensor(prompts[i], dtype=torch.int64)
        input_ids[i, start + p : start + p + r] = torch.as_tensor(responses[i], dtype=torch.int64)
        attention_mask[i, start : start + p + r] = 1
        response_mask[i, start + p : start + p + r] = True
    position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    batch = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": position_ids,
        "response_mask": response_mask,
    }
    return {name: x.to(device) for name, x in batch.items()} if device is not None else batch


def token_log_probs(
    model: nn.Module, batch: Mapping[str, Tensor], temperature: float = 1.0, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each response token given what precedes it.

    Only the positions that predict response tokens meet the output layer, and for vocabularies from
    `BIG_VOCABULARY` on, at most `CHUNK_ELEMENTS` logits exist at a time: chunks are recomputed in the backward pass.

    Parameters
    ----------
    model : Module
        A Hugging Face causal language model, also inside peft or DDP.
    batch : mapping
        As from `make_batch`; ``position_ids`` is left out for models that know none (ALiBi).
    temperature : float
        The sampler's, > 0: logits are divided by it.
    entropy : bool
        Also return the entropy of each response token's distribution.

    Returns
    -------
    log_probs : Tensor (B, T), float32 (float64 for a float64 model)
        On the token's own position, 0 outside ``response_mask``.
    entropies : Tensor (B, T) or None
        Nats, detached, 0 outside the mask.

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
        # The graph must exist on every process, or data parallel training waits for ever.
        columns = torch.zeros(1, dtype=torch.int64, device=mask.device)
    features, head = _features(model, batch, columns)
    selected = features[predicting[:, columns]]
    targets = batch["input_ids"][mask]
    if head is None:
        values, entropies = _select(selected, targets, temperature, entropy)
    else:
        rows = predicting.nonzero()[:, 0]
        values, entropies = _select_in_chunks(head, selected, targets, rows, temperature, entropy)
    log_probs = values.new_zeros(mask.shape).masked_scatter(mask, values)
    if targets.numel() == 0:
        log_probs = log_probs + 0.0 * features.sum()
    if entropies is None:
        return log_probs, None
    return log_probs, entropies.new_zeros(mask.shape).masked_scatter(mask, entropies)


def _select(logits: Tensor, targets: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Log-probs (N,) and entropies (N,) from logits (N, V), in float32 or better."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    values = -F.cross_entropy(logits, targets, reduction="none")
    if not entropy:
        return values, None
    with torch.no_grad():
        log_p = logits.detach().log_softmax(-1)
        return values, -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)  # 0 * -inf is 0


def _select_in_chunks(
    head: nn.Module, hidden: Tensor, targets: Tensor, rows: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    size = _forced_chunk or max(1, CHUNK_ELEMENTS // _vocabulary(head))

    def chunk(h: Tensor, t: Tensor, r: Tensor) -> tuple[Tensor, Tensor | None]:
        with flat_rows(r):
            return _select(head(h), t, temperature, entropy)

    parts = zip(hidden.split(size), targets.split(size), rows.split(size), strict=True)
    if torch.is_grad_enabled():
        results = [cast("tuple[Tensor, Tensor | None]", checkpoint(chunk, *p, use_reentrant=False)) for p in parts]
    else:
        results = [chunk(*p) for p in parts]
    values = torch.cat([value for value, _ in results])
    return values, torch.cat([cast(Tensor, e) for _, e in results]) if entropy else None


def _features(model: nn.Module, batch: Mapping[str, Tensor], columns: Tensor) -> tuple[Tensor, nn.Module | None]:
    """Logits (B, K, V) at ``columns``; or hidden states (B, K, H) and the output layer still to be applied."""
    core = _core(model)
    parameters = inspect.signature(core.forward).parameters
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if "position_ids" in parameters:
        inputs["position_ids"] = batch["position_ids"]
    if "use_cache" in parameters:
        inputs["use_cache"] = False
    if keeps := "logits_to_keep" in parameters:
        inputs["logits_to_keep"] = columns
    head = _separable_head(core)
    if head is not None:
        with _bypassed(head) as seen:
            logits = model(**inputs).logits
        if len(seen) == 1 and logits is seen[0]:
            return (logits if keeps else logits[:, columns]), head
        _WHOLE.add(core)
    logits = model(**inputs).logits
    return (logits if keeps else logits[:, columns]), None


def _core(model: nn.Module) -> nn.Module:
    """The causal LM itself, out of DDP and peft."""
    while isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def _vocabulary(head: nn.Module) -> int:
    return int(cast(Tensor, head.weight).shape[0])


def _separable_head(core: nn.Module) -> nn.Module | None:
    """The output layer, where it is big, a plain module, and may run outside the model's forward."""
    if core in _WHOLE or not hasattr(core, "get_output_embeddings"):
        return None
    head = core.get_output_embeddings()  # type: ignore[operator]
    # Sharded weights (FSDP) are gathered by the forward of the whole: not a plain Parameter there.
    if head is None or type(getattr(head, "weight", None)) is not nn.Parameter:
        return None
    if _forced_chunk is None and _vocabulary(head) < BIG_VOCABULARY:
        return None
    # Other people's hooks expect the real output.
    foreign = [hook for hook in head._forward_hooks.values() if not getattr(hook, "knows_flat_rows", False)]
    hooked = foreign or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks
    return None if hooked else head


@contextmanager
def chunked_head(tokens: int) -> Iterator[None]:
    """Run the output layer in chunks of ``tokens`` whatever the vocabulary: what chunking does to the numbers."""
    global _forced_chunk
    before, _forced_chunk = _forced_chunk, tokens
    try:
        yield
    finally:
        _forced_chunk = before


@contextmanager
def _bypassed(head: nn.Module) -> Iterator[list[Tensor]]:
    """Let the output layer hand its input through; yields the tensors that it saw."""
    seen: list[Tensor] = []

    def forward(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return hidden

    before = head.__dict__.get("forward")
    head.forward = forward
    try:
        yield seen
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before
