"""``fspo doctor RUN --follow`` reads a log while it is written, and ends at the first issue of ``--fail-on``."""

import _thread
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from analysis.doctor.command import main
from analysis.live.follow import Follower
from fspo.gradlog.files import log_paths
from tests.analysis.doctor.planted import DEFECTS, Plan, write_run


def test_it_ends_with_status_1_at_the_first_critical_issue_of_a_log_that_grows(tmp_path, capsys):
    plans = {"a": Plan(), "b": DEFECTS["not_finite"]}
    healthy, broken = (log_paths(write_run(tmp_path / name, plan, 0)) for name, plan in plans.items())
    run, written, ended = tmp_path / "run", [], threading.Event()

    def train():
        (run / "gradlog").mkdir(parents=True)
        for number in range(len(healthy)):
            time.sleep(0.2)
            if number == len(healthy) - 1:
                ended.wait(240)
            source = (healthy if number < 3 else broken)[number]
            shutil.copyfile(source, run / "gradlog" / "part")
            os.utime(run / "gradlog" / "part", (time.time() - 60,) * 2)
            written.append(number)
            os.rename(run / "gradlog" / "part", run / "gradlog" / source.name)

    trainer = threading.Thread(target=train)
    trainer.start()
    status = main([str(run), "--follow", "--fail-on", "critical"])
    done = len(written)
    ended.set()
    trainer.join()
    said = capsys.readouterr().out
    assert status == 1
    assert "CRITICAL not_finite" in said, said
    assert 3 < done < len(healthy)  # it ended while the log still grew


def test_ctrl_c_ends_it_with_what_was_seen(tmp_path):
    run = write_run(tmp_path / "run", Plan(rollouts=6), 0)
    for file in log_paths(run):
        os.utime(file, (time.time() - 60,) * 2)
    follower = Follower(run)

    def stop():
        while follower.diagnosis is None:
            time.sleep(0.1)
        _thread.interrupt_main()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in the background
    threading.Thread(target=stop).start()
    try:
        assert follower.until("critical").issues == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_before_the_first_rollout_is_one_line(tmp_path):
    command = [sys.executable, "-m", "analysis", "doctor", str(tmp_path / "run"), "--follow"]
    given: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True}
    given["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # as above
    with subprocess.Popen(command, **given) as process:
        assert process.stderr is not None
        assert "has no gradient log yet: waiting" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert said.startswith("interrupted")
    assert said.count("\n") == 1
