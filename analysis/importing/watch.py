"""Look at a table's tokens in the pass that sums them: what stands in the `TokenDigest` and in an import's notes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from analysis.importing.digest import Noticed, TokenDigest
from analysis.importing.values import Floats, Ints

Ids = dict[str, int | float | str]
UNCERTAIN, NUCLEUS = np.log(0.8), 0.9
"""Log-probability below which a token is uncertain; share of d < 0 at such tokens above which a nucleus explains it."""
SCALED = 0.03
"""Logarithm of a temperature's ratio from which on it is named, if it is twice what noise leaves unexplained."""
LARGE_ERROR = 2.0  # mean exp(|d|) of a response above which an import names it


def notice(into: Noticed, values: Floats, row: Ints, ids: Callable[[int], Ids]) -> None:
    """Add the ``values`` (n,) of tokens, or of responses, that lie in the rows ``row`` (n,) of the chunk."""
    if not len(values):
        return
    at = int(np.argmax(np.abs(values)))
    into.first = into.first or ids(int(row[0]))
    if abs(values[at]) > abs(into.largest):
        into.largest, into.row = float(values[at]), ids(int(row[at]))
    into.count += len(values)
    into.responses += len(np.unique(row))


def placeholders(values: Floats) -> np.ndarray:
    """Return which log-probabilities (n,) stand for missing ones.

    They are at or below -1000, or one value below -2 that five tokens or more hold to the last digit, and at least half
    of all tokens within a quarter of it.
    """
    found = values <= -1000
    low = values[(values < -2) & ~found]
    one, count = np.unique(low, return_counts=True)
    for value in one[count >= 5]:
        near = (low >= 1.25 * value) & (low <= 0.75 * value)
        if 2 * np.sum(low == value) >= near.sum():
            found |= values == value
    return found


def zeros_in_runs(base: Floats, against: Floats, row: Ints) -> np.ndarray:
    """Return which tokens (n,) lie in runs of two or more where the sampler's log-probability is exactly 0 and the
    trainer's is not.

    A nucleus of one token gives 0 too, and rounding does. Where either is likely, only runs count in which the trainer
    gives a token less than half.
    """
    zero = (against == 0) & (base < -1e-3)
    if not zero.any():
        return zero
    begins = np.append(True, (row[1:] != row[:-1]) | (zero[1:] != zero[:-1]))
    run = np.cumsum(begins) - 1
    wanted = np.bincount(run) >= 2
    sure, unsure = (base > -0.05) & (base < -1e-3), against < UNCERTAIN
    if np.mean(against[sure] == 0) > 0.2 or np.mean(base[unsure] < against[unsure]) > NUCLEUS:
        wanted &= np.minimum.reduceat(base, np.flatnonzero(begins)) < np.log(0.5)
    return zero & wanted[run]


