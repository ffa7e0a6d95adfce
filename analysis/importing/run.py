"""Import another trainer's log into a run folder, which has a temporary name until it is complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd

from analysis.importing.convert import VERSIONS, Converter, ImportOptions, group_advantages, typed_columns
from analysis.importing.names import is_log_probability
from analysis.importing.report import Report
from analysis.importing.scalars import NO_STEP, import_scalars
from analysis.importing.sources import Sources, find_sources, read_chunks
from analysis.importing.watch import CAUSES
from analysis.log.rows import first_step, identify
from analysis.log.usable import counted_updates, tells_updates
from fspo.base.errors import UserError, unknown_name
from fspo.base.files import whole_folder, write_text
from fspo.gradlog import GradLogWriter
from fspo.gradlog.run_folder import IMPORT
from fspo.gradlog.schema import NO_ADVANTAGES, NOTICED, RATIO_COLUMNS, USER_PREFIX
from fspo.rules import Aggregation, Rule


def import_run(source: str | Path, out: str | Path, options: ImportOptions | None = None) -> Report:
    """Read the log of another trainer, write the run folder ``out``, and return what was used and what is missing.

    Raise UserError if an option is invalid, the source holds nothing that can be analysed, or ``out`` is a file or a
    folder that is not empty. Then nothing is written."""
    if not str(out).strip():
        raise UserError("--output is empty: name a folder")
    options, target = options or ImportOptions(), Path(out)
    rule = options.trained_rule()
    if options.aggregation is not None and options.aggregation not in get_args(Aggregation):
        raise unknown_name("--aggregation", options.aggregation, get_args(Aggregation))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already: name another folder with --output")
    sources = find_sources(source, options.columns)
    files = {kind: [file.name for file in getattr(sources, kind)] for kind in ("table", "state", "scalars")}
    report = Report(str(source), str(target), files, ignored=sources.ignored)
    with whole_folder(target) as part:
        convert, frame = _converted(sources, options, report)
        if len(frame):
            _write_table(convert, frame, part, rule, report)
        import_scalars(sources, part, convert.options.updates_per_rollout, options.columns, report)
        if not report.rows and not report.metric_lines:
            empty = f"{source} holds neither a response nor a scalar: its files are empty, name others"
            if report.not_stored[NO_STEP]:
                empty = f"{source}: no line has a number as its step: name the column with --columns step=COLUMN"
            raise UserError(report.damage[0] if report.damage else empty)
        write_text(part / IMPORT, json.dumps(vars(report), indent=2, default=asdict) + "\n")
    return report


def _converted(sources: Sources, options: ImportOptions, report: Report) -> tuple[Converter, pd.DataFrame]:
    """Convert the tables of ``sources``; return the converter and all rows. If the rows show more updates a
    rollout than ``options``, or another first step than ``sources.first_step``, convert again with what they show."""
    report.damage = []
    convert = Converter(options, sources.first_step, report)
    frames = [convert.convert(chunk, file) for file in sources.table for chunk in read_chunks(file, report.damage)]
    if not frames:
        return convert, pd.DataFrame()
    frame, used = pd.concat(frames, ignore_index=True), report.columns
    each = identify(frame, named="response_id" in used, prompts=bool({"prompt_id", "prompt", "tokens"} & used.keys()))
    if options.updates_per_rollout == 1 < each and not {"rollout", "updates_since_rollout"} & used.keys():
        report.note(f"the same responses stand in {each} successive steps: a rollout serves {each} updates")
        options = replace(options, updates_per_rollout=each)
    each, step = options.updates_per_rollout, frame["step"].to_numpy(np.int64)
    named = [frame[name].to_numpy() for name in ("rollout", "response_id", "prompt_id")["rollout" not in used :]]
    first = first_step(step, named, each, sources.first_step or int(step.min()) % each)
    if (options, first) == (convert.options, sources.first_step):
        return convert, frame
    sources.first_step = first
    return _converted(sources, options, report)


def _write_table(convert: Converter, frame: pd.DataFrame, run: Path, rule: Rule | None, report: Report) -> None:
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
    if rule is not None:
        metadata["rule"] = rule.to_dict()
        report.derived["rule"] = f"--rule {options.rule}"
        ranges = f"range_lo {rule.range_lo:g}, range_hi {rule.range_hi:g}"
        report.note(f"rule {rule.label}: {ranges}; --range-lo and --range-hi name another range")
    if options.aggregation is not None:
        metadata["aggregation"] = options.aggregation
    if "advantage" not in report.columns:
        made = "reward" in report.columns and convert.grouped
        metadata["advantage"] = convert.estimator if made else NO_ADVANTAGES
        frame["advantage"] = group_advantages(frame, convert.estimator) if made else 0.0
        if made:
            report.derived["advantage"] = f"{report.columns['reward']} within groups, as {convert.estimator} makes them"
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
    unknown = np.full(len(frame), np.nan)
    of = {ratio: np.asarray(frame.get(columns.log_ratio, unknown)) for ratio, columns in RATIO_COLUMNS.items()}
    of["total"] = of["update"] + of["behaviour"]
    report.known = {ratio: int(np.isfinite(values).sum()) for ratio, values in of.items()}
    train = np.asarray(frame["phase"] == "train")
    told = {str(name): column.to_numpy()[train] for name, column in frame.items()}
    rollout, step = (np.asarray(told[name], np.int64) for name in ("rollout", "step"))
    counted = counted_updates(rollout, step, told["log_ratio"], told.get("times_used"))[0]
    report.moved = tells_updates({"updates_since_rollout": counted, **told})
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
    if {"old", "log_ratio"} & used.keys() and (lacking_rows := report.rows - max(report.known.values())):
        yield (
            f"no log-ratio in {lacking_rows} of {report.rows} rows, where a log-probability is NaN or missing; name a "
            "mask that is 0 at such tokens (--columns mask=COLUMN), or give them a log-probability"
        )
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
