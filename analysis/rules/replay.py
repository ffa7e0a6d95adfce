"""Replay a band that follows a target on a log: find the band that a trainer would have used at each step. The trainer
learns the band of a step from earlier updates only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from analysis.log.rows import Floats, Ints, LearningRows, Rows, in_order
from fspo.rules import Rule, standardized_excess
from fspo.rules.online import OnlineRule


class Replay:
    """Replays one rule whose range follows a target: the rule learns from the log's steps, in order, as in training.

    Parameters
    ----------
    rule : Rule
        A rule whose range follows a target (``adapt``); its parameters are those before the first step.

    Attributes
    ----------
    states : dict of step -> Rule
        The rule in force at each step, learnt from the rows of earlier steps only.
    online : OnlineRule
        What the band has learnt up to now.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule, self.states = rule, {}
        self.online = OnlineRule(rule)

    def add(self, rows: LearningRows, m: Floats | float | None = None) -> None:
        """Learn from the rows of further steps, in order; ``m`` is the drift of the band in each row, nats per token,
        or None if the rule has no drift."""
        if not len(rows.step):
            return
        rate, excess = self.rule.target_rate, np.full(len(rows.step), np.nan)
        counted = rows.A != 0 if rate == "update" else slice(None)
        excess[counted] = standardized_excess(self.rule, rows.S, rows.length, rows.A, m, rate)
        starts = np.flatnonzero(np.diff(rows.step, prepend=rows.step[:1] - 1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(rows.step)], strict=True):
            self.states[int(rows.step[start])] = self.online.rule
            self.online.learn(excess[start:stop], rows.length[start:stop], rows.A[start:stop])


def replay(rule: Rule, rows: Rows) -> dict[int, Rule]:
    """Replay a rule on the rows of a run (docs/theory.md section 2, "Ranges that follow a target").

    Parameters
    ----------
    rule : Rule
        A rule whose range follows a target (``adapt``).
    rows : Rows
        All rows of the run, of the first epoch and of later ones, because the trainer learns from all of them.

    Returns
    -------
    dict of step -> Rule
        The rule in force at each step.
    """
    replayed = Replay(rule)
    ordered = rows.take(in_order(rows.step, rows.response))
    replayed.add(LearningRows.of([ordered]), ordered.centre(rule))
    return replayed.states


def learn(replays: Mapping[str, Replay], blocks: Sequence[Rows]) -> None:
    """Let each of ``replays`` (by name, bands without a drift) learn, in place, from further blocks of a log's rows."""
    if blocks and replays:
        rows = LearningRows.of(blocks)
        for replayed in replays.values():
            replayed.add(rows)


def by_step(rows: Rows) -> Iterator[tuple[int, Ints]]:
    """Yield each step (number of an update) that the rows have, in increasing order, with the indices of its rows."""
    if not len(rows):
        return
    order = np.argsort(rows.step, kind="stable")
    steps = rows.step[order]
    starts = np.flatnonzero(np.r_[True, steps[1:] != steps[:-1]])
    for at in np.split(order, starts[1:]):
        yield int(rows.step[at[0]]), at


def pieces(rule: Rule, states: Mapping[int, Rule] | None, rows: Rows) -> Iterator[tuple[Ints, Rule]]:
    """Yield arrays of indices that divide the rows, each with the rule that was in force for its rows.

    Without ``states`` there is one array: all rows, with ``rule``. With the states of a replayed band (the rule in
    force at each step) there is an array for each series of steps in which the state stays the same.

    A state sets only the band; the weight, what happens outside, the dual clip and the name are those of ``rule``."""
    if states is None:
        yield np.arange(len(rows)), rule
        return
    for state, steps in groupby(by_step(rows), lambda found: states.get(found[0])):
        at = np.concatenate([at for _, at in steps])
        if state is not None:
            state = replace(state, weight=rule.weight, outside=rule.outside, dual=rule.dual, name=rule.name)
        yield at, state or rule


def half_widths(rule: Rule, states: Mapping[int, Rule] | None, rows: Rows) -> tuple[Floats, Floats, Rule]:
    """Return a band's half-widths below and above its centre for each row (N,), nats, and the rule of the rows' last
    step.

    If the band follows a target, ``states`` holds the rule that was in force at each step, else it is None and ``rule``
    is in force for all rows (:func:`pieces`)."""
    if states is None:
        return *rule.half_widths(rows.length), rule
    below, above = np.empty(len(rows)), np.empty(len(rows))
    now = rule
    for at, now in pieces(rule, states, rows):
        below[at], above[at] = now.half_widths(rows.length[at])
    return below, above, now
