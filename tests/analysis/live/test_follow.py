"""Follow a log: the same numbers as of the complete log, each part read once, and what happens to logs happens here."""

import os
import shutil
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.doctor.examine import examine
from analysis.live.follow import SETTLED, Follower
from analysis.log.loading import load_run
from analysis.run import Options, analyse
from analysis.tables.moments import moment_tables
from fspo.base.errors import UserError
from fspo.gradlog import files as gradfiles
from fspo.gradlog import read_log
from fspo.gradlog.files import log_paths
from fspo.stats.intervals import proportion_interval
from tests.analysis.conftest import Plan, write_log

PLAN = Plan(rollouts=4, prompts=24, minibatches=2, engine=0.01, staleness=0.005, width=8)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("live") / "run", PLAN)


def put(source, run, *numbers, age=60.0):
    """Copy the files of some rollouts into a run folder, ``age`` seconds old."""
    (run / "gradlog").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        file = run / "gradlog" / log_paths(source)[number].name
        shutil.copyfile(log_paths(source)[number], file)
        os.utime(file, (time.time() - age,) * 2)


def caught_up(run, bins=None):
    follower = Follower(run, bins)
    while follower.poll():
        pass
    return follower


def told(follower):
    """Everything that a page shows of a follower, as text: NaN equals NaN there."""
    panels = [(seen.rollout, seen.rows, {k: v.tolist() for k, v in seen.panels.items()}) for seen in follower.seen]
    found, length = follower.acceptance()
    tables = (found.value.tolist(), found.variance.tolist(), length.tolist())
    return str((panels, tables, follower.diagnosis.answers, follower.diagnosis.notes, sorted(follower.first_found)))


def test_part_by_part_gives_the_tables_of_the_complete_log(source, tmp_path):
    run = tmp_path / "run"
    follower = Follower(run)
    for number in range(PLAN.rollouts):
        put(source, run, number)
        assert follower.poll()
        assert [seen.rollout for seen in follower.seen] == list(range(number + 1))
    bins, whole = follower.bins, load_run(run)
    ours, theirs = (
        [line.partition(": ")[2] for line in found.lines(verbose=True)] for found in (follower.diagnosis, examine(run))
    )
    assert ours == theirs
    # the rows of the log by the same bins: the same share clipped; and fspo analyse: the same acceptance
    tables, _ = analyse(whole, bins, Options(rules=("fspo",), window=1, edges=bins.edges))
    rows = whole.rows
    cells = pd.DataFrame({"rollout": rows.rollout, "bin": bins.index(rows.length), "clipped": rows.side != 0})
    table = cells.pivot_table(index="rollout", columns="bin", values="clipped", aggfunc="mean")
    table["all"] = cells.groupby("rollout")["clipped"].mean()
    shares = np.stack([seen.panels["clip"] for seen in follower.seen])
    np.testing.assert_allclose(shares, table.to_numpy(float), rtol=1e-12)
    where = "source == 'trained' and subset == 'nonzero' and measure == 'update' and use == 'first'"
    theirs = tables["acceptance"].query(where)
    ours, length = follower.acceptance()
    low, high = proportion_interval(ours.value, ours.variance, ours.count, ours.clusters)
    for name, values in (("estimate", ours.value), ("ci_low", low), ("ci_high", high)):
        np.testing.assert_allclose(values, theirs[name], rtol=1e-9)
    np.testing.assert_allclose(length, theirs["bin_mean"][:-1], rtol=1e-12)
    assert ours.count.tolist() == theirs["count"].tolist()


def test_a_rollouts_panels_are_those_of_its_rows(source):
    follower = caught_up(source)
    bins = follower.bins
    for seen in follower.seen:
        log = read_log(source, rollouts=(seen.rollout,) * 2).table
        table = log.drop_columns(["score_unit"]).to_pandas().query("times_used == 0")
        place = pd.Series(bins.index(table["length"]), table.index)
        expected = [*table["reward"].groupby(place).mean(), table["reward"].mean()]
        np.testing.assert_allclose(seen.panels["reward"], expected, rtol=1e-6)
        for name, on in (("spread", "update"), ("behaviour", "behaviour"), ("engine", "engine")):
            moments, _ = moment_tables(load_run(source, on=on, rollouts=(seen.rollout,) * 2), bins, 1)
            rows = [row for row in moments if row.subset == "all" and row.use == "first"]
            np.testing.assert_array_equal(seen.panels[name], np.sqrt([row.var_S.value for row in rows]))