class Watch:
    """Sums over the tokens of a table, chunk by chunk, of which the `TokenDigest` is made."""

    def __init__(self) -> None:
        self.digest = TokenDigest()
        self._sums = np.zeros(4)  # of d^2, exp(d), uncertain tokens, those of them with d < 0
        self._moments = np.zeros((3, 3))  # over uncertain tokens, of 1, base and against
        self._shifts = np.zeros(4)  # sums of squares at shifts -1, 0, 1, and the number of tokens in each
        self._errors: list[Floats] = []

    def missing(self, found: dict[str, Floats], row: Ints, ids: Callable[[int], Ids]) -> np.ndarray:
        """Return which tokens (n,) have no log-probability but a placeholder or, of the sampler, zeros in runs.

        ``found`` holds the log-probabilities ``new``, ``old``, ``sampler`` of the tokens that count, as far as known.
        """
        lost = np.zeros(len(row), bool)
        for values in (found[name] for name in ("new", "old", "sampler") if name in found):
            held = placeholders(values) & ~lost
            notice(self.digest.placeholder, np.maximum(values[held], -1e300), row[held], ids)
            lost |= held
        base = found.get("old", found.get("new"))
        if base is not None and "sampler" in found:
            zero = zeros_in_runs(base, found["sampler"], row) & ~lost
            notice(self.digest.zeros, base[zero], row[zero], ids)
            lost |= zero
        return lost

    def add(self, base: Floats, against: Floats, row: Ints, ids: Callable[[int], Ids]) -> None:
        """Count the tokens of a chunk, in the order of the table, into the digest.

        Parameters
        ----------
        base, against : float arrays (n,)
            Log-probabilities of the tokens under the trainer's policy and under the sampler's (else under the old one),
            nats. Tokens where one is not finite are left out.
        row : int array (n,)
            The table's row of each token.
        ids : function
            Gives the table's own ids of a row, for messages.
        """
        told = np.isfinite(base) & np.isfinite(against)
        base, against, row = base[told], against[told], row[told]
        if not len(row):
            return
        digest, d = self.digest, base - against
        held = np.exp(np.clip(d, -20, 20))
        digest.tokens += len(d)
        notice(digest.overflow, d[np.abs(d) > 20], row[np.abs(d) > 20], ids)
        rows, first, count = np.unique(row, return_index=True, return_counts=True)
        digest.responses += len(rows)
        error = np.add.reduceat(np.exp(np.minimum(np.abs(d), 20)), first) / count
        self._errors.append(error)
        far = np.array([part[np.argmax(np.abs(part))] for part in np.split(d, first[1:])])
        for i in np.argsort(-np.abs(far), kind="stable")[:5]:
            digest.largest.append({**ids(int(rows[i])), "d": float(far[i]), "mean_error": float(error[i])})
        digest.largest = sorted(digest.largest, key=lambda one: -abs(float(one["d"])))[:5]
        unsure = against < UNCERTAIN
        self._sums += [d @ d, held.sum(), unsure.sum(), np.sum(d[unsure] < 0)]
        if not digest.sampler:
            return
        sure = (against > np.log(0.5)) & (d <= -2)
        notice(digest.confident, d[sure], row[sure], ids)
        uncertain = np.stack([np.ones(unsure.sum()), base[unsure], against[unsure]])
        self._moments += uncertain @ uncertain.T
        inner = np.flatnonzero(unsure[1:-1] & (row[2:] == row[:-2])) + 1
        self._shifts[:3] += [np.sum((base[inner + shift] - against[inner]) ** 2) for shift in (-1, 0, 1)]
        self._shifts[3] += len(inner)

    def finished(self) -> TokenDigest | None:
        """Return the digest; None if the table has no tokens with two log-probabilities."""
        digest, n = self.digest, self.digest.tokens
        if not n:
            return None
        lost = digest.placeholder.count + digest.zeros.count
        for seen in (digest.placeholder, digest.zeros, digest.confident, digest.overflow, digest.above_zero):
            seen.share = seen.count / (n + lost)
        squares, ratios, unsure, below = self._sums
        digest.rms, digest.mean_ratio = float(np.sqrt(squares / n)), float(ratios / n)
        digest.uncertain, digest.below = int(unsure), float(below / max(unsure, 1))
        if self._shifts[3]:
            rms = np.sqrt(self._shifts[:3] / self._shifts[3])
            digest.shifts = dict(zip(("-1", "0", "1"), map(float, rms), strict=True))
        scaled = False
        if (uncertain := self._moments[0, 0]) >= 100:
            mean = self._moments / uncertain
            covariance = mean[1:, 1:] - np.outer(mean[0, 1:], mean[0, 1:])
            squares = np.maximum(np.diag(covariance), 1e-12)
            digest.temperature = float(np.sqrt(squares[0] / squares[1]))
            apart, left = np.log(digest.temperature) ** 2, 1 - covariance[0, 1] ** 2 / squares[0] / squares[1]
            scaled = bool(SCALED**2 < apart > 4 * left and left < 0.2)
        digest.cause = "temperature" if scaled else _cause(digest, int(self._shifts[3]))
        return digest

    def notes(self) -> list[str]:
        """Return what was noticed as sentences, each with its row and its cure."""
        seen, d = self.digest, f"{self.digest.base} less {self.digest.against}"
        errors = np.concatenate([np.zeros(0), *self._errors])
        large = errors > LARGE_ERROR
        worst = max(seen.largest, key=lambda one: float(one["mean_error"]), default={})
        shift = min(seen.shifts, key=lambda k: seen.shifts[k], default="0")
        texts = {
            "placeholder": "{0}hold a value that no model gives, {1}: their log-probabilities are missing, so they are "
            "left out",
            "zeros": f"{{0}}lie in runs where {seen.against} is exactly 0 and {seen.base} is not, {{1}}: they are left "
            "out as tokens that the model did not sample; name a mask for them (--columns mask=COLUMN)",
            "above_zero": "{0}have a log-probability slightly above 0, {1}: held at 0",
            "overflow": f"{{0}}have |{d}| above 20, {{1}}: exp of it breaks a product of weights; mask the token or "
            "its response",
            "confident": f"{{0}}that {seen.against} holds above .5 are 2 nats lower in {seen.base}, {{1}}: no rounding "
            "does that; the sampler has other weights or another input",
        }
        out: list[str] = []
        for name, text in texts.items():
            one: Noticed = getattr(seen, name)
            if one.count and (name != "confident" or seen.cause == "weights"):
                which = f"the first in {at(one.first)}, the largest {one.largest:.4g} in {at(one.row)}"
                out.append(text.format(f"{one.count} tokens ({one.share:.2g}) of {one.responses} responses ", which))
        if 0 < large.sum() <= max(0.1 * len(errors), 1):
            out.append(
                f"{large.sum()} of {len(errors)} responses have a mean exp|{d}| above {LARGE_ERROR:g}, the largest "
                f"{worst['mean_error']:.3g} in {at(worst)} (a token {worst['d']:.2g} nats off), the others at "
                f"most {max(errors[~large], default=0):.3f}: mask them"
            )
        if seen.cause == "shift":
            out.append(
                f"{d} has rms {seen.shifts['0']:.3g} nats at uncertain tokens, and {seen.shifts[shift]:.3g} with "
                f"{seen.base} moved by {shift}: the lists are misaligned by one token; align them"
            )
        elif seen.cause == "temperature":
            out.append(
                f"at uncertain tokens {seen.base} is {seen.temperature:.2f} times {seen.against}, as at so many "
                "times the temperature: take both log-probabilities at the temperature of sampling"
            )
        elif seen.cause == "nucleus":
            out.append(
                f"{d} is below 0 at {seen.below:.0%} of uncertain tokens, mean exp {seen.mean_ratio:.3f}: the "
                "sampler's log-probabilities belong to a nucleus; set top_p 1 and top_k off, or renormalise"
            )
        return out


def at(row: Ids) -> str:
    """Return a row's number and its ids in the table's own names as text."""
    return ", ".join(f"{name} {value}" for name, value in row.items() if name not in ("d", "mean_error"))


def _cause(digest: TokenDigest, inner: int) -> str:
    shifts, confident = digest.shifts, digest.confident
    if inner >= 100 and shifts["0"] > 0.1 and 2 * min(shifts["-1"], shifts["1"]) < shifts["0"]:
        return "shift"
    if confident.count > 0.001 * digest.tokens and confident.responses >= max(3, 0.1 * digest.responses):
        return "weights"
    if digest.sampler and digest.uncertain >= 100 and digest.below > NUCLEUS and digest.mean_ratio < 0.99:
        return "nucleus"
    return "placeholder" if digest.placeholder.count else "mask" if digest.zeros.count else ""
