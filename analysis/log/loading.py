"""Read one run from its folder: its rows, the rule that trained it, and warnings about damaged or missing data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.log.notes import Notes
from analysis.log.partition import LENGTH, Partition
from analysis.log.ratio import CORRECTED, RATIOS, UPDATE, LoggedRatio
from analysis.log.rows import Rows
from analysis.log.stream import InMemory, Stream
from analysis.log.usable import ROW_COLUMNS, SEVERAL, columns_of, nothing, usable
from analysis.rules.recompute import differing
from fspo.base.errors import UserError
from fspo.gradlog import gone_rule, header_rule, read_files
from fspo.gradlog.files import LogFile, log_files, log_paths, rollout_of
from fspo.gradlog.run_folder import check_run, saved_config
from fspo.gradlog.schema import NO_ADVANTAGES, NOTICED
from fspo.rules import Rule

IN_MEMORY = 300_000
"""Largest number of rows with which a log is read into memory at once. A larger log is streamed: read in chunks."""
SAMPLED = {
    "bins": "all",
    "moments": "all",
    "scaling": "all",
    "noise_floor: warnings": "first",
    "trend: the unit where bins are not of length": "all",
    "calibrate": "all",
    "sweep": "first",
}
"""Names of the results that are made from a sample of the rows if the log is streamed. The value says which rows of the
sample a result uses: "all" rows, or those of the "first" epoch."""
COUNTED = {
    "updates_since_rollout": "counted from each rollout's first step (where all rollouts have one step and S is not "
    "0, every row counts as after an update)",
    "times_used": "counted from the steps at which each response appears",
}


@dataclass(frozen=True)
class Run:
    """One training run, as read from its folder.

    Attributes
    ----------
    rule : Rule, optional
        The run's own rule on the ratio that is analysed: its clip rule or its correction. None if the log's header
        names no rule on this ratio.
    clip_rule : Rule, optional
        The clip rule that trained, whichever ratio it acts on; None if the log's header names none.
    rows : Rows
        All rows that can be analysed; of a streamed run, the rows of a sample of rollouts, each rollout complete.
    logged : frozenset of str
        Names of the columns that have a value in the log. A column that says what the run's own rule did is listed
        under the name of the field of ``rows`` that holds it: ``correction_weight`` as ``multiplier``, for example.
    counts : mapping of str to int
        Number of rows of each kind (left out, in the first epoch, ...), by the names of the counts in ``summary.json``.
        Rows of the log are counted; of a streamed run, rows of the sample.
    notes : Notes
        Warnings, and parts of the log that could not be read, as found by `load_run`. Later steps of an analysis return
        separate notes.
    stream : Stream, optional
        The log's files, where the log is too large for memory; else None.
    """

    path: Path
    name: str
    seed: float  # seed of the training run; NaN if unknown
    trained_rule: str
    rule: Rule | None
    rows: Rows
    logged: frozenset[str]
    counts: Mapping[str, int]
    notes: Notes
    score_options: dict[str, Any] = field(default_factory=dict)  # from the log's header: how scores were taken
    partition: Partition = LENGTH
    stream: Stream | None = None
    sampled: dict[str, Any] = field(
        default_factory=dict
    )  # for a streamed log: how many sampled rows each result uses (`_sampled`)
    ratio: LoggedRatio = UPDATE  # the log-ratio that ``rows.S`` holds
    clip_rule: Rule | None = None

    @property
    def clusters(self) -> int:
        """Number of clusters, that is of distinct (rollout, prompt), in ``rows``."""
        return int(self.rows.cluster.max()) + 1

    @property
    def source(self) -> InMemory | Stream:
        """The log as an object that is read in chunks, none of which splits a block of rollouts: all rows in memory, or
        files."""
        return self.stream or InMemory(self.rows, self.counts)

    @property
    def streamed(self) -> bool:
        """Whether ``rows`` is a sample, because the log is too large for memory and is read block by block."""
        return self.stream is not None

    def windows(self, size: int) -> Iterator[tuple[int, Rows]]:
        """Yield the first rollout and the rows of each block of ``size`` successive rollouts."""
        for chunk in self.source.chunks(size):
            yield from self.source.windows(chunk, size)[0]


def load_run(
    path: str | Path, partition: Partition = LENGTH, on: str = UPDATE.on, rollouts: tuple[int, int] | None = None
) -> Run:
    """Read a run folder's gradient log, without the score sketches.

    Parameters
    ----------
    path : path
        Run folder.
    partition : Partition
        The coordinate that the bins divide. Rows without a coordinate are left out and counted.
    on : str
        The log-ratio that is analysed (``fspo.rules.Ratio``); the field S of the rows holds it.
    rollouts : (first, last), optional
        Inclusive range of rollouts. Only files with a rollout of this range in their names are read; by default all.

    Raises
    ------
    UserError
        If the folder has no readable log, no row that can be analysed, or no column that the partition or the ratio
        needs.
    """
    path = Path(path)
    check_run(path)
    files, damage = log_files(path, rollouts)
    metadata = next((file.metadata for file in files if file.metadata), {})
    seeds = {file.metadata["seed"]: file.path.name for file in files if "seed" in file.metadata}
    if len(seeds) > 1:
        raise UserError(
            f"{path}: files of several runs lie in one folder, by the seeds of their headers "
            f"({', '.join(f'{seed} in {name}' for seed, name in list(seeds.items())[:2])}): keep one run in a folder"
        )
    ratio = LoggedRatio.find(on, logged_columns(files, RATIOS), metadata)
    clip, own = header_rule(metadata), header_rule(metadata, ratio.header)
    imported = "imported_from" in metadata
    recomputed = partial(differing, rule=clip, correction=header_rule(metadata, "correction"), imported=imported)
    columns = columns_of(partition, ratio)
    stream: Stream | None = None
    if sum(file.rows for file in files) > IN_MEMORY:
        stream = Stream.of(files, partition, ratio, recomputed)
        log, number = stream.sample()
        logged = logged_columns(files, columns)
    else:
        log = read_files([(file, None) for file in files], columns, ("train",), damage)
        logged, number, damage = frozenset(c for c in columns if c in log), 0, log.damage
    logged = ratio.fields(logged)
    rows, counts = usable(log, partition, None, ratio, nothing if stream else recomputed)
    if len(rows) == 0:
        raise UserError(f"{path}: {_nothing(counts, ratio, imported, path)}")
    rule = own if own is not None and own.on == ratio.on else None
    names = log.column("rule") if clip is None and "rule" in log else []
    label = clip.label if clip else str(names[0]) if len(names) else "unknown"
    warnings = []
    if clip is None:
        warnings.append(
            gone_rule(metadata)
            or "the log's header names no rule: the rows of the rule that trained are left out (fspo import --rule)"
        )
    warnings += [f"the import noticed: {what} (fspo doctor says more)" for what in metadata.get(NOTICED, [])]
    if metadata.get("advantage") == NO_ADVANTAGES:
        warnings.append("no advantages in the log: A counts as 0, so update acceptance has no rows")
    if own is not None and rule is None:
        warnings.append(f"the run's {ratio.header} {own.label!r} acts on another ratio: --on {own.on} has its rows")
    if own is None and ratio.on in CORRECTED:
        warnings.append("no correction ran, or the log names none: the tables say what each would have masked")
    if rule is not None and rule.level != "sequence" and ratio.on in CORRECTED:
        warnings.append(
            f"the run's correction {rule.label!r} acts on tokens and keeps no share of responses: table acceptance has "
            "the mean of its factors by length (measure factor)"
        )
    if clip is not None and clip.level == "token" and ratio == UPDATE:
        shares = "as trained is the share of a response's tokens that it clips, under the other rules that of responses"
        shares = shares if "multiplier" in logged else "the log does not say which it clipped, so it has no row"
        warnings.append(f"rule {label} acts on tokens: {shares}")
    others = [file.path.name for file in files if file.metadata.get("rule") != metadata.get("rule")]
    if others:
        warnings.append(
            f"the headers of {len(others)} of {len(files)} files name another rule than the first ({others[0]}, ...): "
            "the rule's own rows are judged by the first"
        )
    numbers = {rollout_of(path) for path in log_paths(path)} if rollouts is None and not imported else set()
    if numbers and (absent := max(numbers) - min(numbers) + 1 - len(numbers)):
        warnings.append(
            f"{absent} of the rollouts {min(numbers)} to {max(numbers)} are not in the log: tables are of the others"
        )
    warnings += [f"no column {name}: {how}" for name, how in COUNTED.items() if name not in logged]
    sampled: dict[str, Any] = {}
    if stream is None:
        warnings += warnings_of(counts, partition, ratio)
    else:
        stream = replace(stream, spread=float(np.std(rows.coordinate)))
        sampled = _sampled(rows, number, len(stream.rollouts))
        warnings.append(sampled["text"])
    scores = metadata.get("scores")
    options = scores if isinstance(scores, dict) else {}
    return Run(
        *(path, path.resolve().name, _seed(path, metadata), label, rule, rows, logged, counts),
        *(Notes(tuple(damage), tuple(warnings)), options, partition, stream, sampled, ratio, clip),
    )


def _sampled(rows: Rows, rollouts: int, of: int) -> dict[str, Any]:
    """Return, for an analysis of a streamed log, a dict: by name of a result in ``SAMPLED`` the number of sampled rows
    that it uses ("rows"), the two numbers of rollouts, and a text for the user that says so.

    ``rows`` are the sampled rows. They come from ``rollouts`` of the log's ``of`` rollouts."""
    number = {"all": len(rows), "first": int(np.count_nonzero(rows.used == 0))}
    groups = ("; ".join(name for name, use in SAMPLED.items() if use == which) for which in number)
    text = (
        "the log is large: of {} rows, all of {} of its {} rollouts, are made: {}; of the {} among them in the first "
        "epoch: {}. Everything else is of all rows"
    ).format(number["all"], rollouts, of, next(groups), number["first"], next(groups))
    rows_of = {name: number[use] for name, use in SAMPLED.items()}
    return {"rows": rows_of, "rollouts": rollouts, "of_rollouts": of, "text": text}


