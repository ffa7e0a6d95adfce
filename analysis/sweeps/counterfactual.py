"""``fspo sweep RUN``: what another setting would have done to the run's logged responses, one setting at a time.

The sweep is counterfactual: the responses, their S and their scores are those of the log. A setting changes the rule,
the aggregation of the loss, the group size (and with it A), or which of a rollout's updates are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd

from analysis.log.loading import Run
from analysis.log.notes import Notes
from analysis.log.ratio import CORRECTED
from analysis.log.rows import Rows, leave_one_out, row_names
from analysis.options import Options
from analysis.rules.calibrate import OF_SEQUENCES
from analysis.rules.evaluate import Case, candidates, evaluate, measured
from analysis.scores.sketch_error import effective_width
from analysis.scores.sketches import ScoredWindow, ScoredWindows
from analysis.stats.lre import lre_estimates
from analysis.tables.acceptance import Reason
from analysis.tables.columns import UNKNOWN, Interval, RunKey
from analysis.tables.cosine import CosineRow, CosineTable
from analysis.tables.population import PopulationTable
from fspo.base.errors import UserError
from fspo.rules import COMPARED, OF_CLIP_RULES, OF_CORRECTIONS, Rule, scaled
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import proportion_interval

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
Transform = Callable[[ScoredWindow], ScoredWindow]
RowsTransform = Callable[[Rows], Rows]


class SweepRow(NamedTuple):
    """What a preset with one setting changed (range, drift, group size, ...) would have done to the logged responses.

    There is one row for each setting, value of the setting, rule and quantity.

    Only responses at first use count. Written by ``fspo sweep RUN``; with ``--on`` the rule clips another log-ratio
    than the update's S. docs/theory.md sections 1 to 3 and 5, T12.
    """

    run: Annotated[str, "name of the run folder", "text"]
    setting: Annotated[str, "range, dual, outside, drift, gamma, aggregation, group or minibatch", "text"]
    value: Annotated[str, "the setting's value", "the setting's"]
    rule: Annotated[str, "preset that the setting changes", "text"]
    quantity: Annotated[
        str,
        "band, update (acceptances), lre_band_l2, lre_update_l2, cosine (same batch), mse (of the update, over the "
        "unclipped update's own)",
        "text",
    ]
    estimate: Annotated[Interval, "the quantity", "share, cosine or ratio"]
    reason: Reason


@dataclass(frozen=True)
class Setting:
    """One setting of the sweep: a rule, and functions that change the log's rows and windows of scores before the rule
    is applied. For example, the functions of a setting with smaller groups keep a part of each group."""

    name: str
    value: str
    preset: str
    rule: Rule
    rows: RowsTransform = lambda rows: rows
    window: Transform = lambda window: window


def settings(run: Run) -> Iterator[Setting]:
    """Yield every setting of a rule that ``fspo sweep`` tries on a run's log: settings of corrections if the engine or
    behaviour ratio is analysed, otherwise settings of clip rules."""
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
    for name, power in (("response", 0.0), ("token", 1.0), ("response mean", -1.0)):
        yield Setting("aggregation", name, named, base, window=_weighted(power))
    if corrections:  # the settings below vary group and minibatch; corrections depend on neither
        return
    largest = int(np.bincount(run.rows.use("first").cluster).max(initial=0))
    for size in (k for k in (2, 4, 8, 16) if k <= largest):
        yield Setting("group", str(size), "fspo", base, rows=_smaller(size), window=_smaller_window(run, size))
    for number in np.unique(run.rows.use("first").updates).tolist():
        yield Setting("minibatch", str(number), "fspo", base, rows=_at_update(number), window=_window_at(number))


def _weighted(power: float) -> Transform:
    """Return a function that multiplies each response's score in a window by L^power, as another aggregation of the
    loss over tokens and responses does.
    """

    def change(window: ScoredWindow) -> ScoredWindow:
        return replace(window, vectors=window.vectors * window.rows.length[:, None] ** power)

    return change


def _first_responses(rows: Rows, size: int) -> np.ndarray:
    """Return a mask (N,): True for rows whose response has one of the ``size`` smallest ids of its cluster."""
    pairs = pd.DataFrame({"cluster": rows.cluster, "response": rows.response})
    return (pairs.groupby("cluster")["response"].rank("dense") <= size).to_numpy()


def _smaller(size: int) -> RowsTransform:
    def change(rows: Rows) -> Rows:
        some = rows.take(_first_responses(rows, size))
        return replace(some, A=leave_one_out(some.reward, dense(some.cluster), some.response))

    return change


def _smaller_window(run: Run, size: int) -> Transform:
    """Return a function that cuts a window's groups to ``size`` responses and gives these their new advantages.

    A window holds only responses with a score, hence none with A = 0. An advantage depends on the rewards of all
    responses of its group, so the new advantages are computed from all rows of the run. Responses whose new advantage
    is 0 or unknown are left out of the window.
    """
    some = _smaller(size)(run.rows)
    names = row_names(some.rollout, some.step, some.response)

    def change(window: ScoredWindow) -> ScoredWindow:
        place = names.get_indexer(row_names(window.rows.rollout, window.rows.step, window.rows.response))
        A = np.where(place >= 0, some.A[place], np.nan)
        good = np.isfinite(A) & (A != 0)
        swapped = replace(_narrow(window, good), vectors=window.vectors[good] * (A / window.rows.A)[good, None])
        return replace(swapped, rows=replace(swapped.rows, A=A[good]))

    return change


def _narrow(window: ScoredWindow, keep: np.ndarray) -> ScoredWindow:
    rows = window.rows.take(keep)
    return replace(
        window, rows=rows, vectors=window.vectors[keep], bins=window.bins[keep], update=dense(rows.step), fresh={}
    )


def _at_update(number: int) -> RowsTransform:
    return lambda rows: rows.take(rows.updates == number)


def _window_at(number: int) -> Transform:
    return lambda window: _narrow(window, window.rows.updates == number)


def sweep(run: Run, bins: Bins, progress: Callable[[str], None] = lambda _: None) -> tuple[list[SweepRow], Notes]:
    """Compute what other settings (of the range, the drift, the group size, ...) would have done to a run's log.

    Return the rows of sweep.csv, which are about the log's rows at first use, and notes on reading the log.

    Parameters
    ----------
    run : Run
    bins : Bins
        Bins of length, over which LRE is computed.
    progress : callable
        Called with a setting's name when the acceptances under this setting are computed, and with a window's number
        when the window's scores have been added to the sums of all settings.
    """
    chosen = list(settings(run))
    width, _ = effective_width(run)
    out: list[SweepRow] = []
    key = RunKey.of(run)
    first = run.rows.use("first")
    tables = []
    for setting in chosen:
        out += _acceptances(run, setting, setting.rows(first), bins)
        case = Case(setting.rule, setting.preset, "given")
        tables.append((CosineTable(key, bins, [case], (), 1, 0, width), PopulationTable(key, bins, [case], width)))
        progress(setting.name)
    windows = ScoredWindows(run, bins, Options.window)
    for window in windows:
        if window.use != "first":
            continue
        for setting, (cosines, population) in zip(chosen, tables, strict=True):
            changed = setting.window(window)
            if len(changed.rows):
                cosines.add(changed)
                population.add(changed)
        progress(f"window {window.window}")
    for setting, (cosines, population) in zip(chosen, tables, strict=True):
        for quantity, rows in (("cosine", cosines.rows()), ("mse", population.rows())):
            for row in rows:
                whole = row.place.bin == -1 and row.case.band.rule == setting.preset
                wanted = row.weight == "sequence" if isinstance(row, CosineRow) else row.quantity == "mse"
                if whole and wanted:
                    out.append(_row(run, setting, quantity, row.estimate, row.reason))
    return out, windows.notes


def _acceptances(run: Run, setting: Setting, rows: Rows, bins: Bins) -> list[SweepRow]:
    out: list[SweepRow] = []
    case = Case(setting.rule, setting.preset, "given")
    for measure in ("band", "update"):
        some = rows if measure == "band" else rows.take(np.isfinite(rows.A) & (rows.A != 0))
        outcome = evaluate(case, some, np.zeros(len(some), np.int64), "update")
        if outcome.reason:
            out += [_row(run, setting, name, UNKNOWN, outcome.reason) for name in (measure, f"lre_{measure}_l2")]
            continue
        y, d = measured(outcome, measure)
        found = ratios(y, dense(some.cluster), bins.index(some.length), len(bins), d, binary=True)
        low, high = proportion_interval(found.value, found.variance, found.count, found.clusters)
        out.append(_row(run, setting, measure, Interval(found.value[-1], low[-1], high[-1]), ""))
        (lre,) = (e for e in lre_estimates(found) if e.norm == "l2")
        whole = Interval(lre.estimate, lre.ci_low, lre.ci_high)
        out.append(_row(run, setting, f"lre_{measure}_l2", whole, lre.reason))
    return out


def _row(run: Run, setting: Setting, quantity: str, estimate: Interval, reason: str) -> SweepRow:
    return SweepRow(run.name, setting.name, setting.value, setting.preset, quantity, estimate, reason)
