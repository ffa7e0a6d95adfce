"""Import another trainer's log into a run folder, which has a temporary name until it is complete."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from analysis.importing.chunk import TOKENS
from analysis.importing.convert import Converter, choose_columns
from analysis.importing.names import canonical
from analysis.importing.report import Report
from analysis.importing.scalars import import_scalars
from analysis.importing.sources import Sources, find_sources
from analysis.importing.tables import Chunk, read_chunks
from analysis.importing.values import as_values
from fspo.base.errors import UserError, unknown_name
from fspo.base.files import whole_folder, write_text
from fspo.gradlog import GradLogWriter
from fspo.gradlog.run_folder import IMPORT
from fspo.gradlog.schema import NO_ADVANTAGES, USER_PREFIX
from fspo.rules import PRESETS, Aggregation, Rule, preset

AVERAGES = ", ".join(get_args(Aggregation))
"""Ways to average the loss that ``--aggregation`` accepts (`fspo.objective.aggregate`)."""
BUFFER = 500_000
"""Number of rows that may wait in memory until all rows of their rollout have come, so that a rollout becomes one file.
If a table is not sorted by rollout, a rollout may be written to several files.
"""
_MAX_PARTS = 10_000  # largest number of files of one rollout: the file's number has four digits in its name


@dataclass(frozen=True)
class ImportOptions:
    """What the user says about the log that is imported.

    Parameters
    ----------
    columns : mapping
        This project's name of a column -> the table's name of it, instead of the names in `analysis.importing.names`.
    rule : str, optional
        Name of the preset whose rule trained.
    range_lo, range_hi : float, optional
        Range of the rule, if it is not the preset's.
    aggregation : str, optional
        How the trainer averaged the loss: response, sequence, token or constant (`fspo.objective.aggregate`).
    updates_per_rollout : int
        Optimizer updates between two rollouts, from which rollouts are numbered if the table has only steps.
    group_size : int, optional
        Number of successive responses that share a prompt, where the table names no prompt.
    tokenizer : str, optional
        A tokenizer.json, used to count tokens if the table has only the text of responses.
    tokens : bool
        Whether to write the log-ratio of each token, besides that of the response.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    rule: str | None = None
    range_lo: float | None = None
    range_hi: float | None = None
    aggregation: str | None = None
    updates_per_rollout: int = 1
    group_size: int | None = None
    tokenizer: str | None = None
    tokens: bool = False

    def trained_rule(self) -> Rule | None:
        """The rule that trained; None if the options name none."""
        if self.rule is None:
            if self.range_lo is not None or self.range_hi is not None:
                raise UserError("--range-lo and --range-hi belong to a rule: name it with --rule")
            return None
        changes = {k: v for k, v in (("range_lo", self.range_lo), ("range_hi", self.range_hi)) if v is not None}
        return preset(self.rule, **changes).rule


def import_run(
    source: str | Path,
    out: str | Path,
    options: ImportOptions | None = None,
    progress: Callable[[int], Any] = lambda _: None,
) -> Report:
    """Read the log of another trainer and write the run folder ``out``.

    Parameters
    ----------
    progress : callable
        Called after each chunk of a table with the number of its rows.

    Raises
    ------
    UserError
        If an option is invalid, the source holds nothing that can be analysed, or ``out`` is a file or a
        folder that is not empty. Then nothing is written.
    """
    if not str(out).strip():
        raise UserError("--output is empty: name a folder")
    options, target = options or ImportOptions(), Path(out)
    rule = options.trained_rule()
    if options.aggregation is not None and options.aggregation not in get_args(Aggregation):
        raise unknown_name("--aggregation", options.aggregation, get_args(Aggregation))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already: name another folder with --output")
    sources = find_sources(source)
    report = Report(str(source), str(target), ignored=list(sources.ignored))
    for kind in ("table", "state", "scalars", "events"):
        if files := getattr(sources, kind):
            report.files[kind] = [file.name for file in files]
    with whole_folder(target) as part:
        _import_table(sources, part, rule, options, report, progress)
        import_scalars(sources, part, options.updates_per_rollout, report)
        # A table of texts ("response") is imported even without lengths and log-ratios, because TRL's files of
        # completions hold neither.
        told_by = {"length", "log_ratio", "behaviour_log_ratio", "response"}
        if report.rows and not told_by & (report.columns | report.derived).keys():
            raise UserError(
                f"{source} has neither lengths nor log-ratios, so nothing could be told by length: name their "
                "columns with --columns length=COLUMN,log_ratio=COLUMN or, where tokens' log-probabilities are "
                "there, old=COLUMN,sampler=COLUMN, or give --tokenizer"
            )
        if not report.rows and not report.metric_lines:
            empty = f"{source} holds neither a response nor a scalar: its files are empty, name others"
            raise UserError(report.damage[0] if report.damage else empty)
        write_text(part / IMPORT, json.dumps(report.to_dict(), indent=2) + "\n")
    return report


