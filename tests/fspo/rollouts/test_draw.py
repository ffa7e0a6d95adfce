"""What a rollout trains on: full groups in the stream's order, and dropped responses, each counted."""

from typing import Any

import numpy as np
import pytest
import tiny_run

from fspo.base.errors import UserError
from fspo.models.load import load_tokenizer
from fspo.rollouts.collect import Collector, give_advantages
from fspo.rollouts.draw import DrawnRollout, draw
from fspo.rollouts.metric_sums import Counts, add_drops
from fspo.sampling.sample import SamplingConfig
from tests.fspo.rollouts.test_batches import batch


def drawn(*options: str, position: int = 0) -> tuple[DrawnRollout, Any]:
    config = tiny_run.config("unused", *options)
    parts, longest = (tiny_run.Digits(), load_tokenizer("embedded")), config.task.max_prompt_tokens
    collector = Collector(*parts, SamplingConfig(max_new_tokens=12), config.seed, max_prompt_tokens=longest)
    return draw(collector, tiny_run.model(), config, rollout=0, step=0, position=position), config


def test_the_stream_goes_by_in_order_and_prompts_too_long_are_passed_over_and_counted() -> None:
    """Every third prompt has 7 tokens."""
    found, _ = drawn(position=8)
    assert np.unique(found.batch.prompt_ids).tolist() == [8, 9, 10, 11]
    assert (found.position, found.too_long, found.passed) == (12, 0, 4)
    found, config = drawn("--task.max_prompt_tokens", "6")
    assert np.unique(found.batch.prompt_ids).tolist() == [0, 1, 3, 4]
    # one of the first four is too long; the one that is drawn for it, prompt 4, fits
    assert (found.position, found.too_long, found.passed) == (5, 1, 5)
    counts = Counts()
    found.count(counts, config)
    assert counts.values()["prompts/too_long"] == pytest.approx(1 / 5)
    with pytest.raises(UserError, match=r"every prompt exceeds task.max_prompt_tokens=4: raise it"):
        drawn("--task.max_prompt_tokens", "4")


def test_dropped_responses_have_no_gradient_and_stay() -> None:
    made = batch(3, 3)
    made.rewards = np.array([1.0, 0, 0, 1, 1, 0, 1, 0, 0])
    made.truncated = np.array([False, True, False, False, False, True, False, False, True])
    give_advantages(made, "rloo")
    np.testing.assert_allclose(made.advantages, [1, -0.5, -0.5, 0.5, 0.5, -1, 1, -0.5, -0.5])
    give_advantages(made, "rloo", ("truncated",))
    np.testing.assert_allclose(made.advantages, [1, 0, -0.5, 0.5, 0.5, 0, 1, -0.5, 0])


def test_drops_are_counted_by_length() -> None:
    counts = Counts()
    made = batch(1, 5)
    made.responses = [np.zeros(n, int) for n in (3, 20, 4, 5, 30)]
    made.truncated = np.array([False, True, False, False, True])
    add_drops(counts, made, (1, 10, 100))
    assert counts.values() == pytest.approx(
        {"dropped/truncated": 0.4, "length_bin/0/dropped": 0, "length_bin/1/dropped": 1}
    )
