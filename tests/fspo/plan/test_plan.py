"""The plan against torch's own accounting of allocated memory, and against the numbers that Qwen3-8B is known for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from fspo.base.errors import UserError
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.models.load import ready_for_training
from fspo.models.shapes import shape_of, small_qwen3
from fspo.plan import __main__ as command
from fspo.plan import report as planned
from fspo.plan.machine import longest_microbatch, token_counts
from fspo.plan.memory import plan
from fspo.plan.models import meta_model, sizes
from fspo.plan.sampling import cache_bytes
from fspo.policy.scores import ScoreHooks
from fspo.rollouts.batches import RolloutBatch
from fspo.rollouts.counts import Counts
from tests.fspo.policy.test_score_memory import peak

ALONE = MachineConfig(gpus=1, memory=1.0, mixed_precision="no")


def small(width: int, layers: int = 3, tied: bool = False) -> Qwen3Config:
    """An embedded-like shape."""
    return small_qwen3(width, num_hidden_layers=layers, tie_word_embeddings=tied)


def full_batch(rows: int, prompt: int, response: int) -> RolloutBatch:
    """Responses of full length; every other one is one token shorter."""
    rng = np.random.default_rng(0)
    lengths = [response - i % 2 for i in range(rows)]
    return RolloutBatch(
        rollout=0,
        behaviour_version=0,
        prompts=[rng.integers(2, 24, prompt) for _ in range(rows)],
        responses=[rng.integers(2, 24, n) for n in lengths],
        sampler_log_probs=[np.zeros(n) for n in lengths],
        truncated=np.zeros(rows, bool),
        rewards=np.zeros(rows),
        advantages=np.where(np.arange(rows) % 2, 1.0, -1.0),
        reward_status=np.full(rows, "ok"),
        prompt_ids=np.arange(rows) // 2,
        response_ids=np.arange(rows),
        info={},
    )


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
    (128, 2, 8, 56, 256, 12, False, False),
    (256, 3, 8, 24, 64, 6, False, False),
    (64, 4, 16, 240, 1024, 12, False, False),
    (128, 8, 8, 120, 1024, 16, True, False),
    (128, 3, 8, 120, 512, 12, False, True),
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
    planned = max(found.totals[phase] for phase in ("old log-probs", "update", "optimizer step"))
    assert planned == pytest.approx(real, rel=0.15)


def test_control_the_plan_sees_what_an_option_saves(tmp_path: Path) -> None:
    """Checkpointing, LoRA and shorter microbatches each make the update smaller than the tolerance could hide."""
    sizes = ("--batch.tokens", "1024", "--task.max_prompt_tokens", "8", "--sampling.max_new_tokens", "120")
    shape, config = small(128, 8), tiny_run.config(tmp_path, *sizes)
    whole = plan(config, ALONE, shape).totals["update"]
    for option in (
        ("--model.gradient_checkpointing", "true"),
        ("--model.lora", "{rank: 2}"),
        ("--batch.tokens", "128"),
    ):
        changed = tiny_run.config(tmp_path, *sizes, *option)
        assert plan(changed, ALONE, shape).totals["update"] < 0.85 * whole, option


def test_freed_blocks_that_the_heap_keeps_on_a_cpu(tmp_path: Path) -> None:
    """.8 of what a pass allocates for a layer and frees again, for each layer that gradient checkpointing passes."""
    options = ("--task.max_prompt_tokens", "8", "--sampling.max_new_tokens", "120")
    cpu = MachineConfig(device="cpu", gpus=1)
    config = tiny_run.config(tmp_path, *options, "--model.gradient_checkpointing", "true")
    one, two, six = (plan(config, cpu, small(128, layers)).phases["update"] for layers in (1, 2, 6))
    passing = one["activations"] - (two["activations"] - one["activations"])
    assert six["freed blocks"] == pytest.approx(0.8 * 6 * passing, rel=1e-6)
    assert passing > 0.5 * one["activations"]
    assert "freed blocks" not in plan(config, ALONE, small(128, 6)).phases["update"]
    whole = tiny_run.config(tmp_path, *options)
    assert "freed blocks" not in plan(whole, cpu, small(128, 6)).phases["update"]


def test_what_sharding_over_processes_of_a_cpu_takes_more(tmp_path: Path) -> None:
    """Three copies of a process's moments at a checkpoint, and one of the output layer's gradients, which gloo reduces:
    24 x 128 weights of 4 bytes."""
    config = tiny_run.config(tmp_path)
    two, gpus = (
        plan(config, MachineConfig(device=device, gpus=2, mixed_precision="no"), small(128))
        for device in ("cpu", "gpu")
    )
    assert two.phases["checkpoint"]["copies"] == 3 * two.phases["update"]["optimizer"]
    assert two.phases["update"]["gradients"] - gpus.phases["update"]["gradients"] == pytest.approx(
        24 * 128 * 4, abs=600
    )
    one = plan(config, MachineConfig(device="cpu", gpus=1), small(128))
    assert not one.phases["checkpoint"]
    assert not gpus.phases["checkpoint"]


QWEN_8B = 8_190_735_360
"""Counted by hand: 2 x 151936 x 4096 + 36 x (2 x 4096 x 4096 + 2 x 1024 x 4096 + 3 x 12288 x 4096 + 2 x 4096 + 2 x 128)
+ 4096."""


def test_qwen3_8b_has_its_parameters_and_every_linear_layer_is_scored() -> None:
    model = meta_model(shape_of("Qwen/Qwen3-8B-Base"))
    counted = 2 * 151_936 * 4096 + 4096
    counted += 36 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 12_288 * 4096 + 2 * 4096 + 2 * 128)
    assert sizes(model).total == sum(p.numel() for p in model.parameters()) == counted == QWEN_8B
    assert round(counted / 1e9, 2) == 8.19
    hooks = ScoreHooks(model)
    linear = {site.name for site in hooks._sites.values() if site.kind == "linear"}
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    parts += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert linear == {f"model.layers.{i}.{part}" for i in range(36) for part in parts} | {"lm_head"}
    assert not hooks.uncovered


def test_qwen3_1_7b_ties_its_embeddings() -> None:
    found = sizes(meta_model(shape_of("Qwen3-1.7B-Base")))
    layer = 2 * 2048 * 2048 + 2 * 1024 * 2048 + 3 * 6144 * 2048 + 2 * 2048 + 2 * 128
    assert (found.total, found.layer) == (151_936 * 2048 + 28 * layer + 2048, layer)
    assert found.head == 151_936 * 2048 + 2048  # the embedding is the output layer


def qwen(*arguments: str) -> TrainConfig:
    return parse(TrainConfig, ["--model.name_or_path", "Qwen/Qwen3-8B-Base", *arguments])


def persistent(config: TrainConfig, machine: MachineConfig) -> int:
    update = plan(config, machine).phases["update"]
    return sum(update[name] for name in ("weights", "gradients", "optimizer"))


def test_what_an_8b_model_takes() -> None:
    """16 bytes a parameter in float32."""
    one = MachineConfig(gpus=1, mixed_precision="no")
    assert persistent(qwen(), one) == 16 * QWEN_8B
    assert round(16 * QWEN_8B / 1e9) == 131


def test_sharding_divides_what_lasts_and_gathers_what_is_used() -> None:
    one, many = plan(qwen(), MachineConfig(gpus=1, mixed_precision="bf16")), plan(qwen(), MachineConfig(gpus=8))
    assert many.phases["update"]["weights"] == 4 * QWEN_8B // 8
    assert many.phases["update"]["optimizer"] == pytest.approx(8 * QWEN_8B / 8, rel=1e-3)
    assert "gathered" in many.phases["update"]
    copies = plan(qwen(), MachineConfig(gpus=8, sharding="ddp")).phases["update"]
    assert copies["gradients"] == 2 * one.phases["update"]["gradients"]  # its buckets are a second copy
    assert copies["optimizer"] == one.phases["update"]["optimizer"]
    assert one.tokens["responses of a rollout"] == qwen().batch.prompts * qwen().batch.responses
    assert many.phases["rollout"]["gathered"] == 2 * QWEN_8B  # the whole model, in bfloat16


def test_the_cache_is_what_transformers_keeps(tmp_path: Path) -> None:
    shape = small(64)
    model = Qwen3ForCausalLM(shape)
    cache = model(input_ids=torch.zeros(3, 7, dtype=torch.int64), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert cache_bytes(shape, torch.float32) * 3 * 7 == kept
    assert cache_bytes(shape_of("Qwen3-8B-Base"), torch.bfloat16) == 36 * 2 * 8 * 128 * 2


def test_each_engine_has_the_cache_that_it_makes() -> None:
    """By hand: 32 responses of 1,024 + 1,024 tokens, 8 to a prompt, at 36 layers x 2 x 8 x 128 bfloat16 numbers."""
    sizes = ("--task.max_prompt_tokens", "1024", "--sampling.max_new_tokens", "1024", "--sampling.batch_size", "32")
    machine = MachineConfig(gpus=8)
    found = {
        engine: plan(qwen(*sizes, "--sampling.engine", engine), machine).phases["rollout"]
        for engine in ("auto", "fast", "generate")
    }
    whole = 32 * 2048 * 36 * 2 * 8 * 128 * 2
    assert found["fast"]["KV cache"] == whole
    assert found["generate"]["KV cache"] == whole + whole // 72  # a layer's keys once more while they grow
    assert found["auto"] == found["generate"]  # a large model
    assert found["generate"]["activations"] == pytest.approx(8 * found["fast"]["activations"], rel=0.01)
    alone = MachineConfig(gpus=1, mixed_precision="bf16")
    served = plan(qwen(*sizes, "--sampling.engine", "vllm"), alone).phases["rollout"]
    assert set(served) == {"weights", "optimizer", "gathered"}  # the server has GPUs of its own
    copied = plan(qwen(*sizes, "--sampling.precision", "bfloat16"), alone).phases["rollout"]
    assert copied.pop("copy") == 2 * QWEN_8B
    assert copied == plan(qwen(*sizes), alone).phases["rollout"]


def test_a_score_pass_gathers_what_an_update_gathers_and_the_reference_is_spread() -> None:
    found = plan(qwen("--rule.kl_coef", "0.1"), MachineConfig(gpus=8)).phases
    assert found["update"]["reference"] == 4 * QWEN_8B // 8
    assert found["score pass"]["gathered"] == found["update"]["gathered"]


def test_host_and_disk() -> None:
    found = plan(qwen(), MachineConfig()).tokens
    assert found["host memory of a process at the start, GiB"] == pytest.approx(4 * QWEN_8B / 2**30)
    assert found["host memory of a process at a checkpoint, GiB"] == pytest.approx(3 * 8 / 8 * QWEN_8B / 2**30)
    assert found["disk of a checkpoint, GiB"] == pytest.approx(12 * QWEN_8B / 2**30)


def test_adapters_are_kept_in_float32() -> None:
    """peft makes them so in a bfloat16 model: 4 bytes for each weight and gradient, 8 for the two moments."""
    options = ("--model.dtype", "bfloat16", "--model.lora", "{rank: 8}")
    net = ready_for_training(tiny_run.model(dtype=torch.bfloat16), "it", lora=qwen(*options).model.lora)
    assert {p.dtype for p in net.parameters() if p.requires_grad} == {torch.float32}
    found = plan(qwen(*options), MachineConfig(gpus=1, mixed_precision="no"))
    adapters = found.model.trainable
    assert found.phases["update"]["weights"] == 2 * QWEN_8B + 4 * adapters
    assert found.phases["update"]["gradients"] == 4 * adapters
    assert found.phases["update"]["optimizer"] == 8 * adapters


def test_counts_of_a_step() -> None:
    arguments = ("--batch.prompts", "128", "--batch.responses", "8", "--batch.minibatches", "8", "--batch.epochs", "2")
    config = qwen(*arguments, "--batch.tokens", "16384", "--task.max_prompt_tokens", "1024")
    config = planned._set(config, "sampling", max_new_tokens=4096, batch_size=64)
    machine, model = MachineConfig(gpus=8, response_tokens=1024), sizes(meta_model(shape_of("Qwen/Qwen3-8B-Base")))
    found = token_counts(config, machine, model, longest_microbatch(config)[0])
    assert found["responses of a rollout"] == 1024
    assert found["tokens sampled"] == 1024 * 1024
    assert found["updates of a rollout"] == 16
    assert found["responses of an update"] == 128
    assert found["tokens of an update"] == 128 * 2048
    assert found["responses of a microbatch"] == 8
    assert found["microbatches of an update on a GPU"] == 2
    assert found["longest responses that fit a microbatch"] == 3
    assert found["PFLOP of an update"] == pytest.approx(6 * 8.190735360e9 * 128 * 2048 / 1e15)


TINY = ("--model.name_or_path", "embedded", "--machine.gpus", "1", "--machine.mixed_precision", "no")


def test_command_says_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plans" / "plan.json"
    assert command.main([*TINY, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["fits"]
    assert found["cure"] is None
    assert "\nfits: the largest phase" in printed
    assert found["model"]["total"] == 400_128
    biggest = max(found["totals"].values()) / 2**30
    assert f"takes {biggest:.1f} of" in printed
    assert found["bytes"]["update"]["weights"] == 4 * 400_128


def test_command_names_a_cure_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    tight = (*TINY, "--machine.memory", "0.05", "--batch.tokens", "16384")
    assert command.main([*tight, "--json", str(file)]) == 1
    printed = capsys.readouterr().out
    cure = re.search(r"it fits with (.*)", printed)
    assert cure is not None
    assert json.loads(file.read_text())["cure"]
    assert command.main([*tight, *cure[1].split()]) == 0


def test_command_says_when_nothing_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*TINY, "--machine.memory", "0.001"]) == 1
    assert "no change of its options alone makes it fit" in capsys.readouterr().out


def test_prompts_beyond_the_models_positions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([*TINY, "--task.max_prompt_tokens", "1000", "--sampling.max_new_tokens", "100"])
    assert "the run stops at the first prompt beyond 924" in capsys.readouterr().out
    command.main([*TINY, "--task.max_prompt_tokens", "924", "--sampling.max_new_tokens", "100"])
    assert "positions" not in capsys.readouterr().out


def test_a_folder_with_a_config_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(64).save_pretrained(tmp_path / "model")
    arguments = ["--model.name_or_path", str(tmp_path / "model"), "--machine.gpus", "2", "--machine.sharding", "ddp"]
    assert command.main(arguments) == 0
    assert "3 layers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.name_or_path", "/nowhere/model"], r"no shape of '/nowhere/model': give a folder with config.json"),
        (["--machine.gpus", "0"], r"machine\.gpus is 0: use 1 or more"),
        (["--machine.response_tokens", "0"], r"use 1 or more"),
        (["--machine.shardin", "ddp"], r"did you mean '--machine.sharding'"),
        (["--machine.sharding", "fsdp"], r"did you mean 'fsdp2'"),
        ([*TINY, "--json", "."], r"is a folder: name a file"),
        (["--machine.memory", "1e400"], r"machine\.memory is inf: use 1000000 or less"),
        (["--sampling.engine", "vllm"], r"the vllm engine serves one training process"),
        (["--log.scores.mode", "exact"], r"set log.scores.mode to sketch"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command.main(arguments)