def warnings_of(counts: Mapping[str, int], partition: Partition, ratio: LoggedRatio = UPDATE) -> list[str]:
    """Return a sentence for each kind of rows that were left out: those that are not finite, those that hold a response
    a second time in one update (repeated), those that equal the row of another response, as if a process had been
    counted twice (copied), and those without a coordinate. ``counts`` holds their numbers by the names in
    ``summary.json``.

    Also warn if the log-ratio is 0 in every row, or if scores failed when they were taken."""
    texts = {
        "rows_not_finite": f"rows left out: {ratio.words.text} or A is not finite, or the length is below 1",
        "rows_repeated": "rows left out: the same response twice in one update",
        "rows_copied": "rows left out: copies of other rows under other ids, as of a process that was counted twice",
        "rows_without_coordinate": f"rows left out: no value of {partition.column}",
    }
    found = [f"{counts[name]} {text}" for name, text in texts.items() if counts.get(name)]
    if not counts.get("rows_S_not_0"):
        found.append(f"{ratio.words.text} is 0 in every row: {ratio.words.zero}")
    if counts.get("scores_failed"):
        found.append(f"{counts['scores_failed']} scores failed when they were taken: left out of the cosines")
    return found


def logged_columns(files: list[LogFile], names: Sequence[str] = ROW_COLUMNS) -> frozenset[str]:
    """Return those of the columns ``names`` that have a value in at least one file."""
    return frozenset(
        name
        for name in names
        if any(name in f.columns and any(g.nulls.get(name, 0) < g.rows for g in f.groups) for f in files)
    )


