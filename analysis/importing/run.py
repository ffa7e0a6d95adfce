"""Import another trainer's log into a run folder, which has a temporary name until it is complete."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis.importing.convert import VERSIONS, Converter, ImportOptions, group_advantages, typed_columns
from analysis.importing.names import FOREIGN, is_log_probability, metric_name, step_column
from analysis.importing.report import Report
from analysis.importing.sources import Sources, columns_of, dissolved, find_sources, read_parts
from analysis.importing.watch import CAUSES
from analysis.log.rows import first_step, identify
from analysis.log.usable import counted_updates, tells_updates
from fspo.base.errors import UserError
from fspo.base.files import whole_folder, write_text
from fspo.gradlog import GradLogWriter
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import IMPORT
from fspo.gradlog.schema import NO_ADVANTAGES, NOTICED, RATIO_COLUMNS, USER_PREFIX
from fspo.rules import Preset

NO_STEP = "lines without a step"


def import_run(source: str | Path, out: str | Path, options: ImportOptions | None = None) -> Report:
    """Read the log of another trainer, write the run folder ``out``, and return what was used and what is missing.

    Raise UserError if an option is invalid, the source holds nothing that can be analysed, or ``out`` is a file or a
    folder that is not empty. Then nothing is written."""
    if not str(out).strip():
        raise UserError("--output is empty: name a folder")
    options, target = options or ImportOptions(), Path(out)
    trained = options.trained()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already: name another folder with --output")
    sources = find_sources(source, options.columns)
    files = {kind: [file.name for file in getattr(sources, kind)] for kind in ("table", "state", "scalars")}
    report = Report(str(source), str(target), files, ignored=sources.ignored)
    with whole_folder(target) as part:
        convert, frame = _converted(sources, options, sources.first_step, report)
        if len(frame):
            _write_table(convert, frame, part, trained, report)
        _write_scalars(sources, part, convert.options, convert.first_step, report)
        if not report.rows and not report.metric_lines:
            empty = f"{source} holds neither a response nor a scalar: its files are empty, name others"
            if report.not_stored[NO_STEP]:
                empty = f"{source}: no line has a number as its step: name the column with --columns step=COLUMN"
            raise UserError(report.damage[0] if report.damage else empty)
        write_text(part / IMPORT, json.dumps(vars(report), indent=2, default=asdict) + "\n")
    return report


def _converted(sources: Sources, options: ImportOptions, first: int, report: Report) -> tuple[Converter, pd.DataFrame]:
    """Convert the tables of ``sources``; return the converter and all rows. If the rows show more updates a rollout
    than ``options``, or another first step of a rollout than ``first``, convert again with what they show."""
    report.damage = []
    convert = Converter(options, first, report)
    parts = ((file, part) for file in sources.table for part in read_parts(file, report.damage) if len(part))
    frames = [convert.convert(columns_of(part), file) for file, part in parts]
    if not frames:
        return convert, pd.DataFrame()
    frame, used = pd.concat(frames, ignore_index=True), report.columns
    each = identify(frame, named="response_id" in used, prompts=bool({"prompt_id", "prompt", "tokens"} & used.keys()))
    if options.updates_per_rollout == 1 < each and not {"rollout", "updates_since_rollout"} & used.keys():
        report.note(f"the same responses stand in {each} successive steps: a rollout serves {each} updates")
        options = replace(options, updates_per_rollout=each)
    each, step = options.updates_per_rollout, frame["step"].to_numpy(np.int64)
    named = [frame[name].to_numpy() for name in ("rollout", "response_id", "prompt_id")["rollout" not in used :]]
    found = first_step(step, named, each, first or int(step.min()) % each)
    if (options, found) != (convert.options, first):
        return _converted(sources, options, found, report)
    return convert, frame


def _write_table(convert: Converter, frame: pd.DataFrame, run: Path, trained: Preset | None, report: Report) -> None:
    """Write the rows as a gradient log, and complete the report with what the log holds and lacks.

    Raise UserError if the rows have neither lengths, nor log-ratios, nor texts of responses."""
    options = convert.options
    user = {name.removeprefix(USER_PREFIX): "float64" for name in frame if str(name).startswith(USER_PREFIX)}
    others = convert.seen.keys() - set(report.columns.values())
    report.user_columns, report.unknown_columns = sorted(others & user.keys()), sorted(others - user.keys())
    asked = [*_asked(report)]
    # TRL's files of completions hold neither lengths nor log-ratios, but texts
    if not {"length", "log_ratio", "behaviour_log_ratio", "response"} & (report.columns | report.derived).keys():
        have = ", ".join(dict.fromkeys([*report.undecided, *sorted(others)]))
        raise UserError(
            f"{report.source} has neither lengths nor log-ratios, so nothing could be told by length: "
            f"{'; '.join(asked)}; columns without a known name: {have}"
        )
    metadata: dict[str, Any] = {"imported_from": report.source}
    if trained is not None:
        rule = trained.rule
        metadata["rule"] = rule.to_dict()
        report.derived["rule"] = f"--rule {options.rule}"
        report.note(f"rule {rule.label}: --range-lo {rule.range_lo:g}, --range-hi {rule.range_hi:g} (else name others)")
    metadata |= {"aggregation": options.aggregation} if options.aggregation is not None else {}
    estimator = trained.advantage if trained is not None else "grpo"
    if "advantage" not in report.columns:
        made = group_advantages(frame, estimator) if "reward" in report.columns and convert.grouped else np.zeros(0)
        if known := bool(np.isfinite(made).any()):
            report.derived["advantage"] = f"{report.columns['reward']} within groups, as {estimator} makes them"
        metadata["advantage"], frame["advantage"] = (estimator, made) if known else (NO_ADVANTAGES, 0.0)
    report.digest = convert.watch.finished()
    if seen := report.digest:
        metadata[NOTICED] = [*filter(None, (seen.means, CAUSES[seen.cause][0] if seen.cause else ""))]
    writer = GradLogWriter(run, metadata=metadata, user_columns=user)
    for rollout, rows in frame.groupby("rollout"):
        writer.append(typed_columns(rows))
        writer.flush(int(cast(float, rollout)))
    report.rows, report.rollouts = len(frame), len(frame["rollout"].unique())
    if {*VERSIONS} <= {*frame} and (several := np.count_nonzero(frame[VERSIONS[0]] < frame[VERSIONS[1]])):
        report.note(f"{several} of {len(frame)} responses were sampled by several versions of the weights")
    of = {ratio: np.asarray(frame.get(names.log_ratio, np.nan)) for ratio, names in RATIO_COLUMNS.items()}
    of["total"] = of["update"] + of["behaviour"]
    report.known = {ratio: int(np.isfinite(values).sum()) for ratio, values in of.items()}
    train = {str(name): column.to_numpy() for name, column in frame[frame["phase"] == "train"].items()}
    rollout, step = (np.asarray(train[name], np.int64) for name in ("rollout", "step"))
    counted = counted_updates(rollout, step, train["log_ratio"], train.get("times_used"))[0]
    report.moved = tells_updates({"updates_since_rollout": counted, **train})
    for text in [*convert.watch.notes(), *_missing(report), *asked]:
        report.note(text)


def _missing(report: Report) -> Iterator[str]:
    """Yield a sentence for each missing kind of data (step, versions, ...): what it leaves open, what supplies it."""
    used, found = report.columns, report.columns | report.derived
    if "sampler" in used and "new" in used and not {"old", "log_ratio"} & used.keys():
        yield (
            f"no old log-probabilities: they are taken to be {used['new']} at a rollout's first update, and S is not "
            "known elsewhere (with several updates a rollout, --updates-per-rollout says which are first). If the "
            f"trainer clips the ratio to the sampler's, say --columns old={used['sampler']}"
        )
    if "behaviour_log_ratio" in report.derived and "engine_log_ratio" not in found:
        lacking = [name for name in ("policy_version", "behaviour_version") if name not in used]
        steps = "; if the step counts updates, say --columns policy_version=STEP" * (lacking == ["policy_version"])
        yield f"no {' and no '.join(lacking)}: D + E is known, and neither D nor E alone{steps}"
    if "advantage" not in found:
        yield (
            "no advantages, and no rewards of groups to make them of: A counts as 0, so only the band acceptance is "
            "told; for the others name --columns advantage=COLUMN, or reward=COLUMN,prompt_id=COLUMN (or --group-size)"
        )
    ratio = {"log_ratio", "behaviour_log_ratio"} & found.keys()
    if ratio and {"old", "log_ratio"} & used.keys() and (lacking_rows := report.rows - max(report.known.values())):
        yield (
            f"no log-ratio in {lacking_rows} of {report.rows} rows, where a log-probability is NaN or missing; name a "
            "mask that is 0 at such tokens (--columns mask=COLUMN), or give them a log-probability"
        )
    if each := [n for n in (*report.user_columns, *report.unknown_columns) if re.search("mini.?batch", n.lower())]:
        yield f"if {each[0]} counts a rollout's updates, from 0, say --columns updates_since_rollout={each[0]}"
    if not {"step", "rollout"} & found.keys():
        yield "no step: all responses count as one update of one rollout; say --columns step=COLUMN"


def _asked(report: Report) -> Iterator[str]:
    """Yield sentences on missing log-ratios and lengths; they ask whose log-probabilities undecided columns hold."""
    used, found = report.columns, report.columns | report.derived
    if not {"log_ratio", "behaviour_log_ratio"} & found.keys():
        if report.undecided:
            also = "".join(f",{name}=COLUMN" for name in ("step", "prompt_id", "reward") if name not in found)
            yield (
                f"whose log-probabilities are these? {', '.join(report.undecided)}: say with --columns new=COLUMN,"
                f"old=COLUMN,sampler=COLUMN{also} as far as they are there. new - old makes S, old - sampler D + E"
            )
        else:
            have = next((f"only {used[role]}" for role in ("new", "old", "sampler") if role in used), "")
            yield f"{have or 'no log-probabilities'}, so no ratio can be made: only lengths, rewards and versions tell"
    elif "log_ratio" not in found:
        new = f"; is {' or '.join(report.undecided)} the new policy's? --columns new=COLUMN" * bool(report.undecided)
        yield f"no log_ratio: S is not known, and D + E is (--on behaviour){new}"
    if "length" not in found:
        spare = [*report.user_columns, *report.unknown_columns]
        lengths = [n for n in spare if re.search("len|tok", n.lower()) and not is_log_probability(n)]
        may = f"; may it be {' or '.join(lengths)}?" if lengths else ""
        yield f"no length: nothing can be told by length; say --columns length=COLUMN{may}"


def _write_scalars(sources: Sources, run: Path, options: ImportOptions, first: int, report: Report) -> None:
    """Write metrics.jsonl from every scalar of the sources, one line for each step and phase; what was used goes into
    ``report``. The run's first update has the number ``first``."""
    lines: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    theirs = {name: ours for ours, name in options.columns.items()}
    for file in [*reversed(sources.state), *sources.scalars]:
        if lines and file in sources.state:
            continue  # a later state has been read, which repeats earlier ones
        seen: Counter[tuple[int, str]] = Counter()
        for step, row in _records(file, options.columns.get("step"), report):
            for name, value in row.items():
                if not isinstance(value, (int, float)) or not math.isfinite(value):
                    report.not_stored[name] += 1
                    continue
                seen[step, name] += 1
                phase, plain, stored = metric_name(name)
                stored = theirs.get(name, stored)
                lines[step, phase].setdefault(stored, float(value))  # of two sources that read first counts
                if not stored.startswith(FOREIGN):
                    report.metrics[plain if phase == "train" else f"{phase}/{plain}"] = stored
        if seen.total() > 2 * len(seen):
            raise UserError(
                f"{file} has many lines for each step, as a table with a row for each response has: name its columns "
                "with --columns length=COLUMN,new=COLUMN,old=COLUMN,sampler=COLUMN as far as they are there; it has "
                f"{', '.join(dict.fromkeys(name for _, name in seen))}"
            )
    foreign = {name for values in lines.values() for name in values if name.startswith(FOREIGN)}
    report.foreign_metrics, report.metric_lines = sorted(n.removeprefix(FOREIGN) for n in foreign), len(lines)
    MetricsFile(run).write_all(
        {"rollout": max(step - first, 0) // options.updates_per_rollout, "step": step, "phase": phase, **values}
        for (step, phase), values in sorted(lines.items())
    )


def _records(file: Path, step_name: str | None, report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the step and a dict of all other values of each line with a step (column ``step_name``, or guessed)."""
    for part in read_parts(file, report.damage):
        for record in part if isinstance(part, list) else part.to_pylist():
            # Weights & Biases puts a run's name and " - " before each scalar, and adds its extremes
            told = {n: v for n, v in dissolved(record, "/").items() if v is not None}
            runs = sorted({n.partition(" - ")[0] for n in told if " - " in n})
            if len(runs) > 1:
                raise UserError(f"{file} has the scalars of {len(runs)} runs ({', '.join(runs[:3])}): export one run")
            row = {n.rpartition(" - ")[2]: v for n, v in told.items() if not n.endswith(("__MIN", "__MAX"))}
            name = step_name or step_column(row)
            step = row.get(name) if name else None
            if isinstance(step, (int, float)) and math.isfinite(step):
                yield int(step), {n: v for n, v in row.items() if n not in (name, "epoch")}
            else:
                report.not_stored[NO_STEP] += 1
