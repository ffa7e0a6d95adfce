"""Names of everything in a run folder, and the configuration that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fspo.base.errors import UserError

CONFIG = "config.yaml"
"""Every option of the run, as it was resolved."""
MARK = "run.json"
"""Marks the folder as a run of this trainer, and names the process that writes in it."""
LOCK = "run.lock"
"""Locked while a process writes in the folder."""
METRICS = "metrics.jsonl"
"""One line a rollout or evaluation (:mod:`fspo.gradlog.metrics_file`)."""
GRADLOG = "gradlog"
"""Folder of the gradient log: one Parquet file a rollout and process."""
CHECKPOINTS = "checkpoints"
"""Folder of step-00000010, ...: weights, optimizer and the numbers to go on from."""
ROLLOUTS = "rollouts"
"""Folder of responses kept as text, one file a rollout."""
MODEL = "model"
"""Folder of the trained model and its tokenizer, in Hugging Face's format."""
NOISE = "noise"
"""Folder of a noise-floor measurement, itself a run folder with a gradient log."""
ANALYSIS = "analysis"
"""Folder of the tables of `python -m analysis`; other partitions than the length add ``-by-NAME``."""
SUMMARY = "summary.json"
"""In the folder of the tables: what the run was, its integrity, warnings and damage."""
IMPORT = "import.json"
"""What was read of another trainer's log, in a run folder made by `python -m analysis import`."""


def saved_config(run: str | Path) -> dict[str, Any]:
    """The options in a run's config.yaml, empty if there is none or it holds no options.

    Raises
    ------
    UserError
        If it cannot be read as YAML.
    """
    file = Path(run) / CONFIG
    if not file.is_file():
        return {}
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} is no valid YAML: {str(error).splitlines()[0]}") from error
    return config if isinstance(config, dict) else {}