def _import_table(
    sources: Sources,
    run: Path,
    rule: Rule | None,
    options: ImportOptions,
    report: Report,
    progress: Callable[[int], Any],
) -> None:
    applied = rule if rule is not None and rule.level == "sequence" and not rule.needs_stats else None
    convert = Converter(
        options.columns,
        options.updates_per_rollout,
        options.group_size,
        applied,
        options.tokenizer,
        first_step=sources.first_step,
        keep_tokens=options.tokens,
        estimator=preset(options.rule).advantage if options.rule else Converter.estimator,
    )
    metadata: dict[str, Any] = {"imported_from": report.source}
    if rule is not None:
        metadata["rule"] = rule.to_dict()
        report.derived["rule"] = f"--rule {options.rule}"
    if options.aggregation is not None:
        metadata["aggregation"] = options.aggregation
    store: _Store | None = None
    seen: set[str] = set()
    user: dict[str, str] = {}
    for file, chunk in _chunks(sources, report.damage):
        chosen = choose_columns(chunk, options.columns if store is None else _present(options.columns, chunk))
        spare = [name for name in chunk if name not in chosen.values()]
        if store is None:
            user = _user_columns(chunk, spare)
            if "reward" not in chosen and (only := _only_number(chunk, spare, sources)):
                chosen["reward"] = only
                user.pop(only, None)
                convert.notes[
                    f"{only} is taken as the reward: the table's one column of numbers without a name here"
                ] = None
            extra_reward = chosen.get("reward")
        elif extra_reward in chunk:
            chosen.setdefault("reward", cast(str, extra_reward))
        report.columns |= chosen
        seen |= set(spare)
        rows = convert.convert(chunk, file, chosen)
        if store is None:
            if "advantage" not in chosen:
                metadata["advantage"] = convert.estimator if convert.makes_advantages else NO_ADVANTAGES
            store = _Store(GradLogWriter(run, metadata=metadata, user_columns=user), convert.complete)
        for name, kind in store.user.items():
            if name in chunk:
                rows[USER_PREFIX + name] = _user_values(chunk[name], kind)
        store.add(rows)
        progress(len(rows["step"]))
    if store is None:
        return
    store.close()
    report.rows, report.rollouts, report.known = convert.rows, len(store.parts), dict(convert.known)
    report.notes += convert.notes
    if rule is not None:
        whose = "the preset's" if options.range_lo is None and options.range_hi is None else "given"
        text = f"rule {rule.label}: range_lo {rule.range_lo:g}, range_hi {rule.range_hi:g}, {whose}"
        report.notes.append(f"{text}; --range-lo and --range-hi name another range")
    seen -= set(report.columns.values())
    report.user_columns = sorted(seen & set(store.user))
    report.unknown_columns = sorted(seen - set(store.user))
    _derived(convert, options, report)
    if rule is not None and applied is None:
        why = "acts on tokens" if rule.level != "sequence" else "centres its band on a whole minibatch's drift"
        report.notes.append(f"rule {rule.label!r} {why}: band, side and weight of single rows are not written")


