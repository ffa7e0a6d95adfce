"""The ground floor stays light: torch and its friends are imported by the training backend alone."""

import subprocess
import sys

from tests.test_floors import GROUND_FLOOR

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "datasets", "trl", "pandas", "scipy.stats")
PARTS = {
    ("fspo", *GROUND_FLOOR): [],
    ("analysis.run", "analysis.doctor.examine"): ["pandas"],
    ("proofs_check.catalogue",): ["pandas", "scipy.stats"],
}
"""Modules in the order in which one process imports them, and what of HEAVY is imported then."""
LOADED = f"print([m for m in {HEAVY!r} if m in sys.modules])\n"
REFUSED = [f"{line} --seed -1" for line in ("train", "plan", "evaluate m --benchmarks math500")]
REFUSED += [f"train --model.{words}" for words in ("name_or_path random:Qwen3-8B-Base", "tokenizer /no-such")]
REFUSED += ["train --model.name_or_path random:no-such --task.name even-tokens", "plan --help", "evaluate --help"]
COMMANDS = f"""
import sys
from fspo.__main__ import main
from fspo.base.errors import UserError
for line in {REFUSED!r}:
    try:
        main(line.split())
    except (SystemExit, UserError) as stop:
        print("status", getattr(stop, "code", 2))
    {LOADED}"""


def printed(code: str) -> list[str]:
    """The lines that a Python process of its own prints, without the text of --help."""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if line.startswith(("status", "["))]


def test_ground_floor_imports_nothing_heavy_and_diagnostics_and_checks_pandas_alone():
    code = "import sys\n" + "".join(f"import {', '.join(modules)}\n{LOADED}" for modules in PARTS)
    assert printed(code) == [str(found) for found in PARTS.values()]


def test_help_and_a_refused_option_import_nothing_heavy():
    statuses = [f"status {0 if line.endswith('--help') else 2}" for line in REFUSED]
    assert printed(COMMANDS) == [line for status in statuses for line in (status, "[]")]
