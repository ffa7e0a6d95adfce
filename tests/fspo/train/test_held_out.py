"""Held-out evaluation: the numbers of its responses, the same noise every time."""

from typing import Any

import numpy as np
import pytest
import tiny_run

from fspo.config import EvalConfig, LogConfig, TrainConfig
from fspo.models.load import load_tokenizer
from fspo.rollouts.collect import Collector
from fspo.sampling.sample import SamplingConfig
from fspo.tasks import Rewards
from fspo.train.held_out import evaluate


class Seen(tiny_run.Digits):
    """Remembers what it scored."""

    def __init__(self, size: int | None = None) -> None:
        self.count, self.ids, self.rewards = size, [], []

    def size(self, split: str) -> int | None:
        return self.count

    def score(self, examples: Any, responses: Any, finished: Any) -> Rewards:
        found = super().score(examples, responses, finished)
        self.ids, self.rewards, self.texts = [e.prompt_id for e in examples], found.values, list(responses)
        return found


def run(task: Seen, prompts: int = 24, temperature: float = 1.0, seed: int = 0) -> dict[str, float]:
    collector = Collector(task, load_tokenizer("embedded"), SamplingConfig(max_new_tokens=20), seed=1)
    options = {"eval": EvalConfig(prompts=prompts, temperature=temperature), "log": LogConfig(length_edges=(1, 6, 12))}
    return evaluate(tiny_run.model(seed), collector, TrainConfig(**options), step=0)  # type: ignore[arg-type]


def test_numbers_are_those_of_the_responses() -> None:
    task = Seen()
    values = run(task)
    assert task.ids == [f"eval-{i}" for i in range(24)]
    assert values["eval/reward"] == pytest.approx(task.rewards.mean())
    assert values["eval/reward_stderr"] == pytest.approx(task.rewards.std(ddof=1) / np.sqrt(24))
    bins = [i for i in range(3) if f"eval/length_bin/{i}/count" in values]
    assert sum(values[f"eval/length_bin/{i}/count"] for i in bins) == values["eval/count"] == 24
    total = sum(values[f"eval/length_bin/{i}/count"] * values[f"eval/length_bin/{i}/reward"] for i in bins)
    assert total == pytest.approx(task.rewards.sum())


def test_noise_is_the_same_every_time_and_greedy_has_none() -> None:
    first, again, greedy = Seen(), Seen(), Seen()
    assert run(first) == run(again)
    assert first.texts == again.texts
    run(greedy, temperature=0.0)
    assert len(set(greedy.texts)) < len(set(first.texts))


def test_small_held_out_sets_are_used_whole() -> None:
    task = Seen(size=5)
    assert run(task)["eval/count"] == 5
    assert task.ids == [f"eval-{i}" for i in range(5)]
