"""docs/options.md lists what the code defines."""

from dataclasses import fields

from fspo.base.options import option_names
from fspo.config import LoraOptions, TrainConfig
from studies.options_page import PAGE, page


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make pages`"


def test_every_option_of_training_stands_on_the_page_with_its_meaning() -> None:
    lines = {line.split("`")[1]: line.split(" | ") for line in page().splitlines() if line.startswith("| `--")}
    groups = {
        name for name in option_names(TrainConfig) if any(n.startswith(name + ".") for n in option_names(TrainConfig))
    }
    names = set(option_names(TrainConfig)) - groups | {f"model.lora.{field.name}" for field in fields(LoraOptions)}
    assert {"--" + name.replace("_", "-") for name in names} <= lines.keys()
    assert all(len(line) == 4 and len(line[3]) > 8 for line in lines.values())
    assert lines["--optim.learning-rate"][1:3] == ["float in [0, 1]", "`0.0002`"]
    assert lines["--rule.gamma"][1] == "float in [0, 2] or null"
