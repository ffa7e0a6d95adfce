"""A frozen record of what this repository computes, from end to end, and the comparison with it.

    python -m tests.record.make_record --compare   # make everything again, print each difference, exit 1 if any
    python -m tests.record.make_record --write     # write record.json anew

The record is made by commands and read from files: two short training runs (their logs, metrics and final weights), and
the tables of ``fspo analyse`` on the small logs in ``logs/``. A column is kept as the digest of its bytes and as sums,
so that a difference can be located and compared with a tolerance. Nothing of the packages is imported, so modules may
move.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.record.reading import Values, read_analysis, read_training

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD, LOGS = HERE / "record.json", HERE / "logs"
TINY = str(next(ROOT.glob("tests/**/tiny_run.py")))
"""The script that trains the 8k-parameter model."""

TOLERANCE = {"training": 0.0}
"""Relative tolerance by part; 0: the digest must agree. Any other part has 1e-9, which leaves room for the order of
sums and for nothing else."""
TOLERATED = 1e-9
ABSOLUTE = 1e-12
KERNELS = {
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2,STRICT",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""The BLAS of numpy, and torch, MKL and oneDNN, choose their kernels by processor, and their sums differ in the last
digits. The commands of the record use those that every processor with AVX2 can run."""

SIZES = (
    *("--batch.prompts", "12", "--batch.responses", "4", "--batch.minibatches", "3", "--rollouts", "5"),
    *("--optim.learning_rate", "3e-3", "--eval.every", "2", "--log.score_every", "0", "--log.samples", "2"),
)
SCORES = ("--log.score_every", "1", "--log.scores.width", "24")
WIDE = ("--rule.range_lo", "0.2", "--rule.range_hi", "0.25")
RUNS: dict[str, tuple[str, ...]] = {
    "fspo-kl": ("fspo-kl", *WIDE, *SCORES, "--rule.drift_source", "lagged"),
    "fspo-adaptive": ("fspo-adaptive", *WIDE, "--rule.target", "0.8"),
}
"""Preset and further options of each training run of ``tiny_run.py``."""
COMMITTED = ("fspo-kl", "fspo-conformal", "grpo")
"""Runs of version 0.2.0 whose logs lie in ``logs/``; the rule of the second is gone."""

_TRAIN = """
import json, runpy, sys
tiny = runpy.run_path(sys.argv[1])
for output, arguments in json.loads(sys.argv[2]):
    tiny["trainer"](output, *arguments).train()
"""
_KERNELS = """
import hashlib, json, runpy, sys
import numpy, torch
net = runpy.run_path(sys.argv[1])["model"](5)
torch.set_num_threads(1)
digest = hashlib.sha256()
for rows in (1, 2, 3, 4, 5, 8, 12, 16, 24, 48):  # which kernel runs depends on the sizes too
    for columns in (1, 2, 5, 11, 16, 24, 37):
        ids = torch.arange(rows * columns).reshape(rows, columns) * 7 % 24
        net.zero_grad()
        torch.log_softmax(net(ids).logits, -1).pow(2).sum().backward()
        digest.update(b"".join(p.grad.numpy().tobytes() for p in net.parameters()))
print(json.dumps({"digest": digest.hexdigest()[:16], "torch": torch.__version__,
                  "numpy": numpy.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}))
"""


