"""Reading the analysis tables of one or more runs, and the selections that several figures share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fspo.errors import UserError

NAMES = (
    "acceptance",
    "clip_sides",
    "lre",
    "trend",
    "moments",
    "scaling",
    "cosine",
    "lemma",
    "over_time",
    "training",
)
"""Tables that ``python -m analysis`` writes (docs/theory.md names the quantities)."""


class NothingToDraw(Exception):
    """A figure's input is missing or empty; the message says why, in words for the reader of the list."""


@dataclass(frozen=True)
class Tables:
    """The analysis tables of several runs, stacked.

    Attributes
    ----------
    frames : dict of DataFrame
        By table name; a table that no run has is absent.
    summaries : dict
        ``summary.json`` by run name.
    """

    frames: dict[str, pd.DataFrame]
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> pd.DataFrame:
        frame = self.frames.get(name)
        if frame is None or frame.empty:
            raise NothingToDraw(f"table '{name}' is missing or empty")
        return frame


def load(runs: Sequence[Path]) -> Tables:
    """Read ``RUN/analysis`` of each run.

    Raises
    ------
    UserError
        If a run does not exist or was not analysed.
    """
    runs = [Path(run) for run in runs]
    if not runs:
        raise UserError("name at least one run folder: python -m figures RUN")
    labels = _labels(runs)
    parts: dict[str, list[pd.DataFrame]] = {}
    summaries = {}
    for run, label in zip(runs, labels, strict=True):
        folder = run / "analysis"
        if not run.is_dir():
            raise UserError(f"run folder {run} does not exist: name a folder that fspo.train has written")
        found = {name: _read(folder, name) for name in NAMES}
        if all(frame is None for frame in found.values()):
            raise UserError(f"no analysis tables in {folder}: run python -m analysis {run} first")
        for name, frame in found.items():
            if frame is not None and not frame.empty:
                parts.setdefault(name, []).append(frame.assign(run=label))
        summary = folder / "summary.json"
        if summary.is_file():
            summaries[label] = json.loads(summary.read_text())
    return Tables({name: pd.concat(p, ignore_index=True) for name, p in parts.items()}, summaries)


def _labels(runs: Sequence[Path]) -> list[str]:
    resolved = [run.resolve() for run in runs]
    if len(set(resolved)) < len(resolved):
        raise UserError("the same run folder is named twice; name each run once")
    names = [run.name for run in resolved]
    return [f"{r.parent.name}/{r.name}" if names.count(r.name) > 1 else r.name for r in resolved]


def _read(folder: Path, name: str) -> pd.DataFrame | None:
    parquet, csv = folder / f"{name}.parquet", folder / f"{name}.csv"
    try:
        if parquet.is_file():
            return pd.read_parquet(parquet)
        return pd.read_csv(csv) if csv.is_file() else None
    except (ValueError, OSError) as error:
        why = f"{folder / name}: {str(error).splitlines()[0]}"
        raise UserError(f"cannot read {why}; run python -m analysis {folder.parent} again") from None


def prefer(frame: pd.DataFrame, column: str, *values: str) -> pd.DataFrame:
    """The rows whose ``column`` has the first of ``values`` that occurs; all rows where the column is absent."""
    if column not in frame:
        return frame
    for value in values:
        chosen = frame[frame[column] == value]
        if not chosen.empty:
            return chosen
    return frame.iloc[:0]


def need(frame: pd.DataFrame, why: str) -> pd.DataFrame:
    """The frame, or NothingToDraw(why) if it has no rows."""
    if frame.empty:
        raise NothingToDraw(why)
    return frame


def reasons(frame: pd.DataFrame) -> str:
    """The distinct reasons that a table gives for its missing values, for a message."""
    if "reason" not in frame:
        return "no reason given"
    texts = sorted({str(r) for r in frame["reason"].dropna() if str(r)})
    return "; ".join(texts[:3]) if texts else "no reason given"


def drawable(frame: pd.DataFrame, columns: Sequence[str] = ("estimate",)) -> pd.DataFrame:
    """Rows whose ``columns`` are all finite.

    Raises
    ------
    NothingToDraw
        If none is left, with the table's own reasons.
    """
    numbers = frame[list(columns)].astype(float)
    kept = frame[(numbers.notna() & (numbers.abs() < float("inf"))).all(axis=1)]
    return need(kept, f"no finite value to draw ({reasons(frame)})")


def shared_log(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the run on whose log the rules are compared: the unclipped run if there is one, the lowest seed."""
    order = frame[["run", "trained_rule", "seed"]].drop_duplicates()
    order = order.assign(clipped=order["trained_rule"] != "none")
    run = order.sort_values(["clipped", "seed", "run"], kind="stable")["run"].iloc[0]
    return frame[frame["run"] == run]


def comparison(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Rows on which rules are compared, and words that say which.

    All rules on one shared log at matched acceptance; else at given parameters; else each run's own rule on its
    own log.
    """
    for source, words in (("matched", "at matched acceptance"), ("given", "at given parameters")):
        rows = frame[frame["source"] == source]
        if not rows.empty:
            rows = shared_log(rows)
            return rows, f"all rules on one log (run {rows['run'].iloc[0]}) {words}"
    rows = need(frame[frame["source"] == "trained"], "no rows of a known source (matched, given, trained)")
    return rows, "each run's own rule on its own log"


def panels_of(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split by matched acceptance: (title, rows) in the order of decreasing acceptance."""
    if "target" not in frame or frame["target"].isna().all():
        return [("", frame)]
    targets = sorted({float(t) for t in frame["target"].dropna()}, reverse=True)
    return [(f"{percent(1 - t)} out", frame[(frame["target"] - t).abs() < 1e-9]) for t in targets]


def percent(share: float) -> str:
    """A share as a short percentage."""
    return f"{100 * share:.3g} %"
