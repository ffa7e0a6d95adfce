"""One run from its folder to its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.log.loading import Run, load_run
from analysis.log.partition import LENGTH, find_partition
from analysis.rules.evaluate import BANDS, TARGETS, Case, make_cases, trained_case
from analysis.rules.replay import replay_log
from analysis.rules.tally import Tally
from analysis.scores.sketch_error import effective_width
from analysis.scores.sketches import LEFT_OUT, scored_windows
from analysis.tables.acceptance import tables_of
from analysis.tables.assumptions import assumption_table
from analysis.tables.cosine import CosineTable
from analysis.tables.files import folder_name, frame, write_tables
from analysis.tables.lemma import LemmaTable, integrity
from analysis.tables.lemma_summary import lemma_summary
from analysis.tables.moments import moment_tables
from analysis.tables.noise_floor import noise_table, noise_warnings
from analysis.tables.over_time import training_table
from analysis.tables.passes import look_through
from analysis.tables.population import PopulationTable
from analysis.tables.reuse import reuse_table
from analysis.tables.summary import summarize
from analysis.tables.theory_gap import gap_table
from fspo.base.errors import UserError
from fspo.base.processes import Job, cores, in_processes
from fspo.rules import PRESETS, Rule
from fspo.stats.bins import DEFAULT_BINS, Bins, make_bins

MANY_SCORES = 20_000
"""From as many on it pays to read them in two processes."""
Progress = Callable[..., None]
"""A function of a part's name and the share of it that is newly done (1)."""


@dataclass(frozen=True)
class Options:
    """How to analyse; the same for every run and rule that are compared.

    Parameters
    ----------
    bins : int
        Number of quantile bins.
    edges : list of numbers, optional
        Edges of the bins instead (in tokens, for lengths).
    window : int
        Rollouts in which a matched range is calibrated and a window of the lemma is pooled.
    rules : list of str
        Bands evaluated counterfactually, by preset name.
    targets : list of float
        Matched acceptances.
    draws : int
        Draws of the random-drop control.
    seed : int
        Seed of the control.
    by : str
        What responses are binned by: a name of analysis.log.partition.PARTITIONS, or ``user.COLUMN``.
    """

    bins: int = DEFAULT_BINS
    edges: tuple[float, ...] | None = None
    window: int = 5
    rules: tuple[str, ...] = BANDS
    targets: tuple[float, ...] = TARGETS
    draws: int = 32
    seed: int = 0
    by: str = LENGTH.name

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"--draws {self.draws}: the random control needs at least 1 draw")
        if self.window < 1:
            raise UserError(f"--window {self.window}: a window has at least 1 rollout")


def shared_bins(runs: Sequence[Run], options: Options) -> Bins:
    """One set of bins for all runs: the edges asked for, or quantiles of all their coordinates together."""
    return make_bins(np.concatenate([run.rows.coordinate for run in runs]), options.bins, options.edges)


