"""The options of an analysis; the help of ``fspo analyse`` shows their defaults without loading pandas."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.log.partition import LENGTH
from analysis.log.ratio import UPDATE, known_ratio
from analysis.rules.evaluate import TARGETS, candidates
from fspo.base.errors import UserError
from fspo.base.number_checks import checked_count, checked_seed
from fspo.stats.bins import DEFAULT_BINS

MOST_DRAWS = 10_000


@dataclass(frozen=True)
class Options:
    """Options of an analysis, the same for all runs and rules that are compared.

    Parameters
    ----------
    bins : int
        Number of quantile bins.
    edges : list of numbers, optional
        Edges of the bins, instead of quantiles (in tokens, for lengths).
    window : int
        Number of rollouts in a block. In each block ranges are calibrated anew to the targets, and the quantities of
        the cosine lemma (docs/theory.md T7) are pooled.
    rules : list of str, optional
        Names of the bands that are evaluated counterfactually; by default all bands for the log-ratio ``on``
        (`analysis.rules.evaluate.candidates`).
    targets : list of float
        Acceptances (1 - clip rate) that ranges are calibrated to, so that rules are compared at an equal clip rate.
    draws : int
        Number of times that responses are dropped at random. The cosines of these random drops are the control with
        which the rules' cosines are compared.
    seed : int
        Seed of the random drops.
    by : str
        Column of the log that responses are binned by: length, another column of numbers, or ``user.COLUMN``.
    on : str
        The log-ratio that is analysed: "update" (S), "engine" (E) or "behaviour" (D + E).
    """

    bins: int = DEFAULT_BINS
    edges: tuple[float, ...] | None = None
    window: int = 5
    rules: tuple[str, ...] | None = None
    targets: tuple[float, ...] = TARGETS
    draws: int = 32
    seed: int = 0
    by: str = LENGTH.column
    on: str = UPDATE.on

    def __post_init__(self) -> None:
        if self.rules is None:
            object.__setattr__(self, "rules", tuple(candidates(known_ratio(self.on))))
        checked_count("--draws", self.draws, 1, MOST_DRAWS, "the random control keeps all draws in memory")
        checked_count("--window", self.window, 1, 2**31, "a block of rollouts has at least 1 rollout")
        checked_seed("--seed", self.seed)
        for name, given in (("--rules", self.bands), ("--targets", self.targets)):
            if len(set(given)) < len(given):
                raise UserError(f"{name} {list(given)}: name each once")

    @property
    def bands(self) -> tuple[str, ...]:
        """The names of the bands that are evaluated: the given ``rules``, or all bands for the log-ratio ``on``."""
        return self.rules or ()
