"""Tables on disk: RUN/analysis/NAME.csv and NAME.parquet, written whole and renamed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.log.partition import LENGTH, Partition, renamed
from fspo.base.errors import UserError
from fspo.base.files import whole_file, write_text, writing

FOLDER = "analysis"
KEYS = ["run", "trained_rule", "seed"]
CASE = [*KEYS, "rule", "outside", "source", "target", "subset", "use"]
LENGTHS = ["bin", "length_lo", "length_hi", "length_mean"]
INTERVAL = ["estimate", "ci_low", "ci_high"]
COLUMNS: dict[str, list[str]] = {
    "acceptance": [*CASE, *LENGTHS, "measure", "count", "clusters", *INTERVAL, "reason", "ess_share"],
    "clip_sides": [*CASE, *LENGTHS, "side", "numerator", "count", *INTERVAL, "reason"],
    "lre": [*CASE, "measure", "norm", *INTERVAL, "plug_in", "wald_p", "detectable", "reason"],
    "trend": [
        *CASE,
        "measure",
        "slope_per_doubling",
        "ci_low",
        "ci_high",
        "ci90_low",
        "ci90_high",
        "p_value",
        "tost_p",
    ],
    "smooth": [*CASE, "measure", "length", *INTERVAL, "pointwise_low", "pointwise_high", "parameters", "reason"],
    "ranges": [*CASE[:7], "use", "rate", "window", "range_lo", "range_hi", "reason"],
    "moments": [*KEYS, "subset", "use", *LENGTHS, "count", "clusters"],
    "scaling": [*KEYS, "subset", "use", "sign", "slope_2H", "ci_low", "ci_high", "intercept", "drift_per_token"],
    "theory_gap": [*KEYS, *LENGTHS, "part", "count", *INTERVAL, "reason"],
    "assumptions": [
        *KEYS,
        *("subset", "use", "name", "count", *INTERVAL, "tolerated_low", "tolerated_high"),
        *("verdict", "missing_rows", "sentence"),
    ],
    "cosine": [*CASE, *LENGTHS, "reference", "weight", "control", *INTERVAL, "worst_bin", "reason"],
    "lemma": [*CASE, "weight", "window", "rollouts", "rho", "bound", "guaranteed", "cosine", "slack"],
    "lemma_summary": [*CASE, "weight", "quantity", *INTERVAL, "count", "updates", "rollouts", "reason"],
    "population": [*CASE, *LENGTHS, "reference", "quantity", "count", "clusters", *INTERVAL, "reason"],
    "reuse": [*KEYS, "times_used", "updates_since_rollout", "count", "clusters", "out_of_band", "mean_weight"],
    "noise_floor": [*KEYS, "source", "meaning", *LENGTHS, "count", "clusters", "out_of_band", "mean_square_per_token"],
    "over_time": [*KEYS, "window", "use", *LENGTHS, "cut", "out_of_band", "count", *INTERVAL],
    "training": [*KEYS, "rollout", "step", "phase", "name", "value"],
}
"""Leading columns of each table; further ones follow. An empty table still has these."""


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A table with its leading columns first."""
    rows = list(rows)
    found = pd.DataFrame(rows)
    for column in COLUMNS[name]:
        if column not in found:
            found[column] = pd.Series(np.nan if rows else [], index=found.index, dtype="float64")
    rest = [c for c in found.columns if c not in COLUMNS[name]]
    return found.reindex(columns=[*COLUMNS[name], *rest])


def folder_name(partition: Partition = LENGTH) -> str:
    """Folder of a run's tables: ``analysis``, or ``analysis-by-entropy`` for another partition."""
    return FOLDER if partition == LENGTH else f"{FOLDER}-by-{partition.slug}"


def write_tables(
    folder: Path, tables: Mapping[str, pd.DataFrame], summary: Mapping[str, Any], partition: Partition = LENGTH
) -> None:
    """Write every table as CSV and Parquet, and summary.json last: where it is, the tables are whole.

    The columns of a bin and of a trend are named by the partition.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").unlink(missing_ok=True)
    for name, plain in tables.items():
        table = plain.rename(columns=renamed(list(plain.columns), partition))
        with whole_file(folder / f"{name}.csv") as part:
            table.to_csv(part, index=False)
        with whole_file(folder / f"{name}.parquet") as part:
            table.to_parquet(part, index=False)
    write_json(folder / "summary.json", summary)


def write_json(path: Path, content: Any) -> None:
    """Write JSON whole; NaN becomes null, so that any reader takes it."""
    write_text(path, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return None if not math.isfinite(value) else float(value)
    return value if value is None or isinstance(value, str) else str(value)


def read_tables(runs: Iterable[str | Path], partition: Partition = LENGTH) -> dict[str, pd.DataFrame]:
    """The tables of several analysed runs, one under the other; the columns of bins have their names of length.

    Raises
    ------
    UserError
        If a run was not analysed.
    """
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    for run in runs:
        folder = Path(run) / folder_name(partition)
        if not (folder / "summary.json").is_file():
            by = "" if partition == LENGTH else f" --by {partition.name}"
            raise UserError(f"{run} has no finished analysis: run `python -m analysis {run}{by}` first")
        for name in COLUMNS:
            back = {new: old for old, new in renamed(COLUMNS[name], partition).items()}
            parts[name].append(pd.read_parquet(folder / f"{name}.parquet").rename(columns=back))
    full = {name: [p for p in found if len(p)] or found[:1] for name, found in parts.items()}
    return {name: pd.concat(found, ignore_index=True) if found else frame(name, []) for name, found in full.items()}
