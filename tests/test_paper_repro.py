"""The reproduction from end to end at its smallest size, with the real stages."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

import paper_repro
from analysis.claims.estimands import Estimate
from analysis.claims.verdicts import JudgedClaim, JudgedHypothesis
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.repro.presets import PRESETS, TASKS
from fspo.tasks import make_task
from fspo.tasks.chain_add import STEP_TOKENS

ROOT = Path(paper_repro.__file__).parent


def repro(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "paper_repro.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=800, check=False)


def done_before(start: subprocess.CompletedProcess[str]) -> set[str]:
    """The stages that a start found done."""
    return set(re.findall(r"\[([\w-]+)\] done before", start.stderr))


ALL = {"checks", "figures-theory", "training", "estimates", "analysis", "doctor", "figures"}


@pytest.mark.slow
def test_all_stages_run_and_a_second_start_finds_them_done(tmp_path: Path) -> None:
    out = tmp_path / "out" / "smoke"
    first = repro("--preset", "smoke", cwd=tmp_path)
    check_outputs(out, first)
    assert done_before(first) == set()
    again = repro("--preset", "smoke", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert done_before(again) == ALL

    metrics = out / "runs" / "fspo-equal-seed1" / "metrics.jsonl"
    before = metrics.read_bytes()
    forced = repro("--preset", "smoke", "--force", "doctor", cwd=tmp_path)
    assert forced.stdout == first.stdout
    assert done_before(forced) == ALL - {"doctor", "figures"}
    assert metrics.read_bytes() == before

    # estimates from another machine: their runs are not trained again, and the verdicts are the same
    given = tmp_path / "given.csv"
    table = pd.read_csv(out / "estimates.csv")
    table.to_csv(given, index=False)
    other = repro("--preset", "smoke", "--output", "other", "--estimates", str(given), cwd=tmp_path)
    assert other.returncode == 2
    assert "no run is left to show" in other.stderr
    table[table.seed == 2].to_csv(given, index=False)
    other = repro("--preset", "smoke", "--output", "other", "--estimates", str(given), cwd=tmp_path)
    assert other.returncode == 0, other.stderr[-2000:]
    shown = {path.name for path in (tmp_path / "other/smoke/runs").iterdir()}
    assert shown == {"none-unclipped-seed1", "fspo-equal-seed1"}
    assert (tmp_path / "other/smoke/claims.csv").read_text() == (out / "claims.csv").read_text()


def check_outputs(out: Path, start: subprocess.CompletedProcess[str]) -> None:
    """What every start prints and leaves."""
    assert start.returncode == 0, start.stderr[-2000:]
    claims, parts, estimates = (pd.read_csv(out / f"{name}.csv") for name in ("claims", "parts", "estimates"))
    columns = [tuple(table.columns) for table in (claims, parts, estimates)]
    assert columns == [JudgedClaim._fields, JudgedHypothesis._fields, Estimate._fields]
    assert set(estimates.seed) == {1, 2}
    assert set(parts[parts.claim.astype(str) != "6"].seeds) == {2}
    assert set(parts[parts.claim.astype(str) == "6"].seeds) == {0}  # its runs are planned, those of rivals are not
    for claim in claims.itertuples():
        number = re.escape(claim.decides) + (r"; found .*\[.*\], 2 seeds" if str(claim.claim) != "6" else "")
        says = rf"^{claim.claim} +{claim.verdict} +{re.escape(claim.sentence)}\n +{number}$"
        assert re.search(says, start.stdout, re.M), claim.claim
    checks = json.loads((out / "checks" / "proofs_check.json").read_text())["rows"]
    assert {row["id"] for row in checks} == set(PRESETS["smoke"].checks.split(","))  # make proofs has all of them
    assert f"theory: {len(checks)} checks: {len(checks)} pass; " in start.stdout
    assert {p.name for p in (out / "figures-theory").glob("*.pdf")} >= {"cosine_tightness.pdf", "acceptance_models.pdf"}
    report = (out / "report.html").read_text()
    assert all(claim in unescape(report) for claim in claims.sentence)
    captions = json.loads((out / "figures" / "captions.json").read_text())
    assert not any("write the tables again" in c["skipped"] for c in captions)
    drawn = {c["name"] for c in captions if not c["skipped"]}
    assert drawn >= {"acceptance_by_length", "cosine_bound", "error_split", "variance_scaling"}
    why = next(c["skipped"] for c in captions if c["name"] == "cosine_by_rule")
    assert not why or "fewer than 5 clusters" in why  # some warm-ups leave so few prompts a gradient


def test_the_longer_task_ranges_over_six_doublings_and_fits_its_limit() -> None:
    config = parse(TrainConfig, [f"--{name}={value}" for name, value in TASKS["chain-add-64"].items()])
    task = make_task(config.task.name, config.task.options)
    steps = [int(task.example("train", i).info["steps"]) for i in range(500)]
    assert max(steps) / min(steps) == 2**6
    assert STEP_TOKENS * max(steps) < config.sampling.max_new_tokens
