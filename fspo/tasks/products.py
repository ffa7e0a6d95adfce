"""Worked solutions to reasoning-gym's task products, from which the embedded model (a small one) learns the task.

Two numbers of at most two digits are multiplied by repeated addition, one digit of the second number after the other.
A step is ``NRAASSSS`` and a separator. N says how often the first number must still be added for the present digit of
the second number. R is the next digit of the second number, or ``-`` if none is left. AA is the first number and SSSS
the sum so far, each with the least significant digit first. The first step copies the numbers, with the sum 0. While N
is above 0, the next step adds the first number to the sum, once or twice. When N is 0, the next step multiplies the sum
by ten and turns to the digit R. So the solution to ``27 * 21`` may be
``21720000,11727200;01724500|1-720450/0-727650,<answer>567</answer>``. Where one of the numbers is 0 or 1, the solution
is the answer alone. A correct response has 4 to 187 tokens, and each step but the first can be computed from the step
before it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fspo.base.errors import UserError
from fspo.base.keyed_noise import keyed_uniforms
from fspo.tasks.chain_add import SEPARATORS, build_tokenizer, two_digits
from fspo.tasks.gym import GymTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPEN, CLOSE = "<answer>", "</answer>"
STEP_TOKENS = 9
# Most steps of a solution. They are needed if the second factor is 99: the first step, 9 additions for one digit, the
# move to the next digit, 9 additions for that digit.
MOST_STEPS = 20
MAX_RESPONSE_TOKENS = STEP_TOKENS * (MOST_STEPS + 1) + len([OPEN, *"9801", CLOSE, "end token"])
"""The response limit, tokens: the longest worked solution plus one step.

A response with one step too many can thus end by itself, before the length limit."""
SUMS = 10_000  # the running sum is taken modulo this number, because a step writes it with four digits
# Probability that a step adds the first number twice at once if it must be added twice or more. Correct solutions to
# one question then differ in length.
DOUBLE_SHARE = 0.25
SLIP = 0.06  # probability that an addition writes a wrong sum, from which the next step goes on
_WARMUP_PURPOSE = 0x7C01


def worked_solution(first: int, second: int, draws: np.ndarray, slip: float = SLIP) -> str:
    """Return a solution of ``first * second``, both below 100, without its end token.

    Parameters
    ----------
    draws : numpy.ndarray
        Uniform numbers in [0, 1), float64 (MOST_STEPS, 4), one row for each step. Column 3 decides the separator after
        the step. The other columns decide on the next step: column 0 whether it adds twice at once, column 1 whether it
        slips, that is writes a wrong sum, and column 2 which wrong sum it writes.
    slip : float
        Probability of a slip at each addition.
    """
    if min(first, second) < 2:
        return f"{OPEN}{first * second}{CLOSE}"
    left, *waiting = (int(digit) for digit in str(second))
    total, text = 0, ""
    for double, wrong, by, separator in draws:
        high, low = divmod(total, 100)
        text += f"{left}{waiting[0] if waiting else '-'}{two_digits(first)}{two_digits(low)}{two_digits(high)}"
        text += SEPARATORS[int(separator * len(SEPARATORS))]
        if left:
            size = 2 if left >= 2 and double < DOUBLE_SHARE else 1
            left, total = left - size, total + size * first
            if wrong < slip:
                total += 1 + int(by * (SUMS - 1))
        elif waiting:
            left, total = waiting.pop(), 10 * total
        else:
            break
        total %= SUMS
    return f"{text}{OPEN}{total}{CLOSE}"


class ProductsTask(GymTask):
    """reasoning-gym's products of two numbers of at most two digits, with worked solutions."""

    def data_options(self) -> dict[str, Any]:
        """Return the options that the warm-up texts depend on.

        Raises UserError if the questions are not products of two numbers below 100."""
        given = self.dataset.config
        terms = given.min_terms == given.max_terms == 2
        if not terms or given.max_digits > 2 or given.allow_negation:
            raise UserError(
                f"the embedded model learns {self.name} of two numbers of at most two digits: set "
                "--task.options.max_digits 2 and leave terms and negation as they are, or name a pretrained model with "
                "--model.name-or-path"
            )
        names = ("seed", "size", "eval_size", "instruction")
        return {"name": self.name, **self.options, **{name: getattr(self.config, name) for name in names}}

    def build_tokenizer(self) -> PreTrainedTokenizerFast:
        """Build chain-add's tokenizer with four more tokens: the texts before and after the two numbers in a prompt,
        and the answer's tags."""
        example = self.example("train", 0)
        before, _, after = str(example.prompt).partition(str(example.info["expression"]))
        return build_tokenizer([before, after, OPEN, CLOSE])

    def max_response_tokens(self) -> int:
        """Return the limit of tokens in a response: the longest worked solution plus one step."""
        return MAX_RESPONSE_TOKENS

    def warmup_text(self, seed: int, index: int, slips: bool = True) -> tuple[str, str]:
        """Return a training question and its worked solution, which depend on task, seed and index alone; with
        ``slips`` some steps of it may be wrong."""
        draws = keyed_uniforms(_WARMUP_PURPOSE, seed, (self.config.seed, index), 0, 1 + 4 * MOST_STEPS)
        example = self.example("train", int(draws[0] * self.config.size))
        first, second = (int(word) for word in str(example.info["expression"]).split(" * "))
        return str(example.prompt), worked_solution(first, second, draws[1:].reshape(-1, 4), SLIP if slips else 0.0)
