"""Which correction of the mismatch between sampler and trainer accepts all lengths alike?

The script trains the embedded model on responses that are sampled from another distribution than the trainer's policy:
with bfloat16 or int8 weights, with top-p, by a vLLM server in bfloat16 (and in float32, the control), or with the
weights of earlier rollouts. ``fspo analyse`` analyses each log on the log-ratio in which that mismatch lies, ``engine``
or ``behaviour``. The numbers go to studies/results/mismatch.csv. Runs that are done are kept under --output; a run that
was stopped goes on. ``make test-vllm`` makes the Python environment of the server; the variable VLLM_ENV names one in
another place.

    python -m studies.mismatch --output out/mismatch     # an hour on an idle core
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd

from analysis.api import analyse
from fspo.base.errors import run_cli
from fspo.base.files import whole_file
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.gradlog.files import log_paths, rollout_of
from fspo.gradlog.run_folder import GRADLOG, MODEL
from fspo.models.load import load_model
from fspo.models.warmup import warm_up
from fspo.rules import Ratio
from fspo.sampling.vllm import write_weights
from fspo.train.trainer import Trainer
from tests.fspo.sampling.vllm_server import serve

TABLE = Path(__file__).parent / "results" / "mismatch.csv"
MASKS = ("mis", "geo-mask", "engine-sqrt")
"""The corrections that are compared, each at ranges that accept the shares ``TARGETS`` of every five rollouts."""
EDGES = (1, 16, 32, 64, 128, 192, 265)
FIRST = "subset == 'all' and use == 'first'"
MASKED = f"rule in {MASKS} and outside == 'mask' and source == 'matched'"


class Source(NamedTuple):
    """A training run whose responses are drawn from another distribution than the trainer's policy."""

    text: Annotated[str, "name in the table"]
    on: Annotated[Ratio, "log-ratio in which the mismatch lies: engine (E) or behaviour (D + E)"]
    options: Annotated[tuple[str, ...], "options of the training run"] = ()
    rollouts: Annotated[int, "number of rollouts, each of 64 prompts with 8 responses"] = 14
    first: Annotated[int, "first rollout that is analysed: from it on the policy lag is the one asked for"] = 0
    server: Annotated[str, 'data type of the vLLM server that samples; "" if the trainer samples itself'] = ""


SOURCES = {
    "bfloat16": Source("E (bfloat16)", "engine", ("--sampling.precision", "bfloat16")),
    "vllm": Source("E (vLLM bfloat16)", "engine", server="bfloat16"),
    "int8": Source("E (int8 weights)", "engine", ("--sampling.precision", "int8")),
    "top_p": Source("E (top-p .95)", "engine", ("--sampling.top_p", "0.95"), rollouts=8),
    "stale1": Source("D (1 rollout)", "behaviour", ("--batch.staleness", "1"), rollouts=8, first=1),
    "stale4": Source("D (4 rollouts)", "behaviour", ("--batch.staleness", "4"), rollouts=10, first=4),
    "vllm32": Source("E (vLLM float32)", "engine", ("--log.score_every", "0"), rollouts=1, server="float32"),
}


OPTIONS = (
    *("--resume", "true", "--eval.every", "0", "--trackers", "[]", "--checkpoint_every", "1"),
    *("--keep_checkpoints", "1", "--log.score_minibatches", "[0,1,2,3]"),
)
"""Options of every training run."""


def trained(name: str, source: Source, output: Path, threads: int) -> Path:
    """Train the run ``name``, whose sampler ``source`` describes, in a folder below ``output``, unless it is done;
    return the run folder."""
    run, folder = output / name, output / f"{name}-weights"
    if (run / MODEL).exists():
        return run
    arguments = [*OPTIONS, "--output", str(run), "--rollouts", str(source.rollouts), "--threads", str(threads)]
    arguments += source.options
    if source.server:
        write_weights(load_model(warm_up()), folder)
    with serve(folder, dtype=source.server) if source.server else nullcontext() as server:
        if server is not None:
            arguments += ["--sampling.engine", "vllm", "--sampling.vllm_url", server.url]
            arguments += ["--sampling.vllm_weights", str(folder)]
        Trainer(parse(TrainConfig, arguments)).train()
    return run


