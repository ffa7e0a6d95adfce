"""How often `fspo doctor` is right, and what it does not see: writes docs/doctor.md.

    python -m studies.doctor_power --runs FOLDER [--only false_alarms] [--again]

1. False alarms: the healthy runs of studies/doctor_healthy.py, 200 simulated and 32 trained; FOLDER holds the trained
   ones, and those that it lacks are trained (half an hour on two cores).
2. Unseen defects: the 50 of studies/doctor_defects.py, on simulated logs of several seeds and on trained ones, and what
   rldoctor, another program, says of the scalars of the same logs, if it is installed (else its stored answers stay).
3. Power: some defects at several severities, over simulated logs of 20 seeds.

Finished parts are in studies/results/doctor_power.json and are not computed again without --again. The answers of an
unfinished part are in FOLDER/PART.jsonl, so that a study that was stopped goes on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from analysis.doctor.examine import examine
from analysis.doctor.findings import Severity
from analysis.doctor.scalars import MODULE, PACKAGE, by_rldoctor
from fspo.base.errors import run_cli
from fspo.base.files import write_text
from fspo.gradlog import metric_names as metric
from fspo.gradlog import read_log
from studies.doctor_defects import DEFECTS, SEVERITIES
from studies.doctor_healthy import FIRST_SEED, HEALTHY, SimulatedRun, train_missing, write_simulated_run
from studies.doctor_page import page
from studies.log_changes import Change, rewritten

HERE = Path(__file__).parent
PAGE, RESULTS = HERE.parent / "docs" / "doctor.md", HERE / "results" / "doctor_power.json"
SEEDS = 20
"""Number of simulated logs on which each severity of a defect is tried."""
BASE = SimulatedRun(engine=0.01)
"""The simulated run whose log is spoilt. Its sampler differs a little from its trainer, so that the log has the columns
of the mismatch."""
SIMULATED, TRAINED_BASES = range(9000, 9003), ("fspo-71", "fspo-70")
"""Seeds of the simulated logs, and names of the trained ones, that every defect spoils. The rule of these runs drops
outside the band and has the weight exp(S) and edges that follow from the length alone; their advantages are GRPO's. The
defects rely on this rule and these advantages."""
SHORT = SimulatedRun(engine=0.01, rollouts=6)
"""The simulated run whose log, of 3072 rows, is spoilt at several severities."""
FIRST_OF_POWER = 8000
"""Seed of the first of the ``SEEDS`` simulated logs on which defects are tried at several severities."""


def said(run: Path) -> dict[str, str]:
    """Return the severity of each finding of the doctor about a run, by the name of the check."""
    return {answer.id: (answer.severity or Severity.INFO).label for answer in examine(run).findings}


Parts = Iterator[tuple[str, Callable[[], dict[str, Any]]]]
"""The answers of one part of the study: pairs of an answer's name and the function that computes the answer."""


def false_alarms(folder: Path, runs: Path) -> Parts:
    """Yield, for each healthy run (simulated or trained), a name and a function that returns the doctor's findings
    about the run, all of which are false alarms."""

    def examined(plan: SimulatedRun, seed: int) -> dict[str, str]:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            return said(write_simulated_run(Path(place) / "run", plan, seed))

    for i, plan in enumerate(HEALTHY):
        yield f"simulated {i}: {plan.rule}, {plan.steps}", partial(examined, plan, FIRST_SEED + i)
    for run in train_missing(runs):
        yield f"trained {run.name}", partial(said, run)


def spoilt(folder: Path, runs: Path) -> Parts:
    """Yield one answer for each log and defect: what the doctor finds in the spoilt log and not in the sound one, and
    what the program rldoctor finds in the scalars of the spoilt log and not in those of the sound one."""

    def examined(run: Path, before: dict[str, str], theirs: set[str], number: int) -> dict[str, Any]:
        made = rewritten(run, folder / "spoilt", DEFECTS[number].change, number)
        findings = [answer for answer in examine(made).findings if answer.id not in before]
        others = sorted(set(rldoctor_says(made)) - theirs)
        shutil.rmtree(made)
        return {
            "said": [answer.id for answer in findings],
            "rightly": DEFECTS[number].named_by(findings),
            PACKAGE: others,
        }

    bases = {f"simulated {seed}": write_simulated_run(folder / str(seed), BASE, seed) for seed in SIMULATED}
    bases |= {f"trained {name}": runs / name for name in TRAINED_BASES}
    for base, run in bases.items():
        before, theirs = said(run), set(rldoctor_says(run))
        for number in range(len(DEFECTS)):
            yield f"{number} {base}", partial(examined, run, before, theirs, number)


