"""Resume a run: which options may change, and what of its metrics and log cannot be read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from fspo.base.errors import UserError
from fspo.base.options import to_dict
from fspo.config import TrainConfig
from fspo.gradlog.files import log_files, log_paths, rollout_of
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import CONFIG, GRADLOG, METRICS, saved_config

MAY_CHANGE = {
    "resume",
    "rollouts",
    "threads",
    "cpu",
    "processes",
    "output",
    "checkpoint_every",
    "keep_checkpoints",
    "trackers",
    "sampling.vllm_url",
    "sampling.vllm_weights",
    "sampling.vllm_timeout",
}
"""Options that may have other values than before when a run is resumed."""


def check_same_run(config: TrainConfig, run: Path) -> None:
    """Raise UserError if ``config`` differs from the run's config.yaml in an option that `MAY_CHANGE` does not name."""
    file, before, now = run / CONFIG, _flat(saved_config(run)), _flat(to_dict(config))
    if not before:
        raise UserError(f"{file} holds no options: restore it, or choose another --output")
    # an option that the run's config.yaml lacks is newer than that file, and counts as having its default
    before = _flat(to_dict(TrainConfig())) | before
    for key in sorted(before.keys() | now.keys()):
        if not {key, key.split(".")[0]} & MAY_CHANGE and before.get(key) != now.get(key):
            raise UserError(
                f"{file} was written with {key}={before.get(key)}, not {now.get(key)}: resume with the saved settings "
                f"(--config {file} --resume true) or choose another --output"
            )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def unreadable(run: Path, end: int) -> list[str]:
    """Return a message for each line of a run's metrics and each file of its gradient log that cannot be read, and that
    a resumed run therefore leaves out. ``end`` is the first rollout after the newest checkpoint: if everything before
    it can be read, there is no message. If the whole log is unreadable, there are messages on the metrics alone.

    Raise UserError if the metrics or the log of a rollout before ``end`` are gone, not only damaged."""
    lines, torn = MetricsFile(run).read()
    measured = {line.get("rollout") for line in lines if line.get("phase", "train") == "train"}
    paths, readable, damage = log_paths(run), set(), list[str]()
    if paths:
        with suppress(UserError):  # no file can be read
            files, damage = log_files(run)
            readable = {file.path for file in files}
    wanted = set(range(end))
    unmeasured, unlogged = wanted - measured, wanted - {rollout_of(path) for path in paths}
    unread = len(unmeasured) > len(torn)
    if unread or unlogged:
        raise UserError(
            f"{run} has a checkpoint after rollout {end - 1}, but rollout {min(unmeasured if unread else unlogged)} is "
            f"missing in its {METRICS if unread else GRADLOG}: restore it, or remove the checkpoints after it"
        )
    if not unmeasured and not wanted & {rollout_of(path) for path in paths if path not in readable}:
        return []
    return [f"{line}; it stays out, unless you remove the checkpoints after it" for line in torn + damage]
