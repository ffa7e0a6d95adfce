"""Measure the runs of a reproduction's task: the small tables that results/ holds beside its claims.

- ``fair_exponent``: for each run, set of responses and accepted share, the exponent at which a band is fair (T17).
- ``trend_parts``: the change of a sqrt band's acceptance for each doubling of the length, and its parts.
- ``law``: how S is distributed in the shortest and the longest responses of each run without a clip.
- ``exponent_curve``: over all runs without a clip together, the fair exponent at many shares, and the exponent that
  T19 predicts where the responses with A != 0 follow the sqrt law.
- ``acceptance``: what each rule accepts by length, on the runs without a clip.
- ``updates``: over all runs together, cosine and error of the clipped update against a population's (T12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from analysis.claims.evidence import select
from analysis.claims.quantities import ACCEPTED
from analysis.log.loading import Run, load_run
from analysis.log.rows import Floats, Ints, Rows, windows
from analysis.options import Options
from analysis.rules.evaluate import TARGETS, Case, make_cases
from analysis.scores.sketch_error import effective_width
from analysis.scores.sketches import ScoredWindows
from analysis.stats.fair_exponent import (
    BOTH_EDGES,
    WINDOW,
    Parts,
    ResponseSet,
    distance,
    fair_exponents,
    interval,
    members_of,
    trend_parts,
)
from analysis.tables.columns import RunKey, frame
from analysis.tables.files import read_tables
from analysis.tables.population import PopulationRow, PopulationTable
from fspo.repro.presets import SIX_RULES
from fspo.stats.bins import Bins, quantile_bins
from fspo.stats.clusters import dense
from fspo.theory import fair_exponent_with_still

UNCLIPPED = "none"
"""Rule of the runs without a clip."""
SHARES = (0.75, *sorted(TARGETS))
"""Acceptances of a band at which each run's fair exponent and the parts of the trend are estimated. A band |S| <= f
L^gamma accepts all lengths alike if gamma is the fair exponent."""
CURVE_SHARES = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98)
"""Accepted shares of the table ``exponent_curve``."""
CURVE_RESAMPLES = 100
APART = 100_000
"""Rollouts of the next run are numbered from this multiple on where the rows of several runs are put together."""
NEAR, FAR = 0.1, 3.0
"""Distances from the mean, in standard deviations, within and beyond which the table ``law`` counts responses. Of a
normal law 8.0 % lie within .1 and .27 % beyond 3."""
SETS: tuple[ResponseSet, ...] = ("all", "A != 0, both edges", "A != 0")
OF_LAW = dict(zip(("all", "A != 0"), SETS[:2], strict=True))
"""Sets of responses of the table ``law``, which knows no edges, by the name that they have there."""


def tables_of_task(runs: Sequence[Path], step: Callable[[], object] = lambda: None) -> dict[str, pd.DataFrame]:
    """Return the tables of a task, by name, from its analysed run folders; call ``step`` after each run."""
    exponents: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    law: list[dict[str, Any]] = []
    unclipped: list[Rows] = []
    for path in runs:
        run = load_run(path)
        rows, key = moved(run), {"run": run.name, "rule": run.trained_rule, "seed": run.seed}
        exponents += [key | row for row in exponent_rows(rows)]
        parts += [key | row for row in part_rows(rows)]
        if run.trained_rule == UNCLIPPED:
            law += [key | row for row in law_rows(rows)]
            unclipped.append(rows)
        step()
    found = {"fair_exponent": exponents, "trend_parts": parts, "law": law}
    tables = {name: pd.DataFrame(rows) for name, rows in found.items()}
    tables["exponent_curve"] = pd.DataFrame(curve_rows(together(unclipped)) if unclipped else [])
    tables["acceptance"] = acceptance_by_bin(runs)
    tables["updates"] = pooled_updates(runs)
    return tables


def moved(run: Run) -> Rows:
    """Return a run's rows at first use that were logged after an update on their rollout."""
    rows = run.rows.use("first")
    return rows.take(rows.updates > 0)


