"""Worked solutions to products: texts by hand, full marks from the package, no held-out question, tokens."""

import re

import numpy as np
import pytest

from fspo.base.errors import UserError
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.models.load import load_tokenizer
from fspo.repro.presets import TASKS
from fspo.tasks import TeachingTask, make_task, teaching_task
from fspo.tasks.gym import last_answer
from fspo.tasks.products import CLOSE, MAX_RESPONSE_TOKENS, MOST_STEPS, OPEN, STEP_TOKENS, ProductsTask, worked_solution

pytest.importorskip("reasoning_gym")

NARROW = {"max_digits": 1, "eval_size": 40}  # 40 held-out draws of the 100 products of one digit


def draws(double=0.9, slip=0.9, by=0.0, separator=0.0) -> np.ndarray:
    return np.tile([double, slip, by, separator], (MOST_STEPS, 1))


def taught(options) -> ProductsTask:
    task = teaching_task("gym:products", options)
    assert isinstance(task, ProductsTask)
    return task


@pytest.mark.parametrize(
    ("numbers", "chances", "text"),
    [
        ((27, 21), draws(), "21720000,11727200,01724500,1-720450,0-727650,<answer>567</answer>"),
        ((27, 21), draws(double=0.2, separator=0.9), "21720000/01724500/1-720450/0-727650/<answer>567</answer>"),
        # each sum after an addition is one too high: 28, 56, and after times ten 560 + 28
        ((27, 21), draws(slip=0.05), "21720000,11728200,01726500,1-720650,0-728850,<answer>588</answer>"),
        # 27 + 9,999 modulo 10,000 is 26, then 260 + 27 + 9,999 is 286
        ((27, 11), draws(slip=0.05, by=0.9999), "11720000,01726200,1-720620,0-726820,<answer>286</answer>"),
        ((9, 1), draws(), "<answer>9</answer>"),
        ((0, 7), draws(), "<answer>0</answer>"),
    ],
)
def test_solution_by_hand(numbers, chances, text):
    assert worked_solution(numbers[0], numbers[1], chances) == text


def test_every_solution_without_slips_gets_full_marks_from_the_package():
    task = taught({"max_digits": 2})
    entries = [task.dataset[i] for i in range(300)]
    for entry, chances in zip(entries, np.random.default_rng(0).random((300, MOST_STEPS, 4)), strict=True):
        first, second = map(int, entry["metadata"]["expression"].split(" * "))
        solution = worked_solution(first, second, chances, slip=0.0)
        assert task.dataset.score_answer(last_answer(solution), entry) == 1.0
    for prompt, solution in (task.warmup_text(0, i, slips=False) for i in range(300)):
        first, second = map(int, re.findall(r"(\d+) \* (\d+)", prompt)[0])
        assert last_answer(solution) == str(first * second)
    slipped = sum(task.warmup_text(0, i) != task.warmup_text(0, i, slips=False) for i in range(300))
    assert 60 < slipped < 180


def test_no_held_out_question_is_in_the_warm_up():
    task = taught(NARROW)
    held_out = {task.example("eval", i).prompt for i in range(40)}
    prompts = [task.warmup_text(0, i)[0] for i in range(400)]
    assert min(len(held_out), len(set(prompts))) > 20
    assert not held_out & set(prompts)
    assert prompts == [task.warmup_text(0, i)[0] for i in range(400)]
    assert prompts != [task.warmup_text(1, i)[0] for i in range(400)]


@pytest.mark.parametrize("instruction", ["simple", "none"])
def test_tokens_hold_prompts_and_solutions(instruction, tmp_path):
    task = taught({"max_digits": 2, "instruction": instruction})
    task.build_tokenizer().save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == 28
    for text in (text for i in range(20) for text in task.warmup_text(0, i)):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer(task.warmup_text(0, 0)[0])["input_ids"]) in (7, 9)  # two texts, and between them "96 * 32"
    longest = tokenizer(worked_solution(99, 99, draws()))["input_ids"]
    assert len(longest) + 1 + STEP_TOKENS == MAX_RESPONSE_TOKENS  # with the end token, and one step more
    assert tokenizer.decode(longest).endswith(f"{OPEN}9801{CLOSE}")


@pytest.mark.parametrize("options", [{}, {"max_digits": 2, "max_terms": 3}])
def test_what_no_solution_answers_is_refused(options):
    task = make_task("gym:products", options)
    assert isinstance(task, TeachingTask)
    with pytest.raises(UserError, match=r"set --task\.options\.max_digits 2"):
        task.data_options()


def test_the_reproduction_trains_products_up_to_their_longest_solution():
    config = parse(TrainConfig, [f"--{name}={value}" for name, value in TASKS["products"].items()])
    task = teaching_task(config.task.name, config.task.options)
    assert task.data_options()["max_digits"] == 2
    assert config.sampling.max_new_tokens == task.max_response_tokens()
