"""Compute the centre and the half-widths of a band for the rows of a window. Find in one pass which rows the band cuts
at its given range, and which rows the band cuts at the range that meets each target acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.log.rows import Floats, Ints, Rows
from analysis.rules.evaluate import Case
from analysis.rules.replay import half_widths
from analysis.rules.sums import Cuts, Part, Sums
from fspo.base.errors import UserError
from fspo.rules import CUTTING_ALIKE, Clip, Edges, Rule, excess_quantiles, scaled

Member = tuple[int, Case]
NO_ADVANTAGE = UserError("every response of this window has A = 0: no update acceptance is to be matched")
ROUNDING = 1e-9
"""A row counts as accepted, without a comparison of S with the edges, if its excess is below the factor on the
half-widths by more than this share of the factor. The share is far above rounding errors of the excess, and so small
that few accepted rows have to be compared."""


@dataclass
class Band:
    """One band (shape and drift) with all cases that use the band.

    The cases differ in the range, in the target acceptance, and in what happens outside the band.

    Attributes
    ----------
    rule : Rule
        Rule of the band; for a band whose range follows a target, the rule before the first step.
    states : mapping of step -> Rule, optional
        For a band whose range follows a target: the rule in force at each step.
    members : dict of outside -> list of (number, case)
        The cases by what happens outside the band, such as drop. Each case has its number in the list of all cases.
    """

    rule: Rule
    states: Mapping[int, Rule] | None
    members: dict[str, list[Member]] = field(default_factory=dict)

    @staticmethod
    def of(cases: Sequence[Case]) -> list[Band]:
        """Group the cases by band, leaving out the rule that trained; order the bands by their first cases."""
        found: dict[str, Band] = {}
        for i, case in enumerate(cases):
            if case.source != "trained":
                band = found.setdefault(case.name, Band(replace(case.rule, outside="drop"), case.states))
                band.members.setdefault(case.rule.outside, []).append((i, case))
        return list(found.values())

    @property
    def zeroing(self) -> list[Member]:
        """The cases that set the weight of a cut response to 0: clip rules with drop, corrections with mask."""
        return [member for members in self.members.values() for member in members if member[1].rule.clip.zeroes]

    @property
    def all(self) -> list[Member]:
        """All cases that use this band, as pairs (number, case); the number is the case's place in the list of all
        cases.
        """
        return [member for members in self.members.values() for member in members]

    def twin(self, case: Case) -> int | None:
        """Return the number of the case that cuts the same rows as ``case`` and sets the weight of these rows to 0.

        Return None if the band has no such case, or if ``case`` itself sets the weight of the rows that it cuts to 0.
        """
        if case.rule.clip.zeroes:
            return None
        alike = next(ways for ways in CUTTING_ALIKE if case.rule.outside in ways)
        # Compare the keys of two cases as text: a missing target is NaN, and NaN does not equal NaN.
        keys = [repr(case.key | {"outside": way}) for way in alike]
        same = (i for i, other in self.zeroing if repr(other.key) in keys)
        return next(same, None)


@dataclass(frozen=True)
class Placed:
    """A band with its centre and half-widths for the rows (N,) of one window.

    Attributes
    ----------
    rule : Rule
        The rule in force at the window's last step.
    below, above : array (N,)
        Half-widths of the band on either side of its centre, nats.
    centre : array (N,)
        Centre m_L, nats; 0 where the band has no drift.
    over, under : array (N,)
        Factors by which the half-widths would have to be multiplied for the upper edge, or the lower edge, to lie at S.
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
        """Compute centre and half-widths of the band for the rows of the window that begins with rollout ``first``.

        Return None if the log lacks the columns from which the band's centre is computed.
        """
        m = rows.centre(band.rule)
        if not np.all(np.isfinite(m)):
            return None
        below, above, rule = half_widths(band.rule, band.states, rows)
        centre = band.rule.sum_centre(rows.length, m)
        centred = rows.S - centre
        # The given range of a band that follows no target is the same in all windows. The table ``ranges`` holds it
        # once, as window -1.
        window = -1 if band.states is None else first
        return Placed(rule, window, rows, below, above, centre, centred / above, centred / -below)

    @property
    def excess(self) -> Floats:
        """Factor (N,) by which both half-widths must be multiplied so that the band just contains the row's S."""
        return np.maximum(self.over, self.under)

    def rejected(self, factors: Sequence[float]) -> list[Ints]:
        """Return, for each factor, the numbers of the rows whose S lies outside the band after its half-widths are
        multiplied by the factor."""
        some = Candidates(self, slice(None), self.excess, factors)
        return some.by_factor(~((some.edges.lo <= some.S) & (some.edges.hi >= some.S)))


class Candidates:
    """Rows that a band may cut if its half-widths are multiplied by one of M factors.

    Arrays (R,) hold the S, lengths, A and edges of these rows (candidates): first those of the first factor, then
    those of the second factor, and so on.

    A row is a candidate unless its excess is below the factor by more than the share ``ROUNDING`` of the factor. The
    rule then judges each candidate by its S and the edges, so that the rounding of the excess decides nothing. Rows
    whose S is NaN are candidates.

    Parameters
    ----------
    rows : int array (n,) or slice
        Indices, within the window, of the rows that are considered.
    excess : array (n,)
        Excess of each considered row: the factor on the half-widths at which the row is just accepted.
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
        """Return, for each factor on the half-widths, which of its candidates the mask ``chosen`` selects.

        ``chosen`` (R,) covers the candidates of all factors. The selected ones are given as indices into the array
        ``excess`` of the considered rows.
        """
        before = np.append(0, np.cumsum(chosen))[self._ends]
        return np.split(self._at[chosen], before[:-1])

    def cut(self, clip: Clip, part: Part) -> CutRows:
        """Return those candidates (rows that the band may cut) that the clip does cut.

        The band's half-widths are multiplied by the factor for which the row is a candidate.
        """
        side = clip.side(self.S, self.A, self.edges)
        cut = side != 0
        edges = self.edges if cut.all() else Edges(*(x[cut] for x in self.edges))
        return CutRows(Cuts(part, self.by_factor(cut)), side[cut], self.S[cut], self.length[cut], edges)


@dataclass(frozen=True)
class CutRows:
    """Rows that a clip cuts at each of several widths of the band.

    Each array (R,) holds the rows cut at the first width, then those cut at the second, and so on; ``cuts`` says which
    row is cut at which width.
    """

    cuts: Cuts
    side: Ints
    S: Floats
    length: Floats
    edges: Edges

    def clipped_weight(self, clip: Clip) -> Floats:
        """Return the weights (R,) that the clip leaves to the cut rows."""
        return clip.clipped_weight(self.side, clip.edge_weight(self.S, self.length, self.side, self.edges))


class Factors:
    """Factors on a band's half-widths: for each target acceptance, the factor at which that share of rows is accepted.

    ``excess`` (n,) holds for each row the factor on the half-widths at which the row is just accepted.
    """

    def __init__(self, placed: Placed, first: int, members: Sequence[Member], excess: Floats) -> None:
        self.placed, self.first = placed, first
        self.found: dict[float, tuple[float, Rule] | UserError] = {}
        rule, targets = placed.rule, sorted({case.target for _, case in members if case.source == "matched"})
        if not len(excess):
            # Without a row that counts towards the acceptance, no range can be calibrated to a target acceptance.
            targets = []
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
        """Record in ``sums`` the range of each case in this window, or why no range meets the case's target.

        Return the numbers of the cases for which a range was found, each with the case's factor on the half-widths.
        """
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
