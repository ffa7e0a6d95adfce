"""What a rollout trains on: full groups in the stream's order, redrawn ones, dropped ones, each counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run

from fspo.base.errors import UserError
from fspo.models.load import load_tokenizer
from fspo.rollouts.batches import join
from fspo.rollouts.collect import Collector, dropped, give_advantages
from fspo.rollouts.counts import Counts, add_drops, add_rollout
from fspo.rollouts.draw import DrawnRollout, draw, draw_audit, has_signal
from fspo.sampling.sample import SamplingConfig
from tests.fspo.rollouts.test_batches import batch


def collector_of(config: Any) -> Collector:
    return Collector(
        tiny_run.Digits(),
        load_tokenizer("embedded"),
        SamplingConfig(max_new_tokens=12),
        seed=config.seed,
        max_prompt_tokens=config.task.max_prompt_tokens,
    )


def drawn(*options: str, position: int = 0, **changes: Any) -> tuple[DrawnRollout, Any]:
    config = tiny_run.config("unused", *options)
    return draw(collector_of(config), tiny_run.model(), config, rollout=0, step=0, position=position), config


def test_an_audit_at_the_same_weights_draws_other_responses() -> None:
    """With the rollout's noise it would draw the same ones, and share their errors."""
    found, config = drawn()
    collector = collector_of(config)
    fresh = draw_audit(collector, tiny_run.model(), config, found.batch, np.arange(len(found.batch)), step=0)
    assert fresh.response_ids.tolist() == found.batch.response_ids.tolist()
    same = [np.array_equal(a, b) for a, b in zip(fresh.responses, found.batch.responses, strict=True)]
    assert np.mean(same) < 0.5


def test_without_redraws_the_stream_goes_by_in_order() -> None:
    found, _ = drawn(position=8)
    assert np.unique(found.batch.prompt_ids).tolist() == [8, 9, 10, 11]
    assert (found.position, found.too_long, found.passed, found.redrawn, found.rounds) == (12, 0, 4, [], 0)


def test_prompts_too_long_are_passed_over_and_counted() -> None:
    """Every third prompt has 7 tokens."""
    found, config = drawn("--task.max_prompt_tokens", "6")
    assert np.unique(found.batch.prompt_ids).tolist() == [0, 1, 3, 4]
    # one of the first four is too long; the one that is drawn for it, prompt 4, fits
    assert (found.position, found.too_long, found.passed) == (5, 1, 5)
    counts = Counts()
    found.count(counts, config)
    assert counts.get("prompts/too_long") == pytest.approx(1 / 5)
    with pytest.raises(UserError, match=r"every prompt exceeds task.max_prompt_tokens=4: raise it"):
        drawn("--task.max_prompt_tokens", "4")


def test_groups_without_signal_are_redrawn_up_to_the_limit() -> None:
    plain, _ = drawn("--batch.prompts", "12")
    teaches = has_signal(plain.batch)
    assert 0 < teaches.sum() < 8  # the model is of both kinds
    every = ("--batch.prompts", "12", "--batch.redraws")
    once, config = drawn(*every, "1")
    lacking = 12 - int(teaches.sum())
    first = np.flatnonzero(teaches).tolist()
    assert np.unique(once.batch.prompt_ids).tolist() == first + list(range(12, 12 + lacking))
    assert (once.position, once.rounds) == (12 + lacking, 1)
    assert np.unique(np.concatenate([p.prompt_ids for p in once.redrawn])).tolist() == np.flatnonzero(~teaches).tolist()
    for i, row in enumerate(once.batch.response_ids):  # a response belongs to its number, not to the draw
        at = np.flatnonzero(plain.batch.response_ids == row)
        assert not len(at) or np.array_equal(once.batch.responses[i], plain.batch.responses[at[0]])
    many, _ = drawn(*every, "50")
    assert has_signal(many.batch).all()
    assert len(np.unique(many.batch.prompt_ids)) == 12
    assert not any(has_signal(part).any() for part in many.redrawn)
    sampled = np.concatenate([many.batch.response_ids, *(part.response_ids for part in many.redrawn)])
    assert sorted(sampled.tolist()) == list(range(4 * many.position))  # nothing is lost on the way
    counts = Counts()
    once.count(counts, config)
    both = [once.batch, *once.redrawn]
    assert counts.get("redrawn/groups") == lacking
    assert counts.get("dropped/no_signal") == pytest.approx(lacking / (12 + lacking))
    assert counts.get("reward_sampled") == pytest.approx(np.concatenate([p.rewards for p in both]).mean())
    bins = [v for k, v in counts.pairs().items() if k.startswith("length_bin/") and k.endswith("/dropped")]
    assert sum(n for n, _ in bins) == 4 * lacking
    assert sum(c for _, c in bins) == 4 * (12 + lacking)


