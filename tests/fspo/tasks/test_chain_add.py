"""chain-add: the examples, the reward, the warm-up data and the tokenizer."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fspo.base.errors import UserError
from fspo.tasks import make_task
from fspo.tasks.base import Example, encode_prompt
from fspo.tasks.chain_add import ChainAdd, ChainAddConfig, build_tokenizer, held_out, prompt_text

# The module docstring's example, worked by hand: 17, +25 three times -> 42, 67, 92.
PROMPT = "?:3071+52="
RIGHT = "2024+52,1076+52;0029+52"
EXAMPLE = Example("train-0", PROMPT, "92", {"steps": 3, "start": 17, "addend": 25})


def read(pair: str) -> int:
    """Read two digits, least significant first."""
    return int(pair[::-1])


def taught(number: int, seed: int = 0, **options: float) -> list[tuple[str, str]]:
    """The first examples of the warm-up."""
    task = ChainAdd(ChainAddConfig(**options))
    return [task.warmup_text(seed, i) for i in range(number)]


@pytest.mark.parametrize(
    ("response", "finished", "expected"),
    [
        (RIGHT, True, 1.0),
        ("1076+52/0029+52", True, 1.0),  # two additions at once
        (RIGHT + "<eos>", True, 1.0),
        (RIGHT, False, 0.0),
        ("2024+52,1076+52;0092+52", True, 0.0),  # big-endian state
        ("2024+52,1076+52;1029+52", True, 0.0),  # counter not 0
        (RIGHT + "\n", True, 0.0),
        ("2024+52,1076+52-0029+52", True, 0.0),  # no separator before the last step
    ],
)
def test_reward_by_hand(response: str, finished: bool, expected: float):
    assert ChainAdd().score([EXAMPLE], [response], [finished]).values.tolist() == [expected]


def test_examples_are_pure_and_consistent():
    task = make_task("chain-add", {"seed": 3})
    assert task.size("train") is None
    for split in ("train", "eval"):
        for index in (0, 1, 10**12):
            example = task.example(split, index)
            assert example == make_task("chain-add", {"seed": 3}).example(split, index)
            steps, start, addend = example.info.values()
            assert example.prompt == prompt_text(steps, start, addend)
            assert int(example.answer) == (start + steps * addend) % 100
    assert prompt_text(3, 17, 25) == PROMPT
    assert task.example("train", 5) != make_task("chain-add", {"seed": 4}).example("train", 5)


def test_splits_share_no_start_and_addend():
    for split in ("train", "eval"):
        for info in (ChainAdd().example(split, i).info for i in range(500)):
            assert held_out(info["start"], info["addend"]) == (split == "eval")
    assert 0.11 < np.mean([held_out(a, b) for a in range(100) for b in range(1, 100)]) < 0.14
    for prompt, _ in taught(500):
        assert not held_out(read(prompt[4:6]), read(prompt[7:9]))


def test_number_of_steps_is_log_uniform():
    count = 4000
    steps = np.array([ChainAdd().example("train", i).info["steps"] for i in range(count)])
    assert (steps.min(), steps.max()) == (1, 32)
    for low, high in ((1, 1), (2, 7), (8, 32)):
        share = math.log((high + 1) / low) / math.log(33)
        assert abs(np.mean((steps >= low) & (steps <= high)) - share) < 4.5 * math.sqrt(share * (1 - share) / count)


def parse(prompt: str, response: str) -> list[tuple[int, int, int, int, str]]:
    """(size of the step, state before, state after, addend, separator) of each step, checking the form."""
    left, state, addend = read(prompt[2:4]), read(prompt[4:6]), read(prompt[7:9])
    steps = []
    for piece in re.findall(r"(\d\d)(\d\d)\+(\d\d)([,;|/]?)", response):
        now, new = read(piece[0]), read(piece[1])
        assert read(piece[2]) == addend
        steps.append((left - now, state, new, addend, piece[3]))
        left, state = now, new
    assert left == 0
    assert len(response) == 8 * len(steps) - 1
    assert all(step[4] for step in steps[:-1])
    assert not steps[-1][4]
    return steps


def test_warmup_without_slips_is_always_right():
    assert [ChainAdd().warmup_text(1, i, slips=False) for i in range(9)] == taught(9, 1, slip=0.0)
    for prompt, response in taught(300, 1, slip=0.0):
        for size, before, after, addend, _ in parse(prompt, response):
            assert size in (1, 2)
            assert after == (before + size * addend) % 100


def test_warmup_rates():
    steps = [step for pair in taught(3000, 2, slip=0.06, double_share=0.25) for step in parse(*pair)]
    slips = np.mean([after != (before + size * d) % 100 for size, before, after, d, _ in steps])
    assert abs(slips - 0.06) < 4.5 * math.sqrt(0.06 * 0.94 / len(steps))
    separators = [step[4] for step in steps if step[4]]
    for separator in ",;|/":
        assert abs(separators.count(separator) / len(separators) - 0.25) < 0.02
    # A chain of n=2 has a double first step with probability double_share exactly.
    pairs = [parse(*pair) for pair in taught(4000, 2, max_steps=2)]
    twos = [steps for steps in pairs if sum(step[0] for step in steps) == 2]
    share = np.mean([len(steps) == 1 for steps in twos])
    assert abs(share - 0.25) < 4.5 * math.sqrt(0.25 * 0.75 / len(twos))


def test_tokenizer_is_character_level():
    tokenizer = build_tokenizer()
    assert len(tokenizer) == 24
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    ids = encode_prompt(tokenizer, PROMPT)
    assert len(ids) == 10
    assert tokenizer.decode([*ids, 1, 0], skip_special_tokens=True) == PROMPT
    assert tokenizer("x")["input_ids"] == [tokenizer.unk_token_id]
    padded = tokenizer(["12", "3"], padding=True)
    assert padded["input_ids"][1][0] == 0
    assert padded["attention_mask"][1] == [0, 1]


@pytest.mark.parametrize("options", [{"max_steps": 100}, {"slip": 1.5}])
def test_impossible_options(options):
    with pytest.raises(UserError, match="use"):
        ChainAddConfig(**options)
