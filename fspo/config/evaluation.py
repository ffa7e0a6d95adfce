"""Options of the evaluation of models on benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from fspo.config.option_ranges import SEEDS, Ranged, number


@dataclass(frozen=True)
class AnswerConfig(Ranged, group=""):
    """How answers to a benchmark are sampled. All answers in one file are sampled with the same settings.

    Parameters
    ----------
    samples : int
        Number of responses to each prompt.
    temperature : float
        Sampling temperature; 0 takes the most probable token.
    max_new_tokens : int
        Greatest length of a response, tokens.
    max_prompt_tokens : int
        Greatest length of a prompt, tokens. A longer prompt is not asked and counts as wrong; such prompts are counted.
    seed : int
        Seed of the sampling noise. The noise depends on the seed, the prompt and the response's number alone, so it is
        the same for all models.
    chat_template : bool, optional
        Force the tokenizer's chat template on or off; by default it is used where there is one.
    """

    samples: int = number(8, 1)
    temperature: float = number(1.0, 1e-3, 1e3, also=(0,))
    max_new_tokens: int = number(4096, 1)
    max_prompt_tokens: int = number(2048, 1)
    seed: int = number(0, 0, SEEDS)
    chat_template: bool | None = None