def exponent_rows(rows: Rows, shares: Sequence[float] = SHARES) -> Iterator[dict[str, Any]]:
    """Yield table rows for a run: the fair exponent, with its interval, for each set of responses (all, A != 0, A > 0,
    ...) and each share of them that a band accepts.
    """
    for responses in get_args(ResponseSet):
        for share, found in zip(shares, fair_exponents(rows, shares, responses), strict=True):
            yield {"responses": responses, "share": share, **found._asdict()}


def part_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table trend_parts: the trend of a sqrt band's acceptance and the parts of this trend, with
    intervals, for each set of responses (`SETS`) and each accepted share (`SHARES`)."""
    for responses in SETS:
        some = rows.take(members_of(rows.A, responses))
        window, one_edge = windows(some.rollout, WINDOW), responses not in BOTH_EDGES
        S = distance(some.S, some.A, responses) if one_edge else some.S

        def split(at: Ints, S: Floats = S, some: Rows = some, window: Ints = window, edge: bool = one_edge) -> Floats:
            found = [trend_parts(S[at], some.length[at], share, window[at], edge) for share in SHARES]
            return np.concatenate(found)

        names = [(share, part) for share in SHARES for part in Parts._fields]
        for (share, part), found in zip(names, interval(split, dense(some.cluster)), strict=True):
            yield {"responses": responses, "share": share, "part": part, **found._asdict()}


def law_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield, for each set of responses and bin of lengths, how S is distributed, with the changes of S's law over
    training taken out: in each window S is divided by the root mean square of S / sqrt(L) in the set.

    The columns are the share of the bin's responses that the set holds, the bin's standard deviation of S / sqrt(L),
    the shares of responses within `NEAR` and beyond `FAR` standard deviations of the mean, and quantiles of |S| /
    sqrt(L) at `SHARES`.
    """
    bins = quantile_bins(rows.length)
    for name, responses in OF_LAW.items():
        some = rows.take(members_of(rows.A, responses))
        z = per_window(some.S / np.sqrt(some.length), windows(some.rollout, WINDOW))
        place, all_places = bins.index(some.length), bins.index(rows.length)
        for k in range(len(bins)):
            here = z[place == k]
            if len(here) < 2:
                continue
            away = np.abs(here - here.mean()) / here.std() if here.std() > 0 else np.zeros(len(here))
            yield {
                "responses": name,
                "bin_lo": bins.edges[k],
                "bin_hi": bins.edges[k + 1],
                "bin_mean": float(some.length[place == k].mean()),
                "count": len(here),
                "share": len(here) / int(np.sum(all_places == k)),
                "sd": float(here.std()),
                "near": float(np.mean(away < NEAR)),
                "far": float(np.mean(away > FAR)),
                **{f"q{100 * share:g}": float(np.quantile(np.abs(here), share)) for share in SHARES},
            }


def per_window(x: Floats, window: Ints) -> Floats:
    """Divide numbers (N,) by their root mean square in the same window (N,); 0 where all numbers of a window are 0."""
    code = dense(window)
    size = np.sqrt(np.bincount(code, x * x) / np.bincount(code))[code]
    return np.divide(x, size, out=np.zeros_like(x), where=size > 0)


def together(parts: Sequence[Rows]) -> Rows:
    """Put the rows of several runs together. Rollouts and clusters of different runs stay apart."""
    moved_apart, clusters = [], 0
    for i, rows in enumerate(parts):
        moved_apart.append(replace(rows, rollout=rows.rollout + i * APART, cluster=dense(rows.cluster) + clusters))
        clusters = int(moved_apart[-1].cluster.max()) + 1 if len(rows) else clusters
    columns = {name: np.concatenate([getattr(rows, name) for rows in moved_apart]) for name in vars(moved_apart[0])}
    return Rows(**columns)


