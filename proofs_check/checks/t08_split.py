"""T8: the split of the update's error between strata and inside.

The last part checks it on gradient logs: on logs written here, and with ``fspo check --log RUN`` on a user's run.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from fspo import theory
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.rules import preset
from fspo.theory import Floats
from proofs_check.frame import Check, Function, Method, Outcome, Test, check, near_miss
from proofs_check.tools.compare import all_of, at_most, close
from proofs_check.tools.log_rows import ScoredUpdate, binned, direct, read_updates, sample_updates, write_update
from proofs_check.tools.policy import make_bandit, strata
from proofs_check.tools.strata import Strata, random_strata

ROUNDING = 1e-11
"""Largest difference of T8's two sides that counts as rounding, over the mean norm of the rows' gradients."""
MOST_ROLLOUTS = 40
"""Largest number of rollouts, evenly spaced, that are read from a user's run."""


def residual(
    left: Floats, total: Floats, e_len: Floats, e_in: Floats, size: float, inner: bool = True
) -> Callable[[float], float]:
    """Return the function of x that is the distance of the clipped update over the mean rate, ``left``, from
    total + e_len + e_in with both errors enlarged by the part x, over ``size``.
    """
    return lambda x: float(np.linalg.norm(left - total - (e_len + inner * e_in) * (1 + x))) / size


@check("T8", Method.CLOSED, "g_clip/a_bar = g + e_len + e_in on random strata", "of e_len + e_in", 1e-9)
@near_miss("e_in left out", inner=False)
def identity(rng: np.random.Generator, inner: bool = True) -> Test:
    """g_clip/a_bar = g + e_len + e_in on random strata, in extended precision. x: of e_len + e_in."""
    gaps = []
    for _ in range(300):
        case = random_strata(rng)
        p, a, g, delta = (np.asarray(part, np.longdouble) for part in (case.p, case.a, case.g, case.delta))
        p = p / p.sum()
        left, lemma = (p * a) @ (g + delta) / (p @ a), case.lemma()
        size = float(np.abs(left).max() + np.abs(lemma.e_len).max() + np.abs(lemma.e_in).max())
        gaps.append(residual(left, p @ g, lemma.e_len, lemma.e_in, size, inner))
    return lambda x: close(1 + np.array([gap(x) for gap in gaps]), 1, 1e-11)


@check("T8", Method.CLOSED, "a* leaves the shortest loss inside, by a scalar search", "of a*", 1e-4)
@near_miss("a* < 0 allowed", negative=True)
@near_miss("over |c|^2", by_clipped=True)
def projection(rng: np.random.Generator, negative: bool = False, by_clipped: bool = False) -> Test:
    """Of all a >= 0, a* = max(0, <c, g>)/|g|^2 leaves the shortest c - a g, by a scalar search; what is left is
    orthogonal to g where a* > 0. x: of a*. Near misses allow a* < 0, or divide by |c|^2.
    """
    stated, exact, sines = [], [], []
    for _ in range(200):
        g, c = rng.standard_normal((2, int(rng.integers(1, 6))))
        along = float(c @ g) if negative else max(0.0, float(c @ g))
        a = along / float(c @ c if by_clipped else g @ g)
        found: Any = minimize_scalar(
            lambda b, c=c, g=g: np.sum((c - b * g) ** 2), bounds=(0, 1e3), method="bounded", options={"xatol": 1e-12}
        )
        stated.append(a)
        exact.append(float(found.x))
        if a > 0:
            sines.append(float((c - a * g) @ g) / float(np.linalg.norm(c) * np.linalg.norm(g)))
    orthogonal = close(1 + np.array(sines), 1, 1e-12)
    return all_of(lambda x: close(1 + np.array(stated) * (1 + x), 1 + np.array(exact), 1e-6), lambda x: orthogonal)


