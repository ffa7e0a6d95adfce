"""Compare how fast numpy, polars and duckdb compute, in one process, the sums over a gradient log's rows that the
analysis needs (its tally).

    pip install --target /tmp/engines polars duckdb
    PYTHONPATH=/tmp/engines:. python benchmarks/tally_engines.py

Each engine gets the same simulated columns: the weight exp(S), a code for group of clusters and bin, and the excess of
each of 11 bands. It widens each band by three factors, counts the rows outside the band and sums their weights, by
group and bin. Numpy does so as `analysis.rules.sums` does: it visits only the rows outside. Seconds are the least of
``REPEATS`` runs; polars and duckdb have two threads.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import RESULTS, versions, write_results

from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli

ROWS, GROUPS, BINS, BANDS, REPEATS = 200_000, 1024, 6, 11, 3
FACTORS = (1.0, 2.0, 1.5)


def columns() -> dict[str, np.ndarray]:
    """Return the simulated columns by name, each (ROWS,).

    ``key`` is a code for group of clusters and bin, ``w`` the weight exp(S), and ``e0``, ``e1``, ... are the excess of
    each row over each band. Between 13 and 32 % of the rows lie outside a band that is not widened.
    """
    rng = np.random.default_rng(0)
    S = 0.1 * rng.standard_normal(ROWS)
    found = {"key": rng.integers(0, GROUPS * BINS, ROWS), "w": np.exp(S)}
    return found | {f"e{i}": np.abs(S) / (0.1 + 0.005 * i) for i in range(BANDS)}


def by_numpy(data: dict[str, np.ndarray]) -> np.ndarray:
    """Return the number of rows outside each band and the sum of their weights, by factor that widens the band and by
    group and bin.

    The result is an array (BANDS, len(FACTORS), 2, GROUPS x BINS), in whose third axis the number comes first.
    """
    found = []
    for i in range(BANDS):
        cuts = [np.flatnonzero(data[f"e{i}"] > factor) for factor in FACTORS]
        at = np.concatenate(cuts)
        place = np.repeat(np.arange(len(FACTORS)), [len(cut) for cut in cuts]) * (GROUPS * BINS) + data["key"][at]
        size = len(FACTORS) * GROUPS * BINS
        found.append(np.stack([np.bincount(place, minlength=size), np.bincount(place, data["w"][at], size)]))
    return np.stack(found).reshape(BANDS, 2, len(FACTORS), GROUPS * BINS).transpose(0, 2, 1, 3)


def by_polars(data: Any) -> np.ndarray:
    """Count the rows outside each band and sum their weights, as `by_numpy` does, by one lazy query over a polars
    frame."""
    pl: Any = import_module("polars")
    cells = []
    for i in range(BANDS):
        for factor in FACTORS:
            cut = pl.col(f"e{i}") > factor
            cells += [cut.sum().alias(f"n{i}_{factor}"), pl.col("w").filter(cut).sum().alias(f"w{i}_{factor}")]
    table = data.lazy().group_by("key").agg(cells).sort("key").collect()
    return table.drop("key").to_numpy().T.reshape(BANDS, len(FACTORS), 2, -1)


def by_duckdb(data: Any) -> np.ndarray:
    """Count the rows outside each band and sum their weights, as `by_numpy` does, by one SQL query of duckdb over the
    Arrow table ``t``."""
    cells = [
        f"count(*) FILTER (e{i} > {factor}), coalesce(sum(w) FILTER (e{i} > {factor}), 0)"
        for i in range(BANDS)
        for factor in FACTORS
    ]
    table = data.execute(f"SELECT {', '.join(cells)} FROM t GROUP BY key ORDER BY key").fetchnumpy()
    return np.stack(list(table.values())).reshape(BANDS, len(FACTORS), 2, -1)


def main() -> None:
    """Time numpy, polars and duckdb in turn, check that their sums agree, and write CPU and wall seconds to a file."""
    CommandParser(prog="python benchmarks/tally_engines.py", description=__doc__ or "").parse_args()
    os.environ["POLARS_MAX_THREADS"] = "2"
    duckdb: Any = import_module("duckdb")
    polars: Any = import_module("polars")
    data = columns()
    base = duckdb.connect(config={"threads": 2})
    base.register("t", pa.table(data))
    engines: dict[str, tuple[Callable[[Any], np.ndarray], Any]] = {
        "numpy": (by_numpy, data),
        "polars": (by_polars, polars.DataFrame(data)),
        "duckdb": (by_duckdb, base),
    }
    expected, took = by_numpy(data), {name: [] for name in engines}
    for _ in range(REPEATS):
        for name, (engine, table) in engines.items():
            cpu, wall = time.process_time(), time.perf_counter()
            got = engine(table)
            took[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=1e-9)
    seconds = {name: {"cpu_seconds": min(c for c, _ in t), "seconds": min(w for _, w in t)} for name, t in took.items()}
    results = {
        "what": "sums of one chunk of the tally: 11 bands at three widths, by group and bin",
        "rows": ROWS,
        "engines": seconds,
        "load": os.getloadavg()[0],
        "versions": versions("numpy", "polars", "duckdb"),
    }
    print(json.dumps(results, indent=1))
    write_results(results, RESULTS / "tally_engines.json")


if __name__ == "__main__":
    run_cli(main)