def curve_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the fair exponent at each of `CURVE_SHARES`, of all responses and of those with A != 0, with intervals, and
    the exponent of all responses that T19 predicts (without an interval).

    The prediction takes the share of responses with A != 0 in each bin of lengths, and for them one law of S / sqrt(L)
    at all lengths, as measured over all lengths: so it differs from 1/2 only because responses with A = 0, which hardly
    move, are more frequent at some lengths.
    """
    for responses in SETS:
        found = fair_exponents(rows, CURVE_SHARES, responses, resamples=CURVE_RESAMPLES)
        for share, exponent in zip(CURVE_SHARES, found, strict=True):
            yield {"responses": responses, "share": share, **exponent._asdict()}
    for share, value in zip(CURVE_SHARES, predicted(rows), strict=True):
        yield {"responses": "predicted", "share": share, "value": value, "low": np.nan, "high": np.nan}


def predicted(rows: Rows) -> list[float]:
    """Return the fair exponent of all responses that T19 (b) predicts at each of `CURVE_SHARES`, between the mean
    length of the shorter and that of the longer half of the responses."""
    moving = rows.A != 0
    z = np.abs(per_window(rows.S[moving] / np.sqrt(rows.length[moving]), windows(rows.rollout[moving], WINDOW)))
    long = rows.length > np.median(rows.length)
    lengths = [float(np.exp(np.log(rows.length[half]).mean())) for half in (~long, long)]
    shares = [float(np.mean(moving[half])) for half in (~long, long)]

    def quantile(p: float) -> float:
        return float(np.quantile(z, p))

    return [fair_exponent_with_still(quantile, shares, lengths, share, 0.5) for share in CURVE_SHARES]


def acceptance_by_bin(runs: Sequence[Path]) -> pd.DataFrame:
    """Return each rule's acceptance by length on the runs without a clip, at matched ranges: of all responses whether S
    is in the band, of those with A != 0 whether the rule leaves them alone."""
    table = select(read_tables(runs)["acceptance"], trained_rule=UNCLIPPED, source="matched", outside="drop")
    shown = pd.concat([select(table, rule=rule, **where) for where in ACCEPTED.values() for rule in SIX_RULES])
    columns = ["run", "rule", "target", "measure", "bin_lo", "bin_hi", "bin_mean", "count", "clusters"]
    return pd.DataFrame(shown, columns=[*columns, "estimate", "ci_low", "ci_high"])


def pooled_updates(runs: Sequence[Path]) -> pd.DataFrame:
    """Return cosine and error (T12) of the clipped update against a population's update, with sums over all runs.

    One run has too few pairs of responses to different prompts: squared norms that are estimated from its pairs have
    intervals that reach below 0. Here inner products and squared norms are added up over the updates of all runs before
    they are divided. Ranges are matched to `TARGETS` in each window of each run.
    """
    table: PopulationTable | None = None
    for i, path in enumerate(runs):
        run = load_run(path)
        if not run.counts.get("scores_taken"):
            continue
        bins = Bins((0.0, np.inf))
        cases = [case for case in make_cases(SIX_RULES, rows=run.rows) if _pooled(case)]
        if table is None:
            table = PopulationTable(RunKey.of(run), bins, cases, effective_width(run)[0])
        table.take_cases(cases)
        for window in ScoredWindows(run, bins, Options.window):
            table.add(replace(window, rows=replace(window.rows, rollout=window.rows.rollout + i * APART)))
    found = frame(PopulationRow, [] if table is None else table.rows())
    columns = ["rule", "outside", "target", "reference", "quantity", "count", "clusters", "updates"]
    return pd.DataFrame(select(found, bin=-1), columns=[*columns, "estimate", "ci_low", "ci_high", "reason"])


def _pooled(case: Case) -> bool:
    """Whether the table of updates over all runs together has a case: a rule with a matched range that drops outside
    its band, or fspo with a matched range and any treatment outside."""
    return case.source == "matched" and (case.rule.outside == "drop" or case.name == "fspo")