@check("T8", Method.ENUMERATED, "g is the gradient of E_new[A]", "of g", 1e-6)
@near_miss("weight w left out", weighted=False)
def true_update(rng: np.random.Generator, weighted: bool = True) -> Test:
    """The true update, summed over all responses, is the gradient of E_new[A] by central differences. x: of g."""
    bandit, h = make_bandit(rng, vocabulary=2, max_length=4), 1e-5
    p, g, _, _ = strata(bandit, preset("none").rule)
    total = p @ g if weighted else (bandit.p_old * bandit.advantages) @ bandit.psi
    numeric = []
    for step in h * np.eye(total.size).reshape(-1, *bandit.new.shape):
        numeric.append(
            (bandit.expected_advantage(bandit.new + step) - bandit.expected_advantage(bandit.new - step)) / (2 * h)
        )
    error = np.linalg.norm(numeric)
    return lambda x: close(1 + (total * (1 + x) - numeric) / error, 1, 1e-8)


Tamper = Callable[[ScoredUpdate, np.random.Generator], ScoredUpdate]


def untouched(update: ScoredUpdate, rng: np.random.Generator) -> ScoredUpdate:
    """Return the update as it is."""
    del rng
    return update


def permuted(update: ScoredUpdate, rng: np.random.Generator) -> ScoredUpdate:
    """Return the update with its advantages permuted over the responses (a near miss)."""
    return replace(update, A=rng.permutation(update.A))


def turned(update: ScoredUpdate, rng: np.random.Generator) -> ScoredUpdate:
    """Return the update with the score of the row of largest clipped gradient times -1 (a near miss)."""
    del rng
    psi = update.psi.copy()
    psi[int(np.argmax(update.applied()[2] * np.abs(update.A) * np.linalg.norm(psi, axis=1)))] *= -1
    return replace(update, psi=psi)


def of_log(
    logged: ScoredUpdate, source: ScoredUpdate, bins: np.ndarray, inner: bool = True
) -> Callable[[float], float]:
    """Return the function of x that says by how much T8 fails on one update, over the mean norm of its rows' gradients:
    both updates put together from the bins of ``logged``, against means over the rows of ``source``.
    """
    p, a, g, clipped = binned(logged, bins)
    lemma, total = theory.cosine_lemma(p, a, g, clipped), p @ g
    true, true_clipped, size = direct(source)
    mean = lemma.lre.mean_acceptance
    gap = residual(true_clipped / mean, total, lemma.e_len, lemma.e_in, size / mean, inner)
    first = float(np.linalg.norm(total - true)) / size
    return lambda x: max(first, gap(x)) if np.isfinite(first) else math.nan


@check("T8", Method.IDENTITY, "gradient logs written and read back, float16 and float32", "of e_len + e_in", 1e-8)
@near_miss("advantages permuted", tamper=permuted)
@near_miss("one direction turned", tamper=turned)
@near_miss("e_in left out", inner=False)
def written(rng: np.random.Generator, tamper: Tamper = untouched, inner: bool = True) -> Test:
    """On logs written with the trainer's writer and read back, with sketches in float16 and gradients in float32:
    against the rows rounded to the file's type only float64's rounding may be left, against the exact rows only the
    file's. x: of e_len + e_in.
    """
    gaps: list[tuple[Callable[[float], float], float]] = []
    cut = 0
    for exact, small in ((False, np.float16), (True, np.float32)):
        for source in sample_updates(rng):
            with tempfile.TemporaryDirectory() as folder:
                write_update(Path(folder), 0, source, exact)
                ((_, read),) = read_updates(Path(folder))
            norm = np.linalg.norm(source.psi, axis=1)
            held = (source.psi / norm[:, None]).astype(small).astype(np.float32) * norm.astype(np.float32)[:, None]
            read = tamper(read, rng)
            cut += int((source.applied()[0] != 1).sum())
            gaps.append((of_log(read, replace(source, psi=held.astype(np.float64)), read.n, inner), ROUNDING))
            # each entry of a unit vector is rounded to its type or to its type's least number, the norm to float32
            least = float(np.finfo(small).smallest_subnormal) * math.sqrt(source.psi.shape[1])
            gaps.append((of_log(read, source, read.n, inner), float(np.finfo(small).eps) / 2 + least + 2.0**-23))
    if cut < 50:
        return lambda x: Outcome(note=f"only {cut} rows were clipped")
    return lambda x: decades(
        [(gap(x), allowed) for gap, allowed in gaps], f"{cut} clipped rows in {len(gaps) // 2} logs"
    )


