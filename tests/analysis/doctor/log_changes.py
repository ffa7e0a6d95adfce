"""Change the rows of a gradient log, and recompute the columns that a trainer derives from the changed ones.

The argument ``c`` of the functions holds the log's columns for one rollout: arrays (N,) by name, N the number of rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fspo.advantages import advantages
from fspo.gradlog.run_folder import CONFIG, GRADLOG, METRICS
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.rules import preset, token_k3
from fspo.rules.range import Ratio

Columns = dict[str, np.ndarray]
Rng = np.random.Generator
Change = Callable[[Columns, Rng, int], Columns]
"""A function that rewrites the logged rows of one rollout: (columns, random generator, rollout's number) to columns."""


def after(c: Columns) -> np.ndarray:
    """Return which rows (N,) were logged after at least one update on their rollout, so that S need not be 0."""
    return c["updates_since_rollout"] > 0


def again(c: Columns) -> Columns:
    """Recompute what the clip did (side, multiplier, weight, band_accept) from S, A and the logged edges. The rule
    drops outside the band and has the weight exp(S), as fspo does."""
    rule = preset("fspo").rule
    done = rule.apply(c["log_ratio"], c["length"].astype(float), c["advantage"].astype(float), None, (c["lo"], c["hi"]))
    new = {"side": done.side, "multiplier": done.multiplier, "weight": done.weight, "band_accept": done.in_band}
    return c | {name: np.asarray(x).astype(c[name].dtype) for name, x in new.items()}


def shifted(c: Columns, x: np.ndarray, which: Ratio) -> Columns:
    """Add ``x`` (N,) to the log-ratio that ``which`` names (update, engine, behaviour or total), spread evenly over
    each response's tokens. Recompute its two sums over tokens: of the squared token log-ratios, and of k3. The columns
    of other log-ratios and of the clip stay as they are."""
    names = RATIO_COLUMNS[which]
    ratio = {"update": "log_ratio", "total": None}.get(which, f"{which}_log_ratio")
    S = c[ratio] if ratio else c["log_ratio"] + c["behaviour_log_ratio"]
    L = c["length"].astype(float)
    each = x / L
    out = {} if ratio is None else {ratio: S + x}
    if names.sum_sq in c:
        out[names.sum_sq] = c[names.sum_sq] + 2 * each * S + L * each**2
        out[names.k3_sum] = np.exp(each) * (c[names.k3_sum] + L + S) - L - S - x
    return c | out


def add(c: Columns, x: np.ndarray, engine: bool = False) -> Columns:
    """Add ``x`` (N,) to S, or to the engine log-ratio E if ``engine`` is true, and recompute every column that depends
    on the changed log-ratio."""
    total = shifted(c, x, "total") if "behaviour_log_ratio" in c else c
    if engine:
        return shifted(shifted(total, x, "engine"), x, "behaviour")
    return again(shifted(total, x, "update"))


def rough(c: Columns, sigma: np.ndarray | float, rng: Rng, engine: bool = False) -> Columns:
    """Change S, or E if ``engine`` is true, as if every token's log-ratio had normal noise of standard deviation
    ``sigma`` and mean -sigma^2/2 added, and recompute the columns that depend on the changed log-ratio. With this mean
    the expectation of exp(S) or exp(E) stays what it is (1 by T5 and T13)."""
    L = c["length"].astype(float)
    sigma = np.broadcast_to(sigma, L.shape)
    # All rows of a response get the same noise of E, because a response's E does not change from update to update.
    z = per_response(c, rng.standard_normal) if engine else rng.standard_normal(len(L))
    x = sigma * np.sqrt(L) * z - sigma**2 * L / 2
    done = add(c, x, engine)
    for which in ("engine", "behaviour", "total") if engine else ("update", "total"):
        names = RATIO_COLUMNS[which]
        if names.sum_sq in c:
            S = done["log_ratio"] if which == "update" else done["behaviour_log_ratio"]
            S = S + done["log_ratio"] if which == "total" else S
            square, k3 = c[names.sum_sq] + sigma**2 * L, c[names.k3_sum] + sigma**2 * L / 2
            done[names.sum_sq] = np.where(sigma > 0, np.maximum(square, 1.02 * S**2 / L), c[names.sum_sq])
            done[names.k3_sum] = np.where(sigma > 0, np.maximum(k3, 1.02 * L * token_k3(S / L)), c[names.k3_sum])
    return done


def zeroed(c: Columns, which: np.ndarray) -> Columns:
    """In the rows where ``which`` (N,) is true, set S, the sum of its squared token log-ratios and its k3 to 0.
    Recompute the columns of the total ratio and of the clip."""
    c = c | {name: np.where(which, 0.0, c[name]) for name in ("log_ratio", "sum_sq_log_ratio", "k3_sum")}
    total = RATIO_COLUMNS["total"]
    if total.sum_sq in c:
        c = c | {a: np.where(which, c[b], c[a]) for a, b in zip(total[1:], RATIO_COLUMNS["behaviour"][1:], strict=True)}
    return again(c)


def lengthened(c: Columns, length: np.ndarray) -> Columns:
    """Set the lengths to ``length`` (N,), and recompute the edges and what the clip did. Each edge is taken times (new
    length / old length)^p. The power p is fitted to the logged upper edges; it is 0 if one of them is infinite or not
    positive, or if all lengths are equal."""
    old, new = c["length"].astype(float), length.astype(float)
    finite = np.isfinite(c["hi"]).all() and len(np.unique(old)) > 1
    power = np.polyfit(np.log(old), np.log(c["hi"]), 1)[0] if finite and (c["hi"] > 0).all() else 0.0
    factor = (new / old) ** power
    return again(c | {"length": length.astype(c["length"].dtype), "lo": c["lo"] * factor, "hi": c["hi"] * factor})


def judged(c: Columns, reward: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the GRPO advantages (N,) that follow from the rewards ``reward`` (N,). ``groups`` (N,) gives the number of
    each row's group; by default that is the logged prompt id."""
    first = np.unique(c["response_id"], return_index=True, return_inverse=True)
    index, inverse = first[1], first[2]
    groups = c["prompt_id"] if groups is None else groups
    return advantages(reward[index].astype(float), groups[index], "grpo")[0][inverse]


def rewarded(c: Columns, A: np.ndarray) -> Columns:
    """Set the column of advantages to ``A`` (N,), and recompute what the clip does (side, multiplier, weight) with
    them."""
    return again(c | {"advantage": A.astype(c["advantage"].dtype)})


def place(c: Columns) -> np.ndarray:
    """Return for each row (N,) the number of its response, counted from 0 within the rollout in the order of ids."""
    return np.unique(c["response_id"], return_inverse=True)[1]


def group_of(c: Columns) -> np.ndarray:
    """Return for each row (N,) the number of its group, counted from 0 within the rollout."""
    return np.unique(c["prompt_id"], return_inverse=True)[1]


def in_group(c: Columns) -> np.ndarray:
    """Return for each row (N,) the number of its response, counted from 0 within the group."""
    at, group = place(c), group_of(c)
    start = np.full(int(group.max()) + 1, at.max() + 1)
    np.minimum.at(start, group, at)
    return at - start[group]


def per_response(c: Columns, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Draw a value for each response by ``draw(number of responses)``, and return for each row (N,) the value of its
    response."""
    at = place(c)
    return draw(int(at.max()) + 1)[at]


def per_group(c: Columns, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Draw a value for each group by ``draw(number of groups)``, and return for each row (N,) the value of its
    group."""
    group = group_of(c)
    return draw(int(group.max()) + 1)[group]


def kept(c: Columns, which: np.ndarray) -> Columns:
    """Return the columns with only those rows that ``which``, a mask (N,) or indices, selects."""
    return {name: x[which] for name, x in c.items()}


def joined(c: Columns, more: Columns) -> Columns:
    """Append the rows of ``more``, columns of the same names, to the rows of ``c``."""
    return {name: np.concatenate([x, more[name]]) for name, x in c.items()}


def copies(c: Columns, which: np.ndarray, *, prompts: bool) -> Columns:
    """Append copies of the rows that the mask ``which`` (N,) selects, with new response ids and, if ``prompts`` is
    true, new prompt ids."""
    more = kept(c, which)
    more["response_id"] = more["response_id"] + 10**6
    if prompts:
        more["prompt_id"] = more["prompt_id"] + 10**6
    return joined(c, more)


def rewritten(source: Path, target: Path, change: Change, seed: int) -> Path:
    """Copy the run folder ``source`` (gradient log, metrics, configuration) to ``target``, apply ``change`` to each
    file (one rollout) of the copied log, and return ``target``."""
    shutil.copytree(source / GRADLOG, target / GRADLOG)
    for name in (METRICS, CONFIG):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    for file in sorted((target / GRADLOG).iterdir()):
        table = pq.read_table(file)
        n = len(table)
        columns = {f: table[f].to_numpy(zero_copy_only=False) for f in table.column_names if table[f].null_count < n}
        rollout = int(columns["rollout"][0])
        changed = change(columns, np.random.default_rng((seed, rollout)), rollout)
        size = len(changed["rollout"])
        arrays = [
            pa.array(changed[f.name]).cast(f.type, safe=False) if f.name in changed else pa.nulls(size, f.type)
            for f in table.schema
        ]
        pq.write_table(pa.Table.from_arrays(arrays, schema=table.schema), file)
    return target
