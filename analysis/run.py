"""Analyse one run, from its folder to its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.log.loading import Run, load_run
from analysis.log.notes import Notes
from analysis.log.partition import find_partition
from analysis.log.ratio import known_ratio
from analysis.log.workers import known_workers
from analysis.options import Options
from analysis.rules.evaluate import Case, candidates, criterion_cases, make_cases, trained_case
from analysis.rules.replay import Replay
from analysis.rules.tally import Tally
from analysis.scores.sketch_error import effective_width
from analysis.scores.sketches import LEFT_OUT, ScoredWindows
from analysis.tables.acceptance import factor_rows, tables_of
from analysis.tables.cosine import CosineTable
from analysis.tables.files import TABLES, check_folder, folder_name, write_tables
from analysis.tables.lemma import LemmaTable, integrity
from analysis.tables.moments import moment_tables
from analysis.tables.noise_floor import noise_table
from analysis.tables.over_time import training_table
from analysis.tables.passes import look_through
from analysis.tables.population import PopulationTable
from analysis.tables.summary import summarize
from analysis.tables.typed_rows import RunKey, frame
from fspo.base.errors import UserError
from fspo.stats.bins import Bins, make_bins

Progress = Callable[..., None]
"""Type of a function that reports progress. It is called with the name of a part of the analysis, and the share of this
part that was done since the last call (default 1)."""


def shared_bins(runs: Sequence[Run], options: Options) -> Bins:
    """Return the bins for all runs: by the edges in ``options``, or quantiles of the coordinates of all runs."""
    return make_bins(np.concatenate([run.rows.coordinate for run in runs]), options.bins, options.edges)


def analyse(
    run: Run,
    bins: Bins,
    options: Options,
    progress: Progress = lambda part, share=1.0: None,
    workers: str | None = None,
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Make all tables of one run, and its summary.

    Parameters
    ----------
    run : Run
        The run, with the rows of its log (`analysis.log.loading.load_run` reads it).
    progress : callable
        Called with the name of a part and the share of it that was done since the last call.
    workers : str, optional
        Number of Dask workers, or address of a Dask scheduler (`analysis.log.workers.on_workers`). The workers read the
        rows of the log if it is streamed (has too many rows to be read at once: `analysis.log.loading.IN_MEMORY`).
    """
    known = candidates(run.ratio.on)
    following = [name for name in options.bands if run.streamed and known[name].adapt != "none"]
    replays = {name: Replay(known[name]) for name in following}  # a log in memory is replayed by `make_cases`
    states = {name: replayed.states for name, replayed in replays.items()}
    rows: TableRows = dict(zip(("moments", "scaling"), moment_tables(run, bins, options.window), strict=True))
    cases = make_cases(options.bands, options.targets, None if run.streamed else run.rows, states, run.ratio.on)
    trained = trained_case(run)
    judged = [*cases, *criterion_cases(options.targets, run.ratio.on)]
    tally, found = look_through(run, bins, judged, options.window, partial(progress, "acceptance"), workers, replays)
    # Take the counts of the complete log: those in ``run`` are of a sample of the rows if the log is streamed.
    run = replace(run, counts=found.notes.counts)
    rows |= vars(tables_of(run, tally))
    rows["acceptance"] += factor_rows(run, bins)
    progress("acceptance", 0.0)
    everything = [*([trained] if trained else []), *cases]
    width, width_from = effective_width(run)
    of_scores, scored, of_reading = _scored(run, bins, options, everything, width)
    rows |= of_scores
    scored |= {"effective_width": width, "effective_width_from": width_from}
    progress("cosine")
    rows["noise_floor"], of_noise = noise_table(run, bins)
    rows["over_time"] = found.over_time
    rows["training"], of_training = training_table(run)
    tables = {name: frame(row, rows[name]) for name, row in TABLES.items()}
    notes = run.notes + found.notes + of_reading + of_noise + of_training + _without_a_range(tally)
    summary = summarize(run, bins, asdict(options), tables, integrity(rows["lemma"]), scored, notes)
    progress("tables")
    return tables, summary


TableRows = dict[str, list[Any]]
"""Rows by table name; each row is a named tuple of the table's type in TABLES."""


def _scored(
    run: Run, bins: Bins, options: Options, cases: list[Case], width: float
) -> tuple[TableRows, dict[str, Any], Notes]:
    """Make the tables that need scores, of sketches of effective ``width``. Return them, the counts of scores and
    updates, and notes on unreadable scores."""
    key = RunKey.of(run)
    tables = {
        "cosine": CosineTable(key, bins, cases, options.targets, options.draws, options.seed, width),
        "population": PopulationTable(key, bins, cases, width),
        "lemma": LemmaTable(key, bins, cases),
    }
    counts: dict[str, Any] = {"first": 0, "reused": 0, "updates": 0}
    windows = ScoredWindows(run, bins, options.window)
    for window in windows:
        for table in tables.values():
            table.add(window)
        counts[window.use] += len(window.rows)
        counts["updates"] += window.updates
    counts |= {name: windows.notes.counts.get(name, 0) for name in LEFT_OUT}
    return {name: table.rows() for name, table in tables.items()}, counts, Notes(windows.notes.damage)


def _without_a_range(tally: Tally) -> Notes:
    """Return a warning that says in how many blocks no range gives a target, and a count of these blocks."""
    found = [windows for sums in tally.uses.values() for windows in sums.no_range.values()]
    number = len(set().union(*found))
    words = f"{number} {'block' if number == 1 else 'blocks'} of rollouts: no range at the clip rate for some rules"
    warning = (f"{words}: see column reason of the table acceptance",) if number else ()
    return Notes(warnings=warning, counts={"windows_without_a_range": number})


def analyse_runs(
    paths: Sequence[str | Path],
    options: Options | None = None,
    progress: Progress = lambda part, share=1.0: None,
    workers: str | None = None,
) -> dict[Path, dict[str, Any]]:
    """Analyse run folders with common bins, write RUN/analysis, and return the summaries by folder. ``progress`` is
    called with the name of a part and the share of it that was done since the last call, ``workers`` is a number of
    Dask workers or a scheduler's address.

    Raise UserError if the input is bad. Folders that were analysed before the error keep their tables."""
    options = options or Options()
    on = known_ratio(options.on)
    if workers is not None:
        known_workers(workers)
    make_cases(options.bands, options.targets, on=on)  # called only to refuse unknown names of rules before any work
    partition = find_partition(options.by)
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise UserError("the same run folder is named twice: name each run once")
    for path in paths:
        check_folder(Path(path) / folder_name(partition, on))
    runs = [load_run(path, partition, on) for path in paths]
    bins = shared_bins(runs, options)
    summaries: dict[Path, dict[str, Any]] = {}
    for run in runs:
        tables, summary = analyse(run, bins, options, progress, workers)
        write_tables(run.path / folder_name(partition, on), tables, summary)
        summaries[run.path] = summary
    return summaries
