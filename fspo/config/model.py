"""Options of the policy, of its adapters, and of the warm-up of the embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fspo.config.option_ranges import SEEDS, Ranged, number

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class LoraOptions(Ranged, group="model.lora"):
    """Train low-rank adapters instead of all weights; needs the package's extra ``lora``.

    Parameters
    ----------
    rank : int
        Rank of each adapter.
    alpha : float
        Scale of the adapters; their output is multiplied by alpha / rank.
    target_modules : list of str or str
        Module names, or ``"all-linear"``.
    seed : int
        Seed of the adapters' random initial weights.
    """

    rank: int = number(16, 1, 65536)
    alpha: float = number(32.0, 0, 1e6, above=True)
    target_modules: list[str] | str = "all-linear"
    seed: int = number(0, 0, SEEDS)


@dataclass(frozen=True)
class ModelConfig:
    """The policy: the model that is trained, and how it is loaded.

    Parameters
    ----------
    name_or_path : str
        "embedded" (a small Qwen3, warmed up on the task first), a folder or a Hugging Face name.
    tokenizer : str, optional
        Folder or name of the tokenizer, if it is not that of the model.
    dtype : {"float32", "bfloat16"}
        Type of the weights.
    attn_implementation : str, optional
        As in transformers: "sdpa", "eager", "flash_attention_2".
    gradient_checkpointing : bool
        Recompute activations in the backward pass.
    lora : LoraOptions, optional
        Train adapters instead of all weights (extra "lora").
    """

    name_or_path: str = "embedded"
    tokenizer: str | None = None
    dtype: Dtype = "float32"
    attn_implementation: str | None = None
    gradient_checkpointing: bool = False
    lora: LoraOptions | None = None


@dataclass(frozen=True)
class WarmupConfig(Ranged, group="warmup"):
    """How the embedded model is warmed up.

    Parameters
    ----------
    steps : int
        Optimizer steps.
    examples_per_step : int
        Examples (a prompt with its response, about 70 tokens) in each optimizer step.
    slip_from : float
        Share of the steps, from the first on, that use examples without mistakes. Examples of the later steps contain
        mistakes with the probability that the task's option slip sets.
    muon_lr : float
        Muon's learning rate, for the weight matrices of the layers.
    adamw_lr : float
        AdamW's learning rate, for the embeddings, the output layer and the norms.
    seed : int
        Seed of the initial weights and the data.
    min_accuracy : float
        Accuracy of sampled responses to held-out prompts that the warm-up must reach.
    eval_examples : int
        Held-out prompts on which the accuracy is measured.
    attempts : int
        Number of seeds (seed, seed + 1, ...) that are tried until one reaches min_accuracy.
    threads : int
        CPU threads; the weights depend on their number in the last bits.
    cache_dir : str, optional
        Folder in which warmed-up models are kept; by default the one that the environment variable FSPO_CACHE names, or
        ~/.cache/fspo.
    """

    steps: int = number(900, 1)
    examples_per_step: int = number(16, 1)
    slip_from: float = number(0.7, 0, 1)
    muon_lr: float = number(0.01, 0, 1, above=True)
    adamw_lr: float = number(4e-3, 0, 1, above=True)
    seed: int = number(0, 0, SEEDS)
    min_accuracy: float = number(0.15, 0, 1)
    eval_examples: int = number(512, 1)
    attempts: int = number(3, 1)
    threads: int = number(1, 1, 1024)
    cache_dir: str | None = None
