"""The plan against torch's own accounting of allocated memory, and against the memory of recorded runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch
from tiny_updates import made_batch
from transformers import Qwen3Config, Qwen3ForCausalLM

from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.load import ready_for_training
from fspo.models.shapes import shape_of, small_qwen3
from fspo.plan import __main__ as command
from fspo.plan.memory import cache_bytes, plan, sizes
from fspo.rollouts.batches import RolloutBatch
from fspo.rollouts.metric_sums import Counts
from tests.fspo.policy.test_score_memory import peak

ROOT = Path(__file__).parents[3]
ALONE = MachineConfig(gpus=1, memory=1.0, mixed_precision="no")


def small(width: int, layers: int = 3, tied: bool = False) -> Qwen3Config:
    """An embedded-like shape."""
    return small_qwen3(width, num_hidden_layers=layers, tie_word_embeddings=tied)


def full_batch(rows: int, prompt: int, response: int) -> RolloutBatch:
    """Responses of full length; every other one is one token shorter."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 24, prompt) for _ in range(rows)]
    responses = [rng.integers(2, 24, response - i % 2) for i in range(rows)]
    return made_batch(responses, 2, prompts=prompts, advantages=np.where(np.arange(rows) % 2, 1.0, -1.0))


def measured(tmp_path: Path, shape: Qwen3Config, arguments: list[str], rows: int, config: Any) -> int:
    """Largest number of live bytes of a real trainer's second update, its weights and moments included."""
    prompt, response = config.task.max_prompt_tokens, config.sampling.max_new_tokens
    batch = full_batch(rows, prompt, response)

    def run() -> None:
        net = ready_for_training(
            Qwen3ForCausalLM(shape),
            "it",
            gradient_checkpointing=config.model.gradient_checkpointing,
            lora=config.model.lora,
        )
        trainer = tiny_run.trainer(tmp_path / "run", *arguments, net=net)
        for _ in range(2):
            trainer.updater.accumulate(trainer.shards(batch, np.arange(rows)), None)
            trainer._step(Counts(), None)

    return peak(run)


