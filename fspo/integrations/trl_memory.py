"""What one update inside TRL leaves for the next: the lagged drift, and the band that follows its target.

TRL shows the loss one microbatch at a time; the rows of an update are put together here, over all processes, in the
order of their numbers, so that every process learns the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from fspo.base.errors import UserError
from fspo.base.files import write_text
from fspo.objective import Records
from fspo.rules import DriftStats, Rule
from fspo.rules.online import OnlineRule

FILE = "fspo_rule.json"


class UpdateMemory:
    """The rows of the present update, and what earlier ones have taught.

    Attributes
    ----------
    online : OnlineRule
        ``online.rule`` is the present update's rule.
    lagged : DriftStats
        Sums of the update before; 0 before the first update of a rollout, where every S is 0.
    """

    def __init__(self, rule: Rule) -> None:
        self.online = OnlineRule(rule)
        self.lagged = DriftStats()
        self.needed = rule.needs_stats or rule.adapt != "none"
        self._parts: list[np.ndarray] = []

    def centre(self, advantages: Any) -> Any:
        """Centre of the present update's band: a number, or an array or tensor (B,) like the advantages."""
        return self.online.rule.centre(self.lagged, advantages)

    def begin_rollout(self) -> None:
        """A new generation: no update has moved it yet."""
        self.online.end_rollout()
        self.lagged = DriftStats()
        self._parts = []

    def add(self, response_id: np.ndarray, records: Records, advantages: np.ndarray) -> None:
        """One microbatch's rows, each array (B,)."""
        found = records.to_numpy()
        names = ("log_ratio", "length", "k3_sum", "sum_sq_log_ratio")
        self._parts.append(np.stack([response_id, advantages, *(found[name] for name in names)]).astype(np.float64))

    def end_update(self, *, moved: bool) -> None:
        """All rows of the update are in; ``moved``: an update of this rollout came before, so S is not 0."""
        rows = np.concatenate([part for own in gather_object([self._parts]) for part in own], 1)
        self._parts = []
        rows = rows[:, rows[3] > 0]  # TRL masks truncated completions out as a whole: no token, no S
        _, A, S, n, k3, square = rows[:, np.argsort(rows[0], kind="stable")]
        if moved:
            self.online.observe(S, n, A, self.centre(A))
        self.lagged = DriftStats.of(k3, square, n, S, A)

    def save(self, checkpoint: str | Path) -> None:
        """Keep what the band has learned in a checkpoint's folder."""
        write_text(Path(checkpoint) / FILE, json.dumps(self.online.state))

    def load(self, checkpoint: str | Path) -> None:
        """Go on from a checkpoint.

        Raises
        ------
        UserError
            If it holds no state of the rule, or one that cannot be read.
        """
        path = Path(checkpoint) / FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): resume from another checkpoint") from error
        self.online = OnlineRule(self.online.template, state)
