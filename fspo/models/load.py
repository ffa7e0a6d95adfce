"""Load models and tokenizers: the embedded Qwen3, which needs no download, models with random weights, and any Hugging
Face causal LM."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from fspo.base.errors import UserError, unknown_name
from fspo.config import Dtype, LoraOptions
from fspo.models.shapes import EMBEDDED, RANDOM, check_place, embedded_config, shape_of
from fspo.tasks import chain_add, even_tokens
from fspo.tasks.even_tokens import END, END_EVERY

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# A field of a Hugging Face configuration with one of these words in its name is taken for a dropout probability.
_DROPOUT_WORDS = ("dropout", "pdrop")


@contextmanager
def local_seed(seed: int) -> Iterator[None]:
    """Seed torch's CPU random generator for a ``with`` block, and restore the generator's earlier state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield


def build_embedded_model(seed: int = 0, shape: Qwen3Config | None = None) -> Qwen3ForCausalLM:
    """Build the embedded model with random weights: 0.40M parameters, a vocabulary of 24 tokens, float32, eval mode.

    Parameters
    ----------
    seed : int
        The weights depend on seed and shape alone; torch's global generator is neither used nor changed.
    shape : Qwen3Config, optional
        Another shape (configuration) than the embedded model's, for a task with other tokens.
    """
    config = shape or embedded_config()
    with local_seed(seed):
        return Qwen3ForCausalLM(config).eval()


def build_random_model(
    shape: PretrainedConfig, dtype: Dtype, *, seed: int, attn_implementation: str | None = None
) -> PreTrainedModel:
    """Build a model of the given shape (configuration) with random weights, in eval mode.

    Each token whose id is divisible by 12 ends a response, so that sampled responses are not endless.

    The weights are made in ``dtype``, so that no larger copy of them exists. They depend on shape, dtype and seed."""
    with local_seed(seed):
        model = AutoModelForCausalLM.from_config(shape, dtype=DTYPES[dtype], attn_implementation=attn_implementation)
    model.generation_config.eos_token_id = list(range(END, shape.vocab_size, END_EVERY))
    model.generation_config.pad_token_id = END
    return model.eval()


def load_model(
    name_or_path: str | Path,
    dtype: Dtype = "float32",
    *,
    attn_implementation: str | None = None,
    gradient_checkpointing: bool = False,
    lora: LoraOptions | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Load a causal language model and make it ready for training: dropout off, eval mode, on the CPU.

    Parameters
    ----------
    name_or_path : str or Path
        ``"embedded"`` (untrained; `fspo.models.warmup.warm_up` makes a trained folder), a folder, a Hub name, or
        ``"random:NAME"`` for random weights of the shape NAME (see `fspo.models.shapes.shape_of`).
    dtype : {"float32", "bfloat16"}
        Type of the weights.
    attn_implementation : str, optional
        ``"sdpa"``, ``"eager"``, ``"flash_attention_2"``, ...; transformers chooses when None.
    gradient_checkpointing : bool
        Recompute activations in the backward pass (non-reentrant).
    lora : LoraOptions, optional
        Wrap the model with adapters; only they are trainable.
    seed : int
        Seed of the weights of the embedded model and of models with random weights.

    Raises
    ------
    UserError
        The files are missing or damaged, the architecture is no causal LM, or an option is impossible.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", str(dtype), tuple(DTYPES))
    if str(name_or_path) == EMBEDDED:
        model: PreTrainedModel = build_embedded_model(seed).to(DTYPES[dtype])  # type: ignore[arg-type]
    elif str(name_or_path).startswith(RANDOM):
        shape = shape_of(str(name_or_path))
        model = build_random_model(shape, dtype, seed=seed, attn_implementation=attn_implementation)
    else:
        with _readable(name_or_path):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                name_or_path, dtype=DTYPES[dtype], attn_implementation=attn_implementation, output_loading_info=True
            )
        model, report = loaded
        absent = sorted(report["missing_keys"])
        if absent:  # transformers would fill missing weights with random numbers
            raise UserError(
                f"{name_or_path} lacks {len(absent)} of the model's weights ({absent[0]}, ...): its files are "
                "incomplete or of another architecture; download or save it again"
            )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(f"{name_or_path} is an encoder-decoder model: use a causal (decoder-only) language model")
    return ready_for_training(model, str(name_or_path), gradient_checkpointing=gradient_checkpointing, lora=lora)


