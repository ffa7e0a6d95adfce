"""Bands that follow a target, replayed on a log: what the trainer would have done, from earlier updates alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np

from analysis.log.rows import Floats, Ints, Learnt, Rows, in_order
from analysis.log.stream import Stream
from fspo.rules import Rule, standardized_excess
from fspo.rules.online import OnlineRule


class Replay:
    """A rule that is shown a log's steps in order, any number of them at a time.

    Parameters
    ----------
    rule : Rule
        With ``adapt``: the template.

    Attributes
    ----------
    states : dict of step -> Rule
        The rule of each step, made before that step's rows were seen.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule, self.states = rule, {}
        self._online = OnlineRule(rule)
        self._rollout: int | None = None

    def add(self, rows: Learnt, m: Floats | float | None = None) -> None:
        """Show the rows of some later steps; ``m`` is the centre of the template's band, as in `Rule.apply`."""
        if not len(rows.step):
            return
        rate, excess = self.rule.target_rate, np.full(len(rows.step), np.nan)
        counted = rows.A != 0 if rate == "update" else slice(None)
        excess[counted] = standardized_excess(self.rule, rows.S, rows.length, rows.A, m, rate)
        starts = np.flatnonzero(np.diff(rows.step, prepend=rows.step[:1] - 1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(rows.step)], strict=True):
            now = int(rows.rollout[start])
            if self._rollout is not None and now != self._rollout:
                self._online.end_rollout()
            self._rollout = now
            self.states[int(rows.step[start])] = self._online.rule
            self._online.learn(excess[start:stop], rows.length[start:stop])


def replay(rule: Rule, rows: Rows) -> dict[int, Rule]:
    """The rule of each step of a log whose template this is (docs/theory.md section 2, "Ranges that follow a target").

    Parameters
    ----------
    rule : Rule
        With ``adapt``.
    rows : Rows
        All rows of the run, of any use: the trainer learns from each of them.

    Returns
    -------
    dict of step -> Rule
    """
    replayed = Replay(rule)
    ordered = rows.take(in_order(rows.step, rows.response))
    replayed.add(Learnt.of(ordered), ordered.centre(rule))
    return replayed.states


def replay_log(rules: Mapping[str, Rule], stream: Stream, size: int) -> dict[str, dict[int, Rule]]:
    """:func:`replay` of each rule on a log that is read in chunks of whole windows, whose steps follow each other.

    Parameters
    ----------
    rules : mapping of name -> Rule
        Without a drift.
    size : int
        Rollouts in a window.
    """
    found = {name: Replay(rule) for name, rule in rules.items()}
    for chunk in stream.chunks(size) if rules else ():
        rows = stream.learnt(chunk)
        for replayed in found.values():
            replayed.add(rows)
    return {name: replayed.states for name, replayed in found.items()}


def by_step(rows: Rows) -> Iterator[tuple[int, Ints]]:
    """Each step with the index of its rows."""
    if not len(rows):
        return
    order = np.argsort(rows.step, kind="stable")
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
