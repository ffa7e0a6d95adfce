"""Numbers that describe a run of a reproduction beside those that judge the claims: no verdict rests on them.

`describe` gives rows for the three tables of `studies.findings` that have one row a seed: numbers (long form), clip
rates by length, and rollouts. Unless a number says otherwise, it is of responses with A != 0 in the first epoch, after
an update, and each rule's range is set on the log for each number of updates since the rollout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.api import analyse
from analysis.claims.estimands import CLIP_RATES, OFFLINE, clipped_offline, first_epoch, rates_by_sign, slope
from analysis.log.loading import Run, load_run
from analysis.log.rows import Rows, row_names
from analysis.options import Options
from analysis.scores.sketches import ScoredWindows
from analysis.stats.fair_exponent import ResponseSet, fair_exponents
from figures.tables import Frame
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rules import COMPARED, MAX_EXPONENT, preset
from fspo.stats.bins import Bins
from fspo.theory import fair_centre

EDGES = (1, 16, 32, 64, 128, 256, 513)
"""Edges of the bins of length, tokens: one bin a doubling, the last open to the longest response of any task."""
LEAST = 30
"""Least number of responses of a bin whose clip rate is given."""
FAIR_RATES = (0.05, 0.15, 0.30)
"""Clip rates at which the fair exponent is estimated."""
VARIED = {"fspo": ("c", (0.01, 0.03, 0.1, 0.3)), "rloo": ("eps", (0.1, 0.2, 0.4, 0.8))}
"""By rule: the letter of its range, and symmetric ranges from narrow to wide (eps below 1, so that 1 - eps > 0)."""
DUAL = 3.0
"""Importance weight at the edge of the dual clip, as in PPO's variant for A < 0."""
ERRORS = ("bias2_direction", "variance_direction", "mse_direction")


class SeedKey(NamedTuple):
    """The columns of every table that name the seed of a set of runs on a task."""

    task: Annotated[str, "task of the run", "text"]
    runs: Annotated[str, "set of runs: unclipped, equal, stress or pretrained", "text"]
    seed: Annotated[int, "seed of the run and of its warm-up", "number"]


class Number(NamedTuple):
    """One number of one run, a row of ``numbers.csv``."""

    key: SeedKey
    quantity: Annotated[str, "what is measured", "text"]
    responses: Annotated[str, "of which responses", "text"]
    rule: Annotated[str, "clip rule, with its way outside the band if that is not drop; empty if none matters", "text"]
    setting: Annotated[str, "clip rate at which ranges are set (such as 5%), 'default', or a range", "text"]
    value: Annotated[float, "the number", "the quantity's"]


class BinRate(NamedTuple):
    """The clip rate of a bin of length in one run, a row of ``bins.csv``."""

    key: SeedKey
    rule: Annotated[str, "clip rule, applied offline", "text"]
    clip_rate: Annotated[float, "clip rate of all lengths together that the range is set to", "share"]
    sign: Annotated[str, "both, or the sign of the advantage", "text"]
    bin_lo: Annotated[int, "lower edge of the bin, inside it", "tokens"]
    bin_hi: Annotated[int, "upper edge of the bin, outside it", "tokens"]
    length: Annotated[float, "mean length in the bin", "tokens"]
    count: Annotated[int, "responses in the bin", "number"]
    rate: Annotated[float, "share of them that is clipped", "share"]


class Rollout(NamedTuple):
    """The training reward of one rollout, a row of ``rollouts.csv``."""

    key: SeedKey
    rule: Annotated[str, "arm of the set: the rule that trained", "text"]
    rollout: Annotated[int, "rollout, from 1", "number"]
    reward: Annotated[float, "mean training reward", "reward"]
    clip_rate: Annotated[float, "share of its responses with A != 0 that were clipped, all epochs", "share"]


Found = tuple[str, str, str, str, float]
"""Quantity, responses, rule, setting and value."""


