"""The embedded task: chain-add. Start at x, add d n times modulo 100, and write every step out.

A prompt is ``?:CCSS+DD=`` and a step is ``CCSS+DD`` with a separator, one of ``,;|/``. CC is the counter of additions
left, SS the state and DD the number d, two digits each, least significant digit first, so that the model has seen the
lower digit before it needs the carry. The last step ends with the end token in place of the separator. So
``?:3071+52=`` (add 25 three times to 17) may go on ``2024+52,1076+52;0029+52<eos>``. A correct response has 8 tokens
per step, 8 to 256 in all, and each step can be computed from the step before it alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fspo.base.errors import UserError
from fspo.base.keyed_noise import keyed_uniforms
from fspo.config.option_ranges import SEEDS, check_ranges, number
from fspo.tasks.base import Example, Rewards, Split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SEPARATORS = ",;|/"
ALPHABET = "0123456789+-*=?: " + SEPARATORS
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
STEP_TOKENS = 8
MODULUS = 100
HELD_OUT = 8  # one pair (start, addend) in eight belongs to the eval split

_PURPOSES = {"train": 0x7A01, "eval": 0x7A02, "warmup": 0x7A03}
_LAST_STEP = re.compile(r"(\d\d)(\d\d)\+(\d\d)")
_SPLIT_STEPS = re.compile("[" + re.escape(SEPARATORS) + "]")


@dataclass(frozen=True)
class ChainAddConfig:
    """Options of chain-add.

    Attributes
    ----------
    seed : int
        Seed of the examples.
    max_steps : int
        Largest number of additions n, at most 99, because the counter has two digits; n is log-uniform in
        1..max_steps.
    double_share : float
        Probability that a step in the warm-up data with two or more additions left does two additions at once.
        Correct responses to one prompt then differ in length.
    slip : float
        Probability that a step in the warm-up data writes a wrong state, from which the next step goes on. It sets
        the accuracy that RL starts from, about (1 - slip) ** steps.
    """

    seed: int = number(0, 0, SEEDS)
    max_steps: int = number(32, 1, 99)
    double_share: float = number(0.25, 0, 1)
    slip: float = number(0.06, 0, 1)

    def __post_init__(self) -> None:
        check_ranges(self, "chain-add")


def held_out(start: int, addend: int) -> bool:
    """Return whether the problems of chain-add that begin at ``start`` and add ``addend`` at each step belong to the
    eval split; the number of steps does not matter."""
    # Knuth's multiplicative hash of a pair chooses the held-out pairs: the same in every run, and without a pattern in
    # their digits.
    return (((start * MODULUS + addend) * 2654435761) % 2**32 >> 16) % HELD_OUT == 0


def two_digits(number: int) -> str:
    """Write a number from 0 to 99 as two digits, the least significant one first."""
    return f"{number % 10}{number // 10}"


@cache
def _pairs(evaluation: bool) -> tuple[tuple[int, int], ...]:
    pairs = ((start, addend) for start in range(MODULUS) for addend in range(1, MODULUS))
    return tuple(pair for pair in pairs if held_out(*pair) == evaluation)


def _problem(config: ChainAddConfig, stream: str, seed: int, index: int) -> tuple[int, int, int, np.ndarray]:
    """Draw one example: return its number of additions n, start x and addend d, and further uniform numbers in [0, 1).

    ``stream`` "warmup" gets 4 max_steps further numbers, four for each step, from which its worked solution is made;
    "train" and "eval" get none. All depend on the stream, ``seed``, ``config.seed`` and ``index``."""
    if index < 0:
        raise UserError(f"chain-add example {index} does not exist: use an index of 0 or more")
    spare = 4 * config.max_steps if stream == "warmup" else 0
    draws = keyed_uniforms(_PURPOSES[stream], seed, (config.seed, index), 0, 2 + spare)
    pairs = _pairs(stream == "eval")
    steps = min(int((config.max_steps + 1) ** draws[0]), config.max_steps)
    return steps, *pairs[int(draws[1] * len(pairs))], draws[2:]


def prompt_text(steps: int, start: int, addend: int) -> str:
    """Return the prompt of chain-add that asks to add ``addend`` to ``start`` ``steps`` times: ten characters, of which
    the last eight have the form of a step of the response."""
    return f"?:{two_digits(steps)}{two_digits(start)}+{two_digits(addend)}="


class ChainAdd:
    """The task chain-add. Both splits are endless, and each pair (start, addend) occurs in only one of them."""

    def __init__(self, config: ChainAddConfig | None = None, name: str = "chain-add") -> None:
        self.config, self.name = config or ChainAddConfig(), name

    def size(self, split: Split) -> int | None:
        """Return None for the number of examples, because both splits are endless."""
        return None

    def example(self, split: Split, index: int) -> Example:
        """Return the example at ``index``; it depends on the task's options, the split and the index alone."""
        steps, start, addend, _ = _problem(self.config, split, self.config.seed, index)
        return Example(
            prompt_id=f"{split}-{index}",
            prompt=prompt_text(steps, start, addend),
            answer=str((start + steps * addend) % MODULUS),
            info={"steps": steps, "start": start, "addend": addend},
        )

    def data_options(self) -> dict[str, Any]:
        """Return all options, because the warm-up texts depend on each of them."""
        return asdict(self.config)

    def build_tokenizer(self) -> PreTrainedTokenizerFast:
        """Build the tokenizer of 24 tokens, nearly all of them single characters; it adds no special token to a
        text."""
        return build_tokenizer()

    def max_response_tokens(self) -> int:
        """Return the limit of tokens in a response: the longest correct response plus one step.

        A response with one step too many can thus end by itself, before the length limit."""
        return STEP_TOKENS * (self.config.max_steps + 1)

    def warmup_text(self, seed: int, index: int, slips: bool = True) -> tuple[str, str]:
        """Return the prompt and the worked solution, without its end token, of the warm-up's example ``index``. The
        prompts are those of the train split; with ``slips`` some steps of the solution may be wrong."""
        left, state, addend, draws = _problem(self.config, "warmup", seed, index)
        prompt = prompt_text(left, state, addend)
        steps = []
        for double, slip, by, separator in draws.reshape(-1, 4):
            size = 2 if left >= 2 and double < self.config.double_share else 1
            left -= size
            state = (state + size * addend) % MODULUS
            if slips and slip < self.config.slip:
                state = (state + 1 + int(by * (MODULUS - 1))) % MODULUS
            steps.append(f"{two_digits(left)}{two_digits(state)}+{two_digits(addend)}")
            if left == 0:
                break
            steps.append(SEPARATORS[int(separator * len(SEPARATORS))])
        return prompt, "".join(steps)

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Give each response the reward 1 if it ended (``finished``), its last step says that no addition is left
        (counter 0), and the sum there (state) is right; else 0. The text of an end token at the end of a response is
        ignored."""
        values = np.zeros(len(examples))
        for i, (example, response, ended) in enumerate(zip(examples, responses, finished, strict=True)):
            last = _LAST_STEP.fullmatch(_SPLIT_STEPS.split(response.removesuffix(EOS))[-1])
            values[i] = bool(ended and last and last[1] == "00" and last[2] == two_digits(int(example.answer)))
        return Rewards(values=values, status=["ok"] * len(examples))


def build_tokenizer(phrases: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build the character-level tokenizer of 24 tokens (pad 0, eos 1, unk 2); it adds no special token to a text.

    Each text in ``phrases`` becomes one more token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNK, *ALPHABET])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # type: ignore[assignment]
    core.decoder = decoders.Fuse()  # type: ignore[assignment]
    core.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
