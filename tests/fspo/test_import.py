"""The ground floor stays light: torch and its friends are imported by the training backend alone."""

import subprocess
import sys

import pytest

from tests.test_floors import GROUND_FLOOR

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "pandas", "datasets", "trl")


@pytest.mark.parametrize("module", ["fspo", *GROUND_FLOOR])
def test_ground_floor_imports_nothing_heavy(module):
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("module", ["analysis.run", "proofs_check.catalogue"])
def test_diagnostics_and_checks_need_no_torch_and_no_plotting(module):
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) <= {"pandas"}


COMMAND = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as stop:
    status = stop.code
print("status", status, *[m for m in {heavy} if m in sys.modules])
"""


@pytest.mark.parametrize("command", ["fspo.train", "fspo.plan", "fspo.evaluate"])
@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), (["--seed", "-1"], 2)], ids=["help", "out of range"])
def test_help_and_a_refused_option_import_nothing_heavy(command, words, status):
    needed = ["m", "--benchmarks", "math500"] if command == "fspo.evaluate" else []
    code = COMMAND.format(heavy=HEAVY)
    found = subprocess.run([sys.executable, "-c", code, command, *needed, *words], capture_output=True, text=True)
    assert found.stdout.splitlines()[-1] == f"status {status}", found.stdout[-500:] + found.stderr
