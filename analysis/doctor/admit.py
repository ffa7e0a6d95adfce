"""Read a run folder for the doctor: the gradient log of any trainer, or only metrics.jsonl."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.doctor.patient import Patient, Rows, pairs
from analysis.log.usable import counted_updates
from fspo.base.errors import UserError
from fspo.gradlog import GradLog, read_log
from fspo.gradlog.files import log_paths, rollout_of
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import METRICS, saved_config
from fspo.rules import PRESETS

READ = (
    *("rollout", "step", "updates_since_rollout", "phase", "prompt_id", "response_id", "length", "truncated"),
    *("log_ratio", "reward", "advantage", "lo", "hi", "band_accept", "side", "multiplier", "weight", "drift"),
)
IDS = ("rollout", "step", "prompt_id", "response_id")
MAX_ROWS = 1_000_000
"""Largest number of rows that are read into memory. Of a longer log, evenly spread rollouts are read."""


def admit(run: str | Path) -> Patient:
    """Read a run folder for the checks.

    Raises
    ------
    UserError
        If there is neither a readable gradient log nor a metrics.jsonl.
    """
    path = Path(run)
    if not path.is_dir():
        raise UserError(f"{path} is no folder: give a run folder, or make one with `python -m analysis import`")
    if not log_paths(path) and (path / METRICS).is_file():
        return _scalars_alone(path)
    log, spread = _read(path)
    if len(log) == 0:
        raise UserError(f"{path}: the gradient log has no rows; train or import at least one rollout")
    notes = [spread] if spread else []
    notes += [f"damaged: {line}" for line in log.damage]
    columns = _columns(log, notes)
    phase = log.column("phase") if "phase" in log else np.full(len(log), "train")
    everything = Rows(columns)
    train = np.isin(phase, ("train", ""))
    if not train.any():
        raise UserError(f"{path}: no row of phase train: name a run folder whose trainer has made updates")
    # An imported table without S has NaN in that column, which means unknown; in any other log NaN means broken.
    unknown = {"log_ratio", "advantage"} if "imported_from" in log.metadata else set()
    logged = frozenset(
        name for name in READ if name in log and not (name in unknown and np.isnan(columns[name][train]).all())
    )
    if short := int(np.sum(columns["length"][train] < 1)):
        notes.append(
            f"{short} of {int(train.sum())} rows have a length below 1: unknown, and left out where it matters"
        )
    rule = log.rule if "rule" in log.metadata else None
    return Patient(
        path=path,
        rule=rule,
        aggregation=_aggregation(path, log),
        rows=everything.take(train),
        noise=everything.take(phase == "noise"),
        logged=logged,
        metrics=_metrics(path, notes),
        notes=tuple(notes),
    )


def _scalars_alone(path: Path) -> Patient:
    """Read a run of which only scalar metrics are known, as other trainers log them."""
    notes = ["no gradient log: only metrics.jsonl is examined, and most checks need rows"]
    metrics = _metrics(path, notes)
    if not metrics:
        raise UserError(
            f"{path} has no gradient log and no number in {METRICS}: nothing to examine; name a run that "
            "has begun to train"
        )
    names = [*(name for name in READ if name != "phase"), "cluster"]
    empty = {name: np.zeros(0, np.int64 if name in (*IDS, "cluster") else np.float64) for name in names}
    return Patient(path, None, None, Rows(empty), Rows(empty), frozenset(), metrics, tuple(notes))


def _read(path: Path) -> tuple[GradLog, str]:
    """Read the log, or evenly spread rollouts of a long one; return it with a line that says which."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sizes: dict[int, int] = {}
    for file in log_paths(path):
        try:
            rows = pq.read_metadata(file).num_rows
            rollout = rollout_of(file)
        except (pa.ArrowInvalid, OSError, ValueError):
            continue  # read_log reports the file as damaged
        sizes[rollout] = sizes.get(rollout, 0) + rows
    total = sum(sizes.values())
    if total <= MAX_ROWS or len(sizes) < 2:
        return read_log(path, columns=READ, phases=None), ""
    number = max(len(sizes) * MAX_ROWS // total, 2)
    chosen = np.array(sorted(sizes))[np.unique(np.linspace(0, len(sizes) - 1, number).round().astype(int))]
    parts = [read_log(path, columns=READ, phases=None, rollouts=(int(r), int(r))) for r in chosen]
    table = pa.concat_tables([part.table for part in parts], promote_options="permissive")
    damage = [line for part in parts for line in part.damage]
    note = f"{len(chosen)} of {len(sizes)} rollouts examined, evenly spread: the log has {total} rows"
    return GradLog(table, parts[0].metadata, damage), note


def _columns(log: GradLog, notes: list[str]) -> dict[str, NDArray[Any]]:
    """Return every column as float64 (N,), NaN where null; identifiers as integers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    out: dict[str, NDArray[Any]] = {}
    for name in READ:
        if name == "phase":
            continue
        if name in IDS:
            out[name] = log.column(name).astype(np.int64)
        elif name not in log:
            out[name] = np.full(len(log), np.nan)
        else:
            column = log.table[name]
            if pa.types.is_boolean(column.type):
                column = pc.cast(column, pa.int8())  # type: ignore[attr-defined]
            out[name] = np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)  # type: ignore[attr-defined]
    out["cluster"] = pairs(out["rollout"], out["prompt_id"])
    if "updates_since_rollout" not in log:
        updates, by_rollout = counted_updates(out["rollout"], out["step"], out["log_ratio"])
        out["updates_since_rollout"] = updates.astype(np.float64)
        notes.append(
            "no column updates_since_rollout, one step a rollout: all rows count as after an update"
            if by_rollout
            else "no column updates_since_rollout: counted from each rollout's first step"
        )
    return out


def _aggregation(path: Path, log: GradLog) -> str | None:
    """Find how the loss was averaged, from the log's header, config.yaml, or the preset that config.yaml names."""
    if isinstance(named := log.metadata.get("aggregation"), str):
        return named
    rule = saved_config(path).get("rule")
    if not isinstance(rule, dict):
        return None
    named = rule.get("aggregation")
    given = PRESETS.get(str(rule.get("preset")))
    return str(named) if named else given.aggregation if given else None


def _metrics(path: Path, notes: list[str]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    file = MetricsFile(path)
    for record in file.of_phase("train"):
        rollout = record.get("rollout", math.nan)
        for name, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(name, []).append((float(rollout), float(value)))
    if torn := len(file.read()[1]):
        notes.append(f"damaged: {torn} lines of {METRICS}")
    return found
