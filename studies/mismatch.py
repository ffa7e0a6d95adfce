"""Which correction of the mismatch between sampler and trainer accepts all lengths alike?

The runs train the embedded model on responses that another distribution than the trainer's policy drew: bfloat16 or
int8 weights, top-p, a vLLM server in bfloat16 (and in float32, the control), or the weights of earlier rollouts;
docs/studies.md has their commands. Each log is analysed on the log-ratio in which that mismatch lies, ``engine`` or
``behaviour``. The numbers go to studies/results/mismatch.csv.

    python -m studies.mismatch out/mismatch/*
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd

from analysis.api import analyse
from fspo.base.errors import run_cli, unknown_name
from fspo.base.files import whole_file
from fspo.gradlog.files import log_paths, rollout_of
from fspo.gradlog.run_folder import GRADLOG
from fspo.rules import Ratio

TABLE = Path(__file__).parent / "results" / "mismatch.csv"
MASKS = ("mis", "geo-mask", "engine-sqrt")
"""The corrections that are compared, each at ranges by which it accepts the shares ``TARGETS`` of 5 rollouts."""
EDGES = (1, 16, 32, 64, 128, 192, 265)
FIRST = "subset == 'all' and use == 'first'"
MASKED = f"rule in {MASKS} and outside == 'mask' and source == 'matched'"


class Source(NamedTuple):
    """A training run whose responses are drawn from another distribution than the trainer's policy: its name in the
    table, the log-ratio in which the difference lies, and the first rollout that is analysed."""

    text: Annotated[str, "name in the table"]
    on: Annotated[Ratio, "log-ratio in which the mismatch lies: engine (E) or behaviour (D + E)"]
    first: Annotated[int, "first rollout that is analysed: from it on the policy lag is the one asked for"] = 0


SOURCES = {
    "bfloat16": Source("E (bfloat16)", "engine"),
    "vllm": Source("E (vLLM bfloat16)", "engine"),
    "int8": Source("E (int8 weights)", "engine"),
    "top_p": Source("E (top-p .95)", "engine"),
    "stale1": Source("D (1 rollout)", "behaviour", first=1),
    "stale4": Source("D (4 rollouts)", "behaviour", first=4),
    "vllm32": Source("E (vLLM float32)", "engine"),
}
"""What is known of a run, by the name of its folder."""


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
    "fair_95": ("scaling", f"{FIRST} and sign == 'all'", "fair_95", float),
    "fair_85": ("scaling", f"{FIRST} and sign == 'all'", "fair_85", float),
    "sd": ("moments", FIRST, "var_S", lambda variance: max(variance, 0.0) ** 0.5),
    "acceptance": ("acceptance", f"{MASKED} and subset == 'all' and measure == 'band'", "estimate", float),
    "trend": ("trend", f"{MASKED} and subset == 'all' and measure == 'band'", "slope", float),
    "LRE_2": ("lre", f"{MASKED} and subset == 'all' and measure == 'band' and norm == 'l2'", "estimate", float),
    "bias2": ("population", f"{MASKED} and bin == -1 and quantity == 'bias2'", "estimate", float),
}
"""What is measured, by name: the table of the analysis, its rows, its column, and what becomes of the number. The first
three describe the log-ratio; the others say what a correction of `MASKS` does at each target acceptance."""


class MismatchRow(NamedTuple):
    """A row of the table: one quantity of one run, under one correction or none, with its interval."""

    source: Annotated[str, "the run and its log-ratio"]
    quantity: Annotated[str, "a name in `QUANTITIES`"]
    mask: Annotated[str, 'name of a correction; "" if the quantity is of none']
    target: Annotated[float, "share that the correction accepts, NaN if there is none"]
    bin: Annotated[str, 'lengths, such as "16-31", "all" for all together']
    estimate: Annotated[float, "value, NaN where there is none, as are the ends of its interval"]
    ci_low: float
    ci_high: float


def measured(text: str, run: Path, on: Ratio) -> Iterator[MismatchRow]:
    """Yield the rows of the run folder ``run``, whose column ``source`` is ``text``: quantities of the log-ratio
    ``on``, and of corrections of it."""
    tables = analyse(run, edges=EDGES, on=on)
    for name, (table, where, column, of) in QUANTITIES.items():
        prefix = "" if column in ("estimate", "slope") else f"{column}_"
        columns = [column, f"{prefix}ci_low", f"{prefix}ci_high"]
        for row in tables[table].query(where).to_dict("records"):
            place = "all" if row.get("bin", -1) == -1 else f"{row['bin_lo']:.0f}-{row['bin_hi'] - 1:.0f}"
            found = (of(row[end]) for end in columns)
            yield MismatchRow(text, name, row.get("rule", ""), row.get("target", math.nan), place, *found)


def main() -> int:
    """Measure the runs whose folders there are, and write the table of mismatches."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", type=Path, nargs="+", help=f"run folders with the names {', '.join(SOURCES)}")
    rows: list[MismatchRow] = []
    for run in p.parse_args().runs:
        if run.name not in SOURCES:
            raise unknown_name("run", run.name, tuple(SOURCES))
        text, on, first = SOURCES[run.name]
        rows += measured(text, from_rollout(run, first), on)
    with whole_file(TABLE) as path:
        pd.DataFrame(rows, columns=MismatchRow._fields).to_csv(path, index=False, float_format="%.5g")
    print(TABLE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    run_cli(main)
