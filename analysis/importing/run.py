"""Import another trainer's log into a run folder, which has a temporary name until it is complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from analysis.importing.chunk import TOKENS
from analysis.importing.convert import (
    VERSIONS,
    Converter,
    ImportOptions,
    choose_columns,
    group_advantages,
    typed_columns,
    undecided,
)
from analysis.importing.names import COLUMNS, canonical, is_log_probability, role_of
from analysis.importing.report import Report
from analysis.importing.scalars import NO_STEP, import_scalars
from analysis.importing.sources import Sources, find_sources
from analysis.importing.tables import read_chunks
from analysis.log.usable import counted_updates
from fspo.base.errors import UserError, unknown_name
from fspo.base.files import whole_folder, write_text
from fspo.gradlog import GradLogWriter
from fspo.gradlog.run_folder import IMPORT
from fspo.gradlog.schema import NO_ADVANTAGES, RATIO_COLUMNS, USER_PREFIX
from fspo.rules import Aggregation, Rule


def import_run(
    source: str | Path,
    out: str | Path,
    options: ImportOptions | None = None,
) -> Report:
    """Read the log of another trainer and write the run folder ``out``.

    Raise UserError if an option is invalid, the source holds nothing that can be analysed, or ``out`` is a file or a
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
    sources = find_sources(source, options.columns)
    report = Report(str(source), str(target), ignored=list(sources.ignored))
    for kind in ("table", "state", "scalars"):
        if files := getattr(sources, kind):
            report.files[kind] = [file.name for file in files]
    with whole_folder(target) as part:
        _import_table(sources, part, rule, options, report)
        import_scalars(sources, part, options.updates_per_rollout, options.columns, report)
        # TRL's files of completions hold neither lengths nor log-ratios, but texts
        told_by = {"length", "log_ratio", "behaviour_log_ratio", "response"}
        if report.rows and not told_by & (report.columns | report.derived).keys():
            have = ", ".join(dict.fromkeys([*report.undecided, *report.user_columns, *report.unknown_columns]))
            raise UserError(
                f"{source} has neither lengths nor log-ratios, so nothing could be told by length: name their "
                "columns with --columns length=COLUMN,log_ratio=COLUMN or, where tokens' log-probabilities are "
                f"there, old=COLUMN,sampler=COLUMN; columns without a known name: {have}"
            )
        if not report.rows and not report.metric_lines:
            empty = f"{source} holds neither a response nor a scalar: its files are empty, name others"
            if report.not_stored[NO_STEP]:
                empty = f"{source}: no line has a number as its step: name the column with --columns step=COLUMN"
            raise UserError(report.damage[0] if report.damage else empty)
        write_text(part / IMPORT, json.dumps(report.to_dict(), indent=2) + "\n")
    return report


def _import_table(
    sources: Sources,
    run: Path,
    rule: Rule | None,
    options: ImportOptions,
    report: Report,
) -> None:
    import pandas as pd

    convert = Converter(options, sources.first_step)
    frames: list[pd.DataFrame] = []
    seen: dict[str, None] = {}
    user: dict[str, str] = {}
    for file, chunk in ((path, chunk) for path in sources.table for chunk in read_chunks(path, report.damage)):
        present = {canonical(name) for name in chunk}  # a later file may lack a column of the first
        given = {k: v for k, v in options.columns.items() if not frames or canonical(v) in present}
        chosen = choose_columns(list(chunk), given)
        spare = [name for name in chunk if name not in chosen.values()]
        if not frames:
            user = {name: "float64" for name in spare if chunk[name].kind == "number"}
        report.columns |= chosen
        report.undecided += [name for name in undecided(list(chunk), chosen) if name not in report.undecided]
        seen |= dict.fromkeys(spare)
        rows = convert.convert(chunk, file, chosen)
        rows |= {USER_PREFIX + n: chunk[n].numbers() for n in user if n in chunk and chunk[n].kind == "number"}
        frames.append(pd.DataFrame({n: list(v) if isinstance(v, list) else v for n, v in rows.items()}))
    if not frames:
        return
    for role, theirs in report.columns.items():
        known = {canonical(alias) for alias in COLUMNS[role]}
        if role not in options.columns and canonical(theirs) not in known and role_of(theirs) == role:
            convert.notes[f"{theirs} is read as log-probabilities of role {role!r}, by the words of its name"] = None
    frame = pd.concat(frames, ignore_index=True)
    metadata: dict[str, Any] = {"imported_from": report.source}
    if rule is not None:
        metadata["rule"] = rule.to_dict()
        report.derived["rule"] = f"--rule {options.rule}"
    if options.aggregation is not None:
        metadata["aggregation"] = options.aggregation
    if "advantage" not in convert.kinds:
        made = convert.makes_advantages
        metadata["advantage"] = convert.estimator if made else NO_ADVANTAGES
        frame["advantage"] = group_advantages(frame, convert.estimator) if made else 0.0
    writer = GradLogWriter(run, metadata=metadata, user_columns=user)
    for rollout, rows in frame.groupby("rollout"):
        writer.append(typed_columns(rows))
        writer.flush(int(cast(float, rollout)))
    report.rows, report.rollouts = len(frame), len(frame["rollout"].unique())
    if {*VERSIONS} <= {*frame} and (several := np.count_nonzero(frame[VERSIONS[0]] < frame[VERSIONS[1]])):
        report.notes.append(f"{several} of {len(frame)} responses were sampled by several versions of the weights")
    names = {ratio: columns.log_ratio for ratio, columns in RATIO_COLUMNS.items()}
    of = {
        ratio: frame[name].to_numpy() if name in frame else np.full(len(frame), np.nan) for ratio, name in names.items()
    }
    of["total"] = of["update"] + of["behaviour"]
    rollout, step = (np.asarray(frame[name], np.int64) for name in ("rollout", "step"))
    counted = counted_updates(rollout, step, of["update"])[0]
    updates = np.asarray(frame["updates_since_rollout"]) if "updates_since_rollout" in frame else counted
    report.moved = bool(np.any(np.isfinite(of["update"]) & (updates >= 1)))
    report.known = {ratio: int(np.isfinite(values).sum()) for ratio, values in of.items()}
    report.digest = convert.watch.finished()
    report.notes += [*convert.watch.notes(), *convert.notes]
    if rule is not None:
        text = f"rule {rule.label}: range_lo {rule.range_lo:g}, range_hi {rule.range_hi:g}"
        report.notes.append(f"{text}; --range-lo and --range-hi name another range")
    others = seen.keys() - set(report.columns.values())
    report.user_columns, report.unknown_columns = sorted(others & user.keys()), sorted(others - user.keys())
    _derived(convert, options, report)


