"""Compute the tables of fairness and of the price of clipping in several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context

import numpy as np
import pandas as pd
from tqdm import tqdm

from fspo.base.errors import UserError, unknown_name
from proofs_check.maps import PARTS, fairness, price
from proofs_check.maps.models import MODELS
from proofs_check.maps.settings import points
from proofs_check.maps.tables import to_frame

CHUNK = 8
"""Number of points of the fairness map (the base case with one or two factors changed) that a process computes at a
time.
"""
Part = dict[str, list[dict]]


def fairness_part(start: int, seed: int, draws: int) -> Part:
    """Return the rows of the table fairness_map for `CHUNK` points of the fairness map, from point number ``start`` on.

    The random stream of a point follows from the seed and the point's number.
    """
    rows = []
    for i, point in enumerate(points()[start : start + CHUNK], start):
        rows += fairness.rows_of(point.setting(), point.measures, np.random.default_rng([seed, i]), draws)
    return {"fairness_map": rows}


def price_part(name: str) -> Part:
    """Return the rows of one of the price map's `MODELS` (a policy, a training step, rewards) in two tables: mse_map,
    the errors of the clipped update, and price_by_length, the weights that clipping leaves at each length.
    """
    mse, by_length = price.rows_of(name)
    return {"mse_map": mse, "price_by_length": by_length}


def build_tables(
    only: Sequence[str] = PARTS, seed: int = 0, draws: int = 20_000, jobs: int = 1, progress: bool = True
) -> dict[str, pd.DataFrame]:
    """Compute the tables of the fairness map and the price map, or of the one that ``only`` names; return them by name.
    Their values depend on ``seed`` and ``draws``, not on ``jobs``, the number of processes.

    Raises
    ------
    UserError
        For an unknown part, ``jobs`` < 1, ``seed`` < 0, ``draws`` < 0 or ``draws`` = 1.
    """
    for name in only:
        if name not in PARTS:
            raise unknown_name("part", name, PARTS)
    if jobs < 1:
        raise UserError(f"jobs={jobs} must be at least 1: the number of processes")
    if seed < 0:
        raise UserError(f"seed={seed} must be >= 0")
    if draws < 0 or draws == 1:
        raise UserError(f"draws={draws} must be at least 2, or 0 for closed forms alone")
    work: list[Callable[[], Part]] = []
    if "fairness" in only:
        work += [partial(fairness_part, start, seed, draws) for start in range(0, len(points()), CHUNK)]
    if "price" in only:
        work += [partial(price_part, name) for name in MODELS]
    found: list[Part] = [{} for _ in work]
    with tqdm(total=len(work), unit="part", disable=not progress, file=sys.stderr) as bar:
        if jobs == 1:
            for i, part in enumerate(work):
                found[i] = part()
                bar.update()
        else:
            with ProcessPoolExecutor(min(jobs, len(work)), mp_context=get_context("spawn")) as pool:
                futures = {pool.submit(part): i for i, part in enumerate(work)}
                for future in as_completed(futures):
                    found[futures[future]] = future.result()
                    bar.update()
    names = [name for name in ("fairness_map", "mse_map", "price_by_length") if any(name in part for part in found)]
    tables = {name: to_frame(name, [row for part in found for row in part.get(name, [])]) for name in names}
    if "mse_map" in tables:
        tables["mse_best"] = to_frame("mse_best", price.best_rows(tables["mse_map"]))
    return tables
