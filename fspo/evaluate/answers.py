"""The answers of a model to a benchmark, kept in a file.

The first line of ``OUT/answers/MODEL/BENCHMARK.jsonl`` names the model, the prompts and the sampling settings. Then
follows one line for each prompt with all its responses. The lines of a batch are appended and synced to the disk
together, so a killed run keeps them. The next start drops a last line that was not written completely."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fspo.base.errors import UserError
from fspo.base.files import digest, digest_of, write_text, writing
from fspo.config.evaluation import AnswerConfig
from fspo.tasks.dataset import DatasetTask

CONFIGS = ("config.json", "adapter_config.json")
"""Files of which a model's folder has one."""


def model_key(model: str) -> str:
    """Return a text that changes when the model changes: of a local folder a digest of its configuration and of the
    first and last MiB of each file of weights; a hub name is returned unchanged."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    parts = []
    for file in sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin") or p.name in CONFIGS):
        with file.open("rb") as stream:
            head = stream.read(1 << 20)
            stream.seek(max(0, file.stat().st_size - (1 << 20)))
            parts.append(f"{file.name} {file.stat().st_size} {digest(head)} {digest(stream.read())}")
    return digest("\n".join(parts))


def header(model: str, task: DatasetTask, settings: AnswerConfig) -> dict[str, Any]:
    """Return what the first line of an answer file holds, by name: what the model, the prompts and the sampling
    settings are, so that a change of any of them is seen."""
    every = [task.example("train", i) for i in range(task.size("train"))]
    data = digest_of([[e.prompt, e.answer] for e in every])
    return {"model": model_key(model), "benchmark": task.name, "data": data, **asdict(settings)}


class AnswerFile:
    """The file with the answers of one model to one benchmark; ``lines`` maps each prompt's number to its line, a dict.

    Raises UserError if the file holds answers of another model, to other prompts or with other settings than the
    ``header`` says (from the function `header`), or if a line before the last is damaged. A file without an answer gets
    this header."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.lines = path, dict[int, dict[str, Any]]()
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        kept = text[: text.rfind("\n") + 1]
        try:
            rows = [json.loads(line) for line in kept.splitlines()]
            found = dict(rows[0]) if rows else {}
            self.lines = {row["prompt"]: row for row in rows[1:]}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}): remove it to answer this benchmark again") from error
        if not self.lines and found.keys() <= header.keys():  # no answers yet
            kept, found = json.dumps(header) + "\n", header
        for key in header:
            if found.get(key) != header[key]:
                raise UserError(
                    f"{path} was made with {key} {found.get(key)}, not {header[key]}: choose another --output, or "
                    "remove the file to answer this benchmark again"
                )
        if kept != text:
            write_text(path, kept)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append ``rows``, one line for each answered prompt, to the file and sync the file to the disk."""
        with writing(self.path), self.path.open("ab") as stream:
            stream.write("".join(json.dumps(row) + "\n" for row in rows).encode())
            stream.flush()
            os.fsync(stream.fileno())