def test_the_cost_of_a_rollout_does_not_grow_with_the_run(source, tmp_path, monkeypatch):
    read: list[str] = []

    def count(name):
        function = getattr(gradfiles, name)

        def counted(*words):
            read.append(name)
            return function(*words)

        monkeypatch.setattr(gradfiles, name, counted)

    count("read_rows")
    count("_footer")
    follower, costs = Follower(tmp_path / "run"), []
    for number in range(PLAN.rollouts):
        put(source, tmp_path / "run", number)
        read.clear()
        follower.poll()
        costs.append(len(read))
        read.clear()
        follower.poll()
        assert read == []  # nothing new, nothing read
    assert len(set(costs)) == 1, costs
    assert costs[0] > 0
    assert sum(seen.rows for seen in follower.seen) == len(read_log(source))


def test_a_torn_file_is_waited_for_then_left_out_and_read_when_it_is_whole(source, tmp_path):
    run = tmp_path / "run"
    put(source, run, 0, 1)
    follower = caught_up(run)
    whole = log_paths(source)[2].read_bytes()
    torn = run / "gradlog" / log_paths(source)[2].name
    torn.write_bytes(whole[: len(whole) // 2])
    assert not follower.poll()
    assert (len(follower.seen), follower.waiting, follower.notes) == (2, 1, [])
    put(source, run, 3)
    torn.write_bytes(whole[: len(whole) // 2])
    assert follower.poll()
    assert [seen.rollout for seen in follower.seen] == [0, 1, 3]
    assert torn.name in " ".join(follower.notes)
    put(source, run, 2)
    while follower.poll():
        pass
    assert follower.notes == []
    assert told(follower) == told(caught_up(source, follower.bins))


def test_a_resumed_run_is_read_as_it_is_now(source, tmp_path):
    run, other = tmp_path / "run", write_log(tmp_path / "other", replace(PLAN, seed=7))
    put(source, run, 0, 1, 2, 3)
    follower = caught_up(run)
    before = told(follower)
    for path in log_paths(run)[2:]:  # as the trainer does before it repeats rollouts
        path.unlink()
    put(other, run, 2)
    while follower.poll():
        pass
    assert follower.starts == 2
    assert [seen.rollout for seen in follower.seen] == [0, 1, 2]
    assert told(follower) == told(caught_up(run, follower.bins)) != before


def test_a_run_that_starts_later_is_waited_for(source, tmp_path):
    follower = Follower(tmp_path / "late")
    assert not follower.poll()
    put(source, tmp_path / "late", 0, age=0)
    assert not follower.poll()  # one file: another process's may follow
    put(source, tmp_path / "late", 0, age=SETTLED + 1)
    assert follower.poll()
    assert len(follower.seen) == 1


def test_the_newest_rollout_waits_for_the_files_of_all_processes(source, tmp_path):
    run = tmp_path / "run"
    put(source, run, 0, 1)
    first, second = (path.with_name(path.name.replace("rank-0000", "rank-0001")) for path in log_paths(run))
    shutil.copyfile(log_paths(source)[0], first)
    os.utime(log_paths(run)[-1])
    follower = caught_up(run)
    assert [seen.rollout for seen in follower.seen] == [0]
    shutil.copyfile(log_paths(source)[1], second)
    assert follower.poll()
    assert [seen.rollout for seen in follower.seen] == [0, 1]


def test_a_log_without_a_rule_shows_what_it_has(source, tmp_path):
    run = write_log(tmp_path / "run", replace(PLAN, engine=0.0, staleness=0.0, minibatches=1, epochs=1, rollouts=2))
    follower = caught_up(run)  # one update a rollout: S is 0 in every row
    assert len(follower.seen) == 2
    assert follower.acceptance() is None
    assert follower.diagnosis is not None


def test_bad_input_gets_one_line(source, tmp_path, monkeypatch):
    import socket

    from analysis.live.command import main

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="in use: choose another"):
        main([str(source), "--port", str(taken.getsockname()[1])])
    for words, message in (([str(tmp_path / "no" / "run")], "is no folder"), ([str(source), "--port", "0"], "--port")):
        with pytest.raises(UserError, match=message):
            main(words)
