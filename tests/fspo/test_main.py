"""The command ``fspo``: its commands, what its help imports, completion, a folder with packages of the same names."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fspo.__main__ import COMMANDS, completion, main
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


@pytest.mark.parametrize("words", [("--help",), *((name, "--help") for name in COMMANDS)])
def test_help_imports_no_package_that_takes_long_to_load(words: tuple[str, ...]) -> None:
    code = f"""
import sys
from fspo.__main__ import main
try:
    main({list(words)!r})
except SystemExit:
    pass
heavy = {{"scipy", "pandas", "pyarrow", "matplotlib", "seaborn", "torch", "transformers"}}
print("loaded", *sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "usage: fspo" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded"


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


def test_completion_in_bash_knows_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(completion("bash"))
    ask = f"""source {script}
complete_words() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_fspo; echo "${{COMPREPLY[@]}}"; }}
complete_words fspo do
complete_words fspo doctor RUN --fail
complete_words fspo train --optim.learning
complete_words fspo train --rule.outside tr
"""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["doctor", "--fail-on", "--optim.learning-rate", "truncate"], done.stderr
    with pytest.raises(UserError, match="unknown shell 'cmd': choose from bash, zsh"):
        completion("cmd")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_completion_in_a_zsh_without_compinit_knows_commands_options_values_and_folders(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    script = tmp_path / "completion"
    script.write_text(completion("zsh"))
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb"})
    told = ""

    def ask(typed: str, wanted: str) -> None:
        nonlocal told
        told = ""
        os.write(terminal, typed.encode())
        while wanted not in told:
            assert select.select([terminal], [], [], 20)[0], f"{typed!r} is not completed to {wanted!r}: {told!r}"
            told += os.read(terminal, 65536).decode(errors="replace")

    try:
        ask(f"unsetopt zle_bracketed_paste; PS1='ready''> '; eval \"$(cat {script})\"\n", "ready>")
        assert "not found" not in told
        ask("fspo doc\t", "fspo doctor ")
        ask("ru\t", "runs/")
        ask(" --fa\t", "--fail-on ")
        ask("\x15fspo train --optim.lea\t", "--optim.learning-rate ")
        ask("1 --rule.outside tr\t", "truncate ")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def test_a_missing_extra_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert extra_with("trl.trainer") == "trl"
    assert extra_with("json") is None

    def needs() -> int:
        raise ModuleNotFoundError("No module named 'trl'", name="trl")

    with pytest.raises(SystemExit) as stop:
        run_cli(needs)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: trl is not installed: pip install 'fspo[trl]'\n"
