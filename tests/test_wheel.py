"""The wheel in an environment without torch (make test-wheel): from `fspo demo` to figures of a table of one's own."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

BIN = Path(os.environ.get("WHEEL_ENV", "")) / "bin"
needs_wheel = pytest.mark.skipif(
    "WHEEL_ENV" not in os.environ, reason="WHEEL_ENV names no environment: make test-wheel"
)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the console script in a folder, without this repository on the module path."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([BIN / "fspo", *words], cwd=folder, env=clean, capture_output=True, text=True, check=False)


@needs_wheel
def test_a_diagnosis_needs_the_wheel_alone(tmp_path: Path) -> None:
    for name in ("analysis", "figures"):  # a user's own folders of these names
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a package of the user')\n")
    packages = subprocess.run([BIN / "python", "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "transformers", "mpmath", "hypothesis"} & {line.split()[0] for line in packages.splitlines()}

    demo = run(tmp_path, "demo", "--output", "demo")
    assert demo.returncode == 0, demo.stderr
    assert "sound: no issue in 3,072 rows\nfaulty: 1 issue (critical) in 3,072 rows\n  old_recomputed: " in demo.stdout
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000

    rng = np.random.default_rng(0)
    length = rng.integers(2, 200, 2048)
    reward = rng.integers(0, 2, 2048)
    S = 0.02 * np.sqrt(length) * rng.standard_normal(2048)
    table = pd.DataFrame({"prompt": np.arange(2048) // 8, "S": S, "L": length, "reward": reward})
    table.to_csv(tmp_path / "own.csv", index=False)
    for words in (
        ("import", "own.csv", "--out", "own"),
        ("analyse", "own", "--rules", "rloo,fspo", "--targets", "0.85,0.95", "--draws", "2"),
        ("figures", "own", "--only", "acceptance_by_length"),
    ):
        done = run(tmp_path, *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert (tmp_path / "own" / "figures" / "acceptance_by_length.pdf").is_file()
    assert run(tmp_path, "doctor", "own", "--fail-on", "critical").returncode == 0

    for words, extra in ((("train", "--output", "t"), "train"), (("check", "--list"), "proofs")):
        refused = run(tmp_path, *words)
        assert refused.returncode == 2
        assert f"is not installed: pip install '.[{extra}]' in" in refused.stderr, refused.stderr
        assert len(refused.stderr.splitlines()) == 1
