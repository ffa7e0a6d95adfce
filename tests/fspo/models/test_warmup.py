"""Warm-up: its batches, its cache and its gate; the full schedule is marked slow."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from fspo.base.errors import UserError
from fspo.base.files import digest_of
from fspo.models import warmup
from fspo.models.load import build_embedded_model, load_model, load_tokenizer
from fspo.models.warmup import dependencies, warm_up
from fspo.models.warmup_training import WarmupConfig, batch, learning_rate_scale, measure, train, untrained
from fspo.tasks import teaching_task
from fspo.tasks.chain_add import ChainAdd, ChainAddConfig

TINY = WarmupConfig(steps=3, examples_per_step=4, eval_examples=8, min_accuracy=0.0)
TASK = ChainAdd(ChainAddConfig(max_steps=4))
TOKENIZER = TASK.build_tokenizer()


def unpack(step: int, config: WarmupConfig = TINY, task: ChainAdd = TASK) -> list[tuple[list[int], list[int]]]:
    """(tokens, labels) of every example in a batch, found by where the positions start again."""
    tokens, positions, labels = batch(config, task, TOKENIZER, step)
    found = []
    for row in range(len(tokens)):
        starts = [*np.flatnonzero(positions[row].numpy() == 0).tolist(), tokens.shape[1]]
        for a, b in pairwise(starts):
            if (labels[row, a:b] >= 0).any():
                length = int((labels[row, a:b] >= 0).nonzero().max()) + 2
                found.append((tokens[row, a : a + length].tolist(), labels[row, a : a + length].tolist()))
    return found


def test_batch_holds_its_examples_once():
    config = WarmupConfig(steps=10, examples_per_step=9, slip_from=0.5)
    task = ChainAdd(ChainAddConfig(max_steps=4, slip=0.5))
    for step, slips in ((2, False), (4, False), (5, True), (7, True)):
        wanted = []
        for i in range(9):
            prompt, response = task.warmup_text(config.seed, 9 * step + i, slips)
            ids = [*TOKENIZER(prompt + response)["input_ids"], 1]
            wanted.append((ids, [-100] * 9 + ids[10:] + [-100]))
        assert sorted(unpack(step, config, task)) == sorted(wanted)


def test_packed_loss_is_the_loss_of_each_example_alone():
    config = WarmupConfig(steps=10, examples_per_step=9)
    model = build_embedded_model()
    tokens, positions, labels = batch(config, TASK, TOKENIZER, 0)
    with torch.no_grad():
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        packed = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        alone = 0.0
        for ids, target in unpack(0, config):
            out = model(input_ids=torch.tensor([ids])).logits[0]
            alone += torch.nn.functional.cross_entropy(out, torch.tensor(target), reduction="sum").item()
    assert packed.item() == pytest.approx(alone, rel=1e-5)


def test_learning_rate_schedule():
    scale = [learning_rate_scale(step, 400) for step in range(400)]
    assert scale[0] == pytest.approx(0.01, abs=1e-4)
    assert int(np.argmax(scale)) == 99
    assert scale[-1] == pytest.approx(0.05, abs=1e-4)
    assert learning_rate_scale(2, 3) > 0


def test_training_is_reproducible_and_learns():
    config = replace(TINY, steps=25, examples_per_step=8)
    task = ChainAdd(ChainAddConfig(max_steps=2))
    state = torch.get_rng_state()
    first, second = train(config, task), train(config, task)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not first.training

    def loss(model) -> float:
        tokens, positions, labels = batch(config, task, TOKENIZER, 1000)
        with torch.no_grad():
            logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()

    assert loss(first) < loss(build_embedded_model()) - 0.5


def test_cache_is_filled_once(tmp_path, monkeypatch, capsys):
    calls, config = [], replace(TINY, cache_dir=str(tmp_path))
    real = warmup.train
    monkeypatch.setattr(warmup, "train", lambda *args: calls.append(args) or real(*args))
    threads = torch.get_num_threads()
    name = f"warmup-{digest_of(dependencies(config, TASK))}"
    half = tmp_path / f".part-77-{name}" / "model.safetensors"  # of a killed warm-up
    half.parent.mkdir()
    half.write_bytes(b"half")
    folder = warm_up(config, ChainAdd(ChainAddConfig(max_steps=4)))
    assert folder.name == name
    assert not list(tmp_path.glob(".part-*"))
    assert torch.get_num_threads() == threads
    assert warm_up(config, TASK) == folder
    assert len(calls) == 1
    model = load_model(folder)
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer) == 24
    summary = json.loads((folder / "warmup.json").read_text())
    assert summary["accuracy"] == measure(model, TASK, 8, seed=0)["accuracy"]
    assert not any(path.suffix in (".bin", ".pt", ".pkl", ".part") for path in tmp_path.rglob("*"))
    other = warm_up(replace(config, seed=1), TASK)
    assert other != folder
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warm-up of the embedded model: ")]
    assert len(told) == len(calls) == 2
    assert [line.endswith(str(path)) for line, path in zip(told, (folder, other), strict=True)] == [True, True]


def test_every_dependency_changes_the_name(monkeypatch):
    base = dependencies(TINY, TASK)
    changed = [
        dependencies(replace(TINY, steps=4), TASK),
        dependencies(replace(TINY, seed=1), TASK),
        dependencies(TINY, ChainAdd(replace(TASK.config, slip=0.1))),
    ]
    for module, name, value in (
        (warmup, "RECIPE", warmup.RECIPE + 1),
        (TASK, "warmup_text", lambda *args: ("?", "0")),
        (warmup, "untrained", lambda task, seed: untrained(task, seed + 100)),
        (warmup.transformers, "__version__", "0"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            changed.append(dependencies(TINY, TASK))
    names = {digest_of(item) for item in (base, *changed)}
    assert len(names) == 1 + len(changed)
    assert dependencies(replace(TINY, cache_dir="elsewhere"), TASK) == base


def test_the_warm_up_on_chain_add_depends_on_the_same_values_as_ever():
    depends = dependencies(WarmupConfig(), ChainAdd())
    assert " ".join(depends) == "recipe config task data tokenizer initial_weights torch transformers machine"
    assert depends["task"] == {"seed": 0, "max_steps": 32, "double_share": 0.25, "slip": 0.06}
    assert (depends["recipe"], depends["data"], depends["tokenizer"]) == (1, "ad5c34636b2f1ee7", "9f627745b4f567a8")
    tensors = [array.tolist() for step in (0, 899) for array in batch(WarmupConfig(), ChainAdd(), TOKENIZER, step)]
    assert digest_of(tensors) == "a3d377e1e6bf4e03"


def test_gate_tries_the_next_seed_then_gives_up(tmp_path, monkeypatch, caplog):
    tried = []

    def accuracy(model, task, examples, seed):
        tried.append(seed)
        return {"accuracy": 0.9 if seed == 6 else 0.1}

    monkeypatch.setattr(warmup, "measure", accuracy)
    config = replace(TINY, steps=1, seed=5, min_accuracy=0.5, cache_dir=str(tmp_path))
    folder = warm_up(config, TASK)
    assert tried == [5, 6]
    assert json.loads((folder / "warmup.json").read_text())["seed"] == 6
    assert "trying seed 6" in caplog.text
    with pytest.raises(UserError, match=r"0\.100.*raise warmup\.steps"):
        warm_up(replace(config, seed=7, attempts=2), TASK)
    assert tried[2:] == [7, 8]
    assert not list(tmp_path.glob(".part-*"))


def test_unwritable_cache(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(UserError, match=r"warmup\.cache_dir"):
        warm_up(replace(TINY, cache_dir=str(blocker / "cache")), TASK)


def test_options_of_a_teaching_task_are_its_own():
    with pytest.raises(UserError, match="did you mean 'slip'"):
        teaching_task("chain-add", {"slipp": 0.1})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "least", "most"),
    [("chain-add", {}, 0.15, 0.55), ("gym:products", {"max_digits": 2}, 0.25, 0.65)],
)
def test_default_schedule_leaves_room_to_improve(tmp_path, name, options, least, most):
    if name.startswith("gym:"):
        pytest.importorskip("reasoning_gym")
    folder = warm_up(WarmupConfig(cache_dir=str(tmp_path)), teaching_task(name, options))
    summary = json.loads((folder / "warmup.json").read_text())
    assert summary["seed"] == 0  # the first attempt
    assert least <= summary["accuracy"] <= most
