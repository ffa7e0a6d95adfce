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
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.api import analyse
from analysis.log.loading import load_run
from analysis.rules.evaluate import TARGETS
from analysis.stats.fair_exponent import fair_exponents
from analysis.tables.columns import Interval
from fspo.base.errors import run_cli
from fspo.base.files import whole_file
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.gradlog import read_log
from fspo.gradlog.files import log_paths, rollout_of
from fspo.gradlog.run_folder import GRADLOG, MODEL
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.models.load import load_model
from fspo.models.warmup import warm_up
from fspo.rules import Ratio
from fspo.sampling.vllm import write_weights
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import mean_interval
from fspo.train.trainer import Trainer
from tests.fspo.sampling.vllm_server import serve

TABLE = Path(__file__).parent / "results" / "mismatch.csv"
MASKS = ("mis", "geo-mask", "engine-sqrt")
"""The corrections that are compared, each at ranges that accept the shares ``TARGETS`` of every five rollouts."""
EDGES = (1, 16, 32, 64, 128, 192, 265)


class Source(NamedTuple):
    """A training run whose responses are drawn from another distribution than the trainer's policy.

    Attributes
    ----------
    text : str
        Name in tables and figures.
    on : str
        The log-ratio in which the mismatch lies: "engine" (E) or "behaviour" (D + E).
    options : tuple of str
        Options of the training run.
    rollouts : int
        Number of rollouts, each of 64 prompts with 8 responses.
    first : int
        First rollout that is analysed: from this rollout on the policy lag is the one that the options ask for.
    server : str
        Data type of the vLLM server that samples; "" if the trainer samples itself.
    """

    text: str
    on: Ratio
    options: tuple[str, ...] = ()
    rollouts: int = 14
    first: int = 0
    server: str = ""


SOURCES = {
    "bfloat16": Source("E (bfloat16)", "engine", ("--sampling.precision", "bfloat16")),
    "vllm": Source("E (vLLM bfloat16)", "engine", server="bfloat16"),
    "int8": Source("E (int8 weights)", "engine", ("--sampling.precision", "int8")),
    "top_p": Source("E (top-p .95)", "engine", ("--sampling.top_p", "0.95"), rollouts=8),
    "stale1": Source("D (1 rollout)", "behaviour", ("--batch.staleness", "1"), rollouts=8, first=1),
    "stale4": Source("D (4 rollouts)", "behaviour", ("--batch.staleness", "4"), rollouts=10, first=4),
}
UPDATE = "bfloat16"
"""Name in ``SOURCES`` of the run on which the update's ratio S is analysed too, not the mismatch alone."""
CONTROL = {"vllm32": Source("E (vLLM float32)", "engine", ("--log.score_every", "0"), rollouts=1, server="float32")}
"""A run whose sampler is another program at the trainer's precision: its mismatch is only rounding."""


def trained(name: str, source: Source, output: Path, threads: int) -> Path:
    """Train the run ``name``, whose sampler ``source`` describes, in a folder below ``output``, unless it is done;
    return the run folder."""
    run, folder = output / name, output / f"{name}-weights"
    if (run / MODEL).exists():
        return run
    arguments = ["--output", str(run), "--rollouts", str(source.rollouts), "--resume", "true"]
    arguments += ["--eval.every", "0", "--trackers", "[]", "--checkpoint_every", "1", "--keep_checkpoints", "1"]
    arguments += ["--log.score_minibatches", "[0,1,2,3]", *source.options]
    arguments += ["--threads", str(threads)]
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


