"""``fspo doctor RUN --follow`` reads a log while it is written, and ends at the first issue of ``--fail-on``."""

import os
import shutil
import threading
import time

import pytest

from analysis.doctor.command import main
from fspo.base.errors import UserError
from fspo.gradlog.files import log_paths
from tests.analysis.doctor.planted import DEFECTS, Plan, write_run


def test_it_ends_with_status_1_at_the_first_critical_issue_of_a_log_that_grows(tmp_path, capsys):
    run, (healthy, broken) = (
        tmp_path / "run",
        [
            log_paths(write_run(tmp_path / name, plan, 0))
            for name, plan in (("a", Plan()), ("b", DEFECTS["not_finite"]))
        ],
    )
    written = []

    def train():
        (run / "gradlog").mkdir(parents=True)
        for number in range(len(healthy)):
            time.sleep(0.2)
            source = (healthy if number < 3 else broken)[number]
            shutil.copyfile(source, run / "gradlog" / "part")
            os.utime(run / "gradlog" / "part", (time.time() - 60,) * 2)
            written.append(number)
            os.rename(run / "gradlog" / "part", run / "gradlog" / source.name)

    trainer = threading.Thread(target=train)
    trainer.start()
    status = main([str(run), "--follow", "--fail-on", "critical"])
    done = len(written)
    trainer.join()
    said = capsys.readouterr().out
    assert status == 1
    assert "CRITICAL not_finite" in said, said
    assert 3 < done < len(healthy)  # it ended while the log still grew


def test_it_reads_one_run(tmp_path):
    with pytest.raises(UserError, match="start fspo doctor for each"):
        main([str(tmp_path), str(tmp_path), "--follow"])
