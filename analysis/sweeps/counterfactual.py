"""``fspo sweep RUN``: what another setting of the rule would have done to the run's responses, one setting at a time.

The sweep is counterfactual: the responses and their S are those of the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np

from analysis.log.loading import Run
from analysis.log.ratio import CORRECTED
from analysis.log.rows import Rows
from analysis.rules.calibrate import OF_SEQUENCES
from analysis.rules.evaluate import Case, candidates, evaluate, measured
from analysis.stats.lre import lre_estimates
from analysis.tables.acceptance import Reason
from analysis.tables.typed_rows import UNKNOWN, Interval
from fspo.base.errors import UserError
from fspo.rules import COMPARED, OF_CLIP_RULES, OF_CORRECTIONS, Rule, scaled
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import proportion_interval

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


class SweepRow(NamedTuple):
    """What a preset with one setting changed would have done to the logged responses in the first epoch.

    There is one row for each setting, value of the setting, rule and quantity. Written by ``fspo sweep RUN``; with
    ``--on`` the rule clips another log-ratio than the update's S. It is explained in docs/theory.md, sections 1 to 3.
    """

    run: Annotated[str, "name of the run folder", "text"]
    setting: Annotated[str, "range, dual, outside, drift or gamma", "text"]
    value: Annotated[str, "the setting's value", "the setting's"]
    rule: Annotated[str, "preset that the setting changes", "text"]
    quantity: Annotated[str, "band, update (acceptances), lre_band_l2 or lre_update_l2", "text"]
    estimate: Annotated[Interval, "the quantity", "share"]
    reason: Reason


class Setting(NamedTuple):
    """One setting of the sweep: the name of the part that is changed, its value, the preset whose part it is, and the
    rule that results."""

    name: str
    value: str
    preset: str
    rule: Rule


def settings(run: Run) -> Iterator[Setting]:
    """Yield every setting of a rule that ``fspo sweep`` tries on a run's log: settings of corrections if the engine or
    rollout-policy ratio is analysed, otherwise settings of clip rules."""
    corrections, known = run.ratio.on in CORRECTED, candidates(run.ratio.on)
    compared, named = (OF_SEQUENCES, "engine-sqrt") if corrections else (COMPARED, "fspo")
    base = known[named]
    for name in compared:
        for factor in FACTORS:
            try:
                rule = scaled(known[name], factor)
            except UserError:  # no range (eps) of this rule gives half-widths that are ``factor`` times as wide
                continue
            yield Setting("range", f"{rule.range_lo:.3g} {rule.range_hi:.3g}", name, rule)
    for dual in () if corrections else (None, 1.5, 2.0, 3.0):
        yield Setting("dual", "none" if dual is None else f"{dual:g}", named, replace(base, dual=dual))
    for outside in OF_CORRECTIONS if corrections else OF_CLIP_RULES:
        yield Setting("outside", outside, named, replace(base, outside=outside))
    for drift in ("none", "kl", "gaussian", "tilted"):
        yield Setting("drift", drift, named, replace(base, drift=drift))
    typical = np.array([np.median(run.rows.length)])
    for gamma in (0.0, 0.25, 0.5, 0.75, 1.0):
        # At the median length the band is as wide as that of the sqrt rule ``base``, so that only the growth of the
        # half-width with the length changes.
        rule = replace(base, shape="power", gamma=gamma, name="")
        wider = base.half_widths(typical)[1] / rule.half_widths(typical)[1]
        yield Setting("gamma", f"{gamma:g}", "power", scaled(rule, float(wider[0])))


def sweep(run: Run, bins: Bins) -> list[SweepRow]:
    """Return the rows of sweep.csv: what each setting would have done to the run's responses. LRE is over ``bins``."""
    first = run.rows.use("first")
    return [row for setting in settings(run) for row in _acceptances(run, setting, first, bins)]


def _acceptances(run: Run, setting: Setting, rows: Rows, bins: Bins) -> Iterator[SweepRow]:
    case = Case(setting.rule, setting.preset, "given")
    key = run.name, setting.name, setting.value, setting.preset
    for measure in ("band", "update"):
        some = rows if measure == "band" else rows.take(np.isfinite(rows.A) & (rows.A != 0))
        outcome = evaluate(case, some, np.zeros(len(some), np.int64), "update")
        if outcome.reason:
            for quantity in (measure, f"lre_{measure}_l2"):
                yield SweepRow(*key, quantity, UNKNOWN, outcome.reason)
            continue
        y, d = measured(outcome, measure)
        found = ratios(y, dense(some.cluster), bins.index(some.length), len(bins), d, binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        yield SweepRow(*key, measure, Interval(found.value[-1], low[-1], high[-1]), "")
        (lre,) = (e for e in lre_estimates(found) if e.norm == "l2")
        yield SweepRow(*key, f"lre_{measure}_l2", Interval(lre.estimate, lre.ci_low, lre.ci_high), lre.reason)