def python(work: Path, *arguments: str) -> str:
    """Standard output of a Python command on one thread in the folder ``work``."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    quiet = {"TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **threads, **quiet, **KERNELS, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=work, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def kernels(work: Path) -> dict[str, str]:
    """Digest of fixed forward and backward passes of many sizes, and the versions that it depends on."""
    return json.loads(python(work, "-c", _KERNELS, TINY).splitlines()[-1])


def train(work: Path) -> None:
    """Train the runs, each into ``work/runs/NAME``."""
    runs = [(f"runs/{name}", [*SIZES, "--rule.preset", *options]) for name, options in RUNS.items()]
    python(work, "-c", _TRAIN, TINY, json.dumps(runs))


def analyse(work: Path) -> None:
    """Copy the committed logs to ``work/logs``, and write their analysis tables; the logs share their bins."""
    shutil.copytree(LOGS, work / "logs")
    python(work, "-m", "analysis", *(f"logs/{name}" for name in COMMITTED), "--bins", "4")


def make(work: Path) -> None:
    """Make everything under ``work``."""
    (work / "kernels.json").write_text(json.dumps(kernels(work)))
    train(work)
    analyse(work)


def read(work: Path) -> Values:
    """Everything that lies under ``work``, by place."""
    out: Values = {}
    for run in sorted((work / "runs").glob("*")):
        out |= read_training(f"training/{run.name}", run)
    for run in sorted((work / "logs").glob("*")):
        out |= read_analysis(f"logs/{run.name}", run)
    return out


Summary = list[Any]
NAMES = ("digest", "n", "NaN", "+inf", "-inf", "sum", "sum of |x|", "sum of squares", "sum by place", "min", "max")


def summary(x: np.ndarray) -> Summary:
    """Digest, counts and sums of numbers (N,); digest, count and number of different values of text (N,)."""
    if x.dtype.kind == "U":
        digest = hashlib.sha256("\0".join(x.tolist()).encode()).hexdigest()[:16]
        return [digest, len(x), len(set(x.tolist()))] if len(x) != 1 or len(x[0]) > 60 else ["text", str(x[0])]
    x = np.asarray(x, np.float64) + 0.0  # one zero
    x[np.isnan(x)] = np.nan
    counts = [int(np.sum(mask)) for mask in (np.isnan(x), x == np.inf, x == -np.inf)]
    finite = np.isfinite(x)
    y, place = x[finite], (np.flatnonzero(finite) + 1) / max(len(x), 1)
    sums = [y.sum(), np.abs(y).sum(), y @ y, y @ place, y.min(initial=np.inf), y.max(initial=-np.inf)]
    numbers = [float(f"{v:.13g}") if np.isfinite(v) else None for v in sums]
    return [hashlib.sha256(x.tobytes()).hexdigest()[:16], len(x), *counts, *numbers]


def differs(old: Summary, new: Summary, tolerance: float) -> str:
    """What differs between two summaries, or nothing."""
    if old == new or (tolerance and old[0] == new[0] != "text"):
        return ""
    if len(old) != len(NAMES) or len(new) != len(NAMES):
        return f"recorded {old}, now {new}"
    for place, (name, a, b) in enumerate(zip(NAMES, old, new, strict=True)):
        if place == 0 or a == b:
            continue
        scale = old[6] or 0.0 if name in ("sum", "sum of |x|", "sum by place") else abs(a or 0.0)
        if place < 5 or None in (a, b) or abs(a - b) > tolerance * scale + ABSOLUTE:
            return f"{name} recorded {a}, now {b}"
    return "" if tolerance else f"digest recorded {old[0]}, now {new[0]}; sums agree to 12 digits"


def compare(record: Mapping[str, Summary], values: Values, same_kernels: bool = True) -> list[str]:
    """Differences, one line each; what depends on the kernels is left out unless they are the record's."""
    differences: list[str] = []
    for place, old in record.items():
        part = place.split("/", 1)[0]
        if part == "training" and not same_kernels:
            continue
        tolerance = TOLERANCE.get(part, TOLERATED)
        found = differs(old, summary(values[place]), tolerance) if place in values else "missing"
        if found:
            differences.append(f"{place}: {found}")
    return differences + [f"{place}: new" for place in values if place not in record]


def load() -> dict[str, Any]:
    """The record: ``kernels``, and ``values`` by place."""
    return json.loads(RECORD.read_text())


def write(work: Path, values: Values) -> None:
    """Write the record, one line for each place."""
    lines = [f"{json.dumps(place)}:{json.dumps(summary(x), separators=(',', ':'))}" for place, x in values.items()]
    text = '{"kernels": ' + (work / "kernels.json").read_text() + ',\n"values": {\n' + ",\n".join(lines) + "\n}}\n"
    RECORD.write_text(text)


def main() -> int:
    """Make everything, then write the record or compare with it."""
    parser = argparse.ArgumentParser(prog="python -m tests.record.make_record", description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write record.json anew")
    parser.add_argument("--compare", action="store_true", help="compare with record.json (the default)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        make(work)
        values = read(work)
        if options.write:
            write(work, values)
            print(f"{len(values)} places in {RECORD.name}, {RECORD.stat().st_size >> 10} KiB")
            return 0
        record = load()
        same = json.loads((work / "kernels.json").read_text()) == record["kernels"]
    differences = compare(record["values"], values, same)
    print("\n".join(differences))
    if not same:
        print(f"this machine's float kernels are not the record's {record['kernels']}: training left out")
    print(f"{len(record['values'])} places compared: {len(differences)} differ")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