def test_signal_is_a_difference_between_judged_responses() -> None:
    made = batch(4, 3)
    made.rewards = np.array([1.0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0])
    made.reward_status = np.array(["ok"] * 8 + ["timeout"] + ["error"] * 3)
    assert has_signal(made).tolist() == [False, True, False, False]


def test_dropped_responses_have_no_gradient_and_stay() -> None:
    made = batch(3, 3)
    made.rewards = np.array([1.0, 0, 0, 1, 1, 0, 1, 0, 0])
    made.reward_status = np.array(["ok", "ok", "error", "ok", "ok", "ok", "ok", "error", "timeout"])
    made.truncated = np.array([False, True, False, False, False, True, False, False, True])
    give_advantages(made, "rloo")
    np.testing.assert_allclose(made.advantages, [1, -0.5, -0.5, 0.5, 0.5, -1, 1, -0.5, -0.5])
    give_advantages(made, "rloo", ("truncated",))
    np.testing.assert_allclose(made.advantages, [1, 0, -0.5, 0.5, 0.5, 0, 1, -0.5, 0])
    stats = give_advantages(made, "rloo", ("failed",))
    # the failed one leaves the first group's baseline; in the last group one response is left alone
    np.testing.assert_allclose(made.advantages, [1, -1, 0, 0.5, 0.5, -1, 0, 0, 0])
    assert stats.num_groups == 2
    assert dropped(made, ("truncated", "failed")).tolist() == [
        *("", "truncated", "failed", "", "", "truncated", "alone", "failed", "failed")
    ]
    assert dropped(made, ("truncated",))[6] == ""
    single = batch(2, 1)
    assert dropped(single, ("failed",)).tolist() == ["", ""]  # nobody failed
    made.reward_status[:] = "error"
    give_advantages(made, "rloo", ("failed",))
    assert not made.advantages.any()


def test_drops_are_counted_by_length() -> None:
    counts = Counts()
    why = np.array(["", "truncated", "", "failed", "truncated"])
    add_drops(counts, np.array([3, 20, 4, 5, 30]), why, ["truncated", "failed", "no_signal"], (1, 10, 100))
    assert counts.values() == pytest.approx(
        {
            "dropped/truncated": 0.4,
            "dropped/failed": 0.2,
            "dropped/no_signal": 0,
            "length_bin/0/dropped": 1 / 3,
            "length_bin/1/dropped": 1,
        }
    )


def test_parts_join_to_what_they_were_taken_from() -> None:
    made = batch(4, 2)
    made.info = {"kind": np.array(list("abcdefgh"), object)}
    front, back = made.take(np.arange(8) < 4), made.take(np.arange(4, 8))
    again = join([front, back])
    assert all(np.array_equal(a, b) for a, b in zip(again.responses, made.responses, strict=True))
    assert again.prompt_ids.tolist() == made.prompt_ids.tolist()
    assert again.info["kind"].tolist() == made.info["kind"].tolist()
    back.info = {"other": np.array([1, 2, 3, 4], object)}
    assert join([front, back]).info["kind"].tolist() == [*"abcd", None, None, None, None]


def test_reward_std_is_that_of_the_groups() -> None:
    made = batch(2, 2)
    made.rewards = np.array([0.0, 2.0, 5.0, 5.0])
    counts = Counts()
    add_rollout(counts, made, give_advantages(made, "rloo"))
    assert counts.get("reward_std") == pytest.approx(np.sqrt(2) / 2)  # of the whole batch it were 2.45


def test_a_resumed_run_draws_on_where_it_stopped(tmp_path: Path) -> None:
    options = ("--batch.redraws", "2", "--task.max_prompt_tokens", "6", "--batch.drop", "[truncated]")
    tiny_run.trainer(tmp_path / "whole", *options).train()
    tiny_run.trainer(tmp_path / "parts", *options, "--rollouts", "1").train()
    tiny_run.trainer(tmp_path / "parts", *options, "--resume", "true").train()
    whole = tiny_run.metrics(tmp_path / "whole", "train")
    assert whole == tiny_run.metrics(tmp_path / "parts", "train")
    assert all(line["dropped/truncated"] > 0 and line["redrawn/groups"] > 0 for line in whole)
    assert all(line["prompts/too_long"] > 0 for line in whole)
