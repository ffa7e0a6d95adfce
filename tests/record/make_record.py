"""A frozen record of what this repository computes, from end to end, and the comparison with it.

    python -m tests.record.make_record --compare          # make everything again, print each difference, exit 1 if any
    python -m tests.record.make_record --compare --raw R  # the same, and the rows that differ from the raw outputs in R
    python -m tests.record.make_record --write --keep R   # write record.json anew and keep the raw outputs in R

The record is made by commands and read from files: short training runs (their logs, metrics and final weights), the
tables of ``fspo analyse`` on them and on the small logs in ``logs/``, ``calibrate``, ``sweep``, ``doctor``, the
noise floor, and the margins of the theory's checks. A column is kept as the digest of its bytes and as sums, so that a
difference can be located and compared with a tolerance. Nothing of the packages is imported, so modules may move.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.record.reading import Values, read_analysis, read_json, read_log, read_proofs, read_training

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD, LOGS = HERE / "record.json", HERE / "logs"

RENAMED: dict[str, str] = {}
"""What has another name than in the record. "table" -> "new table"; "table/column" -> "new column"; "*/column" -> "new
column" in every table. Tables are acceptance, lre, ...; also log (the gradient log), metrics, weights, summary."""
FEWER = "23 cases a log in place of 93, other intervals of LRE and trends; the estimates that stay agree one by one"
REMOVED: dict[str, str] = {
    "*/trend/p_value": "no p-values inside a log",
    "*/trend/tost_p": "no p-values inside a log",
    "*/trend/ci90_*": "the equivalence test inside a log goes",
    "*/lre/wald_p": "no p-values inside a log",
    "*/lre/detectable": "no p-values inside a log",
    "commands/*-claims/*": "an atom has one number, a mean over seeds, and fewer atoms are left",
    "proofs/T11/simulated: analysis of many small logs: mean of LRE_2^2, intervals of acceptance, LRE and trend/*": (
        "the check of the analysis has no intervals of LRE: they are wide on logs of 100 groups"
    ),
    "training/fspo/metrics/score/*": "sketches are compared with full gradients in tests, not while a run trains",
    **{
        f"training/*/metrics/{name}": "the table cosine has these cosines, with one weight for all rules"
        for name in ("grad_cosine/*", "length_bin/*/grad_cosine")
    },
    "training/power/metrics/redrawn/*": "groups with equal rewards stay",
    "training/power/metrics/reward_sampled": "groups with equal rewards stay",
    "training/power/metrics/dropped/no_signal": "groups with equal rewards stay",
    "*/summary/options.rules.*": FEWER,
    "*/summary/rule_parameters.factors": "no rule has factors by bins of lengths",
    "logs/fspo-conformal/summary/*": "the rule is gone: the log is analysed without its own rows",
    "commands/doctor/.2.*": "the doctor looks at two runs",
    "commands/calibrate/*power*": "power is preset fspo with another gamma",
    **{
        f"{part}/{run}/*": "prefix rules, signed drift and bands by bins of lengths are gone"
        for part in ("training", "analysis")
        for run in ("ctpo", "fspo-signed", "fspo-conformal")
    },
    **{
        f"*/{name}/*": "tables that no claim and no kept figure reads"
        for name in (
            "clip_sides",
            "smooth",
            "ranges",
            "reuse",
            "positions",
            "theory_gap",
            "assumptions",
            "lemma_summary",
        )
    },
    "*/ess/*": "its share of effective samples is the column ess_share of the table acceptance",
    **{
        f"*/{place}": "columns that no claim, figure, page or check reads"
        for place in (
            *("moments/skew*", "moments/excess_kurtosis*", "moments/var_z", "moments/drift_per_token*"),
            *("scaling/ci90*", "scaling/drift_minus_kl*", "over_time/use", "over_time/out_of_band", "over_time/cut"),
            *("cosine/reference", "cosine/weight", "cosine/control", "cosine/worst_index", "cosine/diff_drop_worst*"),
            *(
                "lemma/weight",
                "lemma/kappa",
                "lemma/kappa_c",
                "lemma/kappa_c2",
                "lemma/lre_1",
                "lemma/lre_2",
                "lemma/a_bar",
                "population/reference",
            ),
        )
    },
    "*/summary/counts.scored.audit_*": "no audits",
    "*/summary/counts.scored.fresh_*": "no audits",
    "proofs/*/certified: *": "ball arithmetic went with python-flint",
    "proofs/*/symbolic: *": "what sympy and z3 checked, Coq, formulas and draws check too",
    "proofs/T15/*": "bands by bins of lengths are gone",
    "proofs/T7/simulated: live form*": "the same identity on drawn rows; finite identity checks it on logs",
    "proofs/T8/*shares outside the band*": "the table clip_sides is gone",
    "proofs/T11/simulated: *symmetric S, *": "the check of a fair band covers symmetric laws of both kinds",
    "proofs/T11/simulated: symmetric S *": "the check of a fair band covers symmetric laws of both kinds",
    "proofs/T11/simulated: analysis of many small logs*": "without intervals of LRE, which the study of coverage tries",
    "proofs/T16/enumerated: means of*": "no code of ours ran in it",
    "proofs/T16/enumerated: top-p alone*": "no code of ours ran in it",
    "proofs/T16/simulated: a sampler*": "no code of ours ran in it",
    "proofs/T19/simulated: drop, each sign*": "drift signed is gone: both signs have one centre",
}
"""Pattern of places (as ``fnmatch`` reads it, for example "*/acceptance/label") that are gone -> why."""
CHANGED: dict[str, str] = {
    "proofs/T7/enumerated: softmax policy*": "the presets fspo-tilted and power are gone",
    "training/fspo-kl/log/*": "no audits: a training log has the rows that were trained on (weights and metrics agree)",
    "analysis/fspo/*": "the sketch's error is that of its width; no run measures it",
    "training/power/*": "groups with equal rewards stay, so the run has other rollouts",
    "analysis/power/*": "groups with equal rewards stay, so the run has other rollouts",
    "noise/fspo/log/*": "three sources of noise",
    "training/*/log/rule": "a rule that differs from preset fspo in one part has its name",
    "*/acceptance/*": FEWER,
    "*/lre/*": FEWER,
    "*/trend/*": FEWER,
    "*/cosine/*": FEWER,
    "*/population/*": FEWER,
    "*/lemma/*": FEWER + "; rho has the sharp constants",
    "*/summary/*": FEWER,
    "*/sweep/*": "settings of the rule alone; the rows that stay were compared one by one and agree",
    "commands/*-claims/*": "claims are judged by seeds of a reproduction, no longer on one log",
}
"""Pattern of places whose numbers were wrong, or whose words are others -> why."""

