"""metrics.jsonl of a run folder: one JSON object for each rollout or evaluation, with its rollout, step and phase."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fspo.base.files import json_lines, write_text, writing
from fspo.gradlog.run_folder import METRICS


class MetricsFile:
    """The one reader and writer of metrics.jsonl.

    Lines are flushed at once; a resumed run cuts those that it repeats. Values that are not finite are null.
    """

    def __init__(self, run: str | Path) -> None:
        self.path = Path(run) / METRICS

    def write(self, values: Mapping[str, Any]) -> None:
        """Append a line."""
        self.write_all([values])

    def write_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append lines.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({k: _finite(v) for k, v in values.items()}) + "\n" for values in records)

    def read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Lines in order, and one line of damage for each that cannot be read; nothing where there is no file."""
        if not self.path.is_file():
            return [], []
        records: list[dict[str, Any]] = []
        damage: list[str] = []
        for number, record in json_lines(self.path.read_text(encoding="utf-8", errors="replace").splitlines()):
            if isinstance(record, str):
                damage.append(f"{METRICS} line {number}: {record}")
            else:
                records.append(record)
        return records, damage

    def of_phase(self, phase: str) -> list[dict[str, Any]]:
        """Readable lines of a phase (train, eval); a line without a phase is of train, as other trainers write it."""
        return [record for record in self.read()[0] if record.get("phase", "train") == phase]

    def keep_before(self, rollout: int) -> None:
        """Drop train lines of rollouts >= ``rollout``, evaluations after it and lines that cannot be read."""
        if not self.path.exists():
            return
        # An evaluation after rollout r - 1 is numbered r and precedes the checkpoint; the one before any training has
        # no checkpoint and is repeated.
        kept = [
            row
            for row in self.read()[0]
            if row["rollout"] < rollout or (row["phase"] == "eval" and row["rollout"] == rollout > 0)
        ]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
