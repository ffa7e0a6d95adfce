"""How often the intervals of an analysis hold the true value, and where none is given.

    python -m studies.coverage > studies/results/coverage.csv    # 2,000 logs a design: a few minutes on one core

In a simulated log each prompt shifts the length and the acceptance of all its responses: 60 % of the variance of
log-length lies between prompts, and two responses to one prompt have correlated acceptances. The acceptance of each bin
is set, so the true LRE and the true acceptances are known. An interval of LRE or of a slope is given where at least 10
prompts have a clipped response. The command ends with status 1 if an interval holds in less than 93 % of the logs, by
more than two Monte Carlo errors, in a design of which at least 100 logs have one."""

from __future__ import annotations

import argparse
import csv
import sys
import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Annotated

import numpy as np
from scipy import special
from tqdm import tqdm

from analysis.stats.lre import lre_estimates, usable
from fspo.base.errors import run_cli
from fspo.stats.clusters import Floats, Ints, ratios
from fspo.stats.intervals import proportion_interval
from fspo.stats.slopes import cluster_slope
from fspo.theory import lre

SEED = 20250911
LENGTH_SHARE = 0.6
"""Share of the variance of log-length that lies between prompts; the rest lies between responses to one prompt."""
WANTED, LEAST = 0.93, 100
"""Least share of intervals that must hold the truth; least number of logs with an interval for which this is asked."""
QUICK_PROMPTS = 14 * 64 * 3 // 4
"""Prompts with responses after an update in a run of ``fspo reproduce --preset quick``: 14 rollouts of 64 prompts, the
last three of four minibatches."""
SLOPE = 0.02
"""Fall of the acceptance for each doubling of the length in logs whose slope is estimated."""


@dataclass(frozen=True)
class Design:
    """A kind of simulated log: its numbers of prompts, responses to each and bins of length, the bins' shares, and how
    acceptance depends on the bin and on the prompt."""

    prompts: Annotated[int, "prompts of a log"]
    responses: Annotated[int, "responses to each prompt"]
    bins: Annotated[int, "bins of length"]
    equal: Annotated[bool, "whether the bins have equal shares; else each has three quarters of that before it"]
    mean: Annotated[float, "acceptance over all responses"]
    correlation: Annotated[float, "of the normal variables that decide on two responses to one prompt"]
    pattern: Annotated[str, "one: the last bin alone has a lower acceptance; else each bin lies below that before"]
    lre: Annotated[float, "true LRE_2"]

    def shares(self) -> Floats:
        """Return the share of responses that each bin has, (K,)."""
        p = np.ones(self.bins) if self.equal else 0.75 ** np.arange(self.bins)
        return p / p.sum()

    def acceptance(self) -> Floats:
        """Return the acceptance of each bin (K,): ``mean * (1 + lre * x)``, x of mean 0 and variance 1."""
        p, place = self.shares(), np.arange(self.bins)
        x = -place.astype(float) if self.pattern == "trend" else -1.0 * (place == self.bins - 1)
        x = x - p @ x
        return self.mean * (1 + self.lre * x / np.sqrt(p @ x**2))


def designs() -> Iterator[Design]:
    """Yield the designs: 40 prompts to 2,000, half to 99 % accepted, equal and unequal acceptances and bins."""
    for prompts in (40, 120, QUICK_PROMPTS, 2000):
        for mean in (0.5, 0.85, 0.95):
            for pattern, truth in (("trend", 0.0), ("trend", 0.02), ("one", 0.05)):
                yield Design(prompts, 8, 6, True, mean, 0.2, pattern, truth)
        yield Design(prompts, 8, 6, True, 0.85, 0.2, "trend", 0.08)
        yield Design(prompts, 8, 6, True, 0.99, 0.2, "one", 0.0)
        yield Design(prompts, 8, 6, True, 0.99, 0.2, "one", 0.01)
        for truth in (0.0, 0.05):
            yield Design(prompts, 8, 8, False, 0.95, 0.5, "one", truth)
        yield Design(prompts, 16, 5, False, 0.85, 0.5, "trend", 0.1)


def effects(rng: np.random.Generator, design: Design, share: float) -> Floats:
    """Draw a standard normal number for each response (prompts, responses) of a design; the part ``share`` of the
    variance is common to all responses to one prompt."""
    own = rng.standard_normal((design.prompts, design.responses))
    return np.sqrt(share) * rng.standard_normal((design.prompts, 1)) + np.sqrt(1 - share) * own