def decades(pairs: list[tuple[float, float]], note: str) -> Outcome:
    """Return the outcome of errors and what is allowed of each: the least number of powers of ten between them."""
    ratios = np.array([max(error, 1e-17) / allowed if error == error else math.nan for error, allowed in pairs])
    return Outcome(-math.log10(float(np.max(ratios))), "decades", note=note)


def usable(run: Path) -> tuple[list[tuple[int, ScoredUpdate]], str]:
    """Return the updates of a user's run in which a response was clipped, and "". If T7 and T8 cannot be checked on the
    run, return no update and the reason.
    """
    found, clipped = 0, []
    for step, update in read_updates(run, most=MOST_ROLLOUTS):
        if update.rule.level != "sequence":
            return [], f"a {update.rule.level} rule trained: its clipped gradient is not M w A psi"
        found += 1
        if update.rule.needs_stats and not np.all(np.isfinite(update.drift)):
            return [], f"drift {update.rule.drift!r} needs the log's column drift"
        if update.rule.edges_vary and update.edges is None:
            return [], f"the band of {update.rule.label!r} varies: it needs the log's columns lo and hi"
        if np.any(update.applied()[0] != 1):
            clipped.append((step, update))
    if clipped:
        return clipped, ""
    if found:
        return [], f"nothing was clipped in {found} scored updates of the first epoch, so T7 and T8 say 0 = 0"
    return [], "no row of the first epoch has a score (score_status 'ok', A != 0): without psi T7 and T8 say nothing"


def length_bins(n: np.ndarray) -> np.ndarray:
    """Return the bin of each length in a user's log: the largest k for which 2^k is at most the length."""
    return np.floor(np.log2(n))


def log_identity(rng: np.random.Generator, run: Path, tamper: Tamper = untouched) -> Test | Outcome:
    """T8 on each update of a user's run whose rows have scores: bins of length against all rows."""
    updates, reason = usable(run)
    if reason:
        return Outcome(not_run=reason)
    gaps = [of_log(tamper(update, rng), update, length_bins(update.n)) for _, update in updates]
    worst = int(np.argmax([gap(0.0) for gap in gaps]))
    note = f"{len(gaps)} updates; largest residual {gaps[worst](0.0):.1e} at step {updates[worst][0]}"
    return lambda x: decades([(gap(x), ROUNDING) for gap in gaps], note)


def log_bound(rng: np.random.Generator, run: Path, below: float = 0.0) -> Test | Outcome:
    """T7 on each update of a user's run whose rows have scores. A near miss takes a rho below the sine by
    the part ``below``.
    """
    del rng
    updates, reason = usable(run)
    if reason:
        return Outcome(not_run=reason)
    sines, rhos = [], []
    for _, update in updates:
        p, a, g, clipped = binned(update, length_bins(update.n))
        case = Strata.of_gradients(p, g, clipped, a)
        if case.lemma().bound is not None:
            sines.append(case.sine())
            rhos.append(sines[-1] * (1 - below) if below else case.lemma().rho)
    if not sines:
        return Outcome(not_run=f"rho >= 1 on all {len(updates)} scored updates: T7 promises nothing there")
    return at_most(sines, rhos, 1e-9, note=f"rho < 1 on {len(sines)} of {len(updates)} scored updates")


def log_checks(run: Path) -> tuple[Check, ...]:
    """Return the checks of T8 and T7 on a user's run folder.

    Raises
    ------
    UserError
        If there is no readable gradient log in the folder, or the log's metadata name no rule.
    """
    log = read_log(run, columns=("rollout",))
    if len(log) == 0:
        raise UserError(f"the gradient log of {run} has no training rows: name a run that has made an update")
    _ = log.rule
    label = f"on the log {run.name or run}"
    spoilt: dict[str, Function] = {
        "advantages permuted": partial(log_identity, run=run, tamper=permuted),
        "one direction turned": partial(log_identity, run=run, tamper=turned),
    }
    smaller = {"rho 1 % below the sine": partial(log_bound, run=run, below=0.01)}
    return (
        Check(
            "T8", Method.IDENTITY, f"bins against rows {label}", partial(log_identity, run=run), spoilt, "of the errors"
        ),
        Check("T7", Method.IDENTITY, f"cosine bound {label}", partial(log_bound, run=run), smaller, "of rho"),
    )
