"""From prompts to a rollout: what is left out, what the noise depends on, what each process sees."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run

from fspo.models.load import load_tokenizer
from fspo.rollouts import collect
from fspo.rollouts.collect import Collector, write_samples
from fspo.sampling.sample import SamplingConfig


def collector(**changes: Any) -> Collector:
    return Collector(
        tiny_run.Digits(), load_tokenizer("embedded"), SamplingConfig(max_new_tokens=12), seed=3, **changes
    )


def taken(made: Collector, ids: list[int], stream: str = "train", rollout: int = 0) -> Any:
    numbers = np.array(ids)
    return made.collect(
        tiny_run.model(), made.prompts("train", numbers, numbers), 3, stream=stream, rollout=rollout, step=5
    )  # type: ignore[arg-type]


def test_rollout_in_prompt_order() -> None:
    found = taken(collector(), [4, 5])
    assert found.prompt_ids.tolist() == [4, 4, 4, 5, 5, 5]
    assert found.response_ids.tolist() == [12, 13, 14, 15, 16, 17]
    assert found.behaviour_version == 5
    assert found.info["kind"].tolist() == ["even"] * 3 + ["odd"] * 3
    text = load_tokenizer("embedded").decode(found.prompts[3])
    assert text.replace(" ", "") == "?:05=++"
    ended = np.array([1 in r for r in found.responses])
    assert (found.truncated == ~ended).all()
    assert (found.lengths[found.truncated] == 12).all()
    assert [len(x) for x in found.sampler_log_probs] == found.lengths.tolist()
    assert (np.concatenate(found.sampler_log_probs) < 0).all()


def test_noise_belongs_to_the_response() -> None:
    whole, part = taken(collector(), [4, 5, 6]), taken(collector(), [5])
    for i in range(3):
        assert np.array_equal(whole.responses[3 + i], part.responses[i])
    others = [taken(collector(), [5], stream="eval"), taken(collector(), [5], rollout=1)]
    made = collector()
    made.seed = 4
    for other in [*others, taken(made, [5])]:
        assert any(not np.array_equal(a, b) for a, b in zip(part.responses, other.responses, strict=True))


def test_processes_share_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes, one after the other, with their parts handed over by hand."""
    parts: list[Any] = []
    monkeypatch.setattr(collect, "gather_object", lambda own: parts.extend(own) or parts)
    for rank in range(3):
        last = taken(collector(rank=rank, world=3), [4, 5])  # the third has nothing to sample
    whole = taken(collector(), [4, 5])
    assert last.response_ids.tolist() == whole.response_ids.tolist()
    assert all(np.array_equal(a, b) for a, b in zip(last.responses, whole.responses, strict=True))
    assert last.rewards.tolist() == whole.rewards.tolist()


def test_samples_are_kept_as_text_over_the_whole_rollout(tmp_path: Path) -> None:
    found, tokenizer = taken(collector(), [4, 5]), load_tokenizer("embedded")
    write_samples(tmp_path, found, tokenizer, 3)
    lines = [json.loads(s) for s in (tmp_path / "rollouts" / "rollout-00000000.jsonl").read_text().splitlines()]
    assert [line["response_id"] for line in lines] == [12, 14, 17]  # rows 0, 2 and 5 of 6
    for line, row in zip(lines, (0, 2, 5), strict=True):
        assert line["response"] == tokenizer.decode(found.responses[row], skip_special_tokens=True)
        assert (line["reward"], line["length"]) == (found.rewards[row], found.lengths[row])
    write_samples(tmp_path, found, tokenizer, 99)  # more than there are; a repeated rollout is written over
    assert len((tmp_path / "rollouts" / "rollout-00000000.jsonl").read_text().splitlines()) == 6
    write_samples(tmp_path / "none", found, tokenizer, 0)
    assert not (tmp_path / "none").exists()