def ready_for_training(
    model: PreTrainedModel, name: str, *, gradient_checkpointing: bool = False, lora: LoraOptions | None = None
) -> PreTrainedModel:
    """Return the model in eval mode without dropout; add gradient checkpointing (non-reentrant) and adapters (``lora``)
    if asked.

    Raises UserError if an option is impossible for this model; the message calls the model ``name``."""
    switch_dropout_off(model)
    if gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise UserError(f"{name} cannot checkpoint gradients: set gradient_checkpointing to false")
        # transformers 5.22 renamed this method and warns of the old name, so the new name is called where it exists
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    if lora is not None:
        model = _add_lora(model, lora)
    return model.eval()


def switch_dropout_off(model: torch.nn.Module) -> None:
    """Set every dropout probability of the model and its configuration to 0.

    The sampler, the old and the new log-probs must come from one policy: with dropout S would not be 0 at the first
    minibatch. The configuration is changed too, because some models read it in the forward pass."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if any(word in name for word in _DROPOUT_WORDS) and isinstance(value, float):
                setattr(module, name, 0.0)
    config = getattr(model, "config", None)
    for part in () if config is None else (config, config.get_text_config(decoder=True)):
        for name, value in list(part.to_dict().items()):
            if any(word in name for word in _DROPOUT_WORDS) and isinstance(value, float):
                setattr(part, name, 0.0)


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the model ``name_or_path``, with a pad token, padding on the left; ``"embedded"`` and
    ``"random:NAME"`` need no files.

    A tokenizer without a pad token pads with its end token. That is safe, because masks and not token values tell
    padding from text.

    Raises UserError if the files are missing, or the tokenizer has no end token."""
    if str(name_or_path) == EMBEDDED:
        return chain_add.build_tokenizer()
    if str(name_or_path).startswith(RANDOM):
        return even_tokens.build_tokenizer(shape_of(str(name_or_path)).vocab_size)
    with _readable(name_or_path):
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, padding_side="left")
    # If the vocabulary's file is missing, transformers still gives a tokenizer, which knows only special tokens.
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        raise UserError(
            f"cannot load the tokenizer of {str(name_or_path)!r}: its files (tokenizer.json) are missing; save the "
            "tokenizer there, or name another with model.tokenizer"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {name_or_path} has no end token: set eos_token in its tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the tokens that end a response: the tokenizer's and those of the model's generation
    configuration."""
    ids = {int(cast(int, tokenizer.eos_token_id))}
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids.update([listed] if isinstance(listed, int) else listed or [])
    return sorted(ids)


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError if the tokenizer knows more tokens than the model has embeddings for."""
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
    if len(tokenizer) > rows:  # type: ignore[arg-type]
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens but the model embeds {rows}: "  # type: ignore[arg-type]
            "use the tokenizer that belongs to the model"
        )


@contextmanager
def _readable(name_or_path: str | Path) -> Iterator[None]:
    """Turn a library's error on loading a model or tokenizer in a ``with`` block into a UserError of one line."""
    check_place(name_or_path)
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        if isinstance(error, UserError):
            raise
        first = " ".join(str(error).split())[:300]
        raise UserError(
            f"cannot load {str(name_or_path)!r}: give 'embedded', a folder saved by save_pretrained, or a Hugging "
            f"Face name that this machine can reach ({type(error).__name__}: {first})"
        ) from error


def _add_lora(model: PreTrainedModel, options: LoraOptions) -> PreTrainedModel:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]
        target_modules=options.target_modules,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    # Gradient checkpointing drops the gradients of a layer whose input needs no gradient. The first layer's input is
    # the output of the frozen embedding. After the next call that output needs a gradient, so that the adapters of the
    # first layer are trained.
    model.enable_input_require_grads()
    try:
        with local_seed(options.seed), warnings.catch_warnings():
            # peft uses the old name of a property, and transformers 5.22 warns of it. The warning is hidden, because no
            # user can act on it.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return cast(PreTrainedModel, get_peft_model(model, config))
    except ValueError as error:
        raise UserError(f"lora does not fit this model: {' '.join(str(error).split())}") from error
