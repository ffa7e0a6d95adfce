"""Measure how fast log-ratio models draw S given L, and how fast S is drawn and counted in a band; compare both with
the speed at which numpy draws normal numbers.

    python benchmarks/sampling.py [--draws 16777216] [--rounds 7] [--many 100000000]

Rates are per CPU second of one thread, medians over interleaved rounds, so that a busy machine moves them little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from measuring import RESULTS, machine, peak_mib, seconds, take_turns, write_results

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.rules import preset
from proofs_check.models import LogRatioModel, make_model
from proofs_check.tools.sampling import CHUNK, acceptance_counts

LENGTH = 256.0
MOMENTS = {"mu": -0.00045, "sigma": 0.03}
PARAMETERS = {
    "gaussian": MOMENTS,
    "ar1": MOMENTS | {"ar": 0.6},
    "heteroscedastic": MOMENTS,
    "fractional": MOMENTS,
    "scaled-gamma": MOMENTS,
    "scaled-student": MOMENTS,
    "exponential-tokens": MOMENTS,
    "advantage-drift": MOMENTS | {"pull": 1e-4},
    "shifted-lengths": {},
    "markov": MOMENTS,
    "student-tokens": MOMENTS,
}
# Log-ratio models that draw slowly, each with the factor by which its number of timed draws is reduced.
SLOW = {"markov": 32, "student-tokens": 512, "shifted-lengths": 8}
GOAL = 0.7


def bare(draws: int) -> None:
    """Draw normal numbers with numpy alone into one array that stays in the processor's cache. The speeds of the
    log-ratio models are compared with the speed of these draws.
    """
    rng, out = np.random.default_rng(0), np.empty(CHUNK)
    for _ in range(draws // CHUNK):
        rng.standard_normal(out=out)


def sampled(model: LogRatioModel, draws: int) -> None:
    """Draw S at one length from a log-ratio model, in chunks of the size that the checks of the theory use."""
    rng, lengths = np.random.default_rng(0), np.broadcast_to(np.float64(LENGTH), (CHUNK,))
    for _ in range(draws // CHUNK):
        model.sample(rng, lengths)


def counted(model: LogRatioModel, draws: int) -> None:
    """Draw S from a log-ratio model and count how often the band of the preset fspo-kl accepts it."""
    acceptance_counts(model, preset("fspo-kl").rule, [LENGTH], draws, 0)


def cpu_seconds(step: Callable[[], object]) -> float:
    """Return the CPU seconds that this process uses while ``step`` runs."""
    return seconds(step, time.process_time)


def draws_per_second(draws: int, step: Callable[[int], object]) -> float:
    """Call ``step(draws)``, which makes that many draws, and return the number of draws per CPU second."""
    return draws / cpu_seconds(lambda: step(draws))


def rates(draws: int, rounds: int) -> dict[str, float]:
    """Return the draws per CPU second of numpy and of each log-ratio model: medians over rounds."""
    gaussian = make_model("gaussian", **MOMENTS)
    own = np.random.default_rng(1).integers(1, 4096, draws // 4).astype(float)
    steps: dict[str, tuple[int, Callable[[int], object]]] = {"standard_normal(out=)": (draws, bare)}
    for name, parameters in PARAMETERS.items():
        model = make_model(name, **parameters)
        fewer = max(CHUNK, draws // SLOW.get(name, 1))
        steps[name] = fewer, lambda n, model=model: sampled(model, n)
    steps["gaussian, counted by a rule"] = draws, lambda n: counted(gaussian, n)
    steps["gaussian, a length for each draw"] = own.size, lambda _: gaussian.sample(np.random.default_rng(0), own)
    timed = {name: partial(draws_per_second, size, step) for name, (size, step) in steps.items()}
    return {name: float(np.median(values)) for name, values in take_turns(timed, rounds).items()}


def scaling(many: int) -> dict[str, object]:
    """Time how long it takes to draw 10^6 to ``many`` values of S and to count those in a band; return CPU seconds,
    memory, and the power of the number of draws with which the seconds grow."""
    model, rule = make_model("gaussian", **MOMENTS), preset("fspo-kl").rule
    sizes = np.unique(np.geomspace(min(10**6, many), many, 5).astype(int))
    before, taken, peaks = peak_mib(), [], []
    for size in sizes:
        step = lambda size=size: acceptance_counts(model, rule, [LENGTH], int(size), 0, progress=size > 1e7)  # noqa: E731
        taken.append(float(np.median([cpu_seconds(step) for _ in range(3)])))
        peaks.append(peak_mib() - before)
    exponent = float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])
    return {
        "draws": sizes.tolist(),
        "cpu_seconds": taken,
        "exponent_of_time": exponent,
        "memory_above_start_mib": peaks,
        "seconds_for_1e9_extrapolated": taken[-1] * 1e9 / float(sizes[-1]),
    }


def parallel(many: int) -> dict[str, object]:
    """Draw S and count the draws in a band, once with one process and once with one process for each core, on the same
    random numbers; return the wall seconds of both and whether the counts agree."""
    model, rule, found, wall = make_model("gaussian", **MOMENTS), preset("fspo-kl").rule, {}, {}
    for jobs in (1, os.cpu_count() or 1):
        start = time.perf_counter()
        found[jobs] = acceptance_counts(model, rule, [LENGTH], many, 0, jobs=jobs)
        wall[str(jobs)] = time.perf_counter() - start
    return {"wall_seconds_by_jobs": wall, "same_counts": bool(len({int(k[0]) for k in found.values()}) == 1)}


def main() -> None:
    """Measure how fast S is drawn from log-ratio models and counted in a band; print and write the rates."""
    parser = CommandParser(prog="python benchmarks/sampling.py", description=__doc__ or "")
    parser.add_argument("--draws", type=int, default=1 << 24, help="draws in each timed step")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds, of which the median counts")
    parser.add_argument("--many", type=int, default=10**8, help="draws in the longest run")
    options = parser.parse_args()
    if min(options.draws // (4 * CHUNK), options.rounds, options.many // 10**4) < 1:
        raise UserError(f"--draws needs at least {4 * CHUNK}, --rounds 1 and --many 10000")
    scaled = scaling(options.many)  # comes first, because it measures memory and later work raises the process's peak
    found, together = rates(options.draws, options.rounds), parallel(options.many // 2)
    base = found["standard_normal(out=)"]
    for name, rate in found.items():
        print(f"{name:34s} {rate / 1e6:8.2f} million draws/s  {rate / base:6.3f} of standard_normal")
    for name, value in (scaled | together).items():
        print(f"{name}: {value}")
    results = {
        "length": LENGTH,
        "draws": options.draws,
        "million_draws_per_cpu_second": {name: rate / 1e6 for name, rate in found.items()},
        "of_standard_normal": {name: rate / base for name, rate in found.items()},
        "goal_of_standard_normal": GOAL,
        "scaling": scaled,
        "parallel": together,
        **machine("numpy", "scipy", "fspo"),
    }
    write_results(results, RESULTS / "sampling.json")


if __name__ == "__main__":
    run_cli(main)
