"""The ground floor stays light: torch and its friends are imported by the training backend alone."""

import subprocess
import sys

import pytest

from tests.test_floors import GROUND_FLOOR

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "pandas", "datasets", "trl")


@pytest.mark.parametrize("module", ["fspo", *GROUND_FLOOR, "analysis.run", "proofs_check.catalogue"])
def test_ground_floor_imports_nothing_heavy_and_diagnostics_and_checks_pandas_alone(module):
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) <= (set() if module in ("fspo", *GROUND_FLOOR) else {"pandas"})


COMMAND = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as stop:
    status = stop.code
print("status", status, *[m for m in {heavy} if m in sys.modules])
"""
LINES = [
    f"{line} {word}"
    for line in ("train", "plan", "evaluate m --benchmarks math500")
    for word in ("--help", "--seed -1")
]
LINES += [f"train --model.{words}" for words in ("name_or_path random:Qwen3-8B-Base", "tokenizer /no-such")]
LINES += ["train --model.name_or_path random:no-such --task.name even-tokens"]


@pytest.mark.parametrize("line", LINES)
def test_help_and_a_refused_option_import_nothing_heavy(line):
    command = [sys.executable, "-c", COMMAND.format(heavy=HEAVY), *f"fspo.{line}".split()]
    found = subprocess.run(command, capture_output=True, text=True)
    status = 0 if line.endswith("--help") else 2
    assert found.stdout.splitlines()[-1] == f"status {status}", found.stdout[-500:] + found.stderr