CASES = [
    # width, layers, prompt, response, tokens, rows, checkpointing, lora
    (64, 4, 16, 240, 1024, 12, False, False),
    (128, 3, 8, 120, 512, 8, False, True),
    (128, 6, 8, 120, 1024, 16, True, True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_the_plan_agrees_with_torchs_accounting(tmp_path: Path, case: tuple) -> None:
    width, layers, prompt, response, tokens, rows, checkpointing, lora = case
    arguments = ["--batch.tokens", str(tokens), "--task.max_prompt_tokens", str(prompt), "--log.entropy", "false"]
    arguments += ["--sampling.max_new_tokens", str(response), "--log.score_every", "0"]
    arguments += ["--model.gradient_checkpointing", str(checkpointing).lower()]
    arguments += ["--model.lora", "{rank: 8}"] if lora else []
    config, shape = tiny_run.config(tmp_path, *arguments), small(width, layers)
    real = measured(tmp_path, shape, arguments, rows, config)
    found = plan(config, ALONE, shape)
    assert found.totals["update"] == pytest.approx(real, rel=0.15)


RECORDED = json.loads((ROOT / "benchmarks" / "results" / "random_shapes.json").read_text())["cases"]
"""Largest resident memory of a process, measured on a CPU in runs of fspo/presets/qwen3-8b-random.yaml with options."""


@pytest.mark.parametrize("name", [name for name in RECORDED if "adamw8bit" not in RECORDED[name]["options"]])
def test_the_plan_agrees_with_recorded_runs(name: str) -> None:
    run = RECORDED[name]
    preset = ROOT / "fspo" / "presets" / "qwen3-8b-random.yaml"
    model = f"random:{name.rpartition('-')[0]}-Base"
    config = parse(TrainConfig, ["--config", str(preset), "--model.name_or_path", model, *run["options"]])
    found = plan(config, MachineConfig(device="cpu", gpus=run["processes"]))
    assert found.peak / 2**30 == pytest.approx(run["peak_gib_of_a_process"], rel=0.15)


QWEN_8B = 8_190_735_360
"""Counted by hand: 2 x 151936 x 4096 + 36 x (2 x 4096 x 4096 + 2 x 1024 x 4096 + 3 x 12288 x 4096 + 2 x 4096 + 2 x 128)
+ 4096."""


def test_parameters_of_a_tied_model_by_hand() -> None:
    total, _, layer, head = sizes(shape_of("Qwen3-1.7B-Base"))
    assert layer == 2 * 2048 * 2048 + 2 * 1024 * 2048 + 3 * 6144 * 2048 + 2 * 2048 + 2 * 128
    assert head == 151_936 * 2048 + 2048  # the embedding is the output layer
    assert total == 28 * layer + head


def qwen(*arguments: str) -> TrainConfig:
    return parse(TrainConfig, ["--model.name_or_path", "Qwen/Qwen3-8B-Base", *arguments])


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass is measured, which takes seconds: a test of its own compares what is measured with torch's accounting."""
    monkeypatch.setattr("fspo.plan.memory._activations", lambda *_: {})


@pytest.mark.usefixtures("unmeasured")
def test_sharding_divides_what_lasts_and_gathers_what_is_used() -> None:
    """16 bytes a parameter in float32 on one GPU; on 8 GPUs an eighth, and copies in bfloat16 of what a pass uses."""
    one = plan(qwen(), MachineConfig(gpus=1, mixed_precision="no")).phases["update"]
    assert one["weights"] + one["gradients"] + one["optimizer"] == 16 * QWEN_8B
    many = plan(qwen("--rule.kl_coef", "0.1"), MachineConfig(gpus=8)).phases
    assert many["update"]["weights"] == many["update"]["reference"] == 4 * QWEN_8B // 8
    assert many["update"]["optimizer"] == QWEN_8B
    layer, head = (QWEN_8B - 2 * 151_936 * 4096 - 4096) // 36, 151_936 * 4096 + 4096
    assert many["update"]["gathered"] == 2 * (2 * layer + head)
    assert many["update"]["gradients"] == 4 * QWEN_8B // 8 + 2 * (2 * layer + head)
    assert many["sampling"]["gathered"] == 2 * QWEN_8B


@pytest.mark.usefixtures("unmeasured")
def test_adapters_are_kept_in_float32() -> None:
    """peft makes them so in a bfloat16 model: 4 bytes for each weight and gradient, 8 for the two moments."""
    options = ("--model.dtype", "bfloat16", "--model.lora", "{rank: 8}")
    net = ready_for_training(tiny_run.model(dtype=torch.bfloat16), "it", lora=qwen(*options).model.lora)
    assert {p.dtype for p in net.parameters() if p.requires_grad} == {torch.float32}
    found = plan(qwen(*options), MachineConfig(gpus=1, mixed_precision="no"))
    update, adapters = found.phases["update"], found.trainable
    assert (update["weights"], update["gradients"]) == (2 * QWEN_8B + 4 * adapters, 4 * adapters)
    assert update["optimizer"] == 8 * adapters


def test_the_cache_is_what_transformers_keeps() -> None:
    shape = small(64)
    cache = Qwen3ForCausalLM(shape)(input_ids=torch.zeros(3, 7, dtype=torch.int64), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert cache_bytes(shape, torch.float32) * 3 * 7 == kept


@pytest.mark.usefixtures("unmeasured")
def test_what_sampling_takes() -> None:
    """By hand: 32 responses of 1,024 + 1,024 tokens at 36 layers x 2 x 8 x 128 bfloat16 numbers."""
    sizes = ("--task.max_prompt_tokens", "1024", "--sampling.max_new_tokens", "1024", "--sampling.batch_size", "32")
    machine = MachineConfig(gpus=1, mixed_precision="bf16")
    found = plan(qwen(*sizes), machine).phases["sampling"]
    whole = 32 * 2048 * 36 * 2 * 8 * 128 * 2
    assert found["KV cache"] == whole + whole // 72  # a layer's keys once more while they grow
    copied = plan(qwen(*sizes, "--sampling.precision", "bfloat16"), machine).phases["sampling"]
    assert copied.pop("copy") == 2 * QWEN_8B
    assert copied == found
    fast = plan(qwen(*sizes, "--sampling.engine", "fast"), machine).phases["sampling"]
    assert found["activations"] == 8 * fast["activations"] == 32 * 1024 * 3 * (4096 + 12_288) * 2
    served = plan(qwen(*sizes, "--sampling.engine", "vllm"), machine).phases["sampling"]
    assert set(served) == {"weights", "optimizer", "gathered"}  # the server has GPUs of its own


TINY = ("--model.name_or_path", "embedded", "--machine.gpus", "1", "--machine.mixed_precision", "no")


def test_command_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*TINY]) == 0
    printed = capsys.readouterr().out
    assert "embedded: 0.4M parameters, 0.4M of them trained, 2 layers" in printed
    assert "\nfits: " in printed
    columns = {line[:14].strip(): line[14:].split() for line in printed.splitlines() if line}
    assert f"{max(map(float, columns['together'])):.1f} of 73.6 GiB" in printed
    assert columns["optimizer"] == [f"{8 * 400_128 / 2**30:.2f}"] * 2


def test_command_names_options_that_take_less(capsys: pytest.CaptureFixture[str]) -> None:
    tight = [*TINY, "--machine.memory", "0.05", "--batch.tokens", "16384"]
    for added, phase, option in (
        ([], "sampling", "lower --sampling.batch-size"),
        (["--sampling.batch-size", "8"], "update", "lower --batch.tokens"),
        (["--batch.tokens", "4096"], "update", "--model.gradient-checkpointing true"),
    ):
        tight += added
        assert command.main(tight) == 1
        assert re.search(rf"does not fit: {phase} takes .*\n  .*{option}", capsys.readouterr().out)
    assert command.main([*tight, "--model.gradient-checkpointing", "true"]) == 0


def test_a_folder_with_a_config_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(64).save_pretrained(tmp_path / "model")
    model = ("--model.name_or_path", str(tmp_path / "model"), "--machine.gpus", "2")
    assert command.main([*model, "--machine.memory", "0.001"]) == 1
    assert "3 layers" in capsys.readouterr().out