def of_ranges(rows: Rows) -> Iterator[Found]:
    """Yield clip rates and their slopes (change of the log clip rate for each doubling of the length) of the rules at
    default ranges, at other ranges and with a dual clip; ``rows`` have A != 0."""
    tried = [(name, "default", preset(name).rule) for name in COMPARED]
    for name, (letter, ranges) in VARIED.items():
        rule = preset(name).rule
        others = [(name, f"{letter} {x:g}", replace(rule, range_lo=x, range_hi=x)) for x in ranges]
        tried += [(name, "dual clip", rule.with_dual_at(DUAL)), *others]
    for name, setting, rule in tried:
        cut = np.asarray(rule.apply(rows.S, rows.length, rows.A).side) != 0
        yield "clip rate", "A != 0", name, setting, float(cut.mean())
        yield "slope", "A != 0", name, setting, slope(cut, rows.length)
        for sign, rate in zip(("A < 0", "A > 0"), rates_by_sign(cut, rows.A), strict=True):
            yield "clip rate", sign, name, setting, rate


def of_lengths(rows: Rows, every: Rows) -> Iterator[Found]:
    """Yield, at equal clip rates, clip rates' slopes over all responses and clip rates by sign of A; fair exponents.

    ``every`` holds the rows of the first epoch after an update, ``rows`` those of them with A != 0."""
    for clip_rate in CLIP_RATES:
        for name in COMPARED:
            setting, rule = f"{clip_rate:.0%}", preset(name).rule
            yield "slope", "all", name, setting, slope(clipped_offline(rule, every, clip_rate, "band"), every.length)
            signs = rates_by_sign(clipped_offline(rule, rows, clip_rate), rows.A)
            for sign, rate in zip(("A < 0", "A > 0"), signs, strict=True):
                yield "clip rate", sign, name, setting, rate
    of: tuple[ResponseSet, ...] = ("A != 0", "A < 0", "A > 0")
    for responses in of:
        found = fair_exponents(rows, [1 - rate for rate in FAIR_RATES], responses)
        for rate, exponent in zip(FAIR_RATES, found, strict=True):
            yield "fair exponent", responses, "", f"{rate:.0%}", exponent.value


def of_centres(rows: Rows, every: Rows) -> Iterator[Found]:
    """Yield the slopes of fspo's clip rate under three centres of its band: 0, the drift kl, and the fair centre of
    each bin of length (T6), estimated from the mean weight and the variance of S there.

    ``every`` holds the rows of the first epoch after an update, ``rows`` those of them with A != 0."""
    fair = np.zeros(len(rows))
    for low, high in pairwise(EDGES):
        of_bin = every.S[(every.length >= low) & (every.length < high)]
        if len(of_bin) >= LEAST:
            at = (rows.length >= low) & (rows.length < high)
            fair[at] = fair_centre(float(np.exp(np.minimum(of_bin, MAX_EXPONENT)).mean()), float(of_bin.var()))
    for name, centre in (("0", 0.0), ("drift kl", -rows.k3 * rows.length), ("drift given the length", fair)):
        centred = replace(rows, S=rows.S - centre)
        for clip_rate in CLIP_RATES:
            cut = clipped_offline(preset("fspo").rule, centred, clip_rate)
            yield f"slope, centre {name}", "A != 0", "fspo", f"{clip_rate:.0%}", slope(cut, rows.length)


