"""Make the list of rules that are evaluated on a log, and compute what each rule does to the log's rows.

A case is a band (shape and drift), what happens outside it, and a source of its range. The source is "trained" (the
rule that trained, at its logged drift), "given" (a preset at its default range) or `matched` (the range is
calibrated in each block to a target acceptance: to a band acceptance where band acceptance is measured, else to an
update acceptance on the rows with A != 0; docs/theory.md section 2).

The cases depend on the ratio that is analysed (`candidates`): clip rules act on the update's ratio S, corrections on
the engine and the rollout-policy ratio.

A band whose range follows a target is replayed (:mod:`analysis.rules.replay`). Its "given" case is what the trainer
would have done at the preset's target. Its `matched` case multiplies the half-widths of the replayed band, in each
block, by the factor that meets the target acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import Floats, Ints, Rows
from analysis.rules.replay import half_widths, replay
from fspo.base.errors import UserError, unknown_name
from fspo.rules import CORRECTIONS, CRITERIA, OF_CLIP_RULES, PRESETS, Clip, Edges, Rate, Ratio, Rule, excess_quantile
from fspo.rules.range import EPS_SHAPES, scaled

TARGETS = (0.95, 0.85)
BANDS = tuple(name for name, (rule, _, _) in PRESETS.items() if rule.level == "sequence")
"""Presets of clip rules that are evaluated on each log; each clips whole responses."""
TREATED = "fspo"
"""The preset that is evaluated with each treatment of responses outside its band (`OF_CLIP_RULES`)."""
NO_ADVANTAGE = UserError("every response of this block of rollouts has A = 0: no update acceptance can be met")
UNCORRECTED = "none"
"""Name of the case that corrects nothing: it leaves every response the factor 1."""


def candidates(on: Ratio) -> dict[str, Rule]:
    """Return by name the rules that a log is analysed with: clip rules if the log-ratio ``on`` is the update's, else
    the corrections that act on whole responses."""
    if on not in CORRECTED:
        return {name: PRESETS[name].rule for name in BANDS}
    rules = {name: rule for name, rule in CORRECTIONS.items() if rule.level == "sequence"}
    return {UNCORRECTED: Rule("none", weight="none", on=on, name=UNCORRECTED)} | {
        name: replace(rule, on=on) for name, rule in rules.items()
    }


@dataclass(frozen=True)
class Case:
    """A rule that is evaluated on a log: a band and what happens outside it, the ``source`` of its range ("trained",
    "given" or "matched"), and the ``target`` acceptance of a range that is matched. ``of`` names what the band is on,
    and ``states`` holds, for a band that follows a target, the rule in force at each step."""

    rule: Rule
    name: str
    source: str  # where the range is from: "trained", "given" or "matched"
    target: float = float("nan")
    states: Mapping[int, Rule] | None = field(default=None, compare=False, repr=False)
    """For a band whose range follows a target: the rule in force at each step of the log."""
    of: str = "S"
    """What the band is on: S or, of a criterion, another field of `analysis.log.rows.Rows`."""

    @property
    def key(self) -> dict[str, Any]:
        """The values of the columns of a table row that name the case, by column: rule, outside, source and target."""
        return {"rule": self.name, "outside": self.rule.outside, "source": self.source, "target": self.target}


@dataclass(frozen=True)
class CaseEffect:
    """What a case does to each row, as arrays (N,): ``side`` (-1 below, 0 not clipped, 1 above, 2 dual clip), whether S
    is in the band, weight w and clipped weight M w, and the upper edge ``hi`` of the band, nats; or the ``reason`` why
    this is unknown."""

    side: Ints
    in_band: np.ndarray
    weight: Floats
    clipped_weight: Floats
    hi: Floats  # upper edge of the band, nats
    reason: str = ""


@dataclass(frozen=True)
class Band:
    """The band of a case, placed for rows (N,), with half-widths that a factor may multiply. ``value`` is what the band
    is on (S), ``centre`` its centre and ``below`` and ``above`` its half-widths, nats. If both half-widths are
    multiplied by ``over``, the upper edge lies at ``value``; if by ``under``, the lower edge does."""

    rule: Rule  # the rule in force at the rows' last step
    value: Floats  # (N,) what the band is on: S, or the number of a criterion
    centre: Floats  # (N,) centre m_L, nats
    below: Floats  # (N,) half-widths on either side of it, nats
    above: Floats
    over: Floats  # (N,) factors on the half-widths at which the upper, or the lower, edge lies at value
    under: Floats

    @staticmethod
    def of(case: Case, rows: Rows) -> Band | None:
        """Place the band of a case for rows (N,); return None if the log lacks what gives its centre or value."""
        m, value = rows.centre(case.rule), getattr(rows, case.of)
        if not (np.all(np.isfinite(m)) and np.all(np.isfinite(value) | np.isnan(rows.S))):
            return None
        below, above, rule = half_widths(case.rule, case.states, rows)
        centre = case.rule.sum_centre(rows.length, m)
        return Band(rule, value, centre, below, above, (value - centre) / above, (centre - value) / below)

    def excess(self, clip: Clip, A: Floats, rate: Rate, at: Ints | slice) -> Floats:
        """Return for each of the rows ``at`` its excess: the least factor on the half-widths at which the band holds
        the row or, for the rate "update", at which ``clip`` does not clip it (no A of these rows may be 0)."""
        over, under = self.over[at], self.under[at]
        return np.maximum(over, under) if rate == "band" else clip.excess(over, under, A[at])

    def factor(self, case: Case, excess: Floats) -> float:
        """Return the factor on the half-widths at which the case accepts its target share of rows with these ``excess``
        (N,); 1 if the case's range is not set by a target.

        Raise UserError if no range of the case's rule gives the target."""
        if case.source != "matched":
            return 1.0
        if not len(excess):
            raise NO_ADVANTAGE
        factor = excess_quantile(excess, case.target, case.rule.label)
        if self.rule.shape in EPS_SHAPES:
            scaled(self.rule, factor)  # refuses a factor that no eps gives; every other range can be multiplied
        return factor

    def edges(self, factor: float | Floats, at: Ints | slice = slice(None)) -> Edges:
        """Return the edges, nats, of the rows ``at`` after both half-widths are multiplied by ``factor``."""
        centre = self.centre[at]
        return Edges(centre - factor * self.below[at], centre + factor * self.above[at], centre)


