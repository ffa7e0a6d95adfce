"""Find updates that must be skipped, and stop a run that has skipped too many.

An update must be skipped if on any process its loss or gradient is infinite or NaN, or an importance weight that is not
clipped is too large. It is then skipped on all processes and counted. Too many skipped updates end the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from accelerate import Accelerator

from fspo.base.errors import TrainingDiverged
from fspo.rules import MAX_EXPONENT
from fspo.train.updates import Record

CAUSES = {
    "loss": "the loss is not finite",
    "weight": f"the importance weight of a response that is not clipped exceeds e^{MAX_EXPONENT:.0f}",
    "gradient": "the gradient is not finite",
}
"""Description of each reason to skip an update, by the reason's name. The metric ``skipped/NAME`` is the share of a
rollout's updates that were skipped for that reason; an update counts only for the first reason found."""


def find(accelerator: Accelerator, records: Sequence[Record]) -> str | None:
    """Return why an update must be skipped: "loss" (it is not finite) or "weight" (with A != 0, an importance weight
    that is not clipped, or a correction's factor, reaches e^20). Return None if the update need not be skipped.

    ``records`` hold what the update recorded of this process's responses. Responses with an infinite or NaN value, and
    those with too large a weight, are counted over all processes. So every process must call this function, and all get
    the same answer."""
    broken, exploded = 0, 0
    for record in records:
        rows, live = record.rows, record.advantages != 0
        broken += int((~np.isfinite(rows["log_ratio"]) & live).sum() + (~np.isfinite(rows["kl"])).sum())
        # For token rules the recorded weight is a mean over the response's tokens. The mean times the length is no less
        # than the weight of each token. So a single token at the largest possible weight, e^MAX_EXPONENT, is found.
        for capped, weight in (("capped", "clipped_weight"), ("correction_capped", "correction_weight")):
            if capped in rows:
                heaviest = rows[weight] * np.maximum(rows["length"], 1)
                exploded += int((rows[capped] & live & (heaviest >= 0.999 * math.exp(MAX_EXPONENT))).sum())
    counts = torch.tensor([broken, exploded], dtype=torch.float64, device=accelerator.device)
    broken, exploded = accelerator.reduce(counts, "sum").tolist()  # type: ignore[union-attr]
    return "loss" if broken else "weight" if exploded else None


def stop_if_many(skipped: int, limit: int, step: int, cause: str) -> None:
    """Raise TrainingDiverged, which names update ``step`` and ``cause``, if more than ``limit`` updates were
    skipped."""
    if skipped > limit:
        raise TrainingDiverged(
            f"{skipped} updates were skipped, more than optim.max_skipped_updates={limit}; the last, update {step}: "
            f"{CAUSES[cause]}. Lower optim.learning_rate, raise optim.warmup_updates, or take a rule that clips; the "
            "checkpoints before are kept"
        )