def of_strata(run: Run, rows: Rows) -> Iterator[Found]:
    """Yield the share of the squared loss of direction that lies between strata: of length, of sign, and of both.

    The loss of an update is the mean of (M / a - 1) w A psi, with M the rule's multiplier and a its mean; between
    strata it is the mean of (a_s / a - 1) w A psi, a_s the mean of M in the response's stratum (T8); a and a_s are
    means over ``rows``, the run's first epoch. Squared norms are means over pairs of different prompts of one update,
    so noise does not raise them, and are added up over the scored updates."""
    length, sign = np.digitize(rows.length, EDGES[1:-1]), (rows.A > 0).astype(int)
    strata = {"length": length, "sign": sign, "length and sign": 2 * length + sign}
    known, losses = row_names(rows.rollout, rows.step, rows.response), {}
    cases = list(product(CLIP_RATES, COMPARED))
    for clip_rate, name in cases:
        found = lost(~clipped_offline(preset(name).rule, rows, clip_rate), strata)
        losses |= {(of, name, clip_rate): loss for of, loss in found.items()}
    weighted = np.column_stack([*losses.values()]) * np.exp(np.minimum(rows.S, MAX_EXPONENT))[:, None]
    squares = np.zeros(len(losses))
    for window in ScoredWindows(run, Bins((1, np.inf)), Options.window):
        place = known.get_indexer(row_names(window.rows.rollout, window.rows.step, window.rows.response))
        for update in range(window.updates):
            at, _, gram = window.part(update, 1)
            if (place[at] >= 0).all():  # else the update is a rollout's first, or of a later epoch
                squares += np.nan_to_num(gram.between(weighted[place[at]], weighted[place[at]])[0][-1])
    of_losses = dict(zip(losses, squares, strict=True))
    for (clip_rate, name), of in product(cases if squares.any() else (), strata):
        whole = of_losses["all", name, clip_rate]
        share = of_losses[of, name, clip_rate] / whole if whole > 0 else np.nan
        yield f"share of the loss between strata of {of}", "A != 0", name, f"{clip_rate:.0%}", share


def lost(kept: NDArray[np.bool_], strata: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float64]]:
    """Return factors (N,) by name: under "all" M / a - 1, M being ``kept`` and a its mean; under the name of each
    partition in ``strata`` a_s / a - 1, a_s being the mean of M in the response's stratum."""
    found = {"all": kept / kept.mean() - 1}
    for of, stratum in strata.items():
        rates = np.bincount(stratum, kept) / np.maximum(np.bincount(stratum), 1)
        found[of] = rates[stratum] / kept.mean() - 1
    return found


def of_tables(tables: dict[str, Frame]) -> Iterator[Found]:
    """Yield numbers from the tables of an analysis: how S spreads and drifts, the LRE, and what clipping does to the
    direction of the update, where scores are logged; for each bin of length also the log cap on weights of least error
    (T11), rloo's and fspo's upper edge at its default range, and how far the bin's update is aligned with the other
    bins'."""
    signs = {"all": "A != 0", "negative": "A < 0", "positive": "A > 0"}
    for row in tables["scaling"].query("use == 'first' and subset == 'nonzero'").itertuples():
        yield "exponent of the spread", signs[row.sign], "", "", row.slope_2H / 2
        yield "drift per token", signs[row.sign], "", "", row.drift_per_token
        for kept, setting in (("95", "5%"), ("85", "15%")):
            yield "weight in the fair exponent", signs[row.sign], "", setting, getattr(row, f"weight_{kept}")
            yield "part of shares", signs[row.sign], "", setting, getattr(row, f"of_shares_{kept}")
    lre = tables["lre"].query("measure == 'update' and norm in ('l2', 'inf') and outside == 'drop'")
    parts = [lre.assign(quantity="LRE_" + lre.norm.str.removeprefix("l"))]
    parts.append(tables["cosine"].query("bin == -1").assign(quantity="cosine"))
    parts.append(tables["population"].query(f"bin == -1 and quantity in {ERRORS}"))
    wanted = "use == 'first' and subset == 'nonzero' and source != 'trained' and rule not in ('none', 'random')"
    for part in parts:
        for row in part.query(wanted).itertuples():
            rule = row.rule if row.outside == "drop" else f"{row.rule}, {row.outside}"
            yield row.quantity, "A != 0", rule, _setting(row.source, row.target), row.estimate
    lemma = tables["lemma"].query(f"{wanted} and outside == 'drop' and updates == 1").dropna(subset=["e_len", "e_in"])
    for (rule, source, target), some in lemma.groupby(["rule", "source", "target"], dropna=False):
        of_length = float((some.e_len**2).sum() / (some.e_len**2 + some.e_in**2).sum())
        of_rule = "A != 0", rule, _setting(source, target)
        yield "share of the loss due to length", *of_rule, of_length
        yield "scored updates", *of_rule, float(len(some))
        yield "updates whose cosine is bounded above 0", *of_rule, float(some.guaranteed.mean())
        yield "least slack of the bound", *of_rule, float(some.slack.min())
    of_bins = "bin >= 0 and quantity in ('log_cap', 'log_edge', 'alignment') and rule in ('none', 'rloo', 'fspo')"
    caps = tables["population"].query(f"{of_bins} and source == 'given' and outside == 'drop'")
    for row in caps.dropna(subset="estimate").itertuples():
        rule = "" if row.rule == "none" else row.rule
        yield row.quantity.replace("_", " "), "A != 0", rule, f"from {row.bin_lo:g} tokens", row.estimate