def make_cases(
    bands: Sequence[str] | None = None,
    targets: Sequence[float] = TARGETS,
    rows: Rows | None = None,
    states: Mapping[str, Mapping[int, Rule]] | None = None,
    on: Ratio = "update",
) -> list[Case]:
    """Make the counterfactual cases: each band at its preset's range and at ranges calibrated to each of ``targets``.

    Outside the band, fspo is evaluated with each of drop, truncate and cap, every other rule with what its preset does.

    Parameters
    ----------
    bands : sequence of str, optional
        Names of rules that act on the ratio ``on`` (`candidates`); all by default.
    rows : Rows, optional
        All rows of the run, on which bands that follow a target are replayed. A band that follows a target keeps its
        preset's range if neither ``rows`` nor ``states`` are given.
    states : mapping of name -> states, optional
        For bands that are replayed elsewhere (`analysis.tables.passes.look_through`): the rule in force at each step.
    on : str
        The ratio that is analysed.

    Raises
    ------
    UserError
        If a band is unknown, is not on sequences or acts on another ratio, or if a target is not inside (0, 1).
    """
    cases: list[Case] = []
    known_rules = candidates(on)
    for name in known_rules if bands is None else bands:
        if name not in known_rules:
            if name in PRESETS or name in CORRECTIONS:
                raise UserError(
                    f"rule {name!r} is not on whole sequences, or acts on another ratio; choose from "
                    f"{', '.join(known_rules)}"
                )
            raise unknown_name("rule", name, tuple(known_rules))
        rule = known_rules[name]
        known = None if states is None else states.get(name)
        if known is None and rows is not None and rule.adapt != "none":
            known = replay(rule, rows)
        for outside in OF_CLIP_RULES if name == TREATED else (rule.outside,):
            here = replace(rule, outside=outside)
            cases.append(Case(here, name, "given", states=known))
            if rule.shape != "none":
                cases += [Case(here, name, "matched", float(target), known) for target in targets]
    for target in targets:
        if not 0 < target < 1:
            raise UserError(f"--targets {target}: an acceptance lies strictly between 0 and 1, for example 0.95")
    return cases


def criterion_cases(targets: Sequence[float], on: Ratio) -> list[Case]:
    """Make the cases of verl's criteria for rejecting a response: sum, mean or maximum over its tokens of k2 = x^2/2 or
    k3, x the token's log-ratio, each with bounds that accept a share in ``targets``; none if S is analysed."""
    criteria = CRITERIA.items() if on in CORRECTED else ()
    return [
        Case(replace(rule, on=on, name=name), name, "matched", float(target), of=of)
        for name, (of, rule) in criteria
        for target in targets
    ]


