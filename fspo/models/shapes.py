"""Shapes of models: configurations without weights, read from a folder's config.json or given in this module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fspo.base.errors import UserError
from fspo.tasks import even_tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig, Qwen3Config

EMBEDDED = "embedded"
"""Name by which a user asks for the embedded model, a small Qwen3 that needs no files."""
RANDOM = "random:"
"""Prefix of the name of a model with random weights; the name of the shape follows, for example "Qwen3-8B-Base"."""
COMMON = {"vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 32_768}
"""Configuration values that all models in `BUILT_IN` have in common (from their config.json on Hugging Face)."""
FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings")
BUILT_IN: dict[str, tuple[Any, ...]] = {
    "Qwen3-0.6B-Base": (1024, 3072, 28, 16, True),
    "Qwen3-1.7B-Base": (2048, 6144, 28, 16, True),
    "Qwen3-8B-Base": (4096, 12_288, 36, 32, False),
}
"""Values of `FIELDS` of models that need no config.json, by the part of the model's name after the last slash."""
NO_SHAPE = (
    "no shape of {!r}: give a folder with config.json, a Hugging Face name that this machine can reach, "
    f"{EMBEDDED}, or one of {', '.join(BUILT_IN)}"
)


def check_place(name_or_path: str | Path, task: str = even_tokens.NAME) -> None:
    """Raise UserError if ``name_or_path``, of a model or tokenizer, is the path of a missing folder, or if it asks for
    random weights ("random:SHAPE") and SHAPE is unknown or ``task`` is not "even-tokens", their only task."""
    name = str(name_or_path).removeprefix(RANDOM)
    place, random = Path(name), name != str(name_or_path)
    if random and task != even_tokens.NAME:
        raise UserError(f"a model with random weights knows task {even_tokens.NAME!r} alone: name it with --task.name")
    if random and "/" not in name and name not in (EMBEDDED, *BUILT_IN) and not place.exists():
        raise UserError(NO_SHAPE.format(name))
    if not place.exists() and place.parent != Path() and place.parent.is_dir():
        raise UserError(f"there is no folder {place}: give the folder of a model or a run, or a Hugging Face name")


def embedded_config() -> Qwen3Config:
    """Return the configuration of the embedded model, a small Qwen3."""
    from fspo.tasks.chain_add import build_tokenizer

    tokenizer = build_tokenizer()
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    return small_qwen3(vocab_size=len(tokenizer), pad_token_id=pad, eos_token_id=end)


def small_qwen3(width: int = 128, heads: int = 4, **changes: Any) -> Qwen3Config:
    """Return the configuration of a small Qwen3: two layers, a vocabulary of 24 tokens, untied embeddings.

    A hidden state has ``width`` entries, as have all ``heads`` query heads together (two for each head of keys and
    values); the hidden layer of an MLP has 3 x ``width``. ``changes`` are other fields of ``Qwen3Config``."""
    from transformers import Qwen3Config

    given: dict[str, Any] = {
        "vocab_size": 24,
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": width // heads,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    return Qwen3Config(**given | changes)


def shape_of(name_or_path: str) -> PretrainedConfig:
    """Return the configuration of a model; no weights are loaded.

    ``name_or_path`` is "embedded", a folder with config.json, one of the Qwen3 models that `BUILT_IN` lists (with or
    without "Qwen/"), a Hub name, or "random:" followed by one of these. Raises UserError if there is no such
    configuration."""
    from transformers import AutoConfig, Qwen3Config

    check_place(name_or_path)
    name = name_or_path.removeprefix(RANDOM)
    if name == EMBEDDED:
        return embedded_config()
    short = name.removeprefix("Qwen/")
    if short in BUILT_IN and not Path(name).exists():
        return Qwen3Config(**COMMON, **dict(zip(FIELDS, BUILT_IN[short], strict=True)))
    try:
        return AutoConfig.from_pretrained(name).get_text_config(decoder=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(NO_SHAPE.format(name)) from error