def _derived(convert: Converter, options: ImportOptions, report: Report) -> None:
    """Write into the report which columns of the log were computed and from what, and why others are missing."""
    used, kinds, derived, notes = report.columns, convert.kinds, report.derived, report.notes
    listed = [name for name in TOKENS if kinds.get(name) == "list"]
    if "new" in used and "old" in used and "log_ratio" not in used:
        derived["log_ratio"] = f"{used['new']} - {used['old']}"
    if "sampler" in used and (base := used.get("old") or used.get("new")):
        derived["behaviour_log_ratio"] = f"{base} - {used['sampler']}"
        if "old" not in used:
            derived["log_ratio"] = "0 at a rollout's first update"
            notes.append(
                f"no old log-probabilities: they are {base} at a rollout's first update (--updates-per-rollout tells "
                "which these are), where S is 0; later updates have neither ratio. If the trainer clips the ratio to "
                f"the sampler's, say --columns old={used['sampler']}"
            )
        if lacking := [name for name in ("policy_version", "behaviour_version") if name not in used]:
            notes.append(f"no {' and no '.join(lacking)}: D + E is known, and neither D nor E alone")
        else:
            derived["engine_log_ratio"] = "D + E where the versions are equal"
    if listed:
        derived["length"] = used.pop("mask", None) or f"tokens of {used[listed[0]]}"
    elif "total_length" in used:
        derived["length"] = f"{used['total_length']} - {used['prompt_length']}"
    if convert.makes_advantages:
        derived["advantage"] = f"{used['reward']} within groups, as {convert.estimator} makes them"
    elif "advantage" not in used:
        notes.append(
            "no advantages, and no rewards of groups to make them of: A counts as 0, so only the band acceptance is "
            "told; for the others name --columns advantage=COLUMN, or reward=COLUMN,prompt_id=COLUMN (or --group-size)"
        )
    _asked(report)
    if {"old", "log_ratio"} & used.keys() and (lacking := report.rows - max(report.known.values())):
        notes.append(
            f"no log-ratio in {lacking} of {report.rows} rows, where a log-probability is NaN or missing; name a mask "
            "that is 0 at such tokens (--columns mask=COLUMN), or give them a log-probability"
        )
    if "step" not in used and not any(note.startswith("step:") for note in notes):
        notes.append("no step: all responses count as one update of one rollout")


def _asked(report: Report) -> None:
    """Note what the log lacks and which columns may hold it, without a guess."""
    used, found = report.columns, report.columns.keys() | report.derived.keys()
    probabilities = [*(used[role] for role in ("new", "old", "sampler") if role in used), *report.undecided]
    if not {"log_ratio", "behaviour_log_ratio"} & found:
        if report.undecided:
            report.notes.append(
                f"whose log-probabilities are these? {', '.join(report.undecided)}: say with --columns new=COLUMN,"
                "old=COLUMN,sampler=COLUMN as far as they are there; new less old makes S, old less sampler D + E"
            )
        else:
            have = f"only {probabilities[0]}" if probabilities else "no log-probabilities"
            report.notes.append(f"{have}, so no ratio can be made: only lengths, rewards and versions tell")
    elif "log_ratio" not in found:
        report.notes.append("no log_ratio: S is not known, and D + E is (--on behaviour)")
    if "length" not in found:
        spare = [*report.user_columns, *report.unknown_columns]
        lengths = [n for n in spare if re.search("len|tok", n.lower()) and not is_log_probability(n)]
        may = f"; may it be {' or '.join(lengths)}?" if lengths else ""
        report.notes.append(f"no length: nothing can be told by length; say --columns length=COLUMN{may}")