def draw(rng: np.random.Generator, design: Design) -> tuple[Floats, Ints, Ints]:
    """Simulate a log of the design; return for each response (N,) whether it is accepted (1 or 0), its prompt and its
    bin."""
    bins = np.searchsorted(special.ndtri(np.cumsum(design.shares())[:-1]), effects(rng, design, LENGTH_SHARE))
    latent = effects(rng, design, design.correlation)
    accepted = latent <= special.ndtri(design.acceptance())[bins]
    cluster = np.repeat(np.arange(design.prompts), design.responses)
    return accepted.ravel().astype(np.float64), cluster, bins.ravel().astype(np.int64)


def trend(rng: np.random.Generator, design: Design) -> tuple[float, float, float]:
    """Simulate a log whose acceptance falls by .02 for each doubling of the length. Return the slope of a line through
    the true acceptances of its responses, and the two ends of the interval that is estimated for that slope."""
    doublings = effects(rng, design, LENGTH_SHARE).ravel()
    truth = np.clip(design.mean - SLOPE * doublings, 1e-9, 1 - 1e-9)
    accepted = effects(rng, design, design.correlation).ravel() <= special.ndtri(truth)
    cluster = np.repeat(np.arange(design.prompts), design.responses)
    found = cluster_slope(accepted, doublings, cluster)
    return float(np.polyfit(doublings, truth, 1)[0]), found.ci_low, found.ci_high


def simulate(design: Design, number: int) -> dict[str, float]:
    """Simulate ``number`` logs of a design. Return, by column of the table, the share of logs with an interval of LRE,
    and of all intervals of each kind the share that holds the truth.

    Where bins of few prompts are left out of LRE, the truth is that of the other bins."""
    rng = np.random.default_rng([SEED, zlib.crc32(repr(astuple(design)).encode())])
    p, a = design.shares(), design.acceptance()
    held: dict[str, list[bool]] = {name: [] for name in ("LRE_2", "LRE_inf", "LRE_1", "acceptance", "trend")}
    apart: list[bool] = []
    for _ in range(number):
        found = ratios(*draw(rng, design), design.bins, binary=True)
        used = usable(found)
        low, high = (x[:-1] for x in proportion_interval(found.value, found.variance, found.count, found.clusters))
        held["acceptance"] += ((low <= a) & (a <= high))[np.isfinite(low)].tolist()
        slope, *ends = trend(rng, design)
        if np.isfinite(ends[0]):
            held["trend"].append(ends[0] <= slope <= ends[1])
        norms = {e.norm: e for e in lre_estimates(found)}
        if not np.isfinite(norms["l2"].ci_high):
            continue
        truth = lre(p[used], a[used])
        for name, norm in (("LRE_2", "l2"), ("LRE_inf", "inf"), ("LRE_1", "l1")):
            one = norms[norm]
            held[name].append(one.ci_low - 1e-12 <= getattr(truth, norm) <= one.ci_high + 1e-12)
        apart.append(norms["l2"].ci_low > 0)
    shares = {
        f"{name} holds": float(np.mean(x)) if len(x) >= min(LEAST, number) else np.nan for name, x in held.items()
    }
    excludes = float(np.mean(apart or [False]))
    return {"logs": number, "LRE given": len(apart) / number, "LRE_2 excludes 0": excludes, **shares}


def main() -> int:
    """Simulate all designs and print the table as CSV; return 1 if intervals of one kind hold the truth too rarely."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=2000, help="simulated logs of each design")
    number = parser.parse_args().logs
    writer, worst = csv.writer(sys.stdout), 1.0
    for i, design in enumerate(tqdm(list(designs()), file=sys.stderr, disable=None)):
        found = simulate(design, number)
        if not i:
            writer.writerow([*Design.__dataclass_fields__, *found])
        writer.writerow([*astuple(design), *(f"{x:.4g}" for x in found.values())])
        sys.stdout.flush()
        worst = min([worst, *(x for name, x in found.items() if name.endswith("holds") and np.isfinite(x))])
    print(f"least share of intervals that hold: {worst:.3f}, wanted {WANTED}", file=sys.stderr)
    return 0 if worst >= WANTED - 2 * np.sqrt(WANTED * (1 - WANTED) / number) else 1


if __name__ == "__main__":
    run_cli(main)
