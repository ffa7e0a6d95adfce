"""The command ``fspo``: its commands, what its help imports, a folder with packages of the same names."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fspo.__main__ import COMMANDS, main
from fspo.base.errors import UserError, extra_with, run_cli

ROOT = Path(__file__).parents[2]
SCRIPT = [sys.executable, "-P", "-c", "import sys; sys.argv[0] = 'fspo'; from fspo.__main__ import script; script()"]
"""What the console script runs; -P: unlike python -c, it does not put the current folder on the module path."""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def fspo(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCRIPT, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_help_lists_every_command_with_an_example_that_its_parser_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 120 for line in text.splitlines())
    for name, command in COMMANDS.items():
        assert f"fspo {name} {command.example}\n" in text
        parser = import_module(command.module).build_parser()
        assert parser.prog == f"fspo {name}"
        words = [word for word in command.example.split() if not word.endswith(".yaml") and word != "--config"]
        parser.parse_args(words)
    with pytest.raises(UserError, match=r"unknown command 'analyze': did you mean 'analyse'\?"):
        main(["analyze"])


HELP = """
import contextlib, sys
from fspo.__main__ import COMMANDS, main
heavy = {"scipy", "pandas", "pyarrow", "matplotlib", "seaborn", "torch", "transformers"}
for words in ([], *([name] for name in COMMANDS)):
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
    print("loaded", *words, *sorted(heavy & sys.modules.keys()))
"""


def test_help_imports_no_package_that_takes_long_to_load() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded")]
    assert found == [[], *([name] for name in COMMANDS)]


def test_a_folder_with_packages_of_the_same_names_is_no_hindrance(tmp_path: Path) -> None:
    for name in ("analysis", "figures", "fspo", "proofs_check"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a package of the user')\n")
    done = fspo("doctor", "no-such-run", folder=tmp_path)
    refused = "error: no-such-run does not exist: give a run folder, or make one of another log with `fspo import`\n"
    assert (done.returncode, done.stderr) == (2, refused)
    done = fspo("check", "--list", "--only", "T1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    code = "from fspo.repro.stages import run_module; run_module('analysis', '--help')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage: fspo analyse" in done.stderr


def test_a_missing_extra_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert extra_with("trl.trainer") == "trl"
    assert extra_with("json") is None

    def needs() -> int:
        raise ModuleNotFoundError("No module named 'trl'", name="trl")

    with pytest.raises(SystemExit) as stop:
        run_cli(needs)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: trl is not installed: pip install '.[trl]' in fspo's repository\n"