def _derived(convert: Converter, options: ImportOptions, report: Report) -> None:
    """Write into the report which columns of the log were computed and from what, and why others are missing."""
    used, kinds, columns = report.columns, convert.kinds, dict(report.columns)
    listed = [name for name in TOKENS if kinds.get(name) == "list"]
    if "new" in used and "old" in used and "log_ratio" not in used:
        report.derived["log_ratio"] = f"{used['new']} - {used['old']}"
    if (listed and not {"new", "old"} - set(listed)) or kinds.get("log_ratio") == "list":
        report.derived |= dict.fromkeys(("sum_sq_log_ratio", "k3_sum"), "token log-ratios")
    if "sampler" in used and (base := used.get("old") or used.get("new")):
        report.derived["behaviour_log_ratio"] = f"{base} - {used['sampler']}"
        if "old" not in used:
            report.derived["log_ratio"] = "0 at a rollout's first update"
            report.notes.append(
                f"no old log-probabilities: they are {base} at a rollout's first update (--updates-per-rollout tells "
                "which these are), where S is 0; later updates have neither ratio. If the trainer clips the ratio to "
                f"the sampler's, say --columns old={used['sampler']}"
            )
        if not {"policy_version", "behaviour_version"} <= used.keys():
            report.notes.append("no versions of the weights: D + E is known, and neither D nor E alone")
        else:
            report.derived["engine_log_ratio"] = "D + E where the versions are equal"
    if listed:
        report.derived["length"] = used.pop("mask", None) or f"tokens of {used[listed[0]]}"
    elif "length" not in used and options.tokenizer and "response" in used:
        report.derived["length"] = f"{used['response']}, by the tokenizer"
        report.notes.append(
            "lengths count the tokens of the decoded text: special tokens, the last one too, are not in it"
        )
    if "prompt" in used and "prompt_id" not in used:
        report.derived["prompt_id"] = f"text of {used['prompt']}"
    elif options.group_size and "prompt_id" not in used:
        report.derived["prompt_id"] = f"--group-size {options.group_size}"
    elif "prompt_id" not in used and {"tokens", "mask"} <= columns.keys():
        report.derived["prompt_id"] = f"{used['tokens']} before the first of {columns['mask']}"
    if "step" in used and "rollout" not in used:
        each = options.updates_per_rollout
        report.derived["rollout"] = f"{used['step']}, {each} to a rollout"
        if each > 1:
            report.derived["updates_since_rollout"] = f"{used['step']} modulo {each}"
    if convert.makes_advantages:
        report.derived["advantage"] = f"{used['reward']} within groups, as {convert.estimator} makes them"
    elif "advantage" not in used:
        report.notes.append(
            "no advantages, and no rewards of groups to make them of: A counts as 0, so only the band acceptance is "
            "told; for the others name --columns advantage=COLUMN, or reward=COLUMN,prompt_id=COLUMN (or --group-size)"
        )
    found = used.keys() | report.derived.keys()
    wanting = [name for name in ("length", "log_ratio") if name not in found]
    if wanting == ["log_ratio"] and "behaviour_log_ratio" in found:
        report.notes.append("no log_ratio: S is not known, and D + E is (--on behaviour)")
    elif wanting:
        spare = [*report.user_columns, *report.unknown_columns]
        lengths = [name for name in spare if re.search("len|tok", name.lower()) and "logp" not in canonical(name)]
        probabilities = [name for name in spare if "logp" in canonical(name)]
        how = {
            "length": f"length={lengths[0] if lengths else 'COLUMN'}",
            "log_ratio": ",".join(
                f"{ours}={used.get(ours) or (probabilities.pop(0) if probabilities else 'COLUMN')}"
                for ours in ("new", "old")
            ),
        }
        report.again = f"--columns {','.join(how[name] for name in wanting)}"
        report.notes.append(f"no {' and no '.join(wanting)}: nothing can be told by length; import it again as below")
    elif {"old", "log_ratio"} & used.keys() and (lacking := report.rows - max(report.known.values())):
        report.notes.append(
            f"no log-ratio in {lacking} of {report.rows} rows, where a log-probability is NaN or missing; name a mask "
            "that is 0 at such tokens (--columns mask=COLUMN), or give them a log-probability"
        )
    if "step" not in used:
        report.notes.append("no step: all responses count as one update of one rollout")
    if "response_id" not in used and "times_used" not in used:
        report.notes.append("no response id: every row counts as a response of its own, at first use")
    if "new" in used and not {"old", "sampler", "log_ratio"} & used.keys():
        report.notes.append(f"{used['new']} alone makes no S, which is new less old log-probability")


