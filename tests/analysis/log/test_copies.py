"""Rows that were counted twice are left out of tables, and files of two runs are refused."""

import numpy as np
import pytest

from analysis.log.copies import find_copies
from analysis.log.loading import load_run
from analysis.log.rows import numbered
from analysis.run import Options, analyse_runs
from analysis.tables.files import read_tables
from fspo.base.errors import UserError
from fspo.gradlog import GradLogWriter, read_log
from fspo.gradlog.run_folder import GRADLOG
from tests.analysis.doctor.planted import Plan, write_run

FEW = Options(rules=("rloo", "fspo"), targets=(0.85,), draws=2)


def counted_twice(run, rollouts, prompts, **metadata):
    """Write all rows again as those of a second process, under other ids."""
    log = read_log(run)
    writer = GradLogWriter(run, rank=1, metadata=log.metadata | metadata)
    for rollout in range(rollouts):
        part = log.where(log.column("rollout") == rollout)
        rows = {name: part.column(name) for name in part.table.column_names if name in part}
        rows |= {"response_id": rows["response_id"] + 10**6, "prompt_id": rows["prompt_id"] + prompts}
        writer.append(rows)
        writer.flush(rollout)


@pytest.mark.parametrize("prompts", [0, 10**6])
def test_a_process_that_was_counted_twice_narrows_no_interval(tmp_path, prompts):
    plan = Plan(rollouts=4)
    once, twice = (write_run(tmp_path / name, plan, 5) for name in ("once", "twice"))
    counted_twice(twice, 4, prompts)
    found = analyse_runs([once, twice], FEW)
    rows = [f["counts"] for f in found.values()]
    assert rows[1]["rows"] == 2 * rows[0]["rows"]
    assert rows[1]["rows_copied"] == rows[1]["rows_after_an_update"] == rows[0]["rows_after_an_update"]
    assert any("copies of other rows" in line for line in found[twice]["warnings"])
    tables = [read_tables([run])["trend"] for run in (once, twice)]
    for column in ("slope", "ci_low", "ci_high"):
        a, b = (table[column].to_numpy() for table in tables)
        assert np.isfinite(a).any()
        assert np.array_equal(a, b, equal_nan=True)


def test_a_few_equal_texts_are_no_copies():
    n = 400
    i = np.arange(n)
    S = np.where(i < 8, 0.25, 0.1 + i / 977)  # 8 equal rows of 400 are 2 %
    keys = (0 * i, 0 * i, i // 4, i, np.full(n, 20))
    found = find_copies(*keys, S)
    assert found.prompts.sum() == 8
    assert not found.again.any()
    more = find_copies(*keys, np.where(i < 16, 0.25, S))  # 4 %: all but the first prompt's four go
    assert np.flatnonzero(more.again).tolist() == list(range(4, 16))
    assert not find_copies(0 * i, i, *keys[2:], np.where(i < 16, 0.25, S)).prompts.any()  # steps differ


def test_equal_texts_are_a_second_process_only_if_each_stands_under_an_even_number_of_ids():
    i = np.arange(480)
    keys = (0 * i, 0 * i, i // 6, i, np.full(len(i), 20))
    texts = [0.1 + i // size / 977 for size in (3, 2)]  # each group holds two texts thrice, or three texts twice
    assert not find_copies(*keys, texts[0]).again.any()
    assert np.flatnonzero(find_copies(*keys, texts[1]).again).tolist() == np.flatnonzero(i % 2).tolist()


def test_files_of_two_runs_are_refused(tmp_path):
    run = write_run(tmp_path / "run", Plan(rollouts=2), 5)
    counted_twice(run, 2, 10**6, seed=6)
    before = sorted((run / GRADLOG).iterdir())
    with pytest.raises(UserError, match=r"several runs lie in one folder.*keep one run in a folder"):
        analyse_runs([run])
    assert sorted(run.iterdir()) == [run / GRADLOG, run / "metrics.jsonl"]
    assert sorted((run / GRADLOG).iterdir()) == before


@pytest.mark.parametrize("spread", [1, 10**6])
def test_numbers_are_those_of_sorted_tuples(spread):
    rng = np.random.default_rng(0)
    keys = [rng.integers(3, 9, 500) * spread, rng.integers(-2, 4, 500) * spread]
    assert np.array_equal(numbered(*keys), np.unique(np.stack(keys, 1), axis=0, return_inverse=True)[1].reshape(-1))


def test_a_rollout_that_is_not_there_is_told(tmp_path):
    run = write_run(tmp_path / "run", Plan(rollouts=4, prompts=8), 0)
    assert not load_run(run).notes.warnings
    next((run / "gradlog").glob("rollout-00000002-*")).unlink()
    assert "1 of the rollouts 0 to 3 are not in the log: tables are of the others" in load_run(run).notes.warnings
