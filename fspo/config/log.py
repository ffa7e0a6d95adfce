"""Options of the gradient log and of the scores in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from fspo.base.errors import UserError
from fspo.config.option_ranges import MOST, Ranged, check_ranges, number


@dataclass(frozen=True)
class ScoreConfig(Ranged, group="log.scores"):
    """How scores (gradients of the log-probability of a response) are sketched.

    Parameters
    ----------
    width : int or None
        Entries of the sketch; None stores all entries of the projected score without hashing them to fewer. With
        projection None too, which suits small models alone, the sketch is the score itself.
    projection : int or None
        Number of rows, and of columns, to which random projections with entries +-1 reduce the gradient of each weight
        matrix; None projects nothing. Every rollout has projections of its own, so that sketch errors average out.
    """

    width: int | None = number(2048, 1)
    projection: int | None = number(16, 1)


@dataclass(frozen=True)
class LogConfig:
    """What a training run logs, and how often.

    Parameters
    ----------
    scores : ScoreConfig
        How scores are taken and stored.
    score_every : int
        Number of rollouts from one score pass to the next; 0 for never.
    score_minibatches : tuple of int
        Updates of a rollout whose responses are scored, counted from 0; negative ones count back from the end of the
        first pass over the rollout. The default, the last update of the first pass, scores responses on which the
        weights were not yet trained, after the most updates since the rollout.
    entropy : bool
        Log the policy's entropy (costs one pass over the logits).
    length_edges : tuple of int
        Least length of each length bin of the metrics, tokens, rising from 1; the last bin has no upper edge.
    samples : int
        Number of responses of each rollout that are kept as text under ``rollouts/``.
    """

    scores: ScoreConfig = field(default_factory=ScoreConfig)
    score_every: int = number(1, 0)
    score_minibatches: tuple[int, ...] = (-1,)
    entropy: bool = True
    length_edges: tuple[int, ...] = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    samples: int = number(8, 0)

    def __post_init__(self) -> None:
        check_ranges(self, "log")
        edges = self.length_edges
        if not edges or edges[0] not in (0, 1) or any(b <= a for a, b in pairwise(edges)) or edges[-1] > MOST:
            raise UserError(f"log.length_edges is {list(edges)}: start at 1 and let the edges rise, to {MOST} at most")
