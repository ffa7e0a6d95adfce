"""Check T8 (split of the error) and T7 (cosine lemma) on a gradient log, where T8 holds up to rounding (docs/theory.md
section 5, live form).

The checks write logs with ``fspo.gradlog`` from responses of a tabular policy; ``fspo check --log RUN`` checks a user's
run. ``theory.cosine_lemma`` puts the update together from bins of rows, as T8 says. It is compared with the sum over
all rows.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fspo import theory
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from proofs_check.frame import Check, Function, Method, Outcome
from proofs_check.tools.lemma_claims import STATED, LemmaBound, Strata
from proofs_check.tools.lemma_search import Judged
from proofs_check.tools.log_rows import ScoredUpdate, binned, direct, read_updates, sample_updates, write_update

ROUNDING = 1e-11
"""Largest difference of T8's two sides that counts as float64 rounding, over the mean norm of the rows' gradients."""
MOST_ROLLOUTS = 40
"""Largest number of rollouts, evenly spaced, that are read from a user's run."""
NOTHING_LOST = replace(STATED, name="rho x 1e-6", factor=1e-6)


Tamper = Callable[[ScoredUpdate, np.random.Generator], ScoredUpdate]


def untouched(update: ScoredUpdate, rng: np.random.Generator) -> ScoredUpdate:
    """Return the logged update unchanged. The check passes the update through this function; a control passes it
    through a function that spoils it.
    """
    del rng
    return update


def permuted(update: ScoredUpdate, rng: np.random.Generator) -> ScoredUpdate:
    """Return the update with its advantages permuted at random over the responses (a control)."""
    return replace(update, A=rng.permutation(update.A))


def corrupted(update: ScoredUpdate, rng: np.random.Generator) -> ScoredUpdate:
    """Return the update with the score of the row of largest clipped gradient multiplied by -1 (a control)."""
    del rng
    heavy = int(np.argmax(update.applied()[2] * np.abs(update.A) * np.linalg.norm(update.psi, axis=1)))
    psi = update.psi.copy()
    psi[heavy] *= -1
    return replace(update, psi=psi)


def residual(logged: ScoredUpdate, source: ScoredUpdate, bins: np.ndarray, drop_inner: bool = False) -> float:
    """Return by how much T8 fails on one update, relative to the mean norm of the update's gradients of single rows.

    The true and the clipped update are each computed twice: put together by T8 from the bins of ``logged`` (in a
    control a spoilt update), and directly as a mean over the rows of ``source``, the same update unspoilt. The larger
    of the two distances between the two results counts.
    """
    p, a, g, clipped = binned(logged, bins)
    lemma = theory.cosine_lemma(p, a, g, clipped)
    total = p @ g
    stated = lemma.lre.mean_acceptance * (total + lemma.e_len + (0.0 if drop_inner else lemma.e_in))
    true, true_clipped, size = direct(source)
    gaps = np.array([np.linalg.norm(total - true), np.linalg.norm(stated - true_clipped)])
    return float(gaps.max()) / size  # NaN if the gap of the true or of the clipped update is NaN


def _decades(allowed: float, error: float) -> float:
    return math.log10(allowed / np.maximum(error, 1e-17))


def written_identity(
    rng: np.random.Generator,
    exact: bool = False,
    tamper: Tamper = untouched,
    drop_inner: bool = False,
) -> Outcome:
    """Check T8 (split of the error) on a log that is written, read back and binned by length: T8's sums over the bins
    must agree with the sums over the rows from which the log was written.

    The sums over the rows are taken twice: over the rows rounded to the file's precision, where only float64's rounding
    may remain as a difference, and over the exact rows, where the file's float16 or float32 rounding may remain too.
    """
    small = np.float32 if exact else np.float16
    unit_error, least = float(np.finfo(small).eps) / 2, float(np.finfo(small).smallest_subnormal)
    margins, cut = [], 0
    for source in sample_updates(rng):
        with tempfile.TemporaryDirectory() as folder:
            write_update(Path(folder), 0, source, exact)
            ((_, read),) = read_updates(Path(folder))
        norm = np.linalg.norm(source.psi, axis=1)
        held = (source.psi / norm[:, None]).astype(small).astype(np.float32) * norm.astype(np.float32)[:, None]
        rounded = replace(source, psi=held.astype(np.float64))
        read = tamper(read, rng)
        cut += int((source.applied()[0] != 1).sum())
        margins.append(_decades(ROUNDING, residual(read, rounded, read.n, drop_inner)))
        # Largest relative change of a row's score by rounding in the file. Each entry of the score's unit vector
        # changes by at most its type's relative error, or its type's least positive number. The score's norm changes by
        # at most float32's relative error.
        allowed = unit_error + least * math.sqrt(source.psi.shape[1]) + 2.0**-23
        margins.append(_decades(allowed, residual(read, source, read.n, drop_inner)))
    if cut < 50:
        return Outcome(note=f"only {cut} rows were clipped")
    return Outcome(float(np.min(margins)), "decades", note=f"{cut} clipped rows in {len(margins) // 2} logs")


