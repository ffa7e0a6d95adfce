"""Options on the command line win over the configuration file; wrong names and values are refused with their fix."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from fspo.base.errors import UserError
from fspo.base.options import parse, save, to_dict
from fspo.config import TrainConfig
from fspo.config.rule import RuleConfig
from fspo.rules import CORRECTIONS, PRESETS, Rule


def made(*arguments: str) -> TrainConfig:
    return parse(TrainConfig, list(arguments))


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rollouts: 7\nbatch: {prompts: 12, responses: 3}\nrule: {preset: gspo}\n")
    config = made("--config", str(file), "--batch.prompts", "20")
    assert (config.rollouts, config.batch.prompts, config.batch.responses, config.rule.preset) == (7, 20, 3, "gspo")
    assert config.batch.minibatches == TrainConfig().batch.minibatches
    assert made("--batch.prompts", "20", "--config", str(file)).batch.prompts == 20  # wherever --config stands


def test_saved_configuration_loads_again(tmp_path: Path) -> None:
    words = ("--rule.preset", "fspo-kl", "--rule.dual", "3", "--task.options", "{seed: 4, max_steps: 9}")
    lora = ("--model.lora", "{rank: 4, target_modules: [q_proj]}")
    config = made(*words, *lora, "--log.length_edges", "[1,10,100]", "--trackers", "[]")
    save(config, tmp_path / "config.yaml")
    again = made("--config", str(tmp_path / "config.yaml"))
    assert again == config
    assert to_dict(again) == to_dict(config)
    assert again.model.lora is not None
    assert again.model.lora.target_modules == ["q_proj"]
    assert set(to_dict(config)) == set(to_dict(TrainConfig()))  # resolved: defaults too


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--log.audit-every 1", "log.audit_every is gone: leave it out"),
        ("--log.tokens true", "log.tokens is gone: leave it out"),
        ("--optim.name adamw", "optim.name is gone: leave it out"),
        ("--rule.drift signed", "rule.drift=signed is gone: use kl"),
        ("--batch.drop truncated,failed", "batch.drop=failed is gone"),
        ("--rule.preset fspo-cap", "preset 'fspo-cap' is gone: use preset fspo with outside cap"),
    ],
)
def test_what_is_gone_says_so(words: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        made(*words.split())
    name, _, value = words.removeprefix("--").partition(" ")
    group, option = name.replace("-", "_").split(".")
    (tmp_path / "config.yaml").write_text(f"{group}:\n  {option}: {f'[{value}]' if ',' in value else value}\n")
    with pytest.raises(UserError, match=says):
        made("--config", str(tmp_path / "config.yaml"))


def test_one_update_a_rollout_warns_with_the_fix() -> None:
    found = made("--batch.minibatches", "1", "--batch.epochs", "1").warnings()
    assert any("S identically 0" in w and "batch.minibatches or batch.epochs above 1" in w for w in found)
    assert any("batch.minibatches to 2" in w for w in made("--batch.minibatches", "1").warnings())
    assert any("batch.responses to 2" in w for w in made("--batch.responses", "1").warnings())
    assert made().warnings() == []


def test_every_part_of_a_rule_but_those_that_make_a_preset_is_an_option() -> None:
    of_a_preset = {"shape", "weight", "name", "on", "gamma_hi"}  # gamma_hi is learnt
    assert {part.name for part in fields(Rule)} - of_a_preset <= {option.name for option in fields(RuleConfig)}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_named_and_changed(name: str) -> None:
    config = made("--rule.preset", name, "--rule.advantage", "dr_grpo")
    assert config.rule.rule() == PRESETS[name].rule
    assert config.rule.advantage_estimator() == "dr_grpo"
    assert made("--rule.preset", name).rule.advantage_estimator() == PRESETS[name].advantage
    assert config.rule.objective().aggregation == PRESETS[name].aggregation


@pytest.mark.parametrize("name", ["none", *CORRECTIONS])
def test_corrections_by_name(name: str) -> None:
    assert made("--correction.preset", name).correction.rule() == CORRECTIONS.get(name)
    if name != "none":
        changed = made("--correction.preset", name, "--correction.range_hi", "0.7", "--correction.on", "behaviour")
        assert changed.correction.rule() == replace(CORRECTIONS[name], range_hi=0.7, on="behaviour")


def test_only_the_embedded_model_has_one_thread_by_default() -> None:
    other, three = ("--model.name_or_path", "Qwen/Qwen3-0.6B"), ("--threads", "3")
    assert [made(*words).torch_threads for words in ((), three, other, (*other, *three))] == [1, 3, 0, 3]
