"""Large logs: chunks of whole windows by several processes give the tables of the whole log; damage is counted."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import analysis.log.loading
import analysis.log.stream
import analysis.rules.tally
from analysis.log.loading import load_run
from analysis.log.partition import LENGTH, find_partition
from analysis.options import Options
from analysis.rules.calibrate import calibrate_run
from analysis.rules.evaluate import make_cases
from analysis.run import analyse, shared_bins
from analysis.sweeps.command import main as sweep_main
from analysis.tables.acceptance import tables_of
from analysis.tables.files import TABLES
from analysis.tables.passes import look_through
from analysis.tables.typed_rows import frame
from fspo.base.errors import UserError
from fspo.base.processes import in_processes
from fspo.rules import Rule
from tests.analysis.conftest import rewrite

FEW = Options(rules=("rloo", "fspo-kl"), targets=(0.9,), draws=2, bins=3)
ONLINE = ("fspo-adaptive",)
EXACT = ["estimate", "count", "clusters", "bin_mean", "ess_share"]


@pytest.fixture
def stream(monkeypatch):
    """From the call on, logs of any size are streamed, in small chunks."""

    def start(path, *how):
        monkeypatch.setattr(analysis.log.loading, "IN_MEMORY", 10)
        monkeypatch.setattr(analysis.log.stream, "CHUNK", 1500)
        run = load_run(path, *how)
        assert run.streamed
        return run

    return start


@pytest.fixture
def one_file(simulate, tmp_path):
    """Write the rows of a log of several files as one file with row groups of a size."""

    def make(rollouts, size):
        run = simulate(rollouts=rollouts, width=0)
        files = sorted((run / "gradlog").iterdir())
        path = tmp_path / "one" / "gradlog" / files[0].name
        path.parent.mkdir(parents=True)
        whole = pa.concat_tables(pq.read_table(file) for file in files)
        pq.write_table(whole, path, row_group_size=size, use_dictionary=False)
        return run, path

    return make


def tables(run, bins, rules=FEW.rules):
    tally, found = look_through(run, bins, make_cases(rules, FEW.targets, on=run.ratio.on), 2)
    return {name: frame(TABLES[name], rows) for name, rows in vars(tables_of(run, tally)).items()}, found


@pytest.mark.parametrize(
    ("processes", "on", "rules"),
    [(1, "update", FEW.rules), (2, "update", FEW.rules), (1, "engine", ("mis", "geo-mask", "engine-sqrt"))],
)
def test_a_streamed_log_gives_the_tables_of_the_whole(simulate, stream, monkeypatch, processes, on, rules):
    path = simulate(rollouts=7, width=0, engine=0.05, staleness=0.02)
    whole = load_run(path, LENGTH, on)
    bins = shared_bins([whole], FEW)
    expected, in_memory = tables(whole, bins, rules)
    monkeypatch.setattr("analysis.tables.passes.cores", lambda: processes)
    monkeypatch.setattr("fspo.base.processes.cores", lambda: processes)
    got, found = tables(stream(path, LENGTH, on), bins, rules)
    for name in ("acceptance", "lre", "trend"):
        assert len(got[name]) == len(expected[name]), name
    for column in EXACT:
        np.testing.assert_allclose(got["acceptance"][column], expected["acceptance"][column], rtol=1e-9, err_msg=column)
    np.testing.assert_allclose(got["trend"]["slope"], expected["trend"]["slope"], rtol=1e-6, atol=1e-12)
    # pooling clusters at random leaves the standard error's expectation
    width, wanted = (of["trend"]["ci_high"] - of["trend"]["ci_low"] for of in (got, expected))
    ratio = width / wanted
    assert 0.8 < np.nanmedian(ratio) < 1.25
    assert found.over_time == in_memory.over_time
    assert found.notes.counts == in_memory.notes.counts == whole.counts
    assert found.notes == in_memory.notes


@pytest.mark.parametrize("by", ["length", "reward"])
def test_bands_that_follow_a_target_are_replayed_on_a_streamed_log(simulate, stream, by):
    path, options = simulate(rollouts=7, width=0), replace(FEW, rules=("fspo", *ONLINE), window=2)
    rewrite(path, log_ratio=lambda S, _: np.where(np.arange(len(S)) % 50, S, np.nan))
    log = sorted((path / "gradlog").iterdir())[2]  # rows in no order
    table = pq.read_table(log)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), log)
    partition = find_partition(by)
    whole = load_run(path, partition)
    bins = shared_bins([whole], options)
    expected, _ = analyse(whole, bins, options)
    run = stream(path, partition)
    got, summary = analyse(run, bins, options)
    for rule in ONLINE:
        mine, theirs = (t["acceptance"][t["acceptance"]["rule"] == rule] for t in (got, expected))
        assert len(mine) == len(theirs) > 0
        for column in EXACT:
            np.testing.assert_allclose(mine[column], theirs[column], rtol=1e-9, err_msg=f"{rule} {column}")
    assert summary["damage"] == []
    first = int(np.count_nonzero(run.rows.used == 0))
    named = {"moments": len(run.rows), "noise_floor: warnings": first, "calibrate": len(run.rows), "sweep": first}
    assert named.items() <= summary["sampled"]["rows"].items()
    (line,) = [text for text in summary["warnings"] if "the log is large" in text]
    assert all(name in line for name in summary["sampled"]["rows"])
    assert str(len(run.rows)) in line
    assert str(first) in line


def test_calibrate_and_sweep_say_what_they_read_of_a_large_log(simulate, stream, capsys):
    stream(path := simulate(rollouts=4, width=0, rule=Rule("none")))
    calibrate_run(path, ["fspo"], 0.8)
    sweep_main([str(path), "--only", "[outside]"])
    assert capsys.readouterr().err.count("the log is large: of") == 2


def test_damage_of_a_streamed_log_is_counted_and_the_rest_analysed(simulate, stream):
    path = simulate(rollouts=6, width=0)
    files = sorted((path / "gradlog").iterdir())
    files[1].write_bytes(b"PAR1")  # no footer
    data = bytearray(files[3].read_bytes())
    place = pq.read_metadata(files[3]).row_group(0).column(12).data_page_offset
    data[place + 200 : place + 260] = bytes(60)  # sound footer, broken page
    files[3].write_bytes(data)
    run = stream(path)
    notes, counts = run.notes, dict(run.counts)
    found, summary = analyse(run, shared_bins([run], FEW), FEW)
    assert (run.notes, run.counts) == (notes, counts)  # a run does not change: what a step notices it returns
    assert set(found["over_time"]["window"]) == {0, 2, 4, 5}
    assert len(summary["damage"]) == 2
    assert files[1].name in summary["damage"][0]
    assert "1024 rows lost" in summary["damage"][1]
    assert summary["counts"]["rows"] == 4 * 1024


@pytest.mark.parametrize("lost", [0, 2, 5])
def test_a_damaged_row_group_whose_rollouts_nothing_else_holds_is_reported(one_file, stream, lost):
    """A row group for each two rollouts; the first, middle or last group is broken."""
    _, path = one_file(12, 2 * 1024)
    data, meta = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(lost)
    for column in range(meta.num_columns):
        place = meta.column(column).data_page_offset
        data[place : place + 20] = bytes(20)
    path.write_bytes(data)
    source = stream(path.parents[1]).stream
    damage = [note for chunk in source.chunks(1) for note in source.windows(chunk, 1)[1].damage]
    assert len(damage) == 1


def test_several_rollouts_in_one_file_and_several_row_groups(one_file, stream):
    run, path = one_file(5, 700)
    apart, joined = stream(run), stream(path.parents[1])
    assert joined.stream.rollouts.tolist() == [0, 1, 2, 3, 4]
    bins = shared_bins([apart], FEW)
    one, other = tables(apart, bins)[0], tables(joined, bins)[0]
    for column in ("estimate", "ci_low", "ci_high"):
        np.testing.assert_allclose(one["acceptance"][column], other["acceptance"][column], rtol=1e-9)


def test_errors_of_a_process_come_back():
    def refuse(_):
        raise UserError("no such thing")

    def fail(_):
        raise KeyError("inner")

    def good(step):
        step()
        return 7

    steps = []
    assert in_processes([good, good], lambda: steps.append(1)) == [7, 7]
    assert len(steps) == 2
    with pytest.raises(UserError, match="no such thing"):
        in_processes([good, refuse])
    with pytest.raises((RuntimeError, KeyError), match="inner"):
        in_processes([fail, good])


def test_a_log_without_s_says_so(simulate):
    run = simulate(rollouts=1, width=0)
    rewrite(run, log_ratio=lambda S, _: S * np.nan)
    with pytest.raises(UserError, match=r"S is missing in every row.*log each response's"):
        load_run(run)
