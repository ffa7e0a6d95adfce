"""A band at its own range and at every target at once: half-widths, each row's excess, factors on the range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.log.rows import Floats, Ints, Rows
from analysis.rules.evaluate import Case
from analysis.rules.replay import pieces
from analysis.rules.sums import Sums
from fspo.base.errors import UserError
from fspo.rules import MAX_EXPONENT, Rule, excess_quantiles, scaled

Member = tuple[int, Case]
NO_ADVANTAGE = UserError("every response of this window has A = 0: no update acceptance is to be matched")


@dataclass
class Band:
    """One band, with everything that may happen outside it.

    Attributes
    ----------
    rule : Rule
        Of the band alone; where it follows a target, what it starts from.
    states : mapping of step -> Rule, optional
        Of a band that follows a target.
    members : dict of outside -> list of (number, case)
    """

    rule: Rule
    states: Mapping[int, Rule] | None
    members: dict[str, list[Member]] = field(default_factory=dict)

    @staticmethod
    def of(cases: Sequence[Case]) -> list[Band]:
        """The bands among the counterfactual cases, in their order."""
        found: dict[str, Band] = {}
        for i, case in enumerate(cases):
            if case.source != "trained":
                band = found.setdefault(case.name, Band(replace(case.rule, outside="drop"), case.states))
                band.members.setdefault(case.rule.outside, []).append((i, case))
        return list(found.values())

    @property
    def all(self) -> list[Member]:
        """Every member."""
        return [member for members in self.members.values() for member in members]

    def twin(self, case: Case) -> int | None:
        """The member that cuts the same rows as a truncating one, and drops them."""
        key = case.key | {"outside": "drop"}
        same = (i for i, other in self.members.get("drop", []) if repr(other.key) == repr(key))  # NaN equals itself
        return next(same, None)


@dataclass(frozen=True)
class Placed:
    """A band on the rows (N,) of one window.

    Attributes
    ----------
    rule : Rule
        Of the last step.
    below, above : array (N,)
        Half-widths.
    centre : array (N,), optional
        m_L; None where the band has no drift.
    over, under : array (N,)
        Factors on the half-widths at which the row is just below the upper edge, above the lower one.
    """

    rule: Rule
    window: int
    below: Floats
    above: Floats
    centre: Floats | None
    over: Floats
    under: Floats

    @staticmethod
    def of(band: Band, first: int, rows: Rows) -> Placed:
        """The band on the rows of the window that starts at the rollout ``first``."""
        rule, drift = band.rule, band.rule.drift_per_token(rows.drift_stats(band.rule), rows.A)
        if band.states is None:
            below, above = rule.half_widths(rows.length)
        else:
            below, above = np.empty(len(rows)), np.empty(len(rows))
            for at, rule in pieces(band.rule, band.states, rows):
                below[at], above[at] = rule.half_widths(rows.length[at])
        centre = np.asarray(drift) * rows.length if rule.needs_stats else None
        centred = rows.S if centre is None else rows.S - centre
        # a band that stands still has one range for all windows
        window = -1 if band.states is None else first
        return Placed(rule, window, below, above, centre, centred / above, centred / -below)

    def edge_weights(self, at: Ints, high: np.ndarray, factor: Floats, length: Floats) -> Floats:
        """Weight (R,) at the upper or lower edge of some rows, the half-widths times a factor each."""
        edge = factor * np.where(high, self.above[at], -self.below[at])
        if self.centre is not None:
            edge += self.centre[at]
        if self.rule.weight == "geometric":
            edge /= length[at]
        return np.exp(np.minimum(edge, MAX_EXPONENT))


class Factors:
    """Factors on a placed band's half-widths that give each target its acceptance of some rows."""

    def __init__(self, placed: Placed, first: int, members: Sequence[Member], excess: Floats) -> None:
        self.placed, self.first = placed, first
        self.found: dict[float, tuple[float, Rule] | UserError] = {}
        rule, targets = placed.rule, sorted({case.target for _, case in members if case.source == "matched"})
        if not len(excess):
            targets = []  # no response of this window counts: there is nothing to match, and nothing is left out
        try:
            factors: list[float | UserError] = list(excess_quantiles(excess, targets, rule.label)) if targets else []
        except UserError:
            factors = [_one(excess, target, rule.label) for target in targets]
        for target, factor in zip(targets, factors, strict=True):
            try:
                self.found[target] = factor if isinstance(factor, UserError) else (factor, scaled(rule, factor))
            except UserError as error:
                self.found[target] = error

    def note(self, members: Sequence[Member], rate: str, sums: Sums) -> list[tuple[int, float]]:
        """Each member that can be evaluated with its factor; its range, or why it has none, is put down."""
        out: list[tuple[int, float]] = []
        for i, case in members:
            found = self.found.get(case.target, NO_ADVANTAGE) if case.source == "matched" else (1.0, self.placed.rule)
            ranges = sums.ranges.setdefault((i, rate), {})
            if isinstance(found, UserError):
                sums.no_range.setdefault((i, rate), {})[self.first] = str(found)
                continue
            factor, fitted = found
            ranges[self.first if case.source == "matched" else self.placed.window] = fitted.range_lo, fitted.range_hi
            out.append((i, factor))
        return out


def _one(excess: Floats, target: float, label: str) -> float | UserError:
    try:
        return excess_quantiles(excess, [target], label)[0]
    except UserError as error:
        return error
