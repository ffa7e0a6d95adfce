"""The numbers by which claims are judged. A run gives one number for each estimand, whatever its number of rows.

`measure` gives one row for each estimand of a run. `analysis.claims.verdicts` compares the rows of many runs, whose
seeds are the units."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, special

from analysis.log.loading import load_run
from analysis.log.rows import Floats, Rows
from fspo.base.errors import UserError
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rules import COMPARED, Rate, Rule, excess_quantile, preset, standardized_excess
from fspo.rules.online import OnlineRule

CLIP_RATES = (0.05, 0.15)
"""Clip rates of the responses with non-zero advantage at which rules are compared."""
LEARNT = "fspo-adaptive"
STEEPEST = 20.0
"""Largest size of a slope of the log clip rate; where only the shortest or the longest responses are clipped, the slope
is infinite, and this value stands for it."""

OFFLINE = ("unclipped", "pretrained")
"""Sets of runs that train without a clip; rules are applied to them offline, and their estimates are listed by rule."""

Estimand = Literal["slope", "sign gap", "log sign ratio", "mean reward", "final reward"]
ESTIMANDS: dict[Estimand, str] = {
    "slope": "change of the log clip rate for each doubling of the length",
    "sign gap": "clip rate of A < 0 less five times that of A > 0",
    "log sign ratio": "log of the clip rate of A < 0 over that of A > 0",
    "mean reward": "mean training reward over all rollouts",
    "final reward": "mean training reward over the last fifth of the rollouts",
}
"""What each estimand is; the first three are of responses with A != 0 in the first epoch, after an update."""
TIMES = 5.0
"""Claim 8: how many times as often a symmetric band clips responses with A < 0 as those with A > 0."""


class Estimate(NamedTuple):
    """One number of one run, a row of ``estimates.csv``."""

    task: Annotated[str, "task of the run", "text"]
    runs: Annotated[str, "set of runs: unclipped, equal (clip rates), stress or pretrained", "text"]
    seed: Annotated[int, "seed of the run and of its warm-up, the unit of every test", "number"]
    estimand: Annotated[str, "one of ESTIMANDS", "text"]
    rule: Annotated[str, "clip rule: applied offline to unclipped runs, else the rule that trained", "text"]
    clip_rate: Annotated[float, "clip rate of A != 0 set on the log; NaN if the rule trained", "share"]
    value: Annotated[float, "the number", "the estimand's"]


def first_epoch(rows: Rows) -> Rows:
    """Return the rows of the first epoch that follow an update, of responses with non-zero advantage."""
    return rows.take((rows.used == 0) & (rows.updates > 0) & (rows.A != 0))


def clipped_offline(rule: Rule, rows: Rows, clip_rate: float, rate: Rate = "update") -> NDArray[np.bool_]:
    """Return which of the rows (N,) the rule clips if its range is set on them to clip the share ``clip_rate``.

    The range is set separately for the rows of the first, second, ... update of a rollout, because S spreads with the
    updates. All rows must have A != 0, unless ``rate`` is "band": then rows outside the band count as clipped.

    Raise UserError if no range gives the clip rate, for example because S is 0 in all rows."""
    clipped = np.zeros(len(rows), bool)
    for position in np.unique(rows.updates):
        at = np.flatnonzero(rows.updates == position)
        excess = standardized_excess(rule, rows.S[at], rows.length[at], rows.A[at], rate=rate)
        clipped[at] = excess > excess_quantile(excess, 1 - clip_rate, rule.label)
    return clipped


def clipped_by_learnt(rule: Rule, rows: Rows) -> NDArray[np.bool_]:
    """Return which of the rows (N,) are clipped by ``rule``, whose range is learnt from the rows of earlier updates. In
    the first update, before which nothing was learnt, none is."""
    online, clipped = OnlineRule(rule), np.zeros(len(rows), bool)
    for number, step in enumerate(np.unique(rows.step)):
        at = np.flatnonzero(rows.step == step)
        S, n, A = rows.S[at], rows.length[at], rows.A[at]
        if number:
            clipped[at] = standardized_excess(online.rule, S, n, A, rate="update") > 1
        online.observe(S, n, A)
    return clipped


def slope(clipped: NDArray[np.bool_], length: Floats) -> float:
    """Return the change of the log clip rate for each doubling of the length, from a Poisson regression with log link.

    The slope b of the fit exp(a + b log2 L) is where the mean of log2 L weighted with the fitted rates equals its mean
    over the clipped responses: the two score equations of that regression, with the first solved for a. It is 0 if none
    or all are clipped, or if all lengths are equal, and its size is at most 20.

    Parameters
    ----------
    clipped : bool array (N,), which responses are clipped
    length : array (N,)
        Length of each response, tokens.
    """
    if not clipped.any() or clipped.all() or np.ptp(length) == 0:
        return 0.0
    x = np.log2(length) - np.log2(length).mean()
    wanted = x[clipped].mean()

    def distance(b: float) -> float:
        return float(special.softmax(b * x) @ x - wanted)

    if distance(STEEPEST) <= 0 or distance(-STEEPEST) >= 0:
        return float(np.copysign(STEEPEST, wanted))
    return float(optimize.brentq(distance, -STEEPEST, STEEPEST))  # type: ignore[arg-type]


def rates_by_sign(clipped: NDArray[np.bool_], A: Floats) -> tuple[float, float]:
    """Return the clip rates of the responses with A < 0 and with A > 0, from ``clipped`` (N,) and A (N,). Half a clip
    and one response are added to the counts of each sign, so that the ratio of the rates is finite."""
    below, above = ((np.sum(clipped & some) + 0.5) / (np.sum(some) + 1) for some in (A < 0, A > 0))
    return float(below), float(above)


def of_clipping(rows: Rows) -> Iterator[tuple[Estimand, str, float, float]]:
    """Yield (estimand, rule, clip rate, value) for each number that the rows of an unclipped run give, with each rule
    that is compared applied to them at each of `CLIP_RATES`."""
    some = first_epoch(rows)
    for clip_rate in CLIP_RATES:
        clipped = {name: clipped_offline(preset(name).rule, some, clip_rate) for name in COMPARED}
        learner = replace(preset(LEARNT).rule, target=1 - clip_rate, target_rate="update")
        clipped[LEARNT] = clipped_by_learnt(learner, some)
        for name, cut in clipped.items():
            yield "slope", name, clip_rate, slope(cut, some.length)
            below, above = rates_by_sign(cut, some.A)
            yield "sign gap", name, clip_rate, below - TIMES * above
            yield "log sign ratio", name, clip_rate, float(np.log(below / above))


def of_training(run: Path, rule: str, rollouts: int) -> Iterator[tuple[Estimand, str, float, float]]:
    """Yield (estimand, rule, NaN, value) for each number that the training rewards of a run of ``rollouts`` rollouts
    give; NaN stands in the place of a clip rate.

    A rollout that the run did not reach, because it diverged and stopped itself, counts with the reward 0."""
    rewards = np.zeros(rollouts)
    found = [row["reward"] for row in MetricsFile(run).of_phase("train")][:rollouts]
    rewards[: len(found)] = found
    last = max(rollouts // 5, 1)
    yield "mean reward", rule, np.nan, float(rewards.mean())
    yield "final reward", rule, np.nan, float(rewards[-last:].mean())


def measure(run: Path, task: str, runs: str, rule: str, seed: int, rollouts: int) -> list[Estimate]:
    """Return one `Estimate` for each number (estimand, rule, clip rate) that the finished run in folder ``run`` gives.

    Parameters
    ----------
    runs, rule : str
        The set of runs; the rule that trained (``none``: unclipped). `Estimate` holds ``task`` and ``seed`` too.
    rollouts : int
        Number of rollouts that the run was to have; one that it did not reach counts with the reward 0.

    Raises
    ------
    UserError
        If the folder holds no log that can be analysed."""
    found = of_clipping(load_run(run).rows) if runs in OFFLINE else of_training(run, rule, rollouts)
    return [Estimate(task, runs, seed, *row) for row in found]


def holds(estimates: pd.DataFrame, task: str, runs: str, rule: str, seed: int) -> bool:
    """Return whether ``estimates`` has numbers of the run with this task, set of runs, seed and rule that trained."""
    same = (estimates.task == task) & (estimates.runs == runs) & (estimates.seed == seed)
    return bool((same if runs in OFFLINE else same & (estimates.rule == rule)).any())


def read_estimates(files: Sequence[Path], planned: Collection[tuple[str, str, int]] | None = None) -> pd.DataFrame:
    """Return as one table the estimates of several files ``estimates.csv``; only those of runs whose task, set and seed
    ``planned`` holds, if it is given, so that nobody adds seeds until a verdict pleases.

    Raise UserError if a file is missing or has other columns than `Estimate`, or two files hold one estimate."""
    tables = [pd.DataFrame(columns=list(Estimate._fields))]
    for file in files:
        try:
            table = pd.read_csv(file)
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read as a table: {' '.join(str(error).split())}") from error
        if list(table.columns) != list(Estimate._fields):
            raise UserError(f"{file} has other columns than estimates.csv of fspo reproduce: give that file")
        tables.append(table)
    found = pd.concat(tables, ignore_index=True)
    keys = [name for name in Estimate._fields if name != "value"]
    if found.duplicated(keys).any():
        where = found[found.duplicated(keys)].iloc[0]
        run = f"{where.task}, {where.runs}, {where.rule}, seed {where.seed}"
        raise UserError(f"two files hold the same run ({run}): name one of them")
    runs = zip(found.task, found.runs, found.seed, strict=True)
    return found.loc[[planned is None or run in planned for run in runs]].reset_index(drop=True)
