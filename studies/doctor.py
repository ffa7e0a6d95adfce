"""How often `fspo doctor` is right: its false alarms in sound runs, and the defects that it sees in spoilt logs.

    python -m studies.doctor --runs FOLDER

Writes studies/results/doctor.csv. FOLDER holds the trained sound runs; those that it lacks
are trained. It takes a quarter of an hour on two cores.

- ``false_alarms``: for each check, in how many of 200 simulated and 28 trained sound runs (seeds and settings fixed
  beforehand) it finds something, by severity. At ``warning`` or worse that is a false alarm.
- ``spoilt``: for each of 50 defects (tests/analysis/doctor/defects.py), in how many of 5 spoilt logs the doctor finds
  something that it does not find in the sound log, and in how many it names the defect rightly.
- ``power``: for ten defects at several sizes, in how many of 20 spoilt logs it finds something new.

Whoever changes a check gives the sound runs new seeds before the next count."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
from tqdm import tqdm

from analysis.doctor.examine import examine
from analysis.doctor.issues import Answer, Severity
from fspo.base.errors import run_cli
from fspo.base.files import whole_file
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rules import PRESETS
from tests.analysis.doctor.defects import DEFECTS, SEVERITIES
from tests.analysis.doctor.healthy import OPTIONS, SimulatedRun, ranged, train_run, write_simulated_run
from tests.analysis.doctor.log_changes import Change, rewritten

TABLE = Path(__file__).parent / "results" / "doctor.csv"
RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fspo", {}),
    ("rloo", {}),
    ("gspo", {}),
    ("fspo-kl", {}),
    ("fspo", {"outside": "truncate"}),
    ("fspo", {"outside": "cap"}),
    ("none", {}),
    ("fspo", {"drift": "tilted"}),
    ("fspo", {"shape": "power", "gamma": 0.75} | ranged(0.05)),
    ("fspo", {"drift": "gaussian"}),
)
"""Rules of the simulated sound runs: a preset, and what is changed in it."""
HEALTHY = tuple(
    SimulatedRun(
        rule=RULES[i % 10][0],
        changes=tuple(RULES[i % 10][1].items()),
        steps=("gradient", "sign", "heavy")[i // 10 % 3],
        peaked=i % 7 >= 4,
        lengths=((6, 40), (20, 150), (60, 300))[i % 3],
        group=(4, 8, 16)[i // 3 % 3],
        prompts=256 // (4, 8, 16)[i // 3 % 3],
        minibatches=(4, 2)[i // 4 % 2],
        epochs=(2, 1)[i // 8 % 2],
        engine=(0.0, 0.0, 0.005, 0.02)[i // 2 % 4],
        selected=i % 11 >= 8,
        graded=i % 5 == 4,
        fresh=i // 7 % 2 == 1,
    )
    for i in range(200)
)
"""The sound simulated runs. Run i has the seed ``FIRST_SEED`` + i."""
FIRST_SEED = 51000
PRECISIONS = {72: "same", 73: "bfloat16", 74: "same", 75: "bfloat16"}
"""Seeds of the runs that the trainer makes, each with the precision of the program that samples."""
TRAINED = {f"{name}-{seed}": (name, seed) for seed in PRECISIONS for name in PRESETS}
"""The sound runs that the trainer makes: preset and seed by the name of the run folder."""
BASE = SimulatedRun(engine=0.01)
"""The simulated run that every defect spoils. Its sampler differs a little from its trainer, so that the log has the
columns of the mismatch."""
SIMULATED, TRAINED_BASES = range(9000, 9003), ("fspo-73", "fspo-72")
"""Seeds of the simulated logs, and names of the trained ones, that every defect spoils."""
SHORT, SEEDS, FIRST_OF_POWER = SimulatedRun(engine=0.01, rollouts=6), 20, 8000
"""The simulated run, of 3072 rows, that defects of several sizes spoil; with how many seeds, and the first of them."""


class ErrorRate(NamedTuple):
    """A row of the table: how often the doctor notices one kind of thing in a number of logs."""

    part: Annotated[str, "false_alarms, spoilt or power"]
    case: Annotated[str, "the check with the kind of its sound runs, or the defect"]
    size: Annotated[str, "severity of the check's issue, or size of the defect"]
    noticed: Annotated[int, "logs with a (new) issue"]
    named: Annotated[int, "logs in which the issue names the defect; -1 where nothing can be named"]
    of: Annotated[int, "logs"]


def train_missing(folder: Path) -> list[Path]:
    """Train the sound runs that ``folder`` lacks or that were stopped there; return the folders of all."""
    for name, (rule, seed) in tqdm(TRAINED.items(), desc="trained runs"):
        if len(MetricsFile(folder / name).of_phase("train")) < OPTIONS["rollouts"]:
            train_run(folder / name, rule, seed, PRECISIONS[seed])
    return [folder / name for name in TRAINED]


def false_alarms(folder: Path, trained: list[Path]) -> Iterator[ErrorRate]:
    """Yield, for simulated and for ``trained`` sound runs, a row for each check and severity that the doctor reports,
    with the number of runs in which it does, and one of the runs with an issue at ``warning`` or worse by any check."""
    simulated = []
    for i, plan in enumerate(tqdm(HEALTHY, desc="sound runs")):
        run = write_simulated_run(folder / f"run{i}", plan, FIRST_SEED + i)
        simulated.append(said(run))
        shutil.rmtree(run)
    for kind, of_kind in {"simulated": simulated, "trained": [said(run) for run in trained]}.items():
        for (check, severity), count in sum(of_kind, Counter()).items():
            yield ErrorRate("false_alarms", f"{kind}: {check}", severity, count, -1, len(of_kind))
        alarmed = sum(any(severity != Severity.INFO.label for _, severity in one) for one in of_kind)
        yield ErrorRate("false_alarms", f"{kind}: any check", "warning or worse", alarmed, -1, len(of_kind))


@cache
def said(run: Path) -> Counter[tuple[str, str]]:
    """Return the doctor's issues about the run folder ``run``, as pairs of check and severity, each counted once."""
    return Counter({(a.id, (a.severity or Severity.INFO).label) for a in examine(run).issues})


