"""Presets: accelerate reads its files as they are meant; each model's preset fits the machine that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

import fspo
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.config.machine import MachineConfig
from fspo.plan.memory import plan

PRESETS = Path(fspo.__file__).parent / "presets"


def test_accelerate_reads_its_files() -> None:
    found = {path.stem: load_config_from_file(str(path)) for path in (PRESETS / "accelerate").glob("*.yaml")}
    assert {name: (c.num_machines, c.num_processes, c.mixed_precision) for name, c in found.items()} == {
        "fsdp2": (1, 8, "bf16"),
        "fsdp2-2nodes": (2, 16, "bf16"),
    }
    for config in found.values():
        assert config.distributed_type == "FSDP"
        assert config.fsdp_config["fsdp_version"] == 2
        assert not config.fsdp_config["fsdp_activation_checkpointing"]


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-1.7b"])
def test_a_preset_is_a_configuration_without_warnings(name: str) -> None:
    assert not parse(TrainConfig, ["--config", str(PRESETS / f"{name}.yaml")]).warnings()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "memory"), [("qwen3-8b", 80), ("qwen3-1.7b", 40)])
def test_a_preset_fits_its_machine(name: str, memory: int) -> None:
    config = parse(TrainConfig, ["--config", str(PRESETS / f"{name}.yaml")])
    assert plan(config, MachineConfig(gpus=8, memory=memory)).fits
    assert not plan(config, MachineConfig(gpus=8, memory=memory / 4)).fits
