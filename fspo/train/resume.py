"""Resume a run: which options may change, and from which checkpoint on its files are whole."""

from __future__ import annotations

from collections.abc import Sequence
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
"""Options with which a run may be resumed although they are others than before."""


def check_same_run(config: TrainConfig, run: Path) -> None:
    """Raise UserError if a resumed run changes an option that must stay the same."""
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


def whole_until(run: Path, ends: Sequence[int]) -> tuple[int, list[str]]:
    """Return the rollout from which a run goes on, and a line for each part of its metrics and log that cannot be read.

    Parameters
    ----------
    ends : sequence of int
        Numbers of the next rollout in the run's checkpoints, ascending. The result is the last of them before which
        every rollout is whole in the metrics and in the gradient log; the rollouts from there on are made again. If
        there is none, it is the last of all, and what cannot be read stays out of the run.

    Raises
    ------
    UserError
        If there is no such checkpoint, and the metrics or the log of a rollout are gone, not only damaged.
    """
    if not ends:
        return 0, []
    lines, torn = MetricsFile(run).read()
    measured = {line.get("rollout") for line in lines if line.get("phase", "train") == "train"}
    paths, readable = log_paths(run), set()
    if paths:
        with suppress(UserError):  # no file can be read
            files, damage = log_files(run)
            readable, torn = {file.path for file in files}, torn + damage
    logged = {rollout_of(path) for path in paths}
    broken = {rollout_of(path) for path in paths if path not in readable}
    wanted = set(range(ends[-1]))
    bad = (wanted - measured) | (wanted - logged) | (wanted & broken)
    kept = [end for end in ends if not bad or end <= min(bad)]
    unread = len(wanted - measured) > len(torn) - len(broken)
    if not kept and (unread or wanted - logged):
        rollout = min(wanted - measured if unread else wanted - logged)
        raise UserError(
            f"{run} has a checkpoint after rollout {ends[-1] - 1}, but rollout {rollout} is missing in its "
            f"{METRICS if unread else GRADLOG}: restore it to go on, or choose another --output"
        )
    end = kept[-1] if kept else ends[-1]
    made = f"rollouts from {end} on are made again" if kept else "it stays out"
    return end, [f"{line}; {made}" for line in torn] if bad else []
