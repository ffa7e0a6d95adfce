"""What the trainer for TRL and the plugin for verl share: the options of a rule, and what a band learns from updates.

TRL and verl pass the loss one microbatch at a time. So a band's drift is made from the previous update. The responses
of an update are collected here, from all processes and sorted by their numbers, so every process learns the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from accelerate.utils import gather_object

from fspo.base.errors import UserError
from fspo.base.files import write_text
from fspo.config import RuleConfig
from fspo.objective import Records
from fspo.rules import DriftStats, Rule
from fspo.rules.online import OnlineRule

FILE = "fspo_rule.json"

RuleParts: Any = make_dataclass(
    "RuleParts",
    [
        (part.name, get_type_hints(RuleConfig)[part.name], field(default=None, metadata={"help": "As in RuleConfig."}))
        for part in fields(RuleConfig)
        if part.name not in ("preset", "advantage", "aggregation", "constant_length", "kl_coef")
    ],
)
"""A dataclass with the parts of a clip rule that can be changed in a preset; None keeps the preset's."""


def given(options: Any) -> dict[str, Any]:
    """Return by name the values of those options of `fspo.config.RuleConfig` that the dataclass ``options`` has too."""
    return {part.name: getattr(options, part.name) for part in fields(RuleConfig) if hasattr(options, part.name)}


def check_drift(rule: Rule, trainer: str, option: str) -> None:
    """Raise UserError if the rule makes its drift from the whole minibatch: ``trainer`` ("TRL", "verl") passes its loss
    one microbatch at a time. The message names the trainer and ``option``, the option to set instead."""
    if rule.needs_stats and rule.drift_source != "lagged":
        raise UserError(
            f"rule {rule.label!r} centres its band on the whole minibatch, of which {trainer} shows a loss one "
            f"microbatch: set {option}"
        )


def remembers(rule: Rule) -> bool:
    """Return whether the rule's band depends on earlier updates: by a drift from their tokens, or by a range that
    follows a target."""
    return rule.needs_stats or rule.adapt != "none"


class UpdateMemory:
    """Collects the responses of the present update, and keeps what the rule has learnt from earlier ones: drift, range.

    Parameters
    ----------
    rule : Rule
        The clip rule that training starts from.
    gather : callable
        Takes this process's list and returns one list with the items of all processes' lists.

    Attributes
    ----------
    online : OnlineRule
        The rule with what it has learnt; ``online.rule`` is the rule of the present update.
    response_id : array (B,)
        Numbers of the responses of the present microbatch. Set before each call of the loss if the trainer (verl) does
        not pass them to the loss.
    lagged : DriftStats
        Sums over the tokens of the previous update, from which the drift of the present band is made. They are 0 at the
        first update of a rollout, where every S is 0.
    """

    def __init__(self, rule: Rule, gather: Callable[[list[Any]], list[Any]] = gather_object) -> None:
        self._gather = gather
        self.online = OnlineRule(rule)
        self.lagged = DriftStats()
        self.response_id = np.zeros(0, np.int64)
        self._parts: list[np.ndarray] = []

    @property
    def centre(self) -> Any:
        """Drift of the present update's band, nats per token."""
        return self.online.rule.centre(self.lagged)

    def begin_rollout(self) -> None:
        """Begin a rollout, whose responses all have S = 0 at first: the drift is set to 0."""
        self.lagged = DriftStats()
        self._parts = []

    def add(self, response_id: np.ndarray, records: Records, advantages: np.ndarray) -> None:
        """Collect one microbatch of the present update: its responses' numbers, what the rule did, and advantages, (B,)
        each."""
        found = records.to_numpy()
        names = ("log_ratio", "length", "k3_sum", "sum_sq_log_ratio")
        self._parts.append(np.stack([response_id, advantages, *(found[name] for name in names)]).astype(np.float64))

    def end_update(self, *, moved: bool) -> None:
        """After an update's last microbatch, learn the next update's drift and range from all responses of the update.

        ``moved`` says whether an earlier update of this rollout has changed the weights. If none has, every S is 0, and
        nothing is learnt about the range."""
        parts, self._parts = [part for own in self._gather([self._parts]) for part in own], []
        if not parts:  # in verl only the last pipeline stage computes a loss; other stages collect nothing
            return
        rows = np.concatenate(parts, 1)
        rows = rows[:, rows[3] > 0]  # leave out responses whose tokens the trainer has all masked
        _, A, S, n, k3, square = rows[:, np.argsort(rows[0], kind="stable")]
        if moved:
            self.online.observe(S, n, A, self.centre)
        self.lagged = DriftStats.of(k3, square, n)

    def save(self, checkpoint: str | Path) -> None:
        """Write what the rule has learnt about its range to a checkpoint's folder; if it adapts none, write nothing."""
        if self.online.template.adapt != "none":
            write_text(Path(checkpoint) / FILE, json.dumps(self.online.state))

    def load(self, checkpoint: str | Path | None) -> None:
        """Take up what `save` wrote to the folder ``checkpoint``; do nothing if it is None or the rule adapts no range.

        Raises UserError if the folder holds no such state, or one that cannot be read.
        """
        if checkpoint is None or self.online.template.adapt == "none":
            return
        path = Path(checkpoint) / FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): resume from another checkpoint") from error
        self.online = OnlineRule(self.online.template, state)
