"""Which correction of the mismatch between sampler and trainer accepts all lengths alike? Writes docs/mismatch.md.

The script trains the embedded model on responses that are sampled from another law than the trainer's policy: with
bfloat16 or int8 weights, with top-p, by a vLLM server in bfloat16 (and in float32, the control), or with the weights of
earlier rollouts. ``fspo analyse`` analyses each log on the log-ratio in which that mismatch lies, ``engine`` or
``behaviour``. Runs that are done are kept under --output; a run that was stopped goes on. ``make test-vllm`` makes the
Python environment of the server; the variable VLLM_ENV names one in another place.

    python -m studies.mismatch --output out/mismatch     # an hour on an idle core
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.rules.evaluate import TARGETS
from analysis.run import analyse
from analysis.stats.fair_exponent import fair_exponents
from analysis.tables.columns import Interval
from analysis.tables.ess import EXACT
from fspo.base.errors import run_cli
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
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense, ratios
from fspo.stats.intervals import mean_interval
from fspo.train.trainer import Trainer
from studies.mismatch_page import MASKS, write
from studies.vllm_server import serve

EDGES = (1, 16, 32, 64, 128, 192, 265)


class Source(NamedTuple):
    """A training run whose responses are drawn from another law than the trainer's policy.

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
        First rollout that is analysed: from this rollout on the staleness is the one that the options ask for.
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
    arguments += ["--log.score_minibatches", "[0,1,2,3]", "--log.tokens", "true", *source.options]
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


def measured(text: str, run: Path, on: Ratio) -> dict[str, Any]:
    """Analyse one log-ratio of a run, which ``on`` names, and return the numbers that docs/mismatch.md shows of it."""
    options, bins = Options(edges=EDGES, on=on), Bins(EDGES)
    loaded = load_run(run, on=on)
    tables, summary = analyse(loaded, bins, options)
    rows = loaded.rows.use("first")
    scaling = tables["scaling"].query("subset == 'all' and use == 'first' and sign == 'all'")
    return {
        "text": text,
        "rollouts": len(np.unique(rows.rollout)),
        "rows": summary["counts"]["rows_first_use"],
        "warnings": summary["warnings"],
        "exponent": [end / 2 for end in _cells(scaling, "slope_2H")[0]],
        "fair": dict(zip(map(str, TARGETS), fair_exponents(rows, TARGETS), strict=True)),
        "by_length": _by_length(tables),
        "tokens": _tokens(tables),
        "alike": alike(run, on),
        "masks": [] if on == "update" else _masks(tables),
        "cross": None if on == "update" else cross_term(run, on),
    }


def _cells(table: pd.DataFrame, name: str = "estimate") -> list[list[float]]:
    """Return, for each row of a table, the value in column ``name`` and the two ends of its interval."""
    prefix = "" if name in ("estimate", "slope", "slope_2H") else f"{name}_"
    return table[[name, f"{prefix}ci_low", f"{prefix}ci_high"]].astype(float).values.tolist()


def _by_length(tables: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return mean length, standard deviation of the log-ratio, mean weight and effective sample size for each bin of
    lengths, and at the end for all lengths together."""
    moments = tables["moments"].query("subset == 'all' and use == 'first'").sort_values("bin", key=_last)
    ess = _cells(tables["ess"].query(f"use == 'first' and rule == '{EXACT}'").sort_values("bin", key=_last))
    return [
        {
            "bin": "all" if row["bin"] == -1 else span(row["bin_lo"], row["bin_hi"]),
            "length": row["bin_mean"],
            "sd": np.sqrt(variance).tolist(),
            "weight": weight,
            "ess": size,
        }
        for row, variance, weight, size in zip(
            moments.to_dict("records"), _cells(moments, "var_S"), _cells(moments, "mean_weight"), ess, strict=True
        )
    ]


def span(low: float, high: float) -> str:
    """Return the text "3-7" for the bin [3, 8), which holds the whole numbers 3 to 7, and "3" for [3, 4)."""
    return f"{low:.0f}-{high - 1:.0f}" if high > low + 1 else f"{low:.0f}"


def _tokens(tables: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return the standard deviation of token log-ratios by range of positions in the response."""
    found = tables["positions"].query("by == 'position' and bin >= 0 and reason == ''").drop_duplicates("bin")
    return [
        {"bin": span(row["bin_lo"], row["bin_hi"]), "tokens": int(row["count"]), "sd": float(row["sd_log_ratio"])}
        for row in found.to_dict("records")
    ]


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


def _last(bins: pd.Series) -> pd.Series:
    """Return keys that sort bin numbers so that -1, which stands for all bins, comes last."""
    return bins.where(bins >= 0, len(EDGES))


def _masks(tables: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return what each correction of `MASKS` does to the update, at each target acceptance: its acceptance by length,
    the trend and LRE of this acceptance, and the cosine, squared bias and mean squared error of the masked update.
    """
    found = []
    for target in TARGETS:
        for mask in MASKS:
            case = f"rule == '{mask}' and outside == 'mask' and source == 'matched' and target == {target}"
            of_case = {name: table.query(case) for name, table in tables.items() if "outside" in table}
            whole = "subset == 'all' and measure == 'band'"
            accepted = of_case["acceptance"].query(whole).sort_values("bin", key=_last)
            every = {name: of_case[name].query("bin == -1") for name in ("cosine", "population")}
            of_population = every["population"].query("reference == 'population'").set_index("quantity")
            found.append(
                {
                    "mask": mask,
                    "target": target,
                    "acceptance": _cells(accepted),
                    "trend": _cells(of_case["trend"].query(whole), "slope")[0],
                    "lre": _cells(of_case["lre"].query(f"{whole} and norm == 'l2'"))[0],
                    "cosine": _cells(every["cosine"].query("weight == 'sequence'"))[0],
                    "bias2": _cells(of_population.loc[["bias2"]])[0],
                    "mse": _cells(of_population.loc[["mse"]])[0],
                    "population_cosine": _cells(of_population.loc[["cosine"]])[0],
                }
            )
    return found


def cross_term(run: Path, on: Ratio) -> float:
    """Return Var(S + E) / (Var S + Var E) (T18) over responses at first use, logged after an update. E stands here for
    the log-ratio that ``on`` names.

    The quotient is 1 if S and E are uncorrelated.
    """
    column = RATIO_COLUMNS[on].log_ratio
    log = read_log(run, columns=["log_ratio", column, "times_used", "updates_since_rollout"]).table.to_pandas()
    log = log[(log.times_used == 0) & (log.updates_since_rollout > 0)]
    return float((log.log_ratio + log[column]).var() / (log.log_ratio.var() + log[column].var()))


def main() -> int:
    """Train the runs that are missing, measure all runs, and write the page, its figures and its numbers."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--output", type=Path, default=Path("out/mismatch"), help="folder of the runs")
    p.add_argument("--threads", type=int, default=1, help="torch threads of the trainer")
    args = p.parse_args()
    output = args.output.resolve()
    every = {**SOURCES, **CONTROL}
    runs = {name: trained(name, source, output, args.threads) for name, source in every.items()}
    found = {name: measured(s.text, from_rollout(runs[name], s.first), s.on) for name, s in SOURCES.items()}
    control = load_run(runs["vllm32"], on="engine").rows.use("first")
    write(
        {
            "torch": torch.__version__,
            "sources": found,
            "update": measured("S (bfloat16 run)", runs[UPDATE], "update"),
            "control": {"rows": len(control), "sd": float(control.S.std())},
        }
    )
    return 0


if __name__ == "__main__":
    run_cli(main)
