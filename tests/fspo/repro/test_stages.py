"""Stages are done once for one set of options; training processes resume, runs of other options are put aside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fspo.base.errors import UserError
from fspo.gradlog.run_folder import MODEL
from fspo.repro import stages
from fspo.repro.stages import OPTIONS, Job, Stages, is_over, run_jobs
from tests.fspo.train.test_folder_owner import alive, until


def is_finished(job: Job) -> bool:
    return (job.run / MODEL).is_dir() and (job.run / OPTIONS).read_text().splitlines() == [*job.arguments]


def done(folder: Path, *options: int, force: str = "") -> list[tuple[str, bool, Any]]:
    """Run the stages a, b, c with these options; return name, whether it was done before, and the result of each."""
    stages = Stages(folder / "stages", force)
    found = []
    for name, option in zip("abc", options, strict=False):
        (output := folder / name).parent.mkdir(exist_ok=True)

        def work(output: Path = output, option: int = option) -> int:
            output.touch()
            return option

        result = stages.run(name, {"x": (option,)}, work, [output])
        found.append((name, stages.report[-1]["cached"], result))
    return found


def test_a_stage_is_done_when_its_output_exists_and_its_options_and_those_before_agree(tmp_path: Path) -> None:
    assert done(tmp_path, 1, 2, 3) == [("a", False, 1), ("b", False, 2), ("c", False, 3)]
    assert done(tmp_path, 1, 2, 3) == [("a", True, 1), ("b", True, 2), ("c", True, 3)]
    (tmp_path / "c").unlink()
    assert done(tmp_path, 1, 2, 3) == [("a", True, 1), ("b", True, 2), ("c", False, 3)]
    assert done(tmp_path, 1, 2, 3, force="b") == [("a", True, 1), ("b", False, 2), ("c", False, 3)]
    done(tmp_path, 1, 5)  # killed before c
    assert done(tmp_path, 1, 5, 3) == [("a", True, 1), ("b", True, 5), ("c", False, 3)]


def test_a_module_runs_as_a_stage_and_its_file_is_the_result(tmp_path: Path) -> None:
    given, made = tmp_path / "given.json", tmp_path / "made.json"
    given.write_text('{"value": 1}')
    command = ("json.tool", str(given), str(made))
    stages = tmp_path / "s"
    assert Stages(stages).module("m", *command, result=made) == {"value": 1}
    given.write_text('{"value": 2}')
    assert Stages(stages).module("m", *command, result=made) == {"value": 1}
    assert Stages(stages).module("m", *command, "--indent", "2") is None  # it names no file
    with pytest.raises(UserError, match="stopped with status"):
        Stages(stages).module("n", "json.tool", str(tmp_path / "none"), quiet=True)
    assert not (stages / "n.json").exists()
    assert Stages(stages).module("n", "json.tool", str(tmp_path / "none"), passing=(0, 1, 2)) is None


TRAIN = """
import json, sys, pathlib
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run = pathlib.Path(arguments["--output"])
assert arguments["--resume"] == "true"
if arguments.get("--fail"):
    print("error: no such luck"); sys.exit(int(arguments["--fail"]))
with (run / "metrics.jsonl").open("a") as file:
    file.write(json.dumps({"phase": "train"}) + "\\n")
(run / "model").mkdir()
"""


@pytest.fixture
def fake_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `fspo.train` stands in for: here only the processes are under test, not training."""
    package = tmp_path / "shadow" / "fspo"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(TRAIN)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(folder: Path, *more: str) -> Job:
    return Job(folder, ("--output", str(folder), *more), 1)


def test_jobs_run_once_and_a_run_of_other_options_is_kept_aside(fake_train: Path) -> None:
    runs = fake_train / "out" / "runs"
    jobs = [job(runs / name) for name in ("a", "b", "c")]
    run_jobs(jobs, at_once=2)
    assert all(is_finished(j) for j in jobs)
    run_jobs(jobs, at_once=2)  # finished: a second training line would show that one ran again
    assert [stages.rollouts_done(j.run) for j in jobs] == [1, 1, 1]
    changed = job(runs / "a", "--seed", "3")
    assert not is_finished(changed)
    run_jobs([changed], at_once=1)
    assert is_finished(changed)
    aside = fake_train / "out" / "superseded" / "a-1"
    assert json.loads((aside / "metrics.jsonl").read_text()) == {"phase": "train"}


def test_a_failing_job_shows_its_last_line_and_names_its_log(fake_train: Path) -> None:
    with pytest.raises(UserError, match=r"bad stopped with status 2: error: no such luck .*train\.log"):
        run_jobs([job(fake_train / "runs" / "bad", "--fail", "2")], at_once=1)


def test_a_run_that_diverged_stops_no_other(fake_train: Path) -> None:
    jobs = [job(fake_train / "runs" / "bad", "--fail", "3"), job(fake_train / "runs" / "good")]
    assert run_jobs(jobs, at_once=1) == {jobs[0].run: "no such luck"}
    assert [is_finished(j) for j in jobs] == [False, True]
    assert [is_over(j.run) for j in jobs] == [True, True]
    log = (jobs[0].run / "train.log").read_text()
    assert run_jobs(jobs, at_once=1) == {jobs[0].run: "no such luck"}
    assert (jobs[0].run / "train.log").read_text() == log  # it is not run again, for it would diverge again
    changed = job(jobs[0].run)
    assert run_jobs([changed], at_once=1) == {}
    assert is_finished(changed)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "from fspo.base.processes import end_with_parent\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], preexec_fn=end_with_parent)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        until(lambda: not alive(child), 10, "the child outlived its parent")
    finally:
        if alive(child):
            os.kill(child, signal.SIGKILL)


def of_group(group: int, word: str = "") -> list[int]:
    """Processes of a process group whose command line has a word, without those that only wait to be reaped."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, number = file.read_text().rpartition(")")[2].split()[:3]
            if int(number) == group and state != "Z" and word in (file.parent / "cmdline").read_text():
                found.append(int(file.parent.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize(("reproduction", "seconds"), [(True, 2.0), (False, 0.0)])  # as workers work, as they start
def test_ctrl_c_in_the_checks_leaves_no_process_and_no_traceback(
    tmp_path: Path, reproduction: bool, seconds: float
) -> None:
    words = ["--method", "simulated", "--jobs", "2", "--out", str(tmp_path / "out")]
    code = "from fspo.repro.stages import run_module; from fspo.base.errors import run_cli; "
    code += f"run_cli(lambda: run_module('proofs_check', *{words}))"
    command = [sys.executable, *(["-c", code] if reproduction else ["-m", "proofs_check", *words])]
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    # a shell that runs the tests in the background lets its children ignore the interrupt
    given["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    started = subprocess.Popen(command, env=stages.environment(), text=True, **given)
    until(lambda: len(of_group(started.pid, "spawn_main")) >= 2, 120, "the workers did not start")
    time.sleep(seconds)
    os.killpg(started.pid, signal.SIGINT)
    try:
        said, _ = started.communicate(timeout=30)  # ends when no process holds the pipe
        until(lambda: not of_group(started.pid), 10, f"a process is left: {said}")  # one may be ending
    finally:
        for pid in of_group(started.pid):
            os.kill(pid, signal.SIGKILL)
    assert started.returncode == 130, said
    assert "Traceback" not in said
    assert "interrupted" in said
