"""The table of bands that follow a target: the LRE of the acceptance by such a band after it has learnt, under every
log-ratio model (T14, T15).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fspo.base.errors import UserError
from proofs_check.frame import generator
from proofs_check.maps.tables import to_frame, write_table
from proofs_check.models import LogRatioModel
from proofs_check.tools.online_runs import MODELS, RUNS, WORDS, lre_row, survey

TABLE = "adaptive_models"
DRIFTS = ("kl", "none")


def rows(seed: int = 0, runs: int = RUNS, progress: bool = False) -> Iterator[dict[str, Any]]:
    """Yield one row for each drift, log-ratio model and rule whose band follows a target, with the LRE of the band
    after it has learnt. Each pair of drift and model has a random stream of its own.
    """
    models: Mapping[str, LogRatioModel] = MODELS
    with tqdm(total=len(DRIFTS) * len(models), desc="online", disable=not progress, file=sys.stderr) as bar:
        for drift in DRIFTS:
            for name, model in models.items():
                rng = generator(seed, f"{name}, {drift}", "online")
                for _, found in survey(rng, drift, {name: model}, runs):
                    for rule, one in found.items():
                        head = {"model": name, "words": WORDS[name], "drift": drift, "rule": rule, "runs": runs}
                        own = lre_row(one)
                        yield head | {key: value for key, value in own.items() if key != "method"}
                bar.update()


def write(out: Path, seed: int = 0, draws: int = 20_000, progress: bool = True) -> Path | None:
    """Simulate bands that follow a target and write their table; return its path, or None if ``draws`` is 0.

    Parameters
    ----------
    draws : int
        Sets the number of independent runs of each model: a thousandth of it, at least 4 and at most ``RUNS``.

    Raises
    ------
    UserError
        For a negative seed, or a place that cannot be written.
    """
    if seed < 0:
        raise UserError(f"seed={seed} must be >= 0")
    if draws == 0:
        return None
    runs = min(RUNS, max(4, draws // 1000))
    return write_table(Path(out), TABLE, to_frame(TABLE, rows(seed, runs, progress)))
