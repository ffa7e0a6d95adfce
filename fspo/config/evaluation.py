"""How models are evaluated on benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from fspo.config.ranges import SEEDS, check_ranges, number


@dataclass(frozen=True)
class AnswerConfig:
    """How a benchmark is answered; a file of answers belongs to one of them.

    Parameters
    ----------
    samples : int
        Responses a prompt.
    temperature : float
        0 is greedy.
    max_new_tokens : int
        A response is cut here.
    max_prompt_tokens : int
        A longer prompt is not asked, counts as wrong and is counted.
    seed : int
        Of the noise, which belongs to the prompt and the response's number: all models see the same.
    chat_template : bool, optional
        Force the tokenizer's template on or off.
    """

    samples: int = number(8, 1)
    temperature: float = number(1.0, 1e-3, 1e3, also=(0,))
    max_new_tokens: int = number(4096, 1)
    max_prompt_tokens: int = number(2048, 1)
    seed: int = number(0, 0, SEEDS)
    chat_template: bool | None = None

    def __post_init__(self) -> None:
        check_ranges(self, "")
