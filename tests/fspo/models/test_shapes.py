"""Models with random weights of a given shape: they train, and a resumed run repeats the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.models.load import eos_token_ids, load_model, load_tokenizer
from fspo.models.shapes import shape_of, small_qwen3
from fspo.tasks import make_task
from fspo.train import __main__ as train

VOCABULARY = 600


@pytest.fixture
def shape(tmp_path: Path) -> str:
    small_qwen3(16, 2, vocab_size=VOCABULARY).save_pretrained(tmp_path / "shape")
    return f"random:{tmp_path / 'shape'}"


def test_weights_depend_on_shape_dtype_and_seed_alone(shape: str) -> None:
    torch.manual_seed(1)
    one, other = load_model(shape, "bfloat16", seed=3), load_model(shape, "bfloat16", seed=4)
    again = load_model(shape, "bfloat16", seed=3)
    assert {p.dtype for p in one.parameters()} == {torch.bfloat16}
    pairs = zip(one.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.get_input_embeddings().weight, other.get_input_embeddings().weight)  # type: ignore[union-attr]


def test_one_token_in_twelve_ends_a_response(shape: str) -> None:
    model, tokenizer = load_model(shape), load_tokenizer(shape)
    assert eos_token_ids(model, tokenizer) == list(range(0, VOCABULARY, 12))
    assert tokenizer.decode(tokenizer.encode("17 104 599")) == "17 104 599"
    assert tokenizer.encode("17 word 4") == [17, 0, 4]


def test_rewards_by_hand() -> None:
    task = make_task("even-tokens", {"prompt_tokens": 5, "vocabulary": 30})
    examples = [task.example("train", 0)] * 4
    assert task.example("train", 0) == task.example("train", 0) != task.example("train", 1)
    assert all(1 <= int(word) < 30 for word in str(examples[0].prompt).split())
    assert len(str(examples[0].prompt).split()) == 5
    found = task.score(examples, ["2 4 7 9", "8", "", "x 2"], [True] * 4)
    assert found.values.tolist() == [0.5, 1.0, 0.0, 0.5]


@pytest.mark.parametrize("option", [{"seed": -1}, {"prompt_tokens": 0}, {"vocabulary": 1}])
def test_impossible_options_are_refused(option: dict[str, int]) -> None:
    with pytest.raises(UserError, match=rf"even-tokens\.{next(iter(option))} is"):
        make_task("even-tokens", option)


def test_shapes_without_files() -> None:
    shape = shape_of("random:Qwen/Qwen3-0.6B-Base")
    assert (shape.hidden_size, shape.num_hidden_layers, shape.vocab_size) == (1024, 28, 151_936)
    with pytest.raises(UserError, match="no shape of 'no-such'"):
        shape_of("random:no-such")


def arguments(run: Path, shape: str, rollouts: int) -> list[str]:
    words = ["--output", str(run), "--model.name_or_path", shape, "--model.dtype", "bfloat16", "--cpu", "true"]
    words += ["--model.lora", "{rank: 2}", "--model.gradient_checkpointing", "true", "--task.name", "even-tokens"]
    words += ["--batch.prompts", "4", "--batch.responses", "4", "--batch.minibatches", "2", "--batch.tokens", "96"]
    words += ["--sampling.max_new_tokens", "16", "--task.max_prompt_tokens", "8", "--eval.every", "0"]
    words += ["--optim.learning_rate", "0.05", "--log.score_every", "1", "--resume", "true", "--threads", "1"]
    return [*words, "--checkpoint_every", "1", "--rollouts", str(rollouts)]


@pytest.mark.filterwarnings("error::FutureWarning")
def test_a_random_shape_trains_and_resumes_to_the_same_bits(shape: str, tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for run, stops in ((straight, (2,)), (resumed, (1, 2))):
        for rollouts in stops:
            assert train.main(arguments(run, shape, rollouts)) == 0
    one, other = (load_file(run / "model" / "adapter_model.safetensors") for run in (straight, resumed))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = read_log(straight).table.to_pandas()
    assert rows["length"].nunique() > 4
    assert np.abs(rows["log_ratio"]).max() > 0
    assert rows["score_unit"].notna().any()


def test_a_random_shape_knows_one_task(shape: str, tmp_path: Path) -> None:
    words = arguments(tmp_path / "run", shape, 1)
    words[words.index("even-tokens")] = "chain-add"
    with pytest.raises(UserError, match="random weights knows task 'even-tokens' alone"):
        train.main(words)
