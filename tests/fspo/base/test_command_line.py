"""One line and exit status 2 for what a user gets wrong; help keeps its examples' lines."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMANDS = {
    "fspo.train": ["-m", "fspo.train"],
    "analysis": ["-m", "analysis"],
    "analysis calibrate": ["-m", "analysis", "calibrate"],
    "analysis sweep": ["-m", "analysis", "sweep"],
    "figures": ["-m", "figures"],
    "proofs_check": ["-m", "proofs_check"],
    "paper_repro": ["paper_repro.py"],
}


def shown(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What --help prints, in this process: torch and transformers are imported once for all commands."""
    module = command[0] == "-m"
    name, *words = command[1:] if module else [str(ROOT / command[0])]
    monkeypatch.setattr(sys, "argv", [name, *words, "--help"])
    with pytest.raises(SystemExit) as stop:
        (runpy.run_module if module else runpy.run_path)(name, run_name="__main__")
    assert not stop.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_help_and_an_unknown_option(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, *COMMANDS[name]]
    examples = shown(COMMANDS[name], monkeypatch, capsys).split("\nexamples:\n")[1].splitlines()
    assert examples[0].startswith("  python")
    refused = subprocess.run([*command, "--no-such-option", "3"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: ")
    assert "no-such-option" in line


def test_a_value_where_a_list_is_wanted_names_the_brackets() -> None:
    command = [sys.executable, "-m", "analysis", "some_run", "--rules", "rloo,fspo"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: --rules is 'rloo,fspo': give a list in brackets, such as '[rloo,fspo]'")