TOLERANCE = {"training": 0.0, "noise": 0.0, "proofs": 1e-6}
"""Relative tolerance by part; 0: the digest must agree. Any other part has 1e-9, which leaves room for the order of
sums and for nothing else."""
TOLERATED = 1e-9
ABSOLUTE = 1e-12
PROOFS = "T1,T2,T9,T10,T11,T13"
"""Statements whose checks are quick; ``--proofs all`` compares those of all statements where they were recorded."""
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
    "none": ("none",),
    "rloo": ("rloo",),
    "gspo": ("gspo", "--rule.range_lo", "0.03", "--rule.range_hi", "0.04"),
    "fspo": ("fspo", *WIDE, *SCORES),
    "fspo-kl": ("fspo-kl", *WIDE, *SCORES, "--rule.drift_source", "lagged"),
    "fspo-gaussian": ("fspo", *WIDE, "--rule.drift", "gaussian"),
    "fspo-tilted": ("fspo", *WIDE, "--rule.drift", "tilted"),
    "fspo-auto": ("fspo", *WIDE, "--rule.adapt", "range", "--rule.target", "0.8"),
    "fspo-adaptive": ("fspo-adaptive", *WIDE, "--rule.target", "0.8", "--rule.target_rate", "band"),
    "fspo-truncate": (
        *("fspo", *WIDE, "--rule.outside", "truncate"),
        *("--rule.advantage", "dr_grpo", "--rule.aggregation", "constant", "--rule.constant_length", "24"),
    ),
    "fspo-cap": ("fspo", *WIDE, "--rule.outside", "cap", *SCORES, "--log.scores.mode", "exact"),
    "power": ("fspo", *WIDE, "--rule.gamma", "0.75", "--rule.dual", "1.5", "--batch.drop", "[truncated]"),
    "grpo": ("grpo", "--rule.kl_coef", "0.01"),
}
"""Preset and further options of each training run of ``tiny_run.py``."""
QUICK = ("fspo-kl", "fspo-auto")
"""Runs that the test makes again."""
ANALYSED = ("none", "fspo", "fspo-adaptive", "fspo-cap", "power")
"""Runs that are analysed beside the committed logs."""
COMMITTED = ("fspo-kl", "fspo-conformal", "grpo")
"""Runs whose logs lie in ``logs/``."""

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


