"""Dask workers that share the parts of a large log give the tables of one process, though one of them is killed."""

import os
import signal
import time

import numpy as np
import pytest

import analysis.log.loading
import analysis.log.stream
import analysis.log.workers
from analysis.log.loading import load_run
from analysis.log.workers import on_workers
from analysis.run import Options, analyse, shared_bins
from fspo.base.errors import UserError

FEW = Options(rules=("rloo", "fspo-kl", "fspo-adaptive"), targets=(0.9,), draws=2, bins=3, window=2)


@pytest.mark.slow
def test_two_workers_give_the_tables_of_one_process_though_one_is_killed_midway(simulate, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(analysis.log.loading, "IN_MEMORY", 10)
    monkeypatch.setattr(analysis.log.stream, "CHUNK", 800)
    path = simulate(rollouts=12, width=0, prompts=32)
    run = load_run(path)
    bins = shared_bins([run], FEW)
    monkeypatch.setattr("analysis.tables.passes.cores", lambda: 1)
    expected, of_one = analyse(run, bins, FEW)
    killed, shares = [], []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]

        def kill_one(part, share=1.0):
            if part == "acceptance" and share < 1 and not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)
            if part == "acceptance":
                shares.append(share)

        tables, summary = analyse(run, bins, FEW, kill_one, cluster.scheduler_address)
        with distributed.Client(cluster) as client:
            client.wait_for_workers(1)
            assert pids[0] not in client.run(os.getpid).values()
    assert killed
    assert len(shares) > 4
    assert sum(shares) == pytest.approx(1)
    assert summary["counts"] == of_one["counts"]
    for name, table in expected.items():
        assert list(tables[name].columns) == list(table.columns)
        for column in table:
            if table[column].dtype.kind == "f":
                np.testing.assert_allclose(tables[name][column], table[column], 1e-9, 1e-12, err_msg=f"{name} {column}")
            else:
                assert tables[name][column].equals(table[column]), f"{name} {column}"


def test_a_killed_worker_that_alone_held_the_work_loses_nothing():
    """Dask keeps one copy of a value that no task waits for. If the worker with that copy is killed, Dask can make the
    value again only if it is the result of a task."""
    distributed = pytest.importorskip("distributed")

    def until(holds):
        end = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.05)

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        parts = on_workers(cluster.scheduler_address, sum, [1, 2, 4, 8, 16, 32], [], lambda _: None)
        first = next(parts)

        def holders():
            (found,) = [who for key, who in client.who_has().items() if not str(key).startswith("_do")]
            return found

        until(lambda: sum(str(key).startswith("_do") for key in client.who_has()) == 6)
        client.amm.run_once()
        while len(only := holders()) != 1:
            time.sleep(0.05)
        (address,) = only
        os.kill(next(w.pid for w in cluster.workers.values() if w.worker_address == address), signal.SIGKILL)
        until(lambda: address not in client.scheduler_info(n_workers=-1)["workers"])
        assert [first, *parts] == [1, 2, 4, 8, 16, 32]


def test_workers_that_cannot_read_the_log_are_refused(simulate, monkeypatch, tmp_path):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(analysis.log.workers, "WAIT", 0.2)
    with pytest.raises(UserError, match="give a number from 1, or the address"):
        next(on_workers("0", len, [1], [], lambda _: None))
    with pytest.raises(UserError, match="no Dask scheduler with a worker answers"):
        next(on_workers("127.0.0.1:9", len, [1], [], lambda _: None))
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        shares = []
        assert list(on_workers(address, len, [1, 2, 3], [tmp_path], shares.append)) == [1, 1, 1]
        assert sum(shares) == pytest.approx(1)
        with pytest.raises(UserError, match=r"cannot read .*absent"):
            next(on_workers(address, len, [1], [tmp_path / "absent"], lambda _: None))
