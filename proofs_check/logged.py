"""T8 and T7 on a gradient log: the identity on finite data, up to rounding (docs/theory.md section 5, live form).

The suite writes real logs of its own, with ``fspo.gradlog``, from responses of the tabular policy. The same code takes
a user's run folder (``python -m proofs_check --log RUN``). One side of the comparison sorts rows into bins and asks
``theory.cosine_lemma``; the other adds the rows up as they are.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fspo import theory
from fspo.errors import UserError
from fspo.gradlog import GradLogWriter, read_log
from fspo.rules import DriftStats, Rule, preset
from proofs_check.attacks import Tally
from proofs_check.frame import Check, Function, Method, Outcome
from proofs_check.lemma_claims import STATED, Claim
from proofs_check.policy import make_bandit, scores
from proofs_check.t07_t08_cosine import from_gradients

ROUNDING = 1e-11
"""Largest residual of T8, relative to the sum of the terms' norms, that float64 may leave."""
MOST_ROLLOUTS = 40
"""Of a user's run at most this many rollouts are read, evenly spaced."""
NOTHING_LOST = replace(STATED, name="rho x 1e-6", factor=1e-6)
NEEDED = ("score_status", "score_norm", "score_unit")


@dataclass(frozen=True)
class Update:
    """Rows of one update with A != 0 and a score.

    Attributes
    ----------
    rule : Rule
    drift : float or array (N,)
        m of the update, nats per token; by row where it depends on the sign of A.
    S, n, A : arrays (N,)
    psi : array (N, D)
    edges : pair of arrays (N,), optional
        The logged band, of a rule whose band the drift alone does not give back.
    """

    rule: Rule
    drift: float | np.ndarray
    S: np.ndarray
    n: np.ndarray
    A: np.ndarray
    psi: np.ndarray
    edges: tuple[np.ndarray, np.ndarray] | None = None

    def applied(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Multiplier, weight and clipped weight of each row, by the rule at the logged drift."""
        if self.edges is not None:
            found = self.rule.apply_band(self.S, self.n, self.A, *self.edges, np.asarray(self.drift * self.n))
            return found.multiplier, found.weight, found.clipped_weight
        sigma2 = 2 * self.drift if self.rule.drift == "tilted" else -2 * self.drift
        found = self.rule.apply(self.S, self.n, self.A, DriftStats(float(-self.drift), float(sigma2), 1.0))
        return found.multiplier, found.weight, found.clipped_weight

    def scale(self) -> np.ndarray:
        """What stands beside w psi: A, and 1/n for a geometric weight (section 2)."""
        return self.A / (self.n if self.rule.weight == "geometric" else 1.0)


Tamper = Callable[[Update, np.random.Generator], Update]


def untouched(update: Update, rng: np.random.Generator) -> Update:
    """The log as it is."""
    del rng
    return update


def permuted(update: Update, rng: np.random.Generator) -> Update:
    """Advantages given to other responses (a control)."""
    return replace(update, A=rng.permutation(update.A))


def corrupted(update: Update, rng: np.random.Generator) -> Update:
    """The direction of one kept response with its sign turned (a control)."""
    del rng
    heavy = int(np.argmax(update.applied()[2] * np.abs(update.A) * np.linalg.norm(update.psi, axis=1)))
    psi = update.psi.copy()
    psi[heavy] *= -1
    return replace(update, psi=psi)


def binned(update: Update, bins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """p, a, g and clipped of the bins (K,), (K,), (K, D), (K, D): the lemma's inputs from the rows of a log."""
    multiplier, weight, clipped_weight = update.applied()
    _, where, count = np.unique(bins, return_inverse=True, return_counts=True)

    def mean(rows: np.ndarray) -> np.ndarray:
        total = np.zeros((count.size, *rows.shape[1:]))
        np.add.at(total, where, rows)
        return total / count.reshape(-1, *[1] * (rows.ndim - 1))

    vectors = update.scale()[:, None] * update.psi
    a = mean(multiplier) if update.rule.outside == "drop" else mean(clipped_weight) / mean(weight)
    g, clipped = mean(weight[:, None] * vectors), mean(clipped_weight[:, None] * vectors)
    return count / count.sum(), a, g, clipped


def direct(update: Update) -> tuple[np.ndarray, np.ndarray, float]:
    """g and g_clip added up row by row in extended precision, without bins, and the mean norm of the terms of g."""
    _, weight, clipped_weight = update.applied()
    scale, psi = update.scale().astype(np.longdouble), update.psi.astype(np.longdouble)
    size = np.abs(scale) * np.maximum(weight, clipped_weight) * np.sqrt((psi**2).sum(axis=1))
    g, clipped = (scale * weight) @ psi / len(psi), (scale * clipped_weight) @ psi / len(psi)
    return g.astype(np.float64), clipped.astype(np.float64), float(size.mean())


def residual(logged: Update, source: Update, bins: np.ndarray, drop_inner: bool = False) -> float:
    """Largest of |g - g'| and |a_bar (g + e_len + e_in) - g_clip'|, over the terms' mean norm; primes: ``source``."""
    p, a, g, clipped = binned(logged, bins)
    lemma = theory.cosine_lemma(p, a, g, clipped)
    total = p @ g
    stated = lemma.lre.mean_acceptance * (total + lemma.e_len + (0.0 if drop_inner else lemma.e_in))
    true, true_clipped, size = direct(source)
    gaps = np.array([np.linalg.norm(total - true), np.linalg.norm(stated - true_clipped)])
    return float(gaps.max()) / size  # numpy's maximum keeps NaN


def _decades(allowed: float, error: float) -> float:
    return math.log10(allowed / np.maximum(error, 1e-17))


def sample_updates(rng: np.random.Generator, rows: int = 600) -> list[Update]:
    """Responses of the tabular policy after one update, for bands that drop, truncate and cap."""
    found = []
    for name, outside in (("fspo", "drop"), ("fspo-kl", "truncate"), ("rloo", "cap"), ("gspo", "drop")):
        bandit = make_bandit(rng, max_length=5, step=0.15)
        at = rng.choice(bandit.p_old.size, rows, p=bandit.p_old / bandit.p_old.sum())
        S, n = bandit.log_ratios.sum(axis=1)[at], bandit.responses.lengths[at].astype(np.float64)
        A = np.round(bandit.advantages[at] * 16) / 16  # exact in the log's float32
        wide = 0.02 if name == "gspo" else 0.1
        rule = preset(name, range_lo=wide, range_hi=wide, outside=outside).rule
        stats = bandit.drift_stats()
        keep = A != 0
        psi = scores(bandit.new, bandit.responses.take(at[keep]))
        found.append(Update(rule, rule.drift_per_token(stats), S[keep], n[keep], A[keep], psi))
    return found


def write_update(run: Path, rollout: int, update: Update, exact: bool) -> None:
    """Write one update as one rollout of a gradient log, as a trainer would."""
    norm = np.linalg.norm(update.psi, axis=1)
    writer = GradLogWriter(
        run, width=update.psi.shape[1], exact=exact, metadata={"rule": update.rule.to_dict(), "source": "proofs_check"}
    )
    rows = np.arange(norm.size)
    writer.append(
        {
            "rollout": rollout,
            "step": rollout,
            "times_used": 0,
            "updates_since_rollout": 1,
            "phase": "train",
            "prompt_id": rows,
            "response_id": rows,
            "length": update.n.astype(np.int64),
            "log_ratio": update.S,
            "advantage": update.A,
            "drift": update.drift,
            "score_status": "ok",
            "score_norm": norm,
            "score_unit": update.psi / norm[:, None],
        }
    )
    writer.flush(rollout)


def read_updates(run: Path, rollouts: list[int] | None = None, most: int | None = None) -> Iterator[tuple[int, Update]]:
    """(step, rows) of each update of a log: training rows at first use, with a score and A != 0.

    Raises
    ------
    UserError
        If there is no log, or its header names no rule.
    """
    if rollouts is None:
        known = np.unique(read_log(run, columns=("rollout",)).column("rollout"))
        if most is not None and known.size > most:
            known = known[np.unique(np.linspace(0, known.size - 1, most).round().astype(int))]
        rollouts = [int(number) for number in known]
    for rollout in rollouts:
        log = read_log(run, rollouts=(rollout, rollout))
        if any(name not in log for name in NEEDED):
            continue
        if "times_used" in log:
            log = log.where(log.column("times_used") == 0)
        index, psi = log.scores()
        drift = log.column("drift") if "drift" in log else np.zeros(len(log))
        S, n, A = (log.column(name).astype(np.float64) for name in ("log_ratio", "length", "advantage"))
        good = (A[index] != 0) & np.isfinite(S[index])
        for step in np.unique(log.column("step")[index]):
            here = good & (log.column("step")[index] == step)
            rows = index[here]
            if rows.size:
                rule, m, edges = log.rule, drift[rows[0]], None
                if rule.edges_vary and "lo" in log and "hi" in log:
                    m, edges = drift[rows], (log.column("lo")[rows], log.column("hi")[rows])
                yield int(step), Update(rule, m, S[rows], n[rows], A[rows], psi[here].astype(np.float64), edges)


def written_identity(
    rng: np.random.Generator,
    exact: bool = False,
    tamper: Tamper = untouched,
    drop_inner: bool = False,
) -> Outcome:
    """A log written, read back and binned by length, against the rows it was made from.

    Twice: against the rows rounded here to what the file can hold (float64 rounding is left), and against the rows
    in float64 (float16 or float32 rounding of each entry is left, and bounded row by row).
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
        # each entry of a unit vector moves by its relative rounding or by a subnormal, its norm by a float32 rounding
        allowed = unit_error + least * math.sqrt(source.psi.shape[1]) + 2.0**-23
        margins.append(_decades(allowed, residual(read, source, read.n, drop_inner)))
    if cut < 50:
        return Outcome(note=f"only {cut} rows were clipped")
    return Outcome(float(np.min(margins)), "decades", note=f"{cut} clipped rows in {len(margins) // 2} logs")


def length_bins(n: np.ndarray) -> np.ndarray:
    """Fixed bins for a user's log: powers of two of the length."""
    return np.floor(np.log2(n))


def _usable(run: Path) -> tuple[list[tuple[int, Update]], str]:
    """Updates of a user's run in which something was clipped, or the reason why there are none."""
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
    """T8 on each scored update of a user's run: bins of the lemma against rows added up."""
    updates, reason = _usable(run)
    if reason:
        return Outcome(not_run=reason)
    errors = [residual(tamper(update, rng), update, length_bins(update.n), drop_inner) for _, update in updates]
    worst = int(np.argmax(errors))
    note = f"{len(errors)} updates; largest residual {errors[worst]:.1e} at step {updates[worst][0]}"
    return Outcome(_decades(ROUNDING, errors[worst]), "decades", note=note)


def log_bound(rng: np.random.Generator, run: Path, claim: Claim = STATED) -> Outcome:
    """T7 on each scored update of a user's run, each judged in balls."""
    del rng
    updates, reason = _usable(run)
    if reason:
        return Outcome(not_run=reason)
    tally = Tally(claim)
    for _, update in updates:
        p, a, g, clipped = binned(update, length_bins(update.n))
        tally.add(from_gradients(p, g, clipped, a))
    if not tally.promised and not tally.suite:
        return Outcome(not_run=f"rho >= 1 on all {tally.cases} scored updates: T7 promises nothing there")
    return tally.outcome(1)


def log_checks(run: Path) -> tuple[Check, ...]:
    """T8 and T7 on a user's run folder.

    Raises
    ------
    UserError
        If there is no readable gradient log in it, or its header names no rule.
    """
    log = read_log(run, columns=("rollout",))
    if len(log) == 0:
        raise UserError(f"the gradient log of {run} has no training rows: nothing to check")
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