# -- making: commands ---------------------------------------------------------------------------------------------


def python(work: Path, *arguments: str, may_find: bool = False) -> str:
    """Standard output of a Python command on one thread in the folder ``work``.

    Raises
    ------
    SystemExit
        If the command fails; with ``may_find``, exit status 1 (a finding) is no failure.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    quiet = {"TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **threads, **quiet, **KERNELS, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *arguments], cwd=work, env=environment, capture_output=True, text=True)
    if done.returncode > int(may_find) or done.returncode < 0:
        raise SystemExit(f"{' '.join(arguments)[:300]}\n{done.stderr[-3000:]}\nexit status {done.returncode}")
    return done.stdout


def tiny_run() -> str:
    """Path of the script that trains the 8k-parameter model, wherever the tests keep it."""
    return str(next(ROOT.glob("tests/**/tiny_run.py")))


def kernels(work: Path) -> dict[str, str]:
    """Digest of fixed forward and backward passes of many sizes, and the versions that it depends on."""
    return json.loads(python(work, "-c", _KERNELS, tiny_run()).splitlines()[-1])


def train(work: Path, names: Iterable[str]) -> None:
    """Train the named runs, each into ``work/runs/NAME``."""
    runs = [(f"runs/{name}", [*SIZES, "--rule.preset", *RUNS[name]]) for name in names]
    python(work, "-c", _TRAIN, tiny_run(), json.dumps(runs))


def analyse(work: Path, folder: str, names: Iterable[str]) -> None:
    """Write the analysis tables of runs in ``work/folder``; the runs share their bins."""
    runs = [f"{folder}/{name}" for name in names]
    python(work, "-m", "analysis", *runs, "--bins", "4", may_find=True)


def command_line(work: Path) -> None:
    """Everything that takes one run: calibrate, sweep, doctor, other partitions, the noise floor."""
    calibrate = ("--rules", "[rloo,gspo,fspo,fspo-kl]", "--output", "calibrate.json")
    python(work, "-m", "analysis", "calibrate", "runs/none", *calibrate)
    python(work, "-m", "analysis", "sweep", "runs/none", "runs/fspo-kl", "--bins", "4")
    doctor = ("runs/fspo-kl", "runs/grpo", "--json", "doctor.json", "--fail-on", "critical")
    python(work, "-m", "analysis", "doctor", *doctor, may_find=True)
    shutil.copytree(work / "runs/fspo-kl", work / "other/by-reward", ignore=shutil.ignore_patterns("analysis"))
    python(work, "-m", "analysis", "other/by-reward", "--by", "reward", "--rules", "[fspo,fspo-kl]", may_find=True)
    noise = ("--model.name_or_path", "runs/fspo/model", "--noise-floor", "--output", "noise")
    python(work, "-m", "fspo.train", "--config", "runs/fspo/config.yaml", *noise)


def prove(work: Path, statements: str) -> None:
    """Run the theory's checks."""
    only = () if statements == "all" else ("--only", statements)
    python(work, "-m", "proofs_check", *only, "--jobs", "2", "--no-progress", "--out", "proofs", may_find=True)


