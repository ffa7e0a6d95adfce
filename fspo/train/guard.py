"""Updates that must not be made: found on any process, skipped on all of them, counted, and in the end a stop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from accelerate import Accelerator

from fspo.base.errors import UserError
from fspo.rules import MAX_EXPONENT
from fspo.train.updates import Record

CAUSES = {
    "loss": "the loss is not finite",
    "weight": f"the importance weight of a response that is not clipped exceeds e^{MAX_EXPONENT:.0f}",
    "gradient": "the gradient is not finite",
}
"""Metric ``skipped/NAME`` counts them; an update is skipped for the first of them that holds."""


def find(accelerator: Accelerator, records: Sequence[Record]) -> str | None:
    """What is wrong with a minibatch, over all processes: "loss", "weight" or None."""
    broken, exploded = 0, 0
    for record in records:
        rows, live = record.rows, record.advantages != 0
        broken += int((~np.isfinite(rows["log_ratio"]) & live).sum() + (~np.isfinite(rows["kl"])).sum())
        # Token rules keep the mean over tokens; a capped token weighs at least its share of it.
        heaviest = rows["clipped_weight"] * np.maximum(rows["length"], 1)
        exploded += int((rows["capped"] & live & (heaviest >= 0.999 * math.exp(MAX_EXPONENT))).sum())
    counts = torch.tensor([broken, exploded], dtype=torch.float64, device=accelerator.device)
    broken, exploded = accelerator.reduce(counts, "sum").tolist()  # type: ignore[union-attr]
    return "loss" if broken else "weight" if exploded else None


def stop_if_many(skipped: int, limit: int, step: int, cause: str) -> None:
    """End the run when more updates than ``limit`` were skipped.

    Raises
    ------
    UserError
        Naming the last cause.
    """
    if skipped > limit:
        raise UserError(
            f"{skipped} updates were skipped, more than optim.max_skipped_updates={limit}; the last, update {step}: "
            f"{CAUSES[cause]}. Lower optim.learning_rate, raise optim.warmup_updates, or take a rule that clips; the "
            "checkpoints before are kept"
        )
