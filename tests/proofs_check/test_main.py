"""The command line: exit statuses, files, bad input in one line."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proofs_check import __main__ as cli
from proofs_check.frame import Check, Method, Outcome
from proofs_check.report import format_table, to_json
from proofs_check.run import run_checks

ROOT = Path(__file__).parents[2]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "proofs_check", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


def made(verdict: float, near_miss: float = -1.0, name: str = "a_b") -> Check:
    return Check("T1", Method.CLOSED, name, lambda rng: Outcome(verdict, "unit"), {"c": lambda rng: Outcome(near_miss)})


def test_a_real_run_writes_the_report_and_exits_0(tmp_path):
    done = run("--only", "T2,T12", "--jobs", "1", "--seed", "4", "--strict", "--out", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "near misses fail, as they must" in done.stdout
    assert "check" in done.stderr  # the progress bar
    data = json.loads((tmp_path / "report/proofs_check.json").read_text())
    assert {row["id"] for row in data["rows"]} == {"T2", "T12"}
    assert {"id", "method", "verdict", "margin", "near_misses", "seconds"} <= set(data["rows"][0])
    assert data["exit_status"] == 0
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["proofs_check.json"]


def test_a_real_process_exits_2_without_traceback(tmp_path):
    done = run("--only", "T77", cwd=tmp_path)
    assert done.returncode == 2
    assert "choose from" in done.stderr
    assert "Traceback" not in done.stderr


def test_list_runs_nothing(tmp_path, capsys):
    assert cli.main(["--list", "--only", "T7", "--out", str(tmp_path / "x")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("T7")
    checks = [line for line in lines if any(f"  {method} " in line for method in Method)]
    assert len(checks) == sum("near misses: " in line for line in lines) > 3
    assert "resolution: 1e-06 of rho, or finer" in lines[3]
    assert all(f"\n  {method} " in cli.EXAMPLES for method in Method)  # --help says what each is
    assert len(lines) <= 40  # one screen
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("check", "named"),
    [
        (made(1.0), ""),
        (made(-1.0), "fail: T1 a_b"),
        (made(math.nan), "undecided: T1 a_b"),
        (made(1.0, near_miss=math.nan), "near miss did not fail: T1 a_b: c (undecided)"),
    ],
)
def test_exit_status_of_the_command_and_the_line_that_names_the_cause(monkeypatch, tmp_path, capsys, check, named):
    monkeypatch.setattr("proofs_check.catalogue.CHECKS", (check,))
    assert cli.main(["--no-progress", "--jobs", "1", "--out", str(tmp_path)]) == bool(named)
    assert json.loads((tmp_path / "proofs_check.json").read_text())["exit_status"] == bool(named)
    printed = capsys.readouterr().out
    assert ("as they must" in printed) == (check.near_misses["c"](None).margin < 0)
    assert printed.splitlines()[-3].startswith(named)  # under the table


def test_not_run_comes_last_and_counts_only_when_strict(monkeypatch, tmp_path, capsys):
    absent = Check("T1", Method.CLOSED, "absent", lambda rng: Outcome(not_run="no prover here"), made(1.0).near_misses)
    monkeypatch.setattr("proofs_check.catalogue.CHECKS", (absent, made(1.0)))
    arguments = ["--no-progress", "--jobs", "1", "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith("T1 ")]
    assert "absent" in table[-1]
    assert "not run: T1 absent: no prover here" in lines[-3]
    assert "1 of 1 near misses fail" in lines[-4]  # a near miss of a check that was not run says nothing
    assert cli.main([*arguments, "--strict"]) == 1


def test_a_margin_is_a_number_beside_what_it_is_of_and_strict_json():
    rows = run_checks([made(-0.0), made(math.nan, name="b"), made(-math.inf, name="c")])
    cells = [re.split("  +", line)[3:6] for line in format_table(rows).splitlines()]
    assert cells[0] == ["verdict", "margin", "margin of"]
    assert cells[2] == ["pass", "0", "unit"]
    data = json.loads(to_json(rows, seed=1), parse_constant=lambda c: pytest.fail(f"not strict JSON: {c}"))
    assert [row["margin"] for row in data["rows"]] == [0.0, None, "-inf"]
    assert data["seed"] == 1