def make(work: Path, proofs: str) -> None:
    """Make everything under ``work``."""
    (work / "kernels.json").write_text(json.dumps(kernels(work)))
    train(work, RUNS)
    analyse(work, "runs", ANALYSED)
    command_line(work)
    shutil.copytree(LOGS, work / "logs")
    analyse(work, "logs", COMMITTED)
    prove(work, proofs)


# -- reading, and the record of values ---------------------------------------------------------------------------------


def read(work: Path) -> Values:
    """Everything that lies under ``work``, by place."""
    out: Values = {}
    for run in sorted((work / "runs").glob("*")):
        out |= read_training(f"training/{run.name}", run)
        if run.name in ANALYSED:
            out |= read_analysis(f"analysis/{run.name}", run)
    for folder in ("logs", "other"):
        for run in sorted((work / folder).glob("*")):
            out |= read_analysis(f"{folder}/{run.name}", run)
    for path in sorted(work.glob("*.json")):
        if path.stem != "kernels":
            out |= read_json(f"commands/{path.stem}", json.loads(path.read_text()))
    if (work / "noise").exists():
        out |= read_log("noise/fspo/log", next((work / "noise").glob("**/gradlog")))
    if (work / "proofs").exists():
        out |= read_proofs(work / "proofs/proofs_check.json")
    return out


# -- the record of values, and what differs -----------------------------------------------------------------------

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
    for name, a, b in zip(NAMES[1:5], old[1:5], new[1:5], strict=True):
        if a != b:
            return f"{name} recorded {a}, now {b}"
    size = old[6] or 0.0
    for name, a, b in zip(NAMES[5:], old[5:], new[5:], strict=True):
        scale = size if name.startswith("sum") and name != "sum of squares" else abs(a or 0.0)
        if (a is None) != (b is None) or (
            a is not None and abs(a - b) > tolerance * scale + ABSOLUTE * bool(tolerance)
        ):
            return f"{name} recorded {a}, now {b}"
    return "" if tolerance else f"digest recorded {old[0]}, now {new[0]}; sums agree to 13 digits"


def renamed(place: str) -> str:
    """The name today of a recorded place, PART/RUN/TABLE/COLUMN."""
    if place.count("/") < 3:
        return place
    part, run, table, *rest = place.split("/", 3)
    for pattern in (f"{table}/{rest[0]}", f"*/{rest[0]}"):
        if pattern in RENAMED:
            rest = [RENAMED[pattern]]
            break
    return "/".join((part, run, RENAMED.get(table, table), *rest))


def declared(place: str, patterns: Mapping[str, str]) -> str | None:
    """The first pattern that a place matches."""
    return next((p for p in patterns if fnmatch.fnmatchcase(place, p)), None)


def compare(record: Mapping[str, Summary], values: Values, same_kernels: bool = True) -> tuple[list[str], list[str]]:
    """Differences that nothing declares, one line each, and remarks, what is declared or new among them."""
    differences: list[str] = []
    used: dict[str, int] = {}
    names = set()
    for place, old in record.items():
        part, new_place = place.split("/", 1)[0], renamed(place)
        names.add(new_place)
        if part in ("training", "noise", "analysis", "other", "commands") and not same_kernels:
            continue
        if new_place not in values:
            found = "missing"
        else:
            found = differs(old, summary(values[new_place]), TOLERANCE.get(part, TOLERATED))
        if not found:
            continue
        pattern = declared(place, REMOVED if found == "missing" else CHANGED)
        if pattern is None:
            differences.append(f"{place}: {found}")
        else:
            used[pattern] = used.get(pattern, 0) + 1
    why = {**REMOVED, **CHANGED}
    remarks = [f"{count} differ as declared: {pattern}: {why[pattern]}" for pattern, count in used.items()]
    remarks += [f"new: {place}" for place in values if place not in names]
    return differences, remarks