def _setting(source: str, target: float) -> str:
    return "default" if source == "given" else f"{1 - target:.0%}"


def bin_rates(rows: Rows) -> Iterator[tuple[str, float, str, int, int, float, int, float]]:
    """Yield the fields of `BinRate` but the key; clip_rate is what the range is set to, rate that of the bin."""
    for clip_rate in CLIP_RATES:
        for name in COMPARED:
            cut = clipped_offline(preset(name).rule, rows, clip_rate)
            for sign, some in (("both", rows.A != 0), ("A < 0", rows.A < 0), ("A > 0", rows.A > 0)):
                for low, high in pairwise(EDGES):
                    at = some & (rows.length >= low) & (rows.length < high)
                    if at.sum() >= LEAST:
                        mean = float(rows.length[at].mean())
                        yield name, clip_rate, sign, low, high, mean, int(at.sum()), float(cut[at].mean())


def of_trained(rows: Rows) -> Iterator[Found]:
    """Yield the clip rates of ``rows``, a run's log, under the run's own rule: of each epoch, then of each sign."""
    some = rows.take((rows.updates > 0) & (rows.A != 0))
    cut = some.side != 0
    for words, which in (("first epoch", some.used == 0), ("later epochs", some.used > 0)):
        if which.any():
            yield "clip rate", f"A != 0, {words}", "", "trained", float(cut[which].mean())
    for sign, rate in zip(("A < 0", "A > 0"), rates_by_sign(cut, some.A), strict=True):
        yield "clip rate", sign, "", "trained", rate


def describe(run: Path, key: SeedKey, arm: str, planned: int) -> tuple[list[Number], list[BinRate], list[Rollout]]:
    """Return the rows of a finished run for numbers.csv, bins.csv and rollouts.csv.

    Parameters
    ----------
    run : Path
        Run folder; the tables of its analysis are written into it.
    key : SeedKey
        Task, set of runs and seed.
    arm : str
        Name of the rule that trained.
    planned : int
        Number of rollouts that the run was to have; one that it did not reach has the reward 0.

    Raises
    ------
    UserError
        If the folder holds no log that can be analysed.
    """
    rows = (loaded := load_run(run)).rows
    trained = rows.take((rows.updates > 0) & (rows.A != 0))
    clipped = {int(i): float(np.mean(trained.side[trained.rollout == i] != 0)) for i in np.unique(trained.rollout)}
    rewards = [row["reward"] for row in MetricsFile(run).of_phase("train")][:planned]
    rewards += [0.0] * (planned - len(rewards))
    rollouts = [Rollout(key, arm, i + 1, reward, clipped.get(i, np.nan)) for i, reward in enumerate(rewards)]
    if key.runs not in OFFLINE:
        return [Number(key, q, of, arm, s, x) for q, of, _, s, x in of_trained(rows)], [], rollouts
    some = first_epoch(rows)
    every = rows.take((rows.used == 0) & (rows.updates > 0))
    tables = analyse(run, edges=EDGES, rules=COMPARED)
    found = [*of_ranges(some), *of_lengths(some, every), *of_centres(some, every), *of_strata(loaded, some)]
    found += of_tables(tables)
    return [Number(key, *row) for row in found], [BinRate(key, *row) for row in bin_rates(some)], rollouts