def power(folder: Path, runs: Path) -> Parts:
    """Yield, for each defect and each of its severities, a name and a function. The function spoils ``SEEDS`` simulated
    logs by the defect, and counts those in which the doctor makes a finding that it does not make in the sound log."""

    def seen(change: Change) -> dict[str, int]:
        found = 0
        for seed, base in enumerate(bases):
            made = rewritten(base, folder / "made", change, seed)
            found += bool(set(said(made)) - before[seed])
            shutil.rmtree(made)
        return {"found": found, "of": SEEDS}

    bases = [write_simulated_run(folder / str(seed), SHORT, FIRST_OF_POWER + seed) for seed in range(SEEDS)]
    before = [set(said(base)) for base in bases]
    for name, (severities, make) in SEVERITIES.items():
        for severity in severities:
            yield f"{name}: {severity:g}", partial(seen, make(severity))


def rldoctor_says(run: Path) -> list[str]:
    """Return the names of what the package rldoctor finds, at warning or above, in the scalars of a run; none if it is
    not installed."""
    if importlib.util.find_spec(MODULE) is None:
        return []
    answers, _ = by_rldoctor(scalars_of(run))
    return [a.id.partition(": ")[2] for a in answers if (a.severity or 0) >= Severity.WARNING]


def scalars_of(run: Path) -> list[dict[str, Any]]:
    """Return the scalars that a trainer would log about the run's rows: a dict for each update, under TRL's names."""
    log = read_log(run)
    c = {name: log.column(name) for name in ("step", "reward", "advantage", "length", "truncated", "side", "k3_sum")}
    x = c["advantage"] * log.column("multiplier") * log.column("weight")
    lines = []
    for step in np.unique(c["step"]):
        here = {name: values[c["step"] == step].astype(float) for name, values in c.items()}
        lines.append(
            {
                "step": int(step),
                metric.REWARD: here["reward"].mean(),
                metric.REWARD_STD: here["reward"].std(),
                metric.EQUAL_REWARDS: np.mean(here["advantage"] == 0),
                metric.MEAN_LENGTH: here["length"].mean(),
                "completions/max_length": here["length"].max(),
                metric.TRUNCATED: here["truncated"].mean(),
                metric.CLIPPED: np.mean(here["side"] != 0),
                metric.CLIPPED_LOW: np.mean(here["side"] == -1),
                metric.CLIPPED_HIGH: np.mean(here["side"] == 1),
                metric.KL: here["k3_sum"].sum() / max(here["length"].sum(), 1),
                metric.GRAD_NORM: float(np.sqrt(np.sum(x[c["step"] == step] ** 2 * here["length"])))
                / len(here["side"]),
                "loss": -float(np.mean(x[c["step"] == step])),
            }
        )
    return lines


PARTS: dict[str, Callable[[Path, Path], Parts]] = {
    "false_alarms": false_alarms,
    "spoilt": spoilt,
    "power": power,
}


def commit_of(path: str) -> str:
    """Return the short hash of the last commit that changed a folder."""
    done = subprocess.run(["git", "log", "-1", "--format=%h", "--", path], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Compute those parts of the study of the doctor's errors that have no stored results, and write docs/doctor.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trained healthy runs")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS), help="parts to compute")
    parser.add_argument("--again", action="store_true", help="compute parts that are there")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.only:
        if name in results and not options.again:
            continue
        unfinished = options.runs / f"{name}.jsonl"
        lines = unfinished.read_text().splitlines() if unfinished.exists() else []
        found: dict[str, Any] = dict(map(json.loads, lines))
        with tempfile.TemporaryDirectory() as folder, unfinished.open("a") as file:
            for key, answer in PARTS[name](Path(folder), options.runs):
                if key not in found:
                    found[key] = answer()
                    file.write(json.dumps([key, found[key]]) + "\n")
                    file.flush()
                    print(name, key, found[key], flush=True)
        installed = importlib.util.find_spec(MODULE) is not None
        if name == "spoilt" and not installed and name in results:
            found = {key: value | {PACKAGE: results[name][key][PACKAGE]} for key, value in found.items()}
        elif name == "spoilt":
            results[PACKAGE] = version(PACKAGE) if installed else ""
        results |= {name: found, f"{name} at": commit_of("../analysis/doctor")}
        write_text(RESULTS, json.dumps(results, indent=1) + "\n")
        unfinished.unlink()
    write_text(PAGE, page(results))


if __name__ == "__main__":
    run_cli(main)
