"""The rows of one update in a gradient log: make them from a small policy, write and read them, put them into bins, and
sum their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fspo.base.errors import UserError
from fspo.gradlog import GradLogWriter, read_log
from fspo.gradlog.files import log_files
from fspo.rules import Rule, preset
from proofs_check.tools.policy import make_bandit

NEEDED = ("score_status", "score_norm", "score_unit")


@dataclass(frozen=True)
class ScoredUpdate:
    """The rows of one update that have A != 0 and a score.

    Attributes
    ----------
    rule : Rule
    drift : float or array (N,)
        Centre of the band per token, nats: one number for each row if ``edges`` are given, else one for all rows.
    S, n, A : arrays (N,)
        Log-ratio, length and advantage of each row.
    psi : array (N, D)
        Score of each row, or its sketch.
    edges : pair of arrays (N,), optional
        The logged lower and upper edge of each row's band; given only if the band does not follow from rule and drift.
    """

    rule: Rule
    drift: float | np.ndarray
    S: np.ndarray
    n: np.ndarray
    A: np.ndarray
    psi: np.ndarray
    edges: tuple[np.ndarray, np.ndarray] | None = None

    def applied(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return multiplier M, weight w and clipped weight M w of each row, as the rule gives them at the logged centre
        and edges of the band.
        """
        found = self.rule.apply(self.S, self.n, self.A, self.drift, self.edges)
        return found.multiplier, found.weight, found.clipped_weight

    def scale(self) -> np.ndarray:
        """Return, for each row, the factor with which its w psi enters the update: A, or A/L for a geometric weight
        (docs/theory.md section 2).
        """
        return self.A / (self.n if self.rule.weight == "geometric" else 1.0)


def binned(update: ScoredUpdate, bins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return what T7 needs of each of K bins of rows: its share of the rows (K,), its acceptance (K,), the mean of the
    rows' true gradients w A psi (K, D) and that of their clipped gradients M w A psi (K, D). ``bins`` (N,) gives the
    bin of each row.
    """
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


def direct(update: ScoredUpdate) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the true and the clipped update, means over all rows that are computed in extended precision.

    The third result is a scale for rounding errors. For each row, take the norm of its true gradient or of its clipped
    gradient, whichever is greater; the scale is the mean of these norms.
    """
    _, weight, clipped_weight = update.applied()
    scale, psi = update.scale().astype(np.longdouble), update.psi.astype(np.longdouble)
    size = np.abs(scale) * np.maximum(weight, clipped_weight) * np.sqrt((psi**2).sum(axis=1))
    g, clipped = (scale * weight) @ psi / len(psi), (scale * clipped_weight) @ psi / len(psi)
    return g.astype(np.float64), clipped.astype(np.float64), float(size.mean())


def sample_updates(rng: np.random.Generator, rows: int = 600) -> list[ScoredUpdate]:
    """Return four updates, each with its own small policy and a rule that drops, truncates or caps. An update has
    ``rows`` responses, less those with A = 0, which are left out.
    """
    found = []
    for name, outside in (("fspo", "drop"), ("fspo-kl", "truncate"), ("rloo", "cap"), ("gspo", "drop")):
        bandit = make_bandit(rng, max_length=5, step=0.15)
        at = rng.choice(bandit.p_old.size, rows, p=bandit.p_old / bandit.p_old.sum())
        S, n = bandit.log_ratio[at], bandit.lengths[at]
        # Round advantages to multiples of 1/16, which float32, the log's type, holds exactly.
        A = np.round(bandit.advantages[at] * 16) / 16
        wide = 0.02 if name == "gspo" else 0.1
        rule = preset(name, range_lo=wide, range_hi=wide, outside=outside).rule
        keep = A != 0
        psi = bandit.psi[at[keep]]
        found.append(ScoredUpdate(rule, rule.centre(bandit.drift_stats()), S[keep], n[keep], A[keep], psi))
    return found


def write_update(run: Path, rollout: int, update: ScoredUpdate, exact: bool) -> None:
    """Write one update into a gradient log with the trainer's writer, as the only update of the rollout ``rollout``."""
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


def spaced_rollouts(run: Path, most: int | None = None) -> list[int]:
    """Return the numbers of a log's rollouts. If there are more than ``most``, return only ``most`` of them, evenly
    spaced.
    """
    known = np.unique(read_log(run, columns=("rollout",)).column("rollout"))
    if most is not None and known.size > most:
        known = known[np.unique(np.linspace(0, known.size - 1, most).round().astype(int))]
    return [int(number) for number in known]


def log_damage(run: Path, most: int | None = None) -> list[str]:
    """Return a line of text for each file, or row group of a Parquet file, that `read_updates` leaves out because it
    cannot be read.
    """
    damage = list(log_files(run)[1])
    for rollout in spaced_rollouts(run, most):
        try:
            damage += read_log(run, rollouts=(rollout, rollout)).damage
        except UserError as error:
            damage.append(str(error))
    return list(dict.fromkeys(damage))


def read_updates(
    run: Path, rollouts: list[int] | None = None, most: int | None = None
) -> Iterator[tuple[int, ScoredUpdate]]:
    """Yield, for each update of a log, its step and its rows of the first epoch that were trained on (not audits),
    with a score and with A != 0.

    Raises
    ------
    UserError
        If there is no log, or its metadata name no rule.
    """
    for rollout in spaced_rollouts(run, most) if rollouts is None else rollouts:
        try:
            log = read_log(run, rollouts=(rollout, rollout))
        except UserError:  # skip a rollout that cannot be read: ``log_damage`` reports it
            continue
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
                yield int(step), ScoredUpdate(rule, m, S[rows], n[rows], A[rows], psi[here].astype(np.float64), edges)
