"""The ground floor stays light: torch and its friends are imported by the training backend alone."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "pandas", "datasets", "trl")


@pytest.mark.parametrize("module", ["fspo", "fspo.rules", "fspo.theory", "fspo.gradlog", "fspo.errors"])
def test_ground_floor_imports_nothing_heavy(module):
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_the_check_can_fail():
    code = f"import sys, fspo.objective; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" in found.stdout.split()