def first_rows(place: str, old: np.ndarray, new: np.ndarray) -> str:
    """Where two columns differ."""
    if old.shape != new.shape or old.dtype.kind != new.dtype.kind:
        return f"    {place}: {old.dtype} {old.shape}, now {new.dtype} {new.shape}"
    unlike = old != new if old.dtype.kind == "U" else ~((old == new) | (np.isnan(old) & np.isnan(new)))
    rows = np.flatnonzero(unlike)
    shown = "; ".join(f"row {i}: {old[i]!r} -> {new[i]!r}" for i in rows[:3])
    return f"    {place}: {len(rows)} of {len(old)} rows differ; {shown}"


def load() -> dict[str, Any]:
    """The record: ``kernels``, and ``values`` by place."""
    return json.loads(RECORD.read_text())


def write(work: Path, values: Values) -> None:
    """Write the record, one line for each place."""
    lines = [f"{json.dumps(place)}:{json.dumps(summary(x), separators=(',', ':'))}" for place, x in values.items()]
    text = '{"kernels": ' + (work / "kernels.json").read_text() + ',\n"values": {\n' + ",\n".join(lines) + "\n}}\n"
    RECORD.write_text(text)


def keep_logs(work: Path) -> None:
    """Put the small logs that are committed under ``logs/``."""
    shutil.rmtree(LOGS, ignore_errors=True)
    for name in COMMITTED:
        for part in ("gradlog", "config.yaml", "metrics.jsonl"):
            source, target = work / "runs" / name / part, LOGS / name / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def main() -> int:
    """Make everything, then write the record or compare with it."""
    parser = argparse.ArgumentParser(prog="python -m tests.record.make_record", description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write record.json anew")
    parser.add_argument("--logs", action="store_true", help="with --write: take the logs in logs/ anew too")
    parser.add_argument("--compare", action="store_true", help="compare with record.json (the default)")
    parser.add_argument("--raw", type=Path, help="raw outputs kept earlier: say which rows differ from them")
    parser.add_argument("--keep", type=Path, help="keep the raw outputs in this new folder")
    parser.add_argument("--from", dest="made", type=Path, help="raw outputs made earlier: make nothing")
    parser.add_argument("--proofs", default=PROOFS, help=f"statements to check, or all (default: {PROOFS})")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.made or options.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        if options.made is None:
            if options.write and options.logs:
                train(work, COMMITTED)
                keep_logs(work)
                shutil.rmtree(work / "runs")
            make(work, options.proofs)
        values = read(work)
        if options.write:
            write(work, values)
            print(f"{len(values)} places in {RECORD}, {RECORD.stat().st_size >> 10} KiB")
            return 0
        record = load()
        same = json.loads((work / "kernels.json").read_text()) == record["kernels"]
        recorded = record["values"]
        checked = {place.split("/")[1] for place in values if place.startswith("proofs/")}
        recorded = {p: v for p, v in recorded.items() if p.split("/")[0] != "proofs" or p.split("/")[1] in checked}
        differences, remarks = compare(recorded, values, same)
        if not same:
            remarks.append(f"this machine's float kernels are not the record's {record['kernels']}: training left out")
        raw = read(options.raw) if options.raw else {}
    for line in differences:
        print(line)
        place = line.split(": ", 1)[0]
        if place in raw and renamed(place) in values:
            print(first_rows(place, raw[place], values[renamed(place)]))
    print("\n".join(remarks))
    print(f"{len(recorded)} places compared: {len(differences)} differ")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
