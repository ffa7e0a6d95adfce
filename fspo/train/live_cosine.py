"""The metrics ``grad_cosine/*``: the cosine between the true and the clipped update of a scored minibatch.

The cosine, and its lower bound by statement T7, are computed while the run trains (docs/theory.md section 5, live
form).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from accelerate.utils import gather_object

from fspo.base.errors import UserError
from fspo.gradlog import metric_names as metric
from fspo.objective import ObjectiveConfig
from fspo.policy.scores import Scores
from fspo.rollouts.counts import length_bins
from fspo.rules import Rule
from fspo.theory import CosineLemma, cosine_lemma
from fspo.train.updates import Record


def live_cosine(
    records: Sequence[Record], rule: Rule, objective: ObjectiveConfig, edges: tuple[int, ...]
) -> dict[str, float]:
    """Return the metrics ``grad_cosine/*`` of a scored minibatch, from the responses of all processes.

    Every process must call this function. The result is empty for token rules: they have a weight for each token, and
    statement T7 needs one weight for each response.
    """
    if rule.level != "sequence":
        return {}
    strata: dict[str, np.ndarray] = {}
    for record in records:
        if (scores := record.shard.scores) is not None:
            _add(strata, _of_shard(record, scores, rule, objective, edges))
    total: dict[str, np.ndarray] = {}
    for part in gather_object([strata]):
        _add(total, part)
    return live_lemma(total, drop=rule.clip.zeroes)[1] if total else {}


def _of_shard(
    record: Record, scores: Scores, rule: Rule, objective: ObjectiveConfig, edges: tuple[int, ...]
) -> dict[str, np.ndarray]:
    good = np.array(scores.status) == "ok"
    rows = {name: record.rows[name][good] for name in ("length", "weight", "clipped_weight", "multiplier")}
    # In the gradient the score psi is multiplied by w, A and a power of the length L. A geometric weight brings the
    # factor 1/L, and an objective that averages over tokens brings the factor L.
    power = int(objective.aggregation in ("token", "constant")) - int(rule.weight == "geometric")
    for name in ("weight", "clipped_weight"):
        rows[name] = rows[name] * rows["length"].astype(np.float64) ** power
    psi = scores.unit[good].astype(np.float64) * scores.norm[good, None].astype(np.float64)
    return strata_sums(rows | {"advantage": record.advantages[good]}, psi, edges)


def _add(total: dict[str, np.ndarray], part: dict[str, np.ndarray]) -> None:
    for name, value in part.items():
        total[name] = total[name] + value if name in total else value


def strata_sums(rows: dict[str, np.ndarray], psi: np.ndarray, edges: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return, for each length bin, the sums of 1, M, w, M w, w A psi and M w A psi over scored responses with A != 0.

    The cosine lemma (docs/theory.md T7), which is about these responses, is computed from the sums. With a KL term
    responses with A = 0 are scored too; they are left out. Sums of several shards and processes can be added.

    Parameters
    ----------
    rows : dict of (n,) arrays
        Columns weight (w), multiplier (M), clipped_weight (M w), advantage (A) and length of n scored responses.
    psi : (n, D)
        Scores of these responses, with D entries each.
    """
    member = np.stack(length_bins(rows["length"], edges)).astype(np.float64) * (rows["advantage"] != 0)
    w, clipped = rows["weight"].astype(np.float64), rows["clipped_weight"].astype(np.float64)
    A = rows["advantage"]
    return {
        "count": member.sum(1),
        "multiplier": member @ rows["multiplier"],
        "weight": member @ w,
        "clipped_weight": member @ clipped,
        "g": (member * (w * A)) @ psi,
        "clipped": (member * (clipped * A)) @ psi,
    }


def live_lemma(sums: dict[str, np.ndarray], *, drop: bool) -> tuple[CosineLemma | None, dict[str, float]]:
    """Compute the cosine lemma (T7) from one minibatch's `strata_sums`; return it and the metrics ``grad_cosine/*``.

    ``drop`` says whether the rule gives clipped responses no gradient. The lemma is None if the sums do not define it,
    for example if no response was scored.
    """
    keep = sums["count"] > 0
    if not keep.any():
        return None, {}
    count = sums["count"][keep]
    a = (sums["multiplier"][keep] / count) if drop else sums["clipped_weight"][keep] / sums["weight"][keep]
    g, clipped = sums["g"][keep] / count[:, None], sums["clipped"][keep] / count[:, None]
    try:
        lemma = cosine_lemma(count, a, g, clipped)
    except UserError:
        return None, {}
    values = {metric.GRAD_COSINE: lemma.cosine, metric.GRAD_RHO: lemma.rho}
    if lemma.bound is not None:
        values[metric.GRAD_BOUND] = lemma.bound
    for i, one, other in zip(np.flatnonzero(keep), g, clipped, strict=True):
        if (norm := np.linalg.norm(one) * np.linalg.norm(other)) > 0:
            values[metric.in_bin(int(i), metric.BIN_GRAD_COSINE)] = float(one @ other / norm)
    return lemma, values
