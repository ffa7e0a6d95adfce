"""metrics.jsonl of a run folder: one JSON object of metrics for each rollout or evaluation, with its step and phase."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fspo.base.errors import UserError
from fspo.base.files import json_lines, write_text, writing
from fspo.gradlog.run_folder import METRICS


class MetricsFile:
    """Reads and writes metrics.jsonl in the run folder ``run``.

    Each line is written to the file as soon as it is made. A resumed run removes the lines of the rollouts that it
    repeats. Values that are not finite are written as null."""

    def __init__(self, run: str | Path) -> None:
        self.path = Path(run) / METRICS

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl: the metrics, by name, of one rollout or evaluation."""
        self.write_all([values])

    def write_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append several lines to metrics.jsonl: the metrics, by name, of several rollouts or evaluations."""
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({k: _finite(v) for k, v in values.items()}) + "\n" for values in records)

    def read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the lines of metrics in order, and for each line that cannot be read a text that says why.

        Both lists are empty if there is no file.

        Raises UserError if it is no regular file: to open a pipe would wait for a writer for ever."""
        if not self.path.exists():
            return [], []
        if not self.path.is_file():
            raise UserError(f"{self.path} is no regular file: move it away")
        records: list[dict[str, Any]] = []
        damage: list[str] = []
        for number, record in json_lines(self.path.read_text(encoding="utf-8", errors="replace").splitlines()):
            if isinstance(record, str):
                damage.append(f"{METRICS} line {number}: {record}")
            else:
                records.append(record)
        return records, damage

    def of_phase(self, phase: str) -> list[dict[str, Any]]:
        """Return the readable lines of a phase ("train" or "eval").

        A line without a phase belongs to "train", because other trainers write no phase."""
        return [record for record in self.read()[0] if record.get("phase", "train") == phase]

    def keep_before(self, rollout: int) -> None:
        """Remove the lines that a run resumed at ``rollout`` repeats.

        It repeats the rollouts from ``rollout`` on and the evaluations after them. Unreadable lines go too, but all
        of them are kept if a rollout before ``rollout`` has no readable line: one may be that rollout's."""
        if not self.path.exists():
            return

        # The evaluation after rollout r - 1 has the number r. It is made before the checkpoint from which a run resumes
        # at r, so it is kept. The evaluation before any training (number 0) is repeated by a run from the start.
        def repeated(row: dict[str, Any]) -> bool:
            number = row.get("rollout")
            evaluated = row.get("phase") == "eval" and number == rollout > 0
            return isinstance(number, int | float) and number >= rollout and not evaluated

        torn = set(range(rollout)) - {row.get("rollout") for row in self.of_phase("train")}
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [
            lines[number - 1] if isinstance(row, str) else json.dumps(row)
            for number, row in json_lines(lines)
            if (torn if isinstance(row, str) else not repeated(row))
        ]
        write_text(self.path, "".join(line + "\n" for line in kept))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