def analyse(
    run: Run, bins: Bins, options: Options, progress: Progress = lambda part, share=1.0: None
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """All tables of one run, and its summary.

    Parameters
    ----------
    run : Run
        From :func:`analysis.log.loading.load_run`.
    progress : callable
        Told the name of a part and the share of it that is newly done.
    """
    states, described = _before(run, bins, options)
    cases = make_cases(options.rules, options.targets, None if run.streamed else run.rows, states)
    trained = trained_case(run)
    tally, found = look_through(run, bins, cases, options.window, lambda share: progress("acceptance", share))
    rows = described | _tables(run, tally)
    progress("acceptance", 0.0 if run.streamed else 1.0)
    everything = cases if trained is None else [trained, *cases]
    width, width_from = effective_width(run)
    of_scores, scored = _scored(run, bins, options, everything, width)
    rows |= of_scores
    scored |= {"effective_width": width, "effective_width_from": width_from}
    progress("cosine")
    rows["assumptions"] = assumption_table(run, bins, options.window, rows["lemma"])
    rows["lemma_summary"] = lemma_summary(rows["lemma"])
    rows["noise_floor"] = noise_table(run, bins)
    run.warnings.extend(noise_warnings(run, rows["noise_floor"]))
    rows["over_time"] = found.over_time
    rows["training"], damage = training_table(run)
    tables = {name: frame(name, found) for name, found in rows.items()}
    summary = summarize(run, bins, options.__dict__, tables, integrity(rows["lemma"]), scored, found.sides, damage)
    progress("tables")
    return tables, summary


def _scored(
    run: Run, bins: Bins, options: Options, cases: list[Case], width: float
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The tables made from scores, and the counts of these; of many scores in two processes.

    Either process reads all scores: what the tables hold until the end is far more than a window.
    """
    cosines = CosineTable(run.key, bins, cases, options.targets, options.draws, options.seed, width)
    population = PopulationTable(run.key, bins, cases, width)
    tables = {
        "cosine": cosines,
        "population": population,
        "lemma": LemmaTable(run.key, bins, cases),
    }

    def collect(names: Sequence[str], _: Callable[[], None]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        counts: dict[str, Any] = {"first": 0, "reused": 0, "updates": 0}
        left_out: Counter[str] = Counter()
        for window in scored_windows(run, bins, options.window, left_out):
            for name in names:
                tables[name].add(window)
            counts[window.use] += len(window.rows)
            counts["updates"] += window.updates
        left_out.update(population.left_out)
        counts |= {name: left_out[name] for name in LEFT_OUT}
        return {name: tables[name].rows() for name in names}, counts, run.damage

    many = run.counts.get("scores_taken", 0) >= MANY_SCORES and cores() > 1
    shares = [("cosine", "population"), ("lemma",)] if many else [tuple(tables)]
    found = in_processes([partial(collect, names) for names in shares])
    _, counts, damage = found[0]
    run.damage.extend([line for line in damage if line not in run.damage])  # what another process saw
    return {name: rows for part, *_ in found for name, rows in part.items()}, counts


def _before(run: Run, bins: Bins, options: Options) -> tuple[dict[str, dict[int, Rule]], dict[str, Any]]:
    """States of the bands that follow a target, where they are not in memory, and moments, reuse and gap.

    Of a large log in two processes.
    """

    def described(_: Callable[[], None]) -> dict[str, list[dict[str, Any]]]:
        shape = moment_tables(run, bins, options.window)
        return shape | {"reuse": reuse_table(run), "theory_gap": gap_table(run, bins, options.window)}

    if run.stream is None:
        return {}, described(lambda: None)
    stream, rules = run.stream, {name: PRESETS[name].rule for name in options.rules}
    following = {name: rule for name, rule in rules.items() if rule.adapt != "none"}
    states, tables = in_processes([lambda _: replay_log(following, stream, options.window), described])
    return states, tables


def _tables(run: Run, tally: Tally) -> dict[str, list[dict[str, Any]]]:
    """The tables of acceptances; of a large log in a process for each use."""
    jobs: list[Job] = [lambda _, use=use: tables_of(run, tally, (use,)) for use in tally.uses]
    parts = in_processes(jobs) if run.streamed else [job(lambda: None) for job in jobs]
    tables: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for name, found in part.items():
            tables.setdefault(name, []).extend(found)
    return tables


def analyse_runs(
    paths: Sequence[str | Path], options: Options | None = None, progress: Progress = lambda part, share=1.0: None
) -> dict[Path, dict[str, Any]]:
    """Analyse run folders with common bins and write RUN/analysis; the summaries by folder.

    Raises
    ------
    UserError
        For bad input; folders analysed before it keep their tables.
    """
    options = options or Options()
    make_cases(options.rules, options.targets)  # bad names are refused before any work
    partition = find_partition(options.by)
    runs = [load_run(path, partition) for path in paths]
    bins = shared_bins(runs, options)
    summaries: dict[Path, dict[str, Any]] = {}
    for run in runs:
        tables, summary = analyse(run, bins, options, progress)
        write_tables(run.path / folder_name(partition), tables, summary, partition)
        summaries[run.path] = summary
    return summaries
