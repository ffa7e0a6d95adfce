"""Compare what this project's doctor and the PyPI package rldoctor find in the same runs.

    pip install rldoctor==0.2.0
    python studies/doctor_against_rldoctor.py [--seeds 3] [RUN ...]

1. Planted runs (analysis/doctor/planted.py): one defect each, and healthy twins of the same seeds. The doctor reads the
   gradient log; rldoctor reads the scalars that a trainer would log of the very same rows, under TRL's names. A defect
   counts as seen if a tool reports something at WARNING or above that it does not report on the healthy twin: any such
   alarm counts, whatever its name. For the doctor it is also counted whether the planted defect itself is named.
   The defects are those that the doctor was written for, so this part favours it; the next one favours rldoctor.
2. rldoctor's own simulated scenarios, scalars only, imported with `python -m analysis import`. The doctor looks for
   no trends (entropy, KL, reward hacking, plateaus) and has no responses to look at there.
3. Real run folders, if any are named: both tools' reports.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from analysis.doctor.examine import examine
from analysis.doctor.findings import Severity
from analysis.doctor.planted import DEFECTS, Plan, write_run
from analysis.importing.run import import_run
from fspo.base.errors import UserError, run_cli
from fspo.base.files import write_text
from fspo.gradlog.metrics_file import MetricsFile

RESULTS = Path(__file__).parent / "results" / "doctor_against_rldoctor.json"


def ours(run: Path) -> tuple[list[str], float]:
    """Return the ids of the findings of this project's doctor at WARNING or above, and the seconds taken."""
    began = time.perf_counter()
    found = [a.id for a in examine(run).findings if (a.severity or 0) >= Severity.WARNING]
    return found, time.perf_counter() - began


def records(run: Path) -> list[dict[str, Any]]:
    """Return a run's scalar metrics. A value that JSON cannot hold as a number becomes NaN, as other loggers write
    it."""
    train = MetricsFile(run).of_phase("train")
    return [{k: math.nan if v is None else v for k, v in line.items() if k != "phase"} for line in train]


def theirs(rows: list[dict[str, Any]], config: dict[str, Any] | None = None) -> tuple[list[str], float]:
    """Return the names of rldoctor's findings at WARNING or above, and the seconds taken."""
    import rl_doctor  # type: ignore[import-not-found]

    began = time.perf_counter()
    diagnosis = rl_doctor.diagnose(rl_doctor.run_from_records(rows, config=config))
    found = [f.detector for f in diagnosis.problems if f.severity >= rl_doctor.Severity.WARNING]
    return found, time.perf_counter() - began


def planted(seeds: int, folder: Path) -> dict[str, Any]:
    """Run both doctors on every planted defect and on a healthy run of the same seed."""
    rows: list[dict[str, Any]] = []
    healthy: dict[int, tuple[set[str], set[str]]] = {}
    seconds = {"doctor": 0.0, "rldoctor": 0.0}
    for seed in range(seeds):
        run = write_run(folder / f"healthy-{seed}", Plan(), seed)
        healthy[seed] = (set(ours(run)[0]), set(theirs(records(run))[0]))
        for name, plan in DEFECTS.items():
            run = write_run(folder / f"{name}-{seed}", plan, seed)
            (a, first), (b, second) = ours(run), theirs(records(run))
            seconds["doctor"] += first
            seconds["rldoctor"] += second
            new = sorted(set(a) - healthy[seed][0]), sorted(set(b) - healthy[seed][1])
            row = {"defect": name, "seed": seed, "named": name.split("-")[0] in a, "doctor": new[0], "rldoctor": new[1]}
            rows.append(row)
    runs = len(rows)
    return {
        "runs": rows,
        "healthy": [{"seed": s, "doctor": sorted(a), "rldoctor": sorted(b)} for s, (a, b) in healthy.items()],
        "seen_by_doctor": sum(bool(r["doctor"]) for r in rows),
        "named_by_doctor": sum(r["named"] for r in rows),
        "seen_by_rldoctor": sum(bool(r["rldoctor"]) for r in rows),
        "defective_runs": runs,
        "mean_seconds": {tool: total / runs for tool, total in seconds.items()},
    }


def scenarios(seeds: int, folder: Path) -> list[dict[str, Any]]:
    """Run both doctors on the scenarios that rldoctor ships."""
    from rl_doctor import simulate  # type: ignore[import-not-found]

    out = []
    for name in simulate.SCENARIOS:
        for seed in range(seeds):
            rows, config = simulate.simulate(name, seed=seed)
            file = folder / f"{name}-{seed}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            import_run(file, folder / f"{name}-{seed}")
            a = ours(folder / f"{name}-{seed}")[0]
            out.append({"scenario": name, "seed": seed, "doctor": a, "rldoctor": theirs(rows, config)[0]})
    return out


def table(title: str, head: tuple[str, str, str], rows: list[tuple[str, str, str]]) -> None:
    """Print a table of findings; equal rows are printed once."""
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(3)]
    print(f"\n{title}")
    for row in [head, *rows]:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def by_seed(rows: list[dict[str, Any]], key: str) -> list[tuple[str, str, str]]:
    """Return a line for each defect or scenario: what each doctor reports, and in how many seeds."""
    out = []
    for name in dict.fromkeys(r[key] for r in rows):
        here = [r for r in rows if r[key] == name]
        cells = []
        for tool in ("doctor", "rldoctor"):
            counts: dict[str, int] = {}
            for r in here:
                for finding in r[tool]:
                    counts[finding] = counts.get(finding, 0) + 1
            cells.append(", ".join(f"{k} {v}/{len(here)}" for k, v in counts.items()) or "-")
        out.append((str(name), *cells))
    return out


def main() -> None:
    """Run both doctors, print what each found and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    try:
        release = version("rldoctor")
    except PackageNotFoundError:
        raise UserError("rldoctor is not installed: pip install rldoctor==0.2.0") from None
    with tempfile.TemporaryDirectory() as name:
        first = planted(options.seeds, Path(name) / "planted")
        second = scenarios(options.seeds, Path(name))
    real = [{"run": r.name, "doctor": ours(r)[0], "rldoctor": theirs(records(r))[0]} for r in options.runs]
    head = ("planted defect", "doctor (rows)", f"rldoctor {release} (scalars)")
    healthy = [{**h, "defect": "none: healthy"} for h in first["healthy"]]
    table(
        "Planted runs, findings at WARNING or above beyond the healthy twin's", head, by_seed(first["runs"], "defect")
    )
    table("Healthy twins, all findings", head, by_seed(healthy, "defect"))
    n = first["defective_runs"]
    print(f"\n  defective runs seen: doctor {first['seen_by_doctor']}/{n} (the planted defect named in "
          f"{first['named_by_doctor']}), rldoctor {first['seen_by_rldoctor']}/{n}")  # fmt: skip
    print("  seconds a run: " + ", ".join(f"{k} {v:.3f}" for k, v in first["mean_seconds"].items()))
    table("rldoctor's own scenarios", ("scenario", head[1], head[2]), by_seed(second, "scenario"))
    if real:
        table("Real runs", ("run", head[1], head[2]), by_seed(real, "run"))
    content = {"rldoctor": release, "seeds": options.seeds, "planted": first, "scenarios": second, "real": real}
    write_text(RESULTS, json.dumps(content, indent=2) + "\n")
    print(f"\nwritten: {RESULTS}")


if __name__ == "__main__":
    run_cli(main)
