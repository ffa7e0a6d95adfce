"""How often the intervals of analysis/ hold the true value and its tests reject: this script writes docs/coverage.md.

In a simulated log each prompt shifts the length and the acceptance of all its responses. The acceptance of each bin is
set, so the true LRE is known. ``python studies/coverage.py`` takes ten minutes on one core; its seed is fixed.

    python studies/coverage.py --quick    # half a minute: simulate few logs, report what the page contradicts
"""

# ruff: noqa: E501  (the page's tables are as wide as they are)

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from scipy import special
from scipy import stats as sps
from tqdm import tqdm

from analysis.stats.error_law import usable
from analysis.stats.lre import lre_estimates
from fspo.base.errors import run_cli
from fspo.base.files import write_text
from fspo.stats.clusters import Floats, Ints, ratios
from fspo.stats.intervals import CONFIDENCE, PERCENT, t_quantile
from fspo.stats.slopes import cluster_slope
from fspo.theory import lre

SEED, FRESH_SEED = 20250911, 777
LENGTH_SHARE = 0.6
"""Share of the variance of log-length that lies between prompts; the rest lies between responses to one prompt."""
MARGIN = 0.01
DISAGREES = 1e-3
"""Level at which --quick compares one table of docs/coverage.md with new simulations: the probability, at most, that it
reports some row of the table although all rows are right."""
PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"


@dataclass(frozen=True)
class Design:
    """One design of simulated logs.

    The acceptance of a bin is ``mean * (1 + lre * x)``, where x, a number for each bin, has mean 0 and variance 1 over
    the responses; so ``mean`` is the acceptance over all responses and ``lre`` the true LRE_2.
    """

    prompts: int
    responses: int
    bins: int
    equal: bool
    mean: float
    # Correlation, between two responses to one prompt, of the hidden normal variables that decide whether each is
    # accepted.
    correlation: float
    # How the bins' acceptances differ. "trend": from each bin to the next the acceptance falls by the same amount;
    # "one": it is lower in the last bin and equal in all others.
    pattern: str
    lre: float

    def shares(self) -> Floats:
        """Return each bin's share of the responses, (K,) for K bins: equal shares if ``equal``, else three quarters of
        the share of the bin before.
        """
        p = np.ones(self.bins) if self.equal else 0.75 ** np.arange(self.bins)
        return p / p.sum()

    def acceptance(self) -> Floats:
        """Return the acceptance (K,) that each bin has by design: the truth that intervals from simulated logs should
        hold.
        """
        p = self.shares()
        x = (
            -np.arange(self.bins, dtype=float)
            if self.pattern == "trend"
            else -1.0 * (np.arange(self.bins) == self.bins - 1)
        )
        x = x - p @ x
        return self.mean * (1 + self.lre * x / np.sqrt(p @ x**2))


def effects(rng: np.random.Generator, prompts: int, responses: int, share: float) -> Floats:
    """Draw a standard normal number for each response (prompts, responses); the part ``share`` of the variance is
    common to all responses to one prompt."""
    own = rng.standard_normal((prompts, responses))
    return np.sqrt(share) * rng.standard_normal((prompts, 1)) + np.sqrt(1 - share) * own


def draw(rng: np.random.Generator, design: Design) -> tuple[Floats, Ints, Ints]:
    """Simulate a log; return for each response (N,) whether it is accepted, its prompt and its bin."""
    place = effects(rng, design.prompts, design.responses, LENGTH_SHARE)
    bins = np.searchsorted(special.ndtri(np.cumsum(design.shares())[:-1]), place)
    latent = effects(rng, design.prompts, design.responses, design.correlation)
    accepted = latent <= special.ndtri(design.acceptance())[bins]
    cluster = np.repeat(np.arange(design.prompts), design.responses)
    return accepted.ravel().astype(np.float64), cluster, bins.ravel().astype(np.int64)


@dataclass
class IntervalCounts:
    """Numbers of simulated logs of one design whose intervals of LRE hold or miss the true value."""

    used: int = 0
    below: int = 0  # number of logs whose interval of LRE_2 lies above the true value
    above: int = 0
    apart: int = 0  # number of simulated logs whose interval of LRE_2 excludes 0
    largest: int = 0  # number of simulated logs whose interval of LRE_inf covers the true value
    wald: int = 0
    left_out: int = 0
    without: int = 0


