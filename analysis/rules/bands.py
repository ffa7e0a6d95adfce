"""A band at its own range and at every target at once: half-widths, each row's excess, factors on the range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.log.rows import Floats, Ints, Rows
from analysis.rules.evaluate import Case
from analysis.rules.replay import pieces
from analysis.rules.sums import Cuts, Part, Sums
from fspo.base.errors import UserError
from fspo.rules import Clip, Edges, Rule, excess_quantiles, scaled

Member = tuple[int, Case]
NO_ADVANTAGE = UserError("every response of this window has A = 0: no update acceptance is to be matched")
ROUNDING = 1e-9
"""Relative: far above the error of an excess, far below the distance of two rows that a calibration tells apart."""


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
    centre : array (N,)
        m_L; 0 where the band has no drift.
    over, under : array (N,)
        Factors on the half-widths at which S lies on the upper edge, and on the lower one.
    """

    rule: Rule
    window: int
    rows: Rows
    below: Floats
    above: Floats
    centre: Floats
    over: Floats
    under: Floats

    @staticmethod
    def of(band: Band, first: int, rows: Rows) -> Placed | None:
        """The band on the rows of the window that starts at the rollout ``first``; None where its centre is unknown."""
        rule, m = band.rule, rows.centre(band.rule)
        if not np.all(np.isfinite(m)):
            return None
        if band.states is None:
            below, above = rule.half_widths(rows.length)
        else:
            below, above = np.empty(len(rows)), np.empty(len(rows))
            for at, rule in pieces(band.rule, band.states, rows):
                below[at], above[at] = rule.half_widths(rows.length[at])
        centre = band.rule.sum_centre(rows.length, m)
        centred = rows.S - centre
        # a band that stands still has one range for all windows
        window = -1 if band.states is None else first
        return Placed(rule, window, rows, below, above, centre, centred / above, centred / -below)

    @property
    def excess(self) -> Floats:
        """The factor (N,) at which each row just enters the band."""
        return np.maximum(self.over, self.under)

    def rejected(self, factors: Sequence[float]) -> list[Ints]:
        """Rows outside the band, its half-widths times each of the factors."""
        some = Candidates(self, slice(None), self.excess, factors)
        return some.by_factor(~((some.edges.lo <= some.S) & (some.edges.hi >= some.S)))


class Candidates:
    """Rows that a band may reject or cut, its half-widths times each of M factors, one behind the other (R,).

    They are those whose excess is not clearly below the factor; the rule itself decides on each of them, so rounding
    moves no row across an edge. A row without S is among them.

    Parameters
    ----------
    rows : int array (n,) or slice
        The rows of the placed band that are looked at.
    excess : array (n,)
        Factor at which each of them is just kept.
    """

    def __init__(self, placed: Placed, rows: Ints | slice, excess: Floats, factors: Sequence[float]) -> None:
        found = [np.flatnonzero(~(excess <= factor * (1 - ROUNDING))) for factor in factors]
        sizes = [len(at) for at in found]
        self._at, self._ends = np.concatenate(found), np.cumsum(sizes)
        at, factor = self._at if isinstance(rows, slice) else rows[self._at], np.repeat(factors, sizes)
        self.S, self.length, self.A = placed.rows.S[at], placed.rows.length[at], placed.rows.A[at]
        centre = placed.centre[at]
        self.edges = Edges(centre - factor * placed.below[at], centre + factor * placed.above[at], centre)

    def by_factor(self, chosen: np.ndarray) -> list[Ints]:
        """Those of a mask (R,), for each factor."""
        before = np.append(0, np.cumsum(chosen))[self._ends]
        return np.split(self._at[chosen], before[:-1])

    def cut(self, clip: Clip, part: Part) -> CutRows:
        """Those that the clip cuts."""
        side = clip.side(self.S, self.A, self.edges)
        cut = side != 0
        edges = self.edges if cut.all() else Edges(*(x[cut] for x in self.edges))
        return CutRows(Cuts(part, self.by_factor(cut)), side[cut], self.S[cut], self.length[cut], edges)


@dataclass(frozen=True)
class CutRows:
    """Rows (R,) that a clip cuts, for each of several factors on its band."""

    cuts: Cuts
    side: Ints
    S: Floats
    length: Floats
    edges: Edges

    def clipped_weight(self, clip: Clip) -> Floats:
        """What the clip leaves of their weights."""
        return clip.clipped_weight(self.side, clip.edge_weight(self.S, self.length, self.side, self.edges))


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
