"""The ground floor stays light: torch and its friends are imported by the training backend alone."""

import subprocess
import sys

import pytest

from fspo.repro.stages import GROUND_FLOOR

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "pandas", "datasets", "trl")


@pytest.mark.parametrize("module", ["fspo", *GROUND_FLOOR])
def test_ground_floor_imports_nothing_heavy(module):
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("module", ["analysis.__main__", "analysis.rules.calibrate", "proofs_check.__main__"])
def test_diagnostics_and_checks_need_no_torch_and_no_plotting(module):
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) <= {"pandas"}


def test_the_check_can_fail():
    code = f"import sys, fspo.objective; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" in found.stdout.split()