def _chunks(sources: Sources, damage: list[str]) -> Iterator[tuple[Path, Chunk]]:
    for file in sources.table:
        for chunk in read_chunks(file, damage):
            yield file, chunk


def _present(given: Mapping[str, str], chunk: Chunk) -> dict[str, str]:
    """Return the entries of ``given`` (this project's column name -> the table's) whose table column this chunk has.

    A later file of the import may lack a column that the first file has. The log then has null in that file's rows.
    """
    have = {str(name).lower() for name in chunk}
    return {ours: theirs for ours, theirs in given.items() if theirs.lower() in have}


def _only_number(chunk: Chunk, spare: list[str], sources: Sources) -> str | None:
    """Return which column of TRL's table of completions holds the reward. TRL names it after the reward function.

    The reward is taken to be the only column of numbers among the unused columns ``spare``. Return None if several or
    none of these hold numbers, or if another trainer than TRL wrote the table.
    """
    if not sources.trl:
        return None
    numbers = [name for name in spare if as_values(chunk[name]).kind == "number"]
    return numbers[0] if len(numbers) == 1 else None


def _user_columns(chunk: Chunk, spare: list[str]) -> dict[str, str]:
    """Return name -> type of the unused columns ``spare`` that the log keeps as ``user.*``: numbers, short texts."""
    kinds = {"number": "float64", "text": "string"}
    found = {name: as_values(chunk[name]) for name in spare}
    return {n: kinds[v.kind] for n, v in found.items() if v.kind == "number" or (v.kind == "text" and _short(v.array))}


def _short(array: Any) -> bool:
    return all(len(text or "") <= 64 for text in array[:100].to_pylist())


def _user_values(column: Any, kind: str) -> Any:
    values = as_values(column)
    if kind == "string":
        return values.texts()
    return values.numbers() if values.kind == "number" else np.full(len(values), np.nan)


class _Store:
    """Collector of imported rows, which writes each rollout to one file when all rows have come (``close``).

    If more than ``BUFFER`` rows wait in memory before, all rollouts but the one with the highest number are written at
    once. If more than ``BUFFER`` rows still wait, that rollout is written too. Later rows of a rollout that was written
    go to another file.
    """

    def __init__(self, writer: GradLogWriter, complete: Callable[[list[dict[str, Any]]], None]) -> None:
        self.writer, self.complete = writer, complete
        names = [n for n in writer.schema.names if n.startswith(USER_PREFIX)]
        self.user = {
            n[len(USER_PREFIX) :]: str(writer.schema.field(n).type).replace("double", "float64") for n in names
        }
        self.parts: dict[int, int] = defaultdict(int)
        self.waiting: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.held = 0

    def add(self, rows: dict[str, Any]) -> None:
        rollout = np.asarray(rows["rollout"])
        order = np.argsort(rollout, kind="stable")
        numbers, start = np.unique(rollout[order], return_index=True)
        for number, at in zip(numbers, np.split(order, start[1:]), strict=True):
            self.waiting[int(number)].append({name: _take(values, at, len(rollout)) for name, values in rows.items()})
        self.held += len(rollout)
        if self.held > BUFFER:
            newest = max(self.waiting)
            passed = [number for number in self.waiting if number < newest]
            self._write(passed)
            if self.held > BUFFER:
                self._write(list(self.waiting))

    def close(self) -> None:
        self._write(list(self.waiting))

    def _write(self, numbers: list[int]) -> None:
        for number in sorted(numbers):
            parts = self.waiting.pop(number)
            self.complete(parts)
            for rows in parts:
                self.writer.append(rows)
                self.held -= len(np.atleast_1d(rows["log_ratio"]))
            self.writer.rank = self.parts[number]
            self.parts[number] += 1
            if self.writer.rank >= _MAX_PARTS:
                raise UserError("the table's rollouts lie in too many pieces: sort it by rollout or step first")
            self.writer.flush(number)


def _take(values: Any, at: np.ndarray, n: int) -> Any:
    if isinstance(values, list):
        return [values[i] for i in at]
    return values[at] if isinstance(values, np.ndarray) and values.shape[:1] == (n,) else values


def rule_names() -> str:
    """Return the names of the presets that ``fspo import --rule`` accepts, as one text."""
    return ", ".join(PRESETS)