def trained_case(run: Run) -> Case | None:
    """Return the rule that trained as a case; None if the log names no rule, or one on tokens or prefixes."""
    if run.rule is None or run.rule.level != "sequence":
        return None
    return Case(run.rule, run.rule.label, "trained")


def common_weight(case: Case) -> Case:
    """Return the case with exp(S) as the weight of its clip rule, so that rules with different weights can be compared.

    A case of a correction is returned as it is: the factor M w that it leaves estimates exp of its log-ratio."""
    return case if case.rule.on in CORRECTED else replace(case, rule=replace(case.rule, weight="sequence"))


def evaluate(case: Case, rows: Rows, window: Ints, rate: Rate) -> CaseEffect:
    """Apply a case to rows (N,). ``window`` (N,) is the first rollout of each row's block.

    A range of source `matched` is calibrated in each block to the case's target of ``rate`` (band or update)."""
    n, rule = len(rows), case.rule

    def failed(reason: str) -> CaseEffect:
        unknown = np.full(n, np.nan)
        return CaseEffect(np.zeros(n, np.int64), np.zeros(n, bool), unknown, unknown, unknown, reason)

    if n == 0:
        return failed("no rows")
    if case.source == "trained":
        m = rows.drift if rule.needs_stats else np.zeros(n)
        if not np.all(np.isfinite(m)):
            return failed(lacking(case))
        if rule.edges_vary and np.any(np.isnan(rows.lo) | np.isnan(rows.hi)):
            return failed("the log lacks the edges of a band that changes from row to row (lo, hi)")
        edges = rows.edges(rule)
        applied = rule.apply(rows.S, rows.length, rows.A, m, edges)
        return CaseEffect(applied.side, applied.in_band, applied.weight, applied.clipped_weight, edges[1])
    band = Band.of(case, rows)
    if band is None:
        return failed(lacking(case))
    factor = np.ones(n)
    for first in np.unique(window) if case.source == "matched" else ():
        here = window == first
        asked = np.flatnonzero(here & (rows.A != 0) if rate == "update" else here)
        try:
            factor[here] = band.factor(case, band.excess(rule.clip, rows.A, rate, asked))
        except UserError as error:
            return failed(f"block of rollouts {first}: {error}")
    edges = band.edges(factor)
    applied = rule.clip.apply(band.value, rows.length, rows.A, edges)
    return CaseEffect(applied.side, applied.in_band, applied.weight, applied.clipped_weight, edges.hi)


def lacking(case: Case) -> str:
    """Return a sentence that says which columns the log lacks for the centre of a case's band, or for what it is on."""
    rule = case.rule
    if case.of != "S":
        where = f"behaviour_{case.of}, and D = 0" if case.of.endswith("max") else "the sums of squares and of k3"
        return f"the log lacks what {case.name} needs ({where})"
    return f"the log lacks what drift {rule.drift!r} needs (k3_sum, sum_sq_log_ratio, drift)"


def narrow(outcome: CaseEffect, which: Ints) -> CaseEffect:
    """Return the effect ``outcome`` of a case on the rows with the indices ``which`` (M,) alone."""
    side, in_band, weight = outcome.side[which], outcome.in_band[which], outcome.weight[which]
    return CaseEffect(side, in_band, weight, outcome.clipped_weight[which], outcome.hi[which], outcome.reason)


def measured(outcome: CaseEffect, measure: str) -> tuple[Floats, Floats]:
    """Return what each row (N,) adds to the numerator and to the denominator of the acceptance ``measure`` under a case
    whose effect is ``outcome``.

    For "band" the numerator is 1 if S is in the band and else 0, for "update" 1 if the row is not clipped and else 0;
    the denominator is 1. For "weight" the numerator is M w and the denominator w."""
    ones = np.ones(len(outcome.side))
    if measure == "band":
        return outcome.in_band.astype(np.float64), ones
    if measure == "update":
        return (outcome.side == 0).astype(np.float64), ones
    return outcome.clipped_weight, outcome.weight


def rate_of(measure: str) -> Rate:
    """Return the acceptance by which calibrated ranges are set in tables of the acceptance ``measure``: the band
    acceptance for "band", the update acceptance for "update" and "weight"."""
    return "band" if measure == "band" else "update"
