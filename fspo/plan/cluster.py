"""The shell commands that reproduce the claims with an 8B model on a cluster; this module does not run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.rules import COMPARED_ADVANTAGE

ROOT = Path(__file__).parents[2]
CONFIG = Path("fspo", "presets", "qwen3-8b.yaml")
SHARDED = Path("fspo", "presets", "accelerate", "fsdp2.yaml")
"""accelerate's settings for sharded training. Without this file each GPU would hold all weights of the model."""
CALIBRATION_ROLLOUTS = 20


def cluster_commands(
    rules: Sequence[str], seeds: Sequence[int], out: str, target: float | None, width: str
) -> list[str]:
    """Return the shell commands of a reproduction: an unclipped run, training, tables, claims and figures.

    Parameters
    ----------
    rules, seeds
        Presets and seeds; each rule is trained with each seed.
    out : str
        Folder of the results.
    target : float or None
        If given, each rule's range is calibrated so that its band acceptance on the responses of the unclipped run is
        this number. None: each rule trains with the range of its preset.
    width : str
        Name of a conference or journal, whose page sets the width of the figures.

    Raises
    ------
    UserError
        If the configuration of the 8B model is not valid.
    """
    config = parse(TrainConfig, ["--config", str(ROOT / CONFIG)])
    launch = f"accelerate launch --config_file {SHARDED} -m fspo.train --config {CONFIG}"
    launch += f" --rule.advantage {COMPARED_ADVANTAGE}"
    shared = f"{out}/runs/none-seed0"
    calibrate = f"$(fspo calibrate {shared} --target {target} --rules"
    trained = [
        f"{launch} {f'--rule.preset {rule}' if target is None else f'{calibrate} {rule})'} --seed {seed} "
        f"--output {out}/runs/{rule}-seed{seed}"
        for seed in seeds
        for rule in rules
    ]
    where = "its published range" if target is None else "the range that step 1 gives its rule"
    return [
        f"# {config.model.name_or_path}, {config.rollouts} rollouts; never run by this project's tests.",
        "# 1. one shared unclipped run",
        f"{launch} --rule.preset none --rollouts {CALIBRATION_ROLLOUTS} --output {shared}",
        f"# 2. every rule and seed, at {where}",
        *trained,
        "# 3. tables, claims, figures",
        f"fspo analyse {out}/runs/* --claims {out}/claims.json",
        f"fspo figures {out}/runs/* --output {out}/figures --width {width}",
    ]
