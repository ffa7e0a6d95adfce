"""The task for models with random weights: even-tokens. The reward is the share of even token ids in the response.

A model with random weights knows no language, so its tokenizer writes token ids as numbers: "17 4 902". The rewards of
two responses differ nearly always, so every group has advantages and every update moves the weights. Training on this
task tests that a model of a given shape can be trained; it teaches the model nothing of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fspo.base.errors import UserError
from fspo.base.keyed_noise import keyed_uniforms
from fspo.config.option_ranges import SEEDS, check_ranges, number
from fspo.tasks.base import Example, Rewards, Split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NAME = "even-tokens"
END = 0
"""Id of the token that ends a response and pads a batch; its text is `END_TEXT`."""
END_TEXT = "<end>"
END_EVERY = 12
"""Every token id divisible by this number ends a response of a model with random weights, so lengths are geometric."""
_PURPOSES = {"train": 0x7B01, "eval": 0x7B02}


@dataclass(frozen=True)
class EvenTokensConfig:
    """Options of the task even-tokens, in which the reward is the share of even token ids in the response.

    Attributes
    ----------
    seed : int
        Seed from which the prompts are drawn.
    prompt_tokens : int
        Number of token ids in each prompt.
    vocabulary : int
        Number of token ids that the model knows. A prompt holds ids from 1 to vocabulary - 1, because id 0 ends a
        response.
    """

    seed: int = number(0, 0, SEEDS)
    prompt_tokens: int = number(8, 1)
    vocabulary: int = number(1000, 2)

    def __post_init__(self) -> None:
        check_ranges(self, NAME)


class EvenTokens:
    """The task even-tokens. Prompts are drawn from a seed, so training and evaluation never run out of examples."""

    def __init__(self, config: EvenTokensConfig | None = None, name: str = NAME) -> None:
        self.config, self.name = config or EvenTokensConfig(), name

    def size(self, split: Split) -> int | None:
        """Return None, because both splits, "train" and "eval", have an example at every index."""
        return None

    def example(self, split: Split, index: int) -> Example:
        """Return the example at ``index``, which depends on the task's options, the split and the index alone."""
        if index < 0:
            raise UserError(f"even-tokens example {index} does not exist: use an index of 0 or more")
        config = self.config
        draws = keyed_uniforms(_PURPOSES[split], config.seed, (config.seed, index), 0, config.prompt_tokens)
        prompt = " ".join(str(1 + int(draw * (config.vocabulary - 1))) for draw in draws)
        return Example(prompt_id=f"{split}-{index}", prompt=prompt, answer="")

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Give each response the share of its words that are even numbers; 0 to a response without a word."""
        values = np.zeros(len(examples))
        for i, response in enumerate(responses):
            words = response.split()
            values[i] = sum(word.isdecimal() and int(word) % 2 == 0 for word in words) / max(len(words), 1)
        return Rewards(values=values, status=["ok"] * len(examples))


def build_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Build a tokenizer of ``vocabulary`` tokens that writes each as the number of its id, with spaces between tokens.

    The end token, id 0, is written ``<end>``. A word that is no id is read as the end token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {END_TEXT if i == END else str(i): i for i in range(vocabulary)}
    core = Tokenizer(models.WordLevel(ids, unk_token=END_TEXT))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=END_TEXT,
        eos_token=END_TEXT,
        unk_token=END_TEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
