"""One line and exit status 2 for what a user gets wrong; help keeps its examples' lines; one way to write lists and
names.
"""

import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fspo.base.command_line import rewritten
from fspo.base.options import make_parser, parse
from fspo.config import TrainConfig

ROOT = Path(__file__).parents[3]
COMMANDS = ["fspo.train", "analysis", "analysis calibrate", "analysis sweep", "figures", "proofs_check", "paper_repro"]


def shown(
    command: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *part: str
) -> str:
    """What --help prints, in this process: torch and transformers are imported once for all commands."""
    module = command[0] == "-m"
    name, *words = command[1:] if module else [str(ROOT / command[0])]
    monkeypatch.setattr(sys, "argv", [name, *words, "--help", *part])
    monkeypatch.syspath_prepend(str(Path(name).parent))
    with pytest.raises(SystemExit) as stop:
        (runpy.run_module if module else runpy.run_path)(name, run_name="__main__")
    assert not stop.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_help_and_an_unknown_option(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["paper_repro.py"] if name == "paper_repro" else ["-m", *name.split()]
    command = [sys.executable, *words]
    examples = shown(words, monkeypatch, capsys).split("\nexamples:\n")[1].splitlines()
    assert examples[0].startswith("  fspo ")
    refused = subprocess.run([*command, "--no-such-option", "3"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: ")
    assert "no-such-option" in line


def test_lists_have_commas_and_names_dashes_in_every_command() -> None:
    given = ["--optim.learning-rate", "0.001", "--log.length-edges", "1,9"]
    config = parse(TrainConfig, [*given, "--trackers", "tensorboard"])
    assert config.optim.learning_rate == 0.001
    assert config.log.length_edges == (1, 9)
    assert config.trackers == ("tensorboard",)
    bracketed = parse(TrainConfig, ["--optim.learning_rate", "0.001", "--log.length-edges", "[1, 9]"])
    assert bracketed.log.length_edges == (1, 9)
    assert parse(TrainConfig, ["--model.lora", "{rank: 4}", "--trackers", "null"]).trackers is None
    from analysis.__main__ import build_parser
    from analysis.importing.command import build_parser as of_import

    args = build_parser().parse_args(["RUN", "--rules", "rloo,fspo", "--targets", "0.9", "--edges", "1,16"])
    assert (args.runs, args.rules, args.targets, args.edges) == (["RUN"], ["rloo", "fspo"], [0.9], [1.0, 16.0])
    args = of_import().parse_args(["x.csv", "--columns", "log_ratio=my_S,reward=score", "--updates_per_rollout", "2"])
    assert args.columns == {"log_ratio": "my_S", "reward": "score"}
    assert args.updates_per_rollout == 2
    assert of_import().parse_args(["x.csv", "--out", "RUN"]).output == "RUN"  # its older name


def test_an_option_takes_one_word_and_unknown_names_stay() -> None:
    parser = make_parser(TrainConfig, "x", "")
    words = ["--help", "--no-such", "a,b", "--batch.drop", "--resume", "true", "--seed", "-1"]
    assert rewritten(parser, words) == ["--help", "--no-such", "a,b", "--batch.drop", "--resume=true", "--seed=-1"]