def length_bins(n: np.ndarray) -> np.ndarray:
    """Return the bin of each length in a user's log: the largest k for which 2^k is at most the length."""
    return np.floor(np.log2(n))


def _usable(run: Path) -> tuple[list[tuple[int, ScoredUpdate]], str]:
    """Return the updates of a user's run in which a response was clipped, and "". If T7 and T8 cannot be checked on the
    run, return no update and the reason.
    """
    found, clipped = 0, []
    for step, update in read_updates(run, most=MOST_ROLLOUTS):
        if update.rule.level != "sequence":
            return (
                [],
                f"a {update.rule.level} rule trained: its clipped gradient is not M w A psi",
            )
        found += 1
        if update.rule.needs_stats and not np.all(np.isfinite(update.drift)):
            return [], f"drift {update.rule.drift!r} needs the log's column drift"
        if update.rule.edges_vary and update.edges is None:
            return (
                [],
                f"the band of {update.rule.label!r} varies: it needs the log's columns lo and hi",
            )
        if np.any(update.applied()[0] != 1):
            clipped.append((step, update))
    if clipped:
        return clipped, ""
    if found:
        return [], f"nothing was clipped in {found} scored updates at first use, so T7 and T8 say 0 = 0"
    return (
        [],
        "no row at first use has a score (score_status 'ok', A != 0): T7 and T8 cannot be checked without psi",
    )


def log_identity(rng: np.random.Generator, run: Path, tamper: Tamper = untouched, drop_inner: bool = False) -> Outcome:
    """Check T8 (split of the error) on each update of a user's run whose rows have scores: the true and the clipped
    update that T8 puts together from bins of lengths must be the means over all rows.
    """
    updates, reason = _usable(run)
    if reason:
        return Outcome(not_run=reason)
    errors = [residual(tamper(update, rng), update, length_bins(update.n), drop_inner) for _, update in updates]
    worst = int(np.argmax(errors))
    note = f"{len(errors)} updates; largest residual {errors[worst]:.1e} at step {updates[worst][0]}"
    return Outcome(_decades(ROUNDING, errors[worst]), "decades", note=note)


def log_bound(rng: np.random.Generator, run: Path, claim: LemmaBound = STATED) -> Outcome:
    """Check T7 (cosine of clipped and true update) on each update of a user's run whose rows have scores, judged in
    decimal numbers.
    """
    del rng
    updates, reason = _usable(run)
    if reason:
        return Outcome(not_run=reason)
    tally = Judged(claim)
    for _, update in updates:
        p, a, g, clipped = binned(update, length_bins(update.n))
        tally.add(Strata.of_gradients(p, g, clipped, a))
    if not tally.promised and not tally.suite:
        return Outcome(not_run=f"rho >= 1 on all {tally.cases} scored updates: T7 promises nothing there")
    return tally.outcome(1)


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
    made_false: dict[str, Function] = {
        "advantages permuted": partial(log_identity, run=run, tamper=permuted),
        "one direction turned": partial(log_identity, run=run, tamper=corrupted),
    }
    return (
        Check(
            "T8",
            Method.IDENTITY,
            f"bins against rows {label}",
            partial(log_identity, run=run),
            made_false,
        ),
        Check(
            "T7",
            Method.IDENTITY,
            f"cosine bound {label}",
            partial(log_bound, run=run),
            {"nothing is lost by clipping": partial(log_bound, run=run, claim=NOTHING_LOST)},
        ),
    )


def _identity_check(exact: bool) -> Check:
    changes = {
        "advantages permuted": {"tamper": permuted},
        "one direction turned": {"tamper": corrupted},
        "e_in left out": {"drop_inner": True},
    }
    stored = "float32 gradients" if exact else "float16 sketches"
    return Check(
        "T8",
        Method.IDENTITY,
        f"gradient log written and read back, {stored}",
        partial(written_identity, exact=exact),
        {name: partial(written_identity, exact=exact, **change) for name, change in changes.items()},
    )


CHECKS = (_identity_check(exact=False), _identity_check(exact=True))