def simulate(design: Design, replicates: int, seed: int = SEED) -> IntervalCounts:
    """Simulate ``replicates`` logs of one design and count those whose LRE intervals hold the true value.

    Where bins with few prompts are left out of the estimate, the true value is the LRE of the other bins.
    """
    rng = np.random.default_rng([seed, zlib.crc32(repr(astuple(design)).encode())])
    tally = IntervalCounts()
    p, a = design.shares(), design.acceptance()
    for _ in range(replicates):
        found = ratios(*draw(rng, design), design.bins, binary=True)
        by_norm = {e.norm: e for e in lre_estimates(found)}
        two, largest = by_norm["l2"], by_norm["inf"]
        if not np.isfinite(two.ci_high):
            tally.without += 1
            continue
        used = usable(found)
        truth = lre(p[used], a[used])
        tally.used += 1
        tally.left_out += not used.all()
        tally.below += truth.l2 < two.ci_low - 1e-12
        tally.above += truth.l2 > two.ci_high + 1e-12
        tally.apart += two.ci_low > 0
        tally.largest += largest.ci_low - 1e-12 <= truth.inf <= largest.ci_high + 1e-12
        tally.wald += two.wald_p < 0.05
    return tally


def designs() -> Iterator[Design]:
    """Yield the simulated designs: 8 or 16 responses a prompt, 32 to 512 prompts, acceptances .5 to .99, 5 or 8 bins,
    with acceptance equal in all bins (true LRE 0) or not."""
    for prompts, responses in ((32, 8), (32, 16), (128, 8), (512, 16)):
        for truth in (0.0, 0.1, 0.3):
            yield Design(prompts, responses, 5, True, 0.5, 0.2, "trend", truth)
        yield Design(prompts, responses, 8, False, 0.85, 0.2, "trend", 0.0)
        yield Design(prompts, responses, 8, False, 0.85, 0.2, "one", 0.05)
        yield Design(prompts, responses, 8, False, 0.85, 0.2, "trend", 0.1)
        for truth in (0.0, 0.05):
            yield Design(prompts, responses, 5, False, 0.97, 0.5, "one", truth)
        yield Design(prompts, responses, 8, False, 0.99, 0.2, "one", 0.0)
        yield Design(prompts, responses, 5, True, 0.99, 0.2, "one", 0.02)


def small_designs() -> Iterator[Design]:
    """Yield the designs of simulated logs that take little time, for the option --quick of this study."""
    return (design for design in designs() if design.prompts == 32 and design.responses == 8)


def fresh_designs() -> Iterator[Design]:
    """Yield designs of simulated logs for a second test of the LRE intervals, with another seed: the hardest of
    `designs`, and some that were not used while the intervals were developed."""
    yield Design(128, 8, 8, False, 0.85, 0.2, "one", 0.05)
    yield Design(512, 16, 5, True, 0.5, 0.2, "trend", 0.3)
    yield Design(128, 8, 5, True, 0.5, 0.2, "trend", 0.1)
    yield Design(128, 8, 5, False, 0.97, 0.5, "one", 0.05)
    yield Design(64, 8, 5, False, 0.7, 0.3, "trend", 0.2)
    yield Design(256, 16, 8, True, 0.9, 0.3, "trend", 0.03)


def interval(hits: int, number: int) -> str:
    """Return as text the share hits / number of simulated logs, with Wilson's interval for it."""
    if number == 0:
        return ""
    found = sps.binomtest(hits, number).proportion_ci(CONFIDENCE, method="wilson")
    return f"{hits / number:.3f} ({found.low:.3f}-{found.high:.3f})"


def trends(prompts: int, responses: int, mean: float, replicates: int) -> list[str]:
    """Return the cells of one row of the second table on docs/coverage.md, each a share of simulated logs.

    The cells are: how often, at 5 %, the test of a trend rejects a constant acceptance; and how often the equivalence test
    calls a trend negligible that is exactly as large as its margin.
    """
    rng = np.random.default_rng([SEED, prompts, responses, int(1000 * mean)])
    cluster = np.repeat(np.arange(prompts), responses)
    trend = equivalent = 0
    for _ in range(replicates):
        x = effects(rng, prompts, responses, LENGTH_SHARE).ravel()
        length = np.maximum(np.round(200 * np.exp(0.7 * x)), 1.0)
        latent = effects(rng, prompts, responses, 0.2).ravel()
        level = special.ndtri(mean)
        trend += cluster_slope(latent <= level, np.log2(length), cluster, margin=MARGIN).p_value < 0.05
        sloped = np.clip(mean - MARGIN * (np.log2(length) - np.log2(200)), 1e-9, 1 - 1e-9)
        edge = cluster_slope(latent <= special.ndtri(sloped), np.log2(length), cluster, margin=MARGIN)
        equivalent += edge.tost_p < 0.05
    return [interval(trend, replicates), interval(equivalent, replicates)]