def from_rollout(run: Path, first: int) -> Path:
    """Make a run folder that links to the gradient log of ``run`` from rollout ``first`` on, and return it."""
    part = run.with_name(f"{run.name}-from-{first}")
    (part / GRADLOG).mkdir(parents=True, exist_ok=True)
    for path in log_paths(run):
        link = part / GRADLOG / path.name
        if rollout_of(path) >= first and not link.exists():
            link.symlink_to(path.resolve())
    return part


QUANTITIES: dict[str, tuple[str, str, str, Callable[[Any], Any]]] = {
    "H": ("scaling", f"{FIRST} and sign == 'all'", "slope_2H", lambda slope: slope / 2),
    "fair_95": ("scaling", f"{FIRST} and sign == 'all'", "fair_95", float),
    "fair_85": ("scaling", f"{FIRST} and sign == 'all'", "fair_85", float),
    "sd": ("moments", FIRST, "var_S", lambda variance: max(variance, 0.0) ** 0.5),
    "mean_weight": ("moments", FIRST, "mean_weight", float),
    "acceptance": ("acceptance", f"{MASKED} and subset == 'all' and measure == 'band'", "estimate", float),
    "trend": ("trend", f"{MASKED} and subset == 'all' and measure == 'band'", "slope", float),
    "LRE_2": ("lre", f"{MASKED} and subset == 'all' and measure == 'band' and norm == 'l2'", "estimate", float),
    "cosine": ("cosine", f"{MASKED} and bin == -1", "estimate", float),
    "bias2": ("population", f"{MASKED} and bin == -1 and quantity == 'bias2'", "estimate", float),
    "mse": ("population", f"{MASKED} and bin == -1 and quantity == 'mse'", "estimate", float),
}
"""What is measured, by name: the table of the analysis, its rows, its column, and what becomes of the number. The first
five describe the log-ratio: the exponent of its standard deviation, the fair exponents, its standard deviation (nats)
and the mean of e^ratio. The others say what a correction of `MASKS` does at each target acceptance."""


class MismatchRow(NamedTuple):
    """A row of the table."""

    source: Annotated[str, "the run and its log-ratio"]
    quantity: Annotated[str, "a name in `QUANTITIES`"]
    mask: Annotated[str, 'name of a correction; "" if the quantity is of none']
    target: Annotated[float, "share that the correction accepts, NaN if there is none"]
    bin: Annotated[str, 'lengths, such as "16-31", "all" for all together']
    estimate: Annotated[float, "value, NaN where there is none, as are the ends of its interval"]
    ci_low: float
    ci_high: float


def measured(text: str, run: Path, on: Ratio) -> Iterator[MismatchRow]:
    """Yield what a log says about its log-ratio ``on`` and the corrections of it."""
    tables = analyse(run, edges=EDGES, on=on)
    for name, (table, where, column, of) in QUANTITIES.items():
        prefix = "" if column in ("estimate", "slope", "slope_2H") else f"{column}_"
        columns = [column, f"{prefix}ci_low", f"{prefix}ci_high"]
        for row in tables[table].query(where).to_dict("records"):
            place = "all" if row.get("bin", -1) == -1 else f"{row['bin_lo']:.0f}-{row['bin_hi'] - 1:.0f}"
            found = (of(row[end]) for end in columns)
            yield MismatchRow(text, name, row.get("rule", ""), row.get("target", math.nan), place, *found)


def main() -> int:
    """Train the runs that are missing, measure all runs, and write the table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--output", type=Path, default=Path("out/mismatch"), help="folder of the runs")
    p.add_argument("--threads", type=int, default=1, help="torch threads of the trainer")
    args = p.parse_args()
    rows: list[MismatchRow] = []
    for name, source in SOURCES.items():
        run = trained(name, source, args.output.resolve(), args.threads)
        rows += measured(source.text, from_rollout(run, source.first), source.on)
    with whole_file(TABLE) as path:
        pd.DataFrame(rows, columns=MismatchRow._fields).to_csv(path, index=False, float_format="%.5g")
    print(TABLE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    run_cli(main)
