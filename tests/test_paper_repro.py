"""The reproduction from end to end at its smallest size, with the real stages."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paper_repro
from analysis.claims.catalogue import ATOMS, HEADLINES
from analysis.claims.evidence import verdict_of
from analysis.claims.judge import Claim
from analysis.tables.files import write_json
from figures.page.story import QUESTIONS, anchor
from fspo.base.errors import run_cli
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.repro.options import ReproductionOptions
from fspo.repro.presets import PRESETS, TASKS
from fspo.tasks import make_task
from fspo.tasks.chain_add import STEP_TOKENS

ROOT = Path(paper_repro.__file__).parent


def repro(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "paper_repro.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=800, check=False)


@pytest.mark.slow
def test_all_stages_run_and_a_second_start_finds_them_done(tmp_path: Path) -> None:
    """First as published; then, in the same folder, with calibrated ranges."""
    out = tmp_path / "out" / "smoke"
    check_outputs(out, repro("--preset", "smoke", cwd=tmp_path))
    for name in ("rloo", "fspo"):
        assert "range_lo: null" in (out / "runs" / f"{name}-seed0" / "config.yaml").read_text()  # that of the preset

    calibrated = ("--preset", "smoke", "--ranges", "calibrated")
    second = repro(*calibrated, cwd=tmp_path)
    check_outputs(out, second)
    kept = {"checks", "warm-up", "shared-run"}
    assert done_before(second) == kept
    assert all(list((out / "superseded").glob(f"{name}-seed0-*")) for name in ("rloo", "fspo"))
    ranges = json.loads((out / "calibration.json").read_text())
    for name in ("rloo", "fspo"):
        assert abs(ranges[name]["realised"] - ranges[name]["target"]) <= 1 / ranges[name]["rows"] + 1e-9
        saved = (out / "runs" / f"{name}-seed0" / "config.yaml").read_text()
        assert f"range_lo: {ranges[name]['range_lo']}" in saved
    edges = [json.loads((run / "analysis" / "summary.json").read_text())["edges"] for run in out.glob("runs/*-seed0")]
    assert len(edges) == 3
    assert all(found == edges[0] for found in edges)

    again = repro(*calibrated, cwd=tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stdout == second.stdout
    anew = {"calibration", "training", "noise-floor", "analysis", "sweep", "doctor", "figures", "figures-theory"}
    assert done_before(again) == kept | anew

    before = (out / "runs" / "fspo-seed0" / "metrics.jsonl").read_bytes()
    forced = repro(*calibrated, "--force", "noise-floor", cwd=tmp_path)
    assert forced.stdout == second.stdout
    assert done_before(forced) == kept | {"calibration", "training"}
    assert (out / "runs" / "fspo-seed0" / "metrics.jsonl").read_bytes() == before


def done_before(start: subprocess.CompletedProcess[str]) -> set[str]:
    """The stages that a start found done."""
    return set(re.findall(r"\[([\w-]+)\] done before", start.stderr))


def check_outputs(out: Path, start: subprocess.CompletedProcess[str]) -> None:
    """What every start prints and leaves."""
    assert start.returncode == 0, start.stderr[-2000:]
    claims = json.loads((out / "claims.json").read_text())["claims"]
    assert [claim["id"] for claim in claims] == [part.id for part in (*HEADLINES, *ATOMS)]
    assert {claim["verdict"] for claim in claims} <= {"supported", "refuted", "inconclusive"}
    assert next(claim for claim in claims if claim["id"] == "C5")["verdict"] == "inconclusive"  # one seed
    assert all(f"{claim['id']} " in start.stdout for claim in claims)
    checks = json.loads((out / "checks" / "proofs_check.json").read_text())["rows"]
    assert {row["id"] for row in checks} == set(PRESETS["smoke"].checks.split(","))  # make proofs has all of them
    assert f"{len(checks)} theory checks: all hold" in start.stdout
    assert {p.name for p in (out / "figures-theory").glob("*.pdf")} >= {"cosine_tightness.pdf", "acceptance_laws.pdf"}
    report = (out / "report.html").read_text()
    assert "<img" in report or "<svg" in report
    assert "The cosine lemma is tight" in report
    assert "The numbers of figure 1" in report
    places = [report.index(f'<h2 id="{name}"') for name in ("verdicts", *map(anchor, QUESTIONS))]
    assert places == sorted(places)
    captions = json.loads((out / "figures" / "captions.json").read_text())
    assert not any("write the tables again" in c["skipped"] for c in captions)
    drawn = {c["name"]: c for c in captions if not c["skipped"]}
    expected = {"acceptance_by_length", "cosine_by_rule", "cosine_bound", "error_split", "variance_scaling"}
    assert expected <= set(drawn)
    assert "numerics alone" in drawn["acceptance_by_length"]["details"]
    assert list((out / "figures").glob("*.pdf"))


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ((0.02, 0.9), "supported"),
        ((0.026, 0.9), "inconclusive"),  # supported on one task of two
        ((0.9, 0.012), "refuted"),
        ((0.9, 0.013), "inconclusive"),  # 2 x .013 is above .025
        ((1.0, 1.0), "inconclusive"),  # no number
    ],
)
def test_claims_of_several_tasks_are_pooled_and_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], second: tuple[float, float], verdict: str
) -> None:
    given = {"chain-add": (0.01, 0.99), "chain-add-64": second}
    for task, (p_for, p_against) in given.items():
        alone = verdict_of(p_for, p_against)
        claim = Claim(
            "C1", "flat", "trend", 0.01, 0.0, -0.1, 0.1, alone, "confirmatory", p_for, p_against, {"power": {}}
        )
        said = {"catalogue": "c", "commit": "d", "seeds": [11], "claims": [claim.to_dict()]}
        (tmp_path / task).mkdir()
        write_json(tmp_path / task / "claims.json", said)
    paper_repro.pool(tmp_path)
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["C1", verdict, "supported", verdict_of(*second)]
    written = json.loads((tmp_path / "claims.json").read_text())
    assert written["tasks"] == ["chain-add", "chain-add-64"]
    assert (written["catalogue"], written["seeds"]) == ("c", [11])
    (pooled,) = written["claims"]
    assert (pooled["id"], pooled["verdict"]) == ("C1", verdict)
    assert [*pooled["details"]["atoms"]] == ["chain-add: C1", "chain-add-64: C1"]


def test_tasks_that_were_judged_differently_are_not_pooled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tasks, and the second was judged with another seed: one line, status 2, and nothing is written."""
    out = tmp_path / "two words" / "paper"
    for task, seeds in (("chain-add", [21, 22]), ("products", [21])):
        (out / task).mkdir(parents=True)
        write_json(out / task / "claims.json", {"catalogue": "c", "commit": "d", "seeds": seeds, "claims": []})
    with pytest.raises(SystemExit) as stopped:
        run_cli(lambda: paper_repro.pool(out))
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert f"--preset paper --output '{out.parent}' --tasks products --seeds 21,22`" in line
    assert not printed.out
    assert not (out / "claims.json").exists()