def labels(design: Design) -> list[str]:
    """Return the cells that name a design of simulated logs. They begin the design's row in the tables of LRE intervals
    of docs/coverage.md.
    """
    size = [f"{design.prompts} x {design.responses}", f"{design.bins} {'equal' if design.equal else 'unequal'}"]
    return [*size, f"{design.mean:g}", f"{design.correlation:g}", design.pattern, f"{design.lre:g}"]


def line(design: Design, t: IntervalCounts, replicates: int) -> str:
    """Return the row of one design of simulated logs in the table of LRE intervals of docs/coverage.md. ``t`` holds the
    counts over the design's logs.
    """
    hits = t.used - t.below - t.above
    cells = [*labels(design), interval(hits, t.used)]
    cells += [f"{t.below / t.used:.3f} / {t.above / t.used:.3f}", f"{t.apart / t.used:.2f}"] if t.used else ["", ""]
    cells += [interval(t.largest, t.used), f"{t.wald / t.used:.3f}" if t.used else ""]
    cells += [f"{t.left_out / max(t.used, 1):.2f}", f"{t.without / replicates:.2f}"]
    return "| " + " | ".join(cells) + " |"


def page(replicates: int) -> str:
    """Return the text of docs/coverage.md."""
    rows, away, near = [], [], []
    for design in tqdm(list(designs()), desc="LRE"):
        t = simulate(design, replicates)
        hits = t.used - t.below - t.above
        if t.used >= replicates / 10:
            (away if t.apart > 0.9 * t.used else near).append((hits, t.used))
        rows.append(line(design, t, replicates))
    fresh = [line(d, simulate(d, 2 * replicates, FRESH_SEED), 2 * replicates) for d in fresh_designs()]
    others = []
    for prompts, responses in ((32, 8), (128, 8), (512, 16)):
        for mean in (0.85, 0.97):
            cells = trends(prompts, responses, mean, replicates // 2)
            others.append("| " + " | ".join([f"{prompts} x {responses}", f"{mean:g}", *cells]) + " |")
    pooled = [interval(sum(h for h, _ in g), sum(n for _, n in g)) for g in (near, away)]
    least = [min((h / n for h, n in g), default=float("nan")) for g in (near, away)]
    most = max((h / n for h, n in away), default=float("nan"))
    return TEXT.format(
        replicates=replicates,
        half=replicates // 2,
        near=pooled[0],
        away=pooled[1],
        least=least[0],
        low=least[1],
        high=most,
        error=t_quantile(np.inf) * np.sqrt(CONFIDENCE * (1 - CONFIDENCE) / replicates),
        percent=PERCENT,
        level=CONFIDENCE,
        rows="\n".join(rows),
        double=2 * replicates,
        fresh="\n".join(fresh),
        others="\n".join(others),
        margin=MARGIN,
    )


def disagreements(text: str, chosen: Iterable[Design], replicates: int) -> list[str]:
    """Simulate new logs of the designs ``chosen``. Return a line for each design whose row in the first table of
    docs/coverage.md (``text``) is missing or is contradicted by the new logs.

    The new logs contradict a row if `differ` rejects that the share of LRE_2 intervals that hold the true value is the
    same in the row and in the new logs. If all rows are right, the probability that any row is reported is at most
    ``DISAGREES``.
    """
    number, chosen, found = stated_logs(text), list(chosen), []
    for design in tqdm(chosen, desc="rows"):
        start = "| " + " | ".join(labels(design)) + " | "
        row = next((r.removeprefix(start).split(" | ") for r in text.splitlines() if r.startswith(start)), None)
        if row is None or not number:
            found.append(f"{start}is not on the page")
            continue
        used = round(number * (1 - float(row[-1].strip(" |"))))
        held = round(used * float(row[0].split()[0]))
        t = simulate(design, replicates, FRESH_SEED)
        hits = t.used - t.below - t.above
        if differ(held, used, hits, t.used, len(chosen)):
            found.append(f"{start}the page says {held} of {used} intervals hold, now {hits} of {t.used}")
    return found


def stated_logs(text: str) -> int:
    """Return how many logs were simulated for each row of the first table of docs/coverage.md, as the page's ``text``
    says; 0 if it does not say.
    """
    stated = re.search(r"([0-9]+) for each row of the first", text)
    return int(stated[1]) if stated else 0


def differ(page_hits: int, page_of: int, hits: int, of: int, tests: int) -> bool:
    """Return whether a share on the page docs/coverage.md differs significantly from a newly simulated one.

    Fisher's exact test compares ``page_hits`` of ``page_of`` cases with ``hits`` of ``of`` cases. The test's level is `DISAGREES` divided by the number of ``tests`` (Bonferroni).
    """
    table = [[page_hits, page_of - page_hits], [hits, of - hits]]
    return float(np.asarray(sps.fisher_exact(table))[1]) < DISAGREES / tests


TEXT = """# How often the intervals hold

`python studies/coverage.py` writes this page: simulated logs with a known truth, {replicates} for each row of the first
table and {half} for each row of the second, one fixed seed. Brackets are {percent} Monte Carlo intervals of the share itself;
a true {percent} shows as {level:.3f} +- {error:.3f}.

Responses come in prompts, the clusters. A prompt has its own level of log-length (60 % of the variance) and its own level
of acceptance (a latent normal with the correlation of the table), so the rows of a prompt are far from independent. The
acceptance of each bin is set, so the true LRE is known: `trend` falls evenly from bin to bin, `one` lowers the last bin
alone (the smallest one where bins are unequal).

## Length Reweighting Error

Wanted: the {percent} interval of $`LRE_2`$ holds at least 94 % of the time everywhere, and 93 to 97 % of the time away from 0,
which here means designs in which more than 90 % of the intervals exclude 0. Found over all rows: near 0 {near}, least row
{least:.3f}; away from 0 {away}, rows from {low:.3f} to {high:.3f}.

The interval of $`LRE_2`$ inverts tests on the plug-in, the one of $`LRE_\\infty`$ comes from simultaneous bands
(`analysis/stats/lre.py`, `analysis/stats/error_law.py`). At exact fairness a two-sided interval of a quantity that cannot be negative
misses on one side only, so it holds more often than {percent}; $`LRE_\\infty`$ holds {percent} there and more where several bins
differ from the mean. "Wald" is how often the test of a constant acceptance rejects at 5 %: its size at LRE_2 = 0, its
power elsewhere. A bin with rows of fewer than 10 prompts is left out, and then the truth is that of the bins used; where
more than a tenth of the rows lie in such bins there is no estimate, and the reason says "too little data".

| prompts x responses | bins | mean acceptance | correlation | pattern | true LRE_2 | LRE_2 holds | truth below / above | excludes 0 | LRE_inf holds | Wald rejects | bin left out | no estimate |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

The two shares at which the tails are tested (`TAILS` in `analysis/stats/lre.py`) were set after looking at such rows, so here
are the hardest of them with another seed, and two designs that were not looked at before; {double} logs each.

| prompts x responses | bins | mean acceptance | correlation | pattern | true LRE_2 | LRE_2 holds | truth below / above | excludes 0 | LRE_inf holds | Wald rejects | bin left out | no estimate |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{fresh}

## Trend and equivalence

"Trend rejects" is the size of the 5 % test at a constant acceptance. "Equivalence accepts" is the share of two one-sided
tests that call the trend negligible at 5 % although it is exactly the margin, {margin} for each doubling of length.

| prompts x responses | mean acceptance | trend rejects | equivalence accepts |
| --- | --- | --- | --- |
{others}

"""


def main() -> int:
    """Write docs/coverage.md, or with --quick compare it with new simulations; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=400, help="simulated logs for each design")
    parser.add_argument("--output", type=Path, default=PAGE, help="where the page goes")
    parser.add_argument(
        "--quick", action="store_true", help="check the first table with new logs of their smaller designs"
    )
    options = parser.parse_args()
    if options.quick:
        text = options.output.read_text(encoding="utf-8")
        found = disagreements(text, small_designs(), 100)
        print("\n".join(found) or f"{options.output}: the rows that were simulated anew agree")
        return 1 if found else 0
    write_text(options.output, page(options.replicates))
    return 0


if __name__ == "__main__":
    run_cli(main)