def _nothing(counts: Mapping[str, int], ratio: LoggedRatio, imported: bool, path: Path) -> str:
    """Return why no row of a log, ``imported`` from another trainer's table or not, can be analysed, and what to do."""
    if not counts["rows"]:
        return "the log holds no row of the phase train: let the trainer write its updates, or remove the empty files"
    if counts["rows_without_S"] == counts["rows"] and not ratio.once:
        return (
            "S is missing in every row (log_ratio is NaN): log each response's sum of log-ratios, or the new and the "
            "old log-probabilities of its tokens, from which import makes S (fspo import --help); where the sampler's "
            "are known, --on behaviour analyses the mismatch"
        )
    if counts["rows_not_finite"] == counts["rows"]:
        return (
            f"no row has a finite {ratio.words.text} and A and a length of 1 or more: log the advantages (import: "
            "--columns advantage=NAME, length=NAME), and look for log-probabilities or rewards that are NaN"
        )
    if ratio.once:
        return "no row in the first epoch has a value of the column to bin by: choose another with --by"
    if counts["rows_before_an_update"] and counts["rows_without_coordinate"] == 0:
        told = f"no row with an update since its rollout, so S is 0 everywhere: {SEVERAL}"
        table = ", import rows of later updates too (--updates-per-rollout), or analyse the mismatch (--on behaviour)"
        return f"{told}{table if imported else ''}; what else there is to see: fspo doctor {path}"
    return "no row after an update has a value of the column to bin by: choose another with --by"


def _seed(path: Path, metadata: Mapping[str, Any]) -> float:
    seed = saved_config(path).get("seed")
    seed = metadata.get("seed") if seed is None else seed
    return float(seed) if isinstance(seed, (int, float)) else float("nan")