def new_issues(bases: list[Path], change: Change, seeds: Iterable[int]) -> Iterator[list[Answer]]:
    """Yield, for each log of ``bases``, the issues that the doctor finds in a copy spoilt by ``change``, with random
    numbers from the seed at the log's place in ``seeds``. Checks that find something in the log itself are left out."""
    for base, seed in zip(bases, seeds, strict=False):
        before = {check for check, _ in said(base)}
        with tempfile.TemporaryDirectory() as folder:
            made = rewritten(base, Path(folder) / "run", change, seed)
            yield [answer for answer in examine(made).issues if answer.id not in before]


def spoilt(folder: Path, trained: list[Path]) -> Iterator[ErrorRate]:
    """Yield a row for each defect: in how many of five logs that it spoils, two of them of ``trained`` runs, it is
    noticed, and in how many it is named rightly."""
    bases = [write_simulated_run(folder / str(seed), BASE, seed) for seed in SIMULATED]
    bases += [run for name in TRAINED_BASES for run in trained if run.name == name]
    for number, defect in enumerate(tqdm(DEFECTS, desc="defects")):
        found = list(new_issues(bases, defect.change, repeat(number)))
        noticed, named = sum(map(bool, found)), sum(map(defect.named_by, found))
        yield ErrorRate("spoilt", defect.says, "", noticed, named, len(bases))


def power(folder: Path) -> Iterator[ErrorRate]:
    """Yield a row for each kind of defect and each of its sizes: in how many of ``SEEDS`` spoilt logs it is noticed."""
    bases = [write_simulated_run(folder / str(i), SHORT, FIRST_OF_POWER + i) for i in range(SEEDS)]
    for name, (sizes, make) in tqdm(SEVERITIES.items(), desc="kinds of defects"):
        for size in sizes:
            noticed = sum(map(bool, new_issues(bases, make(size), range(SEEDS))))
            yield ErrorRate("power", name, f"{size:g}", noticed, -1, SEEDS)


def main() -> None:
    """Compute the table of the doctor's errors and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trained sound runs")
    trained = train_missing(parser.parse_args().runs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [*false_alarms(folder, trained), *spoilt(folder, trained), *power(folder / "power")]
    with whole_file(TABLE) as path:
        pd.DataFrame(rows, columns=ErrorRate._fields).to_csv(path, index=False)
    print(TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    run_cli(main)
