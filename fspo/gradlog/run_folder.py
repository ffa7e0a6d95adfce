"""Names of the files and folders in a run folder, and reading of its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fspo.base.errors import UserError
from fspo.base.strict_yaml import StrictLoader

CONFIG = "config.yaml"
"""File with the value of every option of the run."""
MARK = "run.json"
"""File that marks the folder as a run of this trainer, and names the process that writes to it."""
LOCK = "run.lock"
"""File that is locked while a process writes to the folder."""
METRICS = "metrics.jsonl"
"""File with one line for each rollout or evaluation (:mod:`fspo.gradlog.metrics_file`)."""
GRADLOG = "gradlog"
"""Folder of the gradient log: one Parquet file for each rollout and process."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints step-00000010, ...: weights, optimizer moments and counters."""
ROLLOUTS = "rollouts"
"""Folder of responses kept as text, one file for each rollout."""
MODEL = "model"
"""Folder of the trained model and its tokenizer, in Hugging Face's format."""
TENSORBOARD = "tensorboard"
"""Folder of TensorBoard's files, written if TensorBoard is one of the run's trackers."""
NOISE = "noise"
"""Folder of a noise-floor measurement; it is a run folder with a gradient log."""
ANALYSIS = "analysis"
"""Folder of the tables of `fspo analyse`; for a partition other than by length its name ends in ``-by-NAME``."""
SUMMARY = "summary.json"
"""File in the folder of the tables: the run's rule and size, checks of its log, warnings, and what was unreadable."""
IMPORT = "import.json"
"""File in a run folder made by `fspo import`: what was read of another trainer's log."""


def check_run(run: str | Path) -> None:
    """Raise UserError unless the run folder ``run`` exists and is a folder."""
    if not Path(run).exists():
        raise UserError(f"{run} does not exist: give a run folder, or make one of another log with `fspo import`")
    if not Path(run).is_dir():
        raise UserError(f"{run} is no folder: give a run folder, or make one with `fspo import {run}`")


def saved_config(run: str | Path) -> dict[str, Any]:
    """Read the options in a run's config.yaml; the result is empty if there is no such file or it holds no options.

    Raises UserError if the file is not valid YAML."""
    file = Path(run) / CONFIG
    if not file.is_file():
        return {}
    try:
        config = yaml.load(file.read_text(encoding="utf-8"), StrictLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} is no valid YAML, restore it: {str(error).splitlines()[0]}") from error
    return config if isinstance(config, dict) else {}


def folder_for(runs: Sequence[Path]) -> Path:
    """Return the default folder for a page or figures on ``runs``: a single run's folder, else ``./comparison``."""
    return runs[0] if len(runs) == 1 else Path("comparison")