class MismatchRow(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    source : str
        The run and its log-ratio.
    quantity : str
        What was measured: the exponent H of the standard deviation, the fair exponent, ``sd`` (nats), ``mean_weight``
        of e^ratio, ``alike`` and ``cross`` (see the functions); of a mask its ``acceptance``, ``trend``, LRE_2, and
        the ``cosine`` (same batch), squared bias and mean squared error of the masked update.
    mask : str
        Name of a mask; "" if the quantity is of none.
    target : float
        Share that the mask accepts, NaN if there is no mask.
    bin : str
        Lengths, "all" for all together.
    estimate, ci_low, ci_high : float
        Value and ends of its interval, NaN where there is none.
    """

    source: str
    quantity: str
    mask: str
    target: float
    bin: str
    estimate: float
    ci_low: float
    ci_high: float


def measured(text: str, run: Path, on: Ratio) -> Iterator[MismatchRow]:
    """Analyse one log-ratio of a run, which ``on`` names, and yield its rows of the table."""
    tables = analyse(run, edges=EDGES, on=on)
    rows = load_run(run, on=on).rows.use("first")
    scaling = tables["scaling"].query("subset == 'all' and use == 'first' and sign == 'all'")
    (exponent,) = cells(scaling, "slope_2H")
    yield MismatchRow(text, "H", "", math.nan, "all", *(end / 2 for end in exponent[1:]))
    for target, found in zip(TARGETS, fair_exponents(rows, TARGETS), strict=True):
        yield MismatchRow(text, "fair_exponent", "", target, "all", *found)
    moments = tables["moments"].query("subset == 'all' and use == 'first'")
    for place, *variance in cells(moments, "var_S"):
        yield MismatchRow(text, "sd", "", math.nan, place, *np.sqrt(variance).tolist())
    for place, *weight in cells(moments, "mean_weight"):
        yield MismatchRow(text, "mean_weight", "", math.nan, place, *weight)
    yield MismatchRow(text, "alike", "", math.nan, "all", *alike(run, on))
    if on != "update":
        yield MismatchRow(text, "cross", "", math.nan, "all", cross_term(run, on), math.nan, math.nan)
        yield from of_masks(text, tables)


def of_masks(text: str, tables: dict[str, pd.DataFrame]) -> Iterator[MismatchRow]:
    """Yield what each correction of `MASKS` does to the update at each target acceptance."""
    quantities = {
        "acceptance": ("acceptance", "subset == 'all' and measure == 'band'", "estimate"),
        "trend": ("trend", "subset == 'all' and measure == 'band'", "slope"),
        "LRE_2": ("lre", "subset == 'all' and measure == 'band' and norm == 'l2'", "estimate"),
        "cosine": ("cosine", "bin == -1 and rule != 'random'", "estimate"),
        "bias2": ("population", "bin == -1 and quantity == 'bias2'", "estimate"),
        "mse": ("population", "bin == -1 and quantity == 'mse'", "estimate"),
    }
    for target in TARGETS:
        for mask in MASKS:
            case = f"rule == '{mask}' and outside == 'mask' and source == 'matched' and target == {target}"
            for quantity, (table, where, column) in quantities.items():
                for place, *found in cells(tables[table].query(case).query(where), column):
                    yield MismatchRow(text, quantity, mask, target, place, *found)


def cells(table: pd.DataFrame, name: str) -> list[tuple[str, float, float, float]]:
    """Return, for each row of a table, its bin, the value in column ``name`` and the two ends of its interval."""
    prefix = "" if name in ("estimate", "slope", "slope_2H") else f"{name}_"
    places = [
        "all" if row.get("bin", -1) == -1 else span(row["bin_lo"], row["bin_hi"]) for row in table.to_dict("records")
    ]
    values = table[[name, f"{prefix}ci_low", f"{prefix}ci_high"]].astype(float).values.tolist()
    return [(place, *found) for place, found in zip(places, values, strict=True)]


def span(low: float, high: float) -> str:
    """Return the text "3-7" for the bin [3, 8), which holds the whole numbers 3 to 7, and "3" for [3, 4)."""
    return f"{low:.0f}-{high - 1:.0f}" if high > low + 1 else f"{low:.0f}"


def alike(run: Path, on: Ratio) -> Interval:
    """Return a number, with its interval, that says how the token log-ratios of a response depend on each other: about
    1 if they are independent, more if they are positively correlated.

    The number is the variance over responses of the log-ratio that ``on`` names, divided by the mean over responses of
    the sum of squared token log-ratios.
    """
    ratio, squares = RATIO_COLUMNS[on].log_ratio, RATIO_COLUMNS[on].sum_sq
    log = read_log(run, columns=[ratio, squares, "times_used", "rollout", "prompt_id"]).table.to_pandas()
    log = log[(log.times_used == 0) & (log[squares] > 0)]
    cluster = dense((log["rollout"] * 10_000_000 + log.prompt_id).to_numpy(np.int64))
    values = (log[ratio] - log[ratio].mean()).to_numpy() ** 2
    found = ratios(values, cluster, np.zeros(len(log), np.int64), 1, log[squares].to_numpy())
    low, high = mean_interval(found.value[0], found.variance[0], found.clusters[0])
    return Interval(float(found.value[0]), float(low), float(high))


def cross_term(run: Path, on: Ratio) -> float:
    """Return Var(S + E) / (Var S + Var E) (T13) over responses of the first epoch, logged after an update. E stands
    here for the log-ratio that ``on`` names. The quotient is 1 if S and E are uncorrelated.
    """
    column = RATIO_COLUMNS[on].log_ratio
    log = read_log(run, columns=["log_ratio", column, "times_used", "updates_since_rollout"]).table.to_pandas()
    log = log[(log.times_used == 0) & (log.updates_since_rollout > 0)]
    return float((log.log_ratio + log[column]).var() / (log.log_ratio.var() + log[column].var()))


def main() -> int:
    """Train the runs that are missing, measure all runs, and write the table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--output", type=Path, default=Path("out/mismatch"), help="folder of the runs")
    p.add_argument("--threads", type=int, default=1, help="torch threads of the trainer")
    args = p.parse_args()
    output = args.output.resolve()
    runs = {name: trained(name, s, output, args.threads) for name, s in (SOURCES | CONTROL).items()}
    rows = [row for name, s in SOURCES.items() for row in measured(s.text, from_rollout(runs[name], s.first), s.on)]
    rows += measured("S (bfloat16 run)", runs[UPDATE], "update")
    control = load_run(runs["vllm32"], on="engine").rows.use("first")
    rows.append(
        MismatchRow(CONTROL["vllm32"].text, "sd", "", math.nan, "all", float(control.S.std()), math.nan, math.nan)
    )
    with whole_file(TABLE) as path:
        pd.DataFrame(rows, columns=MismatchRow._fields).to_csv(path, index=False, float_format="%.5g")
    print(TABLE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    run_cli(main)
