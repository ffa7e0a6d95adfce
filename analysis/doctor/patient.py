"""What the checks look at: the rows of a run as plain arrays, its metrics, and intervals over its clusters."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from scipy import stats as sps

from analysis.doctor.findings import Evidence
from analysis.stats import MIN_CLUSTERS, mean_interval, proportion_interval, ratios
from fspo.errors import UserError
from fspo.gradlog import FOLDER, GradLog, read_log
from fspo.rules import PRESETS, Rule

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
READ = (
    *("rollout", "step", "updates_since_rollout", "phase", "prompt_id", "response_id", "length", "truncated"),
    *("log_ratio", "reward", "advantage", "lo", "hi", "band_accept", "side", "multiplier", "weight", "drift"),
)
IDS = ("rollout", "step", "prompt_id", "response_id")
METRICS = "metrics.jsonl"
MAX_ROWS = 1_000_000
"""Beyond this many rows evenly spread rollouts are read: intervals are narrow by then, and memory is bounded."""
MIN_LINES = 8
"""Lines of metrics.jsonl that a scalar needs before it is judged, where there are no rows to look at."""
MIN_ROWS = 50
"""Below this many rows a share says too little to be a finding."""


class Rows:
    """Columns of some rows, each (N,); NaN where unknown. A selection copies a column when it is asked for.

    Parameters
    ----------
    columns : dict of arrays
        Of all rows.
    which : int array (N,), optional
        The rows that are meant; all by default.
    """

    def __init__(self, columns: dict[str, NDArray[Any]], which: Ints | None = None) -> None:
        self.columns = columns
        self.which = which
        self._taken: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if self.which is None:
            return self.columns[name]
        if name not in self._taken:
            self._taken[name] = self.columns[name][self.which]
        return self._taken[name]

    def __len__(self) -> int:
        return len(self.columns["log_ratio"]) if self.which is None else len(self.which)

    def take(self, which: NDArray[Any]) -> Rows:
        """The rows of a mask (N,)."""
        index = np.flatnonzero(which)
        return Rows(self.columns, index if self.which is None else self.which[index])

    def has(self, *names: str) -> bool:
        """Whether every one of these is known somewhere."""
        return all(bool(np.isfinite(self[name]).any()) for name in names)

    @cached_property
    def S(self) -> Floats:
        """log_ratio."""
        return self["log_ratio"]

    @cached_property
    def L(self) -> Floats:
        """length, at least 1."""
        return np.maximum(self["length"], 1.0)

    @cached_property
    def cluster(self) -> Ints:
        """Dense numbers of (rollout, prompt)."""
        return pd.factorize(self["cluster"])[0].astype(np.int64)

    @cached_property
    def clusters(self) -> int:
        """How many clusters there are."""
        return int(self.cluster.max()) + 1 if len(self) else 0

    def share(self, name: str, event: NDArray[Any], level: float = 0.95) -> Evidence:
        """Share of rows with an event (N,), with its interval."""
        if len(self) == 0:
            return Evidence(name, math.nan, unit="share")
        zero = np.zeros(len(self), np.int64)
        r = ratios(np.asarray(event, np.float64), self.cluster, zero, 1, binary=True)
        low, high = proportion_interval(r.value, r.variance, r.count, r.clusters, level)
        return Evidence(name, float(r.value[-1]), float(low[-1]), float(high[-1]), "share")

    def mean(self, name: str, y: Floats, d: Floats | None = None, unit: str = "") -> Evidence:
        """Ratio sum(y) / sum(d), or the mean of y (N,), with its interval."""
        if len(self) == 0:
            return Evidence(name, math.nan, unit=unit)
        r = ratios(y, self.cluster, np.zeros(len(self), np.int64), 1, d)
        low, high = mean_interval(r.value, r.variance, r.clusters)
        return Evidence(name, float(r.value[-1]), float(low[-1]), float(high[-1]), unit)


@dataclass(frozen=True)
class Patient:
    """One run.

    Attributes
    ----------
    rows : Rows
        Of phase train, finite or not.
    noise : Rows
        Of phase noise (a rollout at learning rate 0).
    metrics : dict
        Values of metrics.jsonl by name, train lines only, in order; each (rollout, value).
    """

    path: Path
    rule: Rule | None
    aggregation: str | None
    rows: Rows
    noise: Rows
    logged: frozenset[str]
    metrics: dict[str, list[tuple[float, float]]]
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def finite(self) -> Rows:
        """Train rows with a finite S and at least one token."""
        return self.rows.take(np.isfinite(self.rows.S) & (self.rows["length"] >= 1))

    @cached_property
    def moved(self) -> Rows:
        """Of these, rows that have seen an update since their rollout."""
        return self.finite.take(self.finite["updates_since_rollout"] >= 1)

    @cached_property
    def unmoved(self) -> Rows:
        """Rows at the parameters that the old log-probabilities were taken with: S there is numerics alone."""
        still = self.finite.take(self.finite["updates_since_rollout"] == 0)
        if len(self.noise) == 0:
            return still
        noise = self.noise.take(np.isfinite(self.noise.S) & (self.noise["length"] >= 1))
        return Rows({name: np.concatenate([still[name], noise[name]]) for name in self.rows.columns})

    @cached_property
    def responses(self) -> Rows:
        """Each response once, at its first row."""
        again = pd.Series(_pairs(self.rows["rollout"], self.rows["response_id"])).duplicated().to_numpy()
        return self.rows.take(~again)

    def band(self, rows: Rows) -> tuple[Floats, Floats] | None:
        """Edges of the band on S (N,): as logged, or by the header's rule; None where there is none."""
        if rows.has("lo", "hi") and not np.isinf(rows["lo"]).all():
            return rows["lo"], rows["hi"]
        rule = self.rule
        if rule is None or rule.level != "sequence" or rule.shape == "none" or rule.needs_stats:
            return None
        return rule.band(rows.L)

    def out_of_band(self, rows: Rows) -> Mask | None:
        """Whether S lies outside the band (N,); for token rules whether any token does."""
        band = self.band(rows)
        if band is not None:
            return (band[0] > rows.S) | (band[1] < rows.S)
        if "band_accept" in self.logged and self.rule is not None and self.rule.shape != "none":
            return rows["band_accept"] == 0
        return None

    def metric(self, name: str) -> Floats:
        """Values of a metric, in order; empty if it was not logged."""
        return np.array([value for _, value in self.metrics.get(name, [])])

    def over_lines(self, name: str, label: str) -> Evidence | None:
        """Mean of a logged share over the last quarter of metrics.jsonl, lines taken as independent; None: too few."""
        values = self.metric(name)
        if len(values) < MIN_LINES:
            return None
        values = values[-max(len(values) // 4, MIN_LINES) :]
        half = float(sps.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
        mean = float(values.mean())
        return Evidence(label, mean, mean - half, mean + half, "share")


def admit(run: str | Path) -> Patient:
    """Read a run folder.

    Raises
    ------
    UserError
        If there is neither a readable gradient log nor a metrics.jsonl.
    """
    path = Path(run)
    if not path.is_dir():
        raise UserError(f"{path} is no folder: give a run folder, or make one with `python -m analysis import`")
    if not any((path / FOLDER).glob("*.parquet")) and (path / METRICS).is_file():
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
        raise UserError(f"{path}: no row of phase train; the doctor examines a training run")
    logged = frozenset(name for name in READ if name in log)
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
    """A run of which only scalars are known, as other trainers log."""
    notes = ["no gradient log: only metrics.jsonl is examined, and most checks need rows"]
    metrics = _metrics(path, notes)
    if not metrics:
        raise UserError(f"{path} has no gradient log and no number in {METRICS}: nothing to examine")
    names = [*(name for name in READ if name != "phase"), "cluster"]
    empty = {name: np.zeros(0, np.int64 if name in (*IDS, "cluster") else np.float64) for name in names}
    return Patient(path, None, None, Rows(empty), Rows(empty), frozenset(), metrics, tuple(notes))


def _read(path: Path) -> tuple[GradLog, str]:
    """The log, or evenly spread rollouts of a long one and a line that says so."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sizes: dict[int, int] = {}
    for file in sorted((path / FOLDER).glob("rollout-*.parquet")):
        try:
            rows = pq.read_metadata(file).num_rows
            rollout = int(file.name.split("-")[1])
        except (pa.ArrowInvalid, OSError, ValueError):
            continue  # read_log counts it as damage
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


def _pairs(a: Ints, b: Ints) -> Ints:
    """A number for each pair (N,), by hashing: sorting rows of two columns takes a hundred times as long."""
    first, second = pd.factorize(a)[0].astype(np.int64), pd.factorize(b)[0].astype(np.int64)
    return first * (int(second.max(initial=0)) + 1) + second


def _columns(log: GradLog, notes: list[str]) -> dict[str, NDArray[Any]]:
    """Every column as float64 (N,), NaN where null; identifiers as integers."""
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
    out["cluster"] = _pairs(out["rollout"], out["prompt_id"])
    if "updates_since_rollout" not in log:
        number, code = np.unique(out["rollout"], return_inverse=True)
        first = np.full(len(number), np.iinfo(np.int64).max)
        np.minimum.at(first, code, out["step"])
        out["updates_since_rollout"] = (out["step"] - first[code]).astype(np.float64)
        several = bool(np.any(out["updates_since_rollout"] > 0))
        if not several and np.any(np.nan_to_num(out["log_ratio"]) != 0):
            out["updates_since_rollout"][:] = 1.0  # one step a rollout and S moves: the step counts rollouts
            notes.append("no column updates_since_rollout, one step a rollout: all rows count as after an update")
        else:
            notes.append("no column updates_since_rollout: counted from each rollout's first step")
    return out


def _aggregation(path: Path, log: GradLog) -> str | None:
    """How the loss was averaged: the log's header, config.yaml, or that config's preset."""
    if isinstance(named := log.metadata.get("aggregation"), str):
        return named
    file = path / "config.yaml"
    if not file.is_file():
        return None
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is no valid YAML: {str(error).splitlines()[0]}") from error
    rule = config.get("rule") if isinstance(config, dict) else None
    if not isinstance(rule, dict):
        return None
    named = rule.get("aggregation")
    given = PRESETS.get(str(rule.get("preset")))
    return str(named) if named else given.aggregation if given else None


def _metrics(path: Path, notes: list[str]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    file = path / METRICS
    if not file.is_file():
        return found
    torn = 0
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            torn += 1
            continue
        if not isinstance(record, dict) or record.get("phase", "train") != "train":
            continue
        rollout = record.get("rollout", math.nan)
        for name, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(name, []).append((float(rollout), float(value)))
    if torn:
        notes.append(f"damaged: {torn} lines of metrics.jsonl")
    return found


def enough(rows: Rows) -> str:
    """Why these rows are too few for a finding; "" if they are not."""
    if len(rows) < MIN_ROWS:
        return f"{len(rows)} rows, {MIN_ROWS} are wanted"
    if rows.clusters < MIN_CLUSTERS:
        return f"{rows.clusters} prompts, {MIN_CLUSTERS} are wanted"
    return ""
