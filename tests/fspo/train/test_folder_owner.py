"""A folder that is not a run's is refused and left alone; a run has one writer; what a run lacks is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_run
import torch
import yaml

from fspo.base.errors import UserError
from fspo.train import __main__ as train
from tests.fspo.train.test_train_cli import arguments

HOLD = """
import sys
from pathlib import Path
from fspo.train.folder_owner import _lock
_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(
    ("files", "resume"),
    [
        ({"model/model.safetensors": "weights of years", "model/notes.txt": "mine"}, "false"),
        ({"config.yaml": "rollouts: 3\nrule: {preset: gspo}\n"}, "true"),  # written by hand for --config
        ({"checkpoints/step-1/x": "of another program", "metrics.jsonl": "{}\n"}, "true"),
    ],
)
def test_a_folder_of_others_is_refused_and_left_as_it_is(tmp_path: Path, files: dict[str, str], resume: str) -> None:
    run = tmp_path / "run"
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    before = tree(run)
    with pytest.raises(UserError, match=r"holds files and no run\.json.*: name a new or an empty --output") as error:
        train.main(arguments(tmp_path, "--resume", resume))
    assert "\n" not in str(error.value)
    assert tree(run) == before


def test_an_empty_folder_is_taken_and_one_that_a_kill_left_without_its_mark(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.lock").touch()
    (run / ".part-1-run.json").touch()
    tiny_run.trainer(run).train()
    with pytest.raises(UserError, match=r"holds a run already \(config.yaml\): add --resume true"):
        tiny_run.trainer(run)
    tiny_run.trainer(run, "--resume", "true", "--rollouts", "3").train()
    assert [line["rollout"] for line in tiny_run.metrics(run, "train")] == [0, 1, 2]


def test_one_live_writer_and_a_killed_one_is_forgotten(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_run.trainer(run).train()
    before = tree(run / "gradlog") | tree(run / "model")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        again = ["--resume", "true", "--rollouts", "3"]
        with pytest.raises(UserError, match=rf"is being written by process {holder.pid} on \S+: wait until"):
            tiny_run.trainer(run, *again)
        assert tree(run / "gradlog") | tree(run / "model") == before
    finally:
        holder.kill()
        holder.wait()
    assert json.loads((run / "run.json").read_text())["writer"].startswith(f"process {holder.pid} on ")
    tiny_run.trainer(run, *again).train()
    assert [line["rollout"] for line in tiny_run.metrics(run, "train")] == [0, 1, 2]


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def alive(pid: int) -> bool:
    """Return whether a process has a thread that has not ended; until then it keeps its locks."""
    try:
        zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not zombie or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except FileNotFoundError:
        return False


def test_a_run_from_before_an_option_goes_on_with_its_default(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_run.trainer(run).train()
    saved = yaml.safe_load((run / "config.yaml").read_text())
    del saved["correction"]
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    again = ["--resume", "true", "--rollouts", "3"]
    with pytest.raises(UserError, match=r"written with correction\.preset=none, not tis"):
        tiny_run.trainer(run, *again, "--correction.preset", "tis")
    tiny_run.trainer(run, *again)
    (run / "config.yaml").write_text("")
    with pytest.raises(UserError, match=r"config\.yaml holds no options: restore it"):
        tiny_run.trainer(run, *again)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_a_killed_torchrun_and_a_second_command_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = arguments(tmp_path, "--rollouts", "100000", "--checkpoint_every", "1", "--cpu", "true", "--resume", "true")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", str(tiny_run.free_ports(1)[0]), "-m", "fspo.train", *words]
    with (tmp_path / "log").open("wb") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"TQDM_DISABLE": "1"})
    workers: list[int] = []
    try:
        ready = run / "checkpoints"
        until(lambda: any(ready.glob("step-*")), 200, (tmp_path / "log").read_text())
        workers = children(launcher.pid)
        assert len(workers) >= 2
        writer = json.loads((run / "run.json").read_text())["writer"]
        assert int(writer.split()[1]) in workers
        with pytest.raises(UserError, match=rf"being written by {writer}"):
            train.main(words)
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        until(lambda: not any(alive(pid) for pid in workers), 20, "workers train on without their launcher")
    finally:
        for pid in [launcher.pid, *filter(alive, workers)]:
            if pid != launcher.pid or launcher.poll() is None:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("gone", ["metrics.jsonl", "gradlog/rollout-00000000-rank-0000.parquet"])
def test_a_run_whose_log_is_gone_does_not_go_on(tmp_path: Path, gone: str) -> None:
    run = tmp_path / "run"
    tiny_run.trainer(run).train()
    (run / gone).unlink()
    with pytest.raises(UserError, match=rf"after rollout 1, but rollout 0 is missing in its {gone.split('/')[0]}"):
        tiny_run.trainer(run, "--resume", "true", "--rollouts", "3")


@pytest.mark.parametrize("what", ["weight", "moment"])
def test_weights_and_moments_that_are_not_finite_are_never_saved(tmp_path: Path, what: str) -> None:
    run = tmp_path / "run"
    trainer = tiny_run.trainer(run, "--rollouts", "3", "--checkpoint_every", "1")
    flush = trainer.log.flush

    def broken_after_the_second(rollout: int) -> None:  # between the last update and the checkpoint
        flush(rollout)
        if rollout == 1:
            weight = next(iter(trainer.raw.parameters()))
            broken = weight if what == "weight" else trainer.optimizer.state[weight]["exp_avg"]
            with torch.no_grad():
                broken[0, 0] = float("inf")

    trainer.log.flush = broken_after_the_second
    with pytest.raises(UserError, match=r"diverged: \S*embed_tokens\.weight has values that are not finite.*step-"):
        trainer.train()
    assert len(list((run / "checkpoints").glob("step-*"))) == 1
    assert not (run / "model").exists()
    tiny_run.trainer(run, "--resume", "true", "--rollouts", "3").train()
    assert (run / "model").is_dir()