def test_a_task_alone_has_its_folder_and_one_judged_task_is_not_pooled(tmp_path: Path) -> None:
    """Tasks that are run by one command each: the second must not take the place of the first."""
    paper = ReproductionOptions(preset="paper", output="o", tasks=["products"])
    assert paper.folder("products") == Path("o/paper/products")
    assert ReproductionOptions(preset="paper", output="o").folder("chain-add") == Path("o/paper/chain-add")
    assert ReproductionOptions(output="o").folder("chain-add") == Path("o/quick")
    assert ReproductionOptions(output="o", tasks=["chain-add"]).folder("chain-add") == Path("o/quick")
    assert ReproductionOptions(output="o", tasks=["products"]).folder("products") == Path("o/quick/products")
    both = ReproductionOptions(output="o", tasks=["chain-add", "products"])
    assert both.folder("chain-add") == Path("o/quick/chain-add")
    (tmp_path / "products").mkdir()
    write_json(tmp_path / "products" / "claims.json", {"claims": []})
    paper_repro.pool(tmp_path)
    assert not (tmp_path / "claims.json").exists()


def test_the_longer_task_ranges_over_six_doublings_and_fits_its_limit() -> None:
    config = parse(TrainConfig, [f"--{name}={value}" for name, value in TASKS["chain-add-64"].items()])
    task = make_task(config.task.name, config.task.options)
    steps = [int(task.example("train", i).info["steps"]) for i in range(500)]
    assert max(steps) / min(steps) == 2**6
    assert STEP_TOKENS * max(steps) < config.sampling.max_new_tokens
