"""Level and power of the verdicts on the claims at the planned numbers of seeds, by simulation. Prints a CSV.

    python -m studies.claims_power > studies/results/claims_power.csv     # some minutes

Each simulated study draws the estimates of all runs from normal distributions and judges all claims together, with
Holm's correction. ``explored`` takes means and standard deviations between seeds as the first design and its pilot
found them. ``on the margin`` puts one hypothesis of the claim exactly on its margin, so that
"supported" is wrong.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.claims.catalogue import CLAIMS, TASKS, WIDE, Hypothesis
from analysis.claims.estimands import LEARNT, Estimate
from analysis.claims.verdicts import JudgedClaim, judge
from fspo.base.errors import run_cli
from fspo.repro.presets import PRESETS
from fspo.rules import COMPARED

SLOPES = {
    ("chain-add", 0.05): ((0.38, 0.04), (-0.26, 0.05), (-0.03, 0.04)),
    ("chain-add", 0.15): ((0.29, 0.04), (-0.09, 0.03), (0.07, 0.03)),
    ("chain-add-64", 0.05): ((0.41, 0.10), (-0.18, 0.07), (0.05, 0.08)),
    ("chain-add-64", 0.15): ((0.29, 0.03), (-0.05, 0.03), (0.09, 0.03)),
    ("products", 0.05): ((0.44, 0.27), (-0.30, 0.14), (0.02, 0.20)),
    ("products", 0.15): ((0.56, 0.11), (-0.04, 0.12), (0.27, 0.11)),
}
"""Mean and standard deviation between seeds of the slopes of the rules COMPARED, in its order, as the first
design found them (docs/findings.md)."""
REWARDS = {
    ("equal", "mean reward"): dict.fromkeys(COMPARED, (0.70, 0.03)),
    ("stress", "final reward"): {"none": (0.45, 0.2)} | dict.fromkeys(COMPARED, (0.94, 0.02)),
    ("stress", "mean reward"): dict.fromkeys(WIDE, (0.50, 0.05)) | dict.fromkeys(WIDE.values(), (0.75, 0.05)),
}
"""Mean and standard deviation between seeds of the rewards; those of "none" and of the wide upper ranges come from the
pilot on two seeds, the others are guesses."""

SIGNS = {"sign gap": (0.07, 0.02), "log sign ratio": (3.0, 0.7)}
SEEDS = PRESETS["paper"].seeds

Key = tuple[str, str, str, str, float]
"""Task, set of runs, estimand, rule, clip rate."""


def explored() -> dict[Key, tuple[float, float]]:
    """Return mean and standard deviation between seeds of every estimate, as the first design and its pilot found."""
    found: dict[Key, tuple[float, float]] = {}
    for (task, rate), slopes in SLOPES.items():
        rules = dict(zip(COMPARED, slopes, strict=True))
        found |= {(task, "unclipped", "slope", rule, rate): numbers for rule, numbers in rules.items()}
        found[task, "unclipped", "slope", LEARNT, rate] = (0.0, rules["fspo"][1])
        for rule in COMPARED:
            found |= {(task, "unclipped", name, rule, rate): numbers for name, numbers in SIGNS.items()}
        found[task, "unclipped", "log sign ratio", LEARNT, rate] = (0.0, 0.15)
    for (runs, estimand), rules in REWARDS.items():
        for task in TASKS:
            found |= {(task, runs, estimand, rule, np.nan): numbers for rule, numbers in rules.items()}
    return found


def on_the_margin(hypothesis: Hypothesis, task: str) -> dict[Key, tuple[float, float]]:
    """Return `explored` with the mean of one hypothesis on one task put exactly on its margin."""
    found = explored()
    keys = {key[3]: key for key in found if key[:3] == (task, hypothesis.runs, hypothesis.estimand)
            and (key[4] == hypothesis.clip_rate or np.isnan(hypothesis.clip_rate))}  # fmt: skip
    own, rival = keys[hypothesis.rule], keys.get(hypothesis.rival)
    against = found[rival][0] if rival else 0.0
    if hypothesis.relation == "smaller in size":
        mean = abs(against)
    else:
        mean = against + hypothesis.sign * hypothesis.margin
    return found | {own: (mean, found[own][1])}


def judged(truth: dict[Key, tuple[float, float]], number: int) -> Iterator[list[JudgedClaim]]:
    """Yield the verdicts of simulated studies."""
    rng = np.random.default_rng(20261126)
    for _ in range(number):
        estimates = [
            Estimate(task, runs, seed, estimand, rule, rate, value)  # type: ignore[arg-type]
            for (task, runs, estimand, rule, rate), (mean, sd) in truth.items()
            for seed, value in enumerate(rng.normal(mean, sd, SEEDS.get((runs, task), 0)))
        ]
        yield judge(pd.DataFrame(estimates))[0]


def main() -> int:
    """Print for each claim how often it is supported and refuted under the explored truth, and how often it is
    supported wrongly where its last hypothesis lies on the margin on its last task.
    """
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--studies", type=int, default=400, help="simulated studies under each truth")
    number = p.parse_args().studies
    table = csv.writer(sys.stdout)
    table.writerow(["truth", "claim", "studies", "supported", "refuted"])
    truths = {("explored", claim.id): explored() for claim in CLAIMS[:1]}
    truths |= {("on the margin", claim.id): on_the_margin(claim.hypotheses[-1], claim.tasks[-1]) for claim in CLAIMS}
    for (name, of), truth in truths.items():
        counts: Counter[tuple[str, str]] = Counter()
        for found in judged(truth, number):
            counts.update((claim.claim, claim.verdict) for claim in found)
        for claim in CLAIMS if name == "explored" else [c for c in CLAIMS if c.id == of]:
            shares = (counts[claim.id, verdict] / number for verdict in ("supported", "refuted"))
            table.writerow([name, claim.id, number, *(f"{share:.3f}" for share in shares)])
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    run_cli(main)
