"""Bands that follow a target, replayed on a log: what the trainer would have done, from earlier updates alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np

from analysis.rows import Ints, Rows
from fspo.adaptive import OnlineRule
from fspo.rules import Rule


def replay(rule: Rule, rows: Rows) -> dict[int, Rule]:
    """The rule of each step of a log whose template this is (docs/theory.md section 2, "Ranges that follow a target").

    Parameters
    ----------
    rule : Rule
        With ``adapt``; the rule of a step was made before that step's rows were seen.
    rows : Rows
        All rows of the run, of any use: the trainer learns from each of them.

    Returns
    -------
    dict of step -> Rule
    """
    online, found = OnlineRule(rule), {}
    rollout = None
    for step, at in by_step(rows, ordered=True):
        now = int(rows.rollout[at[0]])
        if rollout is not None and now != rollout:
            online.end_rollout()
        rollout = now
        found[step] = online.rule
        inside = rows.take(at)
        online.observe(inside.S, inside.length, inside.A, inside.drift_stats(rule))
    return found


def by_step(rows: Rows, ordered: bool = False) -> Iterator[tuple[int, Ints]]:
    """Each step with the index of its rows; ``ordered`` by response within it, as the trainer does."""
    if not len(rows):
        return
    order = np.lexsort((rows.response, rows.step)) if ordered else np.argsort(rows.step, kind="stable")
    steps = rows.step[order]
    starts = np.flatnonzero(np.r_[True, steps[1:] != steps[:-1]])
    for at in np.split(order, starts[1:]):
        yield int(rows.step[at[0]]), at


def pieces(rule: Rule, states: Mapping[int, Rule] | None, rows: Rows) -> Iterator[tuple[Ints, Rule]]:
    """Index of rows and the rule for them: one piece, or those of a band that follows its target, in order of steps.

    A state gives the band alone; weight, outside and name are ``rule``'s.
    """
    if states is None:
        yield np.arange(len(rows)), rule
        return
    for state, steps in groupby(by_step(rows), lambda found: states.get(found[0])):
        at = np.concatenate([at for _, at in steps])
        if state is not None:
            state = replace(state, weight=rule.weight, outside=rule.outside, dual=rule.dual, name=rule.name)
        yield at, state or rule
