"""Bad input to the commands: each gives one line with a cure, and nothing is written or overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import paper_repro
from analysis.__main__ import main as analysis
from figures.__main__ import main as figures
from fspo.base.errors import UserError
from fspo.gradlog import GradLogWriter
from fspo.rules import preset
from proofs_check.__main__ import main as proofs_check
from proofs_check.maps.__main__ import main as maps
from proofs_check.maps.tables import MAP_COLUMNS

HUGE = str(2**70)
COMMANDS: dict[str, Callable[[list[str]], object]] = {
    "analysis": analysis,
    "doctor": lambda a: analysis(["doctor", *a]),
    "import": lambda a: analysis(["import", *a]),
    "calibrate": lambda a: analysis(["calibrate", *a]),
    "sweep": lambda a: analysis(["sweep", *a]),
    "proofs": lambda a: proofs_check([*a, "--no-progress"]),
    "maps": lambda a: maps([*a, "--no-progress"]),
    "figures": figures,
    "repro": paper_repro.main,
}
BAD = """
analysis | | analysis missing | analysis file | analysis empty | analysis none none | analysis text | analysis torn
analysis locked | analysis strange | analysis none --seed -1 | analysis none --seed {huge} | analysis none --seed 1.5
analysis none --seed x | analysis none --seed "" | analysis none --draws 1000000000 | analysis none --draws 0
analysis none --draws nan | analysis none --window 0 | analysis none --window -5 | analysis none --window {huge}
analysis none --bins 0 | analysis none --bins -3 | analysis none --bins 1000000000 | analysis none --bins x
analysis none --edges [5000,6000] | analysis none --edges [] | analysis none --edges [5]
analysis none --edges [.nan,5,9] | analysis none --edges [1,.inf] | analysis none --edges [9,5,1]
analysis none --edges [5,5] | analysis none --edges x | analysis none --edges [a,b] | analysis none --edges 7
analysis none --rules [fspoo] | analysis none --rules [grpo] | analysis none --rules [fspo,fspo]
analysis none --targets [2] | analysis none --targets [.nan] | analysis none --targets [0.9,0.9]
analysis none --targets [-1] | analysis none --targets x | analysis none --by nothing | analysis none --by user.x
analysis none --claims folder | analysis none --claims file | analysis none --claims claims.json
analysis none --claims "" | analysis none --clams x | analysis foreign | analysis foreign-file
doctor | doctor missing | doctor file | doctor empty | doctor torn | doctor none --target 2 | doctor none --target .nan
doctor none --target x | doctor none --fail-on much | doctor none --json folder | doctor none --json file
doctor none --json "" | doctor none --jsn x | doctor text | doctor badyaml
import | import missing | import empty | import file | import table.csv --out full | import table.csv --out file
import table.csv --out "" | import table.csv --rule fspoo | import table.csv --rule fspo --range-lo -1
import table.csv --rule fspo --range-hi .nan | import table.csv --range-hi 1 | import table.csv --aggregation mean
import table.csv --updates-per-rollout 0 | import table.csv --updates-per-rollout -2 | import table.csv --group-size 0
import table.csv --columns {{length:nothing}} | import table.csv --columns {{nothing:length}}
import table.csv --columns x | import table.csv --tokenizer missing | import table.csv --tokenizer file
import none | import noise.parquet | import bare.csv | import empty.csv | import table.csv --updates-per-rollout x
calibrate | calibrate missing | calibrate file | calibrate clipped | calibrate none --target 2
calibrate none --target .nan | calibrate none --target 0 | calibrate none --target x | calibrate none --rules [fspoo]
calibrate none --rules x | calibrate none --output folder | calibrate none --output file
calibrate none --output "" | calibrate empty | calibrate torn
sweep | sweep missing | sweep file | sweep none --bins 0 | sweep none --bins x | sweep none --only [nothing]
sweep foreign | sweep torn | sweep none --bins 1000000000
proofs --out file | proofs --out foreign-checks | proofs --out full | proofs --seed -1 | proofs --seed {huge}
proofs --seed x | proofs --jobs 0 | proofs --jobs -3 | proofs --jobs {huge} | proofs --jobs x | proofs --only T99
proofs --only T1,nothing | proofs --method guessed | proofs --log missing | proofs --log file | proofs --log empty
proofs --log torn | proofs --strictt | proofs --out locked --only T10 | proofs --log strange
maps --out file | maps --out foreign-maps | maps --out full | maps --seed -1 | maps --seed {huge} | maps --jobs 0
maps --draws -1 | maps --draws 1 | maps --draws 1000000000 | maps --draws x | maps --only nothing | maps --jobs {huge}
maps --only curves,nothing | maps --outt x
figures | figures missing | figures file | figures none | figures empty | figures none none | figures --theory missing
figures --theory file | figures --theory full | figures none --by nothing
figures --theory tables --output file | figures --theory tables --output full | figures --theory tables --width a3
figures --theory tables --only [nothing]
repro --target 2 | repro --target 0 | repro --target .nan | repro --target x | repro --rollouts -1
repro --rollouts 0 | repro --rollouts x | repro --seeds [0,0] | repro --seeds [] | repro --seeds [-1]
repro --seeds [{huge}] | repro --seeds x | repro --jobs -3 | repro --jobs 0 | repro --jobs {huge} | repro --width a3
repro --output file | repro --output foreign-repro | repro --output "" | repro --rules [fspoo] | repro --rules []
repro --rules [fspo,fspo] | repro --preset slow
repro --config missing | repro --config file | repro --config folder | repro --preset quick --nothing 1
repro --config list.yaml | repro --target 3 | repro --seeds [1,1]
"""
CASES = [case.strip() for line in BAD.strip().splitlines() for case in line.split("|") if case.strip()]


def write_run(path: Path, rule: str) -> None:
    rng = np.random.default_rng(0)
    writer = GradLogWriter(path, metadata={"rule": preset(rule).rule.to_dict()})
    for step in range(2):
        rows = {"rollout": 0, "step": step, "updates_since_rollout": step, "prompt_id": np.arange(64) // 4}
        rows |= {
            "response_id": np.arange(64),
            "length": rng.integers(1, 99, 64),
            "advantage": rng.choice([-1.0, 1], 64),
        }
        writer.append(rows | {"log_ratio": step * rng.standard_normal(64), "phase": "train", "times_used": step})
    writer.flush(0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, good and bad, and with files that are not ours."""
    root = tmp_path_factory.mktemp("bad")
    for name in ("none", "torn", "foreign", "foreign-file", "badyaml"):
        write_run(root / name, "none")
    write_run(root / "clipped", "fspo")
    for file in (root / "torn" / "gradlog").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:200])
    for folder in (
        "empty",
        "folder",
        "full",
        "locked",
        "text",
        "strange/gradlog",
        "foreign/analysis",
        "foreign-checks",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("foreign-maps", "foreign-repro/quick/runs", "folder/inside"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name in ("file", "full/notes.txt", "text/gradlog", "claims.json", "foreign-file/analysis", "locked/x.txt"):
        (root / name).write_text("mine\n")
    (root / "foreign-checks/proofs_check.json").write_text('{"mine": 1}')
    (root / "foreign-maps/mse_map.csv").write_text("mine,not,yours\n1,2,3\n")
    (root / "foreign/analysis/acceptance.csv").write_text("mine,not,yours\n1,2,3\n")
    (root / "foreign-repro/quick/runs/mine.txt").write_text("mine")
    (root / "strange/gradlog/rollout-00000000-rank-0000.parquet").write_bytes(b"PAR1 nothing PAR1")
    (root / "badyaml/config.yaml").write_text("rule: [")
    (root / "table.csv").write_text("prompt_id,length,log_ratio,advantage\n0,5,0.1,1\n0,6,-0.1,-1\n")
    (root / "bare.csv").write_text("step,advantage\n0,1\n0,-1\n")
    (root / "empty.csv").write_text("")
    (root / "noise.parquet").write_bytes(b"\x00" * 64)
    (root / "list.yaml").write_text("- a\n- b\n")
    (root / "tables").mkdir()
    columns = list(MAP_COLUMNS["fairness_map"])
    (root / "tables/fairness_map.csv").write_text(",".join(columns) + "\n" + ",".join(["x"] * len(columns)) + "\n")
    return root


def contents(root: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_nothing_written(case: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = contents(place)
    command, *arguments = [word.strip('"') for word in case.format(huge=HUGE).split(" ")]
    with pytest.raises(UserError) as error:
        COMMANDS[command](arguments)
    message = str(error.value)
    assert "\n" not in message
    assert 20 < len(message) < 1200
    assert contents(place) == before


def test_a_reader_that_ends_first_is_no_traceback(place: Path) -> None:
    """``doctor RUN | head``: the pipe is closed before the command prints."""
    code = "import sys; from fspo.base.errors import run_cli; run_cli(lambda: print('x' * 10**6))"
    root = str(Path(paper_repro.__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141


def test_what_the_commands_wrote_may_be_written_again(place: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for _ in range(2):
        assert (
            proofs_check(["--only", "T10", "--method", "closed form", "--out", out, "--no-progress", "--jobs", "1"])
            == 0
        )
        assert analysis([str(place / "none"), "--rules", "[fspo]", "--claims", str(tmp_path / "claims.json")]) == 0
        doctor = ["doctor", str(place / "none"), "--json", str(tmp_path / "doctor.json")]
        assert analysis(doctor) in (0, 1)
        calibrate = ["calibrate", str(place / "none"), "--output", str(tmp_path / "ranges.json")]
        assert analysis(calibrate) == 0
    assert {f["id"] for f in json.loads((tmp_path / "claims.json").read_text())["claims"]} >= {"C1", "C7"}
