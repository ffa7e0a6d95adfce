"""The log-ratio that an analysis is about, and where a log holds it: in which columns and in which rows.

The update's log-ratio S is analysed on every row after an update. The log-ratios E and D + E are analysed on one row of
each response, the row in the first epoch, because they belong to the sampling of a response and are the same at every
use. Before the first update of a rollout S is 0, but E and D need not be 0, so a row in the first epoch is analysed
even if no update came before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from analysis.log.rows import Floats
from fspo.base.errors import UserError, unknown_name
from fspo.gradlog import GradLog, header_rule
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.rules import Ratio


class Words(NamedTuple):
    """Texts about a log-ratio: its symbol in text and in mathematics (``math``), on which ``rows`` it is analysed, and
    why it may be 0 in all of them (``zero``)."""

    text: str
    math: str
    rows: str
    zero: str


_ONCE = "each response once, in the first epoch, before or after an update"
_SAME = "the sampler's log-probabilities were logged as the trainer's, or both programs are the same"
WORDS: dict[Ratio, Words] = {
    "update": Words(
        "S",
        "S",
        "every row after an update of the policy",
        "no reward differs, old log-probabilities are of the new weights, or nothing moved (fspo doctor)",
    ),
    "engine": Words("E", "E", _ONCE, _SAME),
    "behaviour": Words("D + E", "D+E", _ONCE, _SAME),
}
RATIOS = tuple(RATIO_COLUMNS[on].log_ratio for on in WORDS)
"""The columns of the gradient log that hold a response's log-ratio: update, engine or behaviour."""
CORRECTED: tuple[Ratio, ...] = ("engine", "behaviour")
"""The log-ratios that corrections act on, E and D + E; clip rules act on S."""
LARGEST = ("behaviour_k2_max", "behaviour_k3_max")
"""Columns with the largest k2 and k3 of a token of D + E, and so of E where D is 0."""
_CLIP = {name: name for name in ("lo", "hi", "drift", "band_accept", "side", "multiplier", "weight")}
_CORRECTION = {name: f"correction_{name}" for name in ("lo", "hi", "drift", "side")} | {
    "multiplier": "correction_weight"
}
"""By field of `Rows`: the column of the log that says what a correction did. The correction's factor takes the place
of the multiplier M."""


@dataclass(frozen=True)
class LoggedRatio:
    """The log-ratio that is analysed (S, E or D + E), with the names of the log's columns about it.

    The default is the update's ratio S.

    Attributes
    ----------
    on : str
        The ratio (``fspo.rules.Ratio``).
    column : str
        Column of the ratio.
    sum_sq, k3_sum : str
        Columns with the sums over a response's tokens of s^2 and of k3 = e^s - 1 - s, s the token log-ratio.
    done : mapping of str to str
        By name of a field of `analysis.log.rows.Rows` (lo, side, ...): the log's column that the field is read from.
        These columns say what the run's rule on this ratio did. Empty if the run has no such rule.
    """

    on: Ratio = "update"
    column: str = RATIO_COLUMNS["update"].log_ratio
    sum_sq: str = RATIO_COLUMNS["update"].sum_sq
    k3_sum: str = RATIO_COLUMNS["update"].k3_sum
    done: Mapping[str, str] = field(default_factory=lambda: _CLIP)

    @staticmethod
    def find(on: str, logged: Iterable[str], header: Mapping[str, Any]) -> LoggedRatio:
        """Find the columns of the log-ratio ``on`` among the ``logged`` ones; the log's ``header`` names rules.

        A log without the column ``behaviour_log_ratio`` (schema 1.0) does not record the policy lag D, so its engine
        ratio E is used as the rollout-policy ratio D + E.

        Raise UserError if the ratio is unknown or the log has no columns of it."""
        ratio, logged = known_ratio(on), set(logged)
        clip, correction = header_rule(header), header_rule(header, "correction")
        if ratio == "update":
            return LoggedRatio(done=_CLIP if clip is None or clip.on == ratio else {})
        done = _CORRECTION if correction is not None and correction.on == ratio else {}
        behaviour = RATIO_COLUMNS["behaviour"].log_ratio in logged
        columns = RATIO_COLUMNS[ratio if behaviour else "engine"]
        if columns.log_ratio not in logged and behaviour:
            raise UserError(
                "--on engine: the log has D + E and not E alone, which needs the versions of the weights "
                "(policy_version, behaviour_version): log them, or use --on behaviour"
            )
        if columns.log_ratio not in logged:
            raise UserError(
                f"--on {ratio}: the log has no {columns.log_ratio}: let the trainer write the sampler's "
                "log-probabilities, or import them (fspo import --help)"
            )
        return LoggedRatio(ratio, *columns, done)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns of the gradient log that an analysis of this log-ratio reads."""
        known = (self.column, self.sum_sq, self.k3_sum, *self.done.values())
        return (*known, "staleness_log_ratio", *LARGEST) if self.once else known

    @property
    def header(self) -> str:
        """Key of the log's header that holds the rule on this ratio: "correction" for E and D + E, else "rule"."""
        return "correction" if self.on in CORRECTED else "rule"

    @property
    def words(self) -> Words:
        """Texts about the ratio, such as its symbol in text and in mathematics."""
        return WORDS[self.on]

    @property
    def once(self) -> bool:
        """Whether an analysis has one row of each response, that of its first epoch; if not, it has every row after an
        update."""
        return self.on != "update"

    def fields(self, logged: Iterable[str]) -> frozenset[str]:
        """Translate names of logged columns to names of fields of `analysis.log.rows.Rows`.

        Only columns that say what a rule did are translated: those of the run's rule on this log-ratio get the name of
        the field, those of the run's other rules are left out. All other names are returned unchanged."""
        found = {field for field, column in self.done.items() if column in logged}
        return frozenset(found | (set(logged) - {*_CLIP.values(), *_CORRECTION.values()}))

    def of(self, log: GradLog) -> Floats:
        """Return the log-ratio of each row (N,), nats; NaN where the log has no value."""
        return log.column(self.column) if self.column in log or not self.once else np.full(len(log), np.nan)


UPDATE = LoggedRatio()


def known_ratio(name: str) -> Ratio:
    """Return ``name`` if there is a log-ratio of this name, else raise UserError."""
    for ratio in WORDS:
        if ratio == name:
            return ratio
    if name == "total":
        raise UserError("--on total is gone: use update (S), or engine or behaviour (the mismatch)")
    raise unknown_name("--on", name, tuple(WORDS))
