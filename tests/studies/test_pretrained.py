"""Tests of studies/pretrained.py: the prompts, the model's end tokens and the reward."""

import json

import pytest
from transformers import GenerationConfig

from fspo.tasks.chain_add import build_tokenizer
from studies import pretrained
from studies.counting_reward import graded


def test_the_prompts_ask_for_numbers_and_show_solved_examples(tmp_path):
    pretrained.write_task(tmp_path / "counting.jsonl", 11)
    rows = [json.loads(line) for line in (tmp_path / "counting.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) == pretrained.PROMPTS
    assert pretrained.question(8, 10).endswith("Count from 12 to 14: 12 13 14\nCount from 7 to 7: 7\n"
        "Count from 21 to 29: 21 22 23 24 25 26 27 28 29\nCount from 8 to 10:")  # fmt: skip
    assert pretrained.counted(8, 10) == "8 9 10"
    many = sorted(len(row["answer"].split()) for row in rows)
    assert (many[0], many[-1]) == (1, 50)
    # Log-uniform has the median 51 ** 0.5 = 7.1; short prompts repeat more often and are drawn again. Uniform has 25.
    assert 7 <= many[len(many) // 2] <= 12


def test_a_line_end_ends_a_response_and_the_model_stays_as_it_is(tmp_path):
    model = tmp_path / "model"
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["\n"])
    tokenizer.save_pretrained(model)
    GenerationConfig(eos_token_id=1).save_pretrained(model)
    started = pretrained.with_line_end(model, tmp_path / "start")
    assert GenerationConfig.from_pretrained(started).eos_token_id == [1, len(tokenizer) - 1]
    assert GenerationConfig.from_pretrained(model).eos_token_id == 1


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("8 9 10", 1.0),
        (" 8 9 10\n", 1.0),
        ("8 9", 1 / 3),
        ("8 9 10 11", 0.5),
        ("8 9 11", 1 / 3),
        ("9 9 10", 0),
        ("", 0),
    ],
)
def test_the_graded_reward_counts_numbers_before_the_first_mistake(response, reward):
    assert graded(response, "8 9 10") == pytest.approx(reward)
