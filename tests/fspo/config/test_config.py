"""The configuration: the command line wins over the file; wrong names and values are refused with their cure."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from fspo.base.errors import UserError
from fspo.base.options import option_names, parse, save, to_dict
from fspo.config import TrainConfig
from fspo.config.rule import CorrectionConfig, RuleConfig
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
    config = made(
        *("--rule.preset", "fspo-kl", "--rule.dual", "3", "--task.options", "{seed: 4, max_steps: 9}"),
        *(
            "--log.length_edges",
            "[1,10,100]",
            "--model.lora",
            "{rank: 4, target_modules: [q_proj]}",
            "--trackers",
            "[]",
        ),
    )
    save(config, tmp_path / "config.yaml")
    again = made("--config", str(tmp_path / "config.yaml"))
    assert again == config
    assert to_dict(again) == to_dict(config)
    assert again.model.lora is not None
    assert again.model.lora.target_modules == ["q_proj"]
    assert set(to_dict(config)) == set(to_dict(TrainConfig()))  # resolved: defaults too


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rollout", "3"], r"unknown option '--rollout': did you mean '--rollouts'\? choose from --output, "),
        (["--batch.promts", "3"], r"unknown option '--batch.promts': did you mean '--batch.prompts'"),
        (["--preset", "gspo"], r"did you mean '--rule.preset' or '--correction.preset'\?$"),
        (["--learning-rate", "1"], r"'--learning-rate': did you mean '--optim.learning-rate'\?$"),
        (["--optim.learning-rat", "1"], r"choose from --optim.learning-rate, --optim.warmup-updates"),
        (["--rule", "fspo"], r"--rule is 'fspo', but it is a group of options: set --rule.<option>"),
        (["--sampling.temprature", "1"], r"did you mean '--sampling.temperature'"),
        (["--learning_rate", "1"], r"--optim\.learning-rate"),
        (["--rule.preset", "fspo_kl"], r"did you mean 'fspo-kl'"),
        (["--rule.outside", "trunkate"], r"rule\.outside.*did you mean 'truncate'"),
        (["--model.dtype", "fp16"], r"float32.*bfloat16"),
        (["--batch.prompts", "many"], r"--batch\.prompts is 'many': give a value of type int"),
        (["--log.score-minibatches", "x"], r"--log\.score-minibatches is 'x': give a value of type int"),
        (["--model.lora.rank", "x"], r"--model\.lora\.rank is 'x': give a value of type int"),
        (["--model.lora", "3"], r"--model\.lora is '3'.*--model\.lora\.<option>"),
        (["--batch.prompts", "0"], r"batch\.prompts is 0: use 1 or more"),
        (["--batch.prompts", "2", "--batch.minibatches", "4"], r"minibatches=4 exceeds"),
        (["--rule.preset", "rloo", "--batch.responses", "1"], r"batch\.responses to 2"),
        (["--rule.range_lo", "-1"], r"range_lo"),
        (["--rule.kl_coef", "-1"], r"kl_coef"),
        (["--rule.on", "engine"], r"rule\.on"),
        (["--correction.preset", "tiss"], r"did you mean 'tis'"),
        (["--correction.range_lo", "0.1"], r"correction\.range_lo is set.*set correction\.preset"),
        (["--correction.preset", "mis", "--correction.on", "total"], r"correction\.on"),
        (["--correction.preset", "mis", "--correction.range_lo", "2"], r"at most 1 \(no lower edge\)"),
        (["--correction.preset", "tis", "--correction.range_lo", ".5"], r"range_lo has no effect.*set outside='mask'"),
        (["--correction.preset", "mis", "--rule.on", "total"], r"would weigh it twice"),
        (["--sampling.temperature", "0"], r"temperature must be > 0"),
        (["--sampling.precision", "bfloat16", "--model.dtype", "bfloat16"], r"set sampling\.precision to same"),
        (["--optim.learning_rate", ".nan"], r"optim\.learning_rate is nan"),
        (["--optim.beta2", "1.0"], r"optim\.beta2"),
        (["--optim.max_grad_norm", "0"], r"max_grad_norm"),
        (["--log.length_edges", "[1,5,5]"], r"length_edges"),
        (["--log.length_edges", "[]"], r"length_edges"),
        (["--log.score_minibatches", "[8]"], r"names update 8, but a rollout has the updates 0 to 7"),
        (["--log.score_minibatches", "[-5]"], r"names update -5"),
        (["--eval.prompts", "0"], r"eval\.prompts"),
        (["--keep_checkpoints", "0"], r"keep_checkpoints"),
        (["--processes", "0"], r"processes"),
        (["--seed", "-1"], r"seed is -1"),
        (["--config", "/nowhere/run.yaml"], r"cannot read the configuration file '/nowhere/run\.yaml'"),
        (["--log.scores.mode", "exakt"], r"exact"),
    ],
)
def test_wrong_names_and_values_name_the_cure(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        made(*arguments)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rolouts: 3\n", r"unknown option 'rolouts': did you mean 'rollouts'"),
        ("batch: {promts: 3}\n", r"did you mean 'batch.prompts'"),
        ("rule:\n  clip: 0.2\n", r"unknown option 'rule.clip'"),
        ("batch: 3\n", r"batch is 3, but it is a group of options"),
        ("batch: {prompts: [1]}\n", r"prompts"),
        ("a: b: c\n", r"."),
        ("- 1\n", r"."),
    ],
)
def test_wrong_files_name_the_cure(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        made("--config", str(file))
    assert "\n" not in str(error.value)


def test_one_update_a_rollout_warns_with_the_cure() -> None:
    found = made("--batch.minibatches", "1", "--batch.epochs", "1").warnings()
    assert any("S identically 0" in w and "batch.minibatches or batch.epochs above 1" in w for w in found)
    assert any("batch.minibatches to 2" in w for w in made("--batch.minibatches", "1").warnings())
    assert any("batch.responses to 2" in w for w in made("--batch.responses", "1").warnings())
    assert made().warnings() == []


def test_every_part_of_a_rule_but_those_that_make_a_preset_is_an_option() -> None:
    of_a_preset = {"shape", "weight", "factors", "name"}
    assert {part.name for part in fields(Rule)} - of_a_preset <= {option.name for option in fields(RuleConfig)}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_named_and_changed(name: str) -> None:
    config = made("--rule.preset", name, "--rule.advantage", "dr_grpo")
    assert config.rule.rule() == PRESETS[name].rule
    assert config.rule.advantage_estimator() == "dr_grpo"
    assert made("--rule.preset", name).rule.advantage_estimator() == PRESETS[name].advantage
    assert config.rule.objective().aggregation == PRESETS[name].aggregation


def test_option_names_reach_into_groups() -> None:
    names = option_names(TrainConfig)
    assert {"rollouts", "batch.prompts", "log.scores.width", "rule.preset"} <= set(names)


@pytest.mark.parametrize("name", ["none", *CORRECTIONS])
def test_corrections_by_name(name: str) -> None:
    assert made("--correction.preset", name).correction.rule() == CORRECTIONS.get(name)
    if name != "none":
        changed = made("--correction.preset", name, "--correction.range_hi", "0.7", "--correction.on", "behaviour")
        assert changed.correction.rule() == replace(CORRECTIONS[name], range_hi=0.7, on="behaviour")


def test_the_help_of_corrections_says_on_which_ratio_each_acts_by_default():
    told = " ".join((CorrectionConfig.__doc__ or "").split())
    assert {name for name, rule in CORRECTIONS.items() if rule.on == "engine"} == {"engine-sqrt"}
    assert {rule.on for rule in CORRECTIONS.values()} == {"engine", "behaviour"}
    assert "(default of engine-sqrt)" in told
    assert "(default of all other presets)" in told
