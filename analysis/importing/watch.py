"""Look at the tokens of an imported table while their log-probabilities are summed: what is noticed is told at once
(`Watch.notes`) and kept for the doctor in import.json (`TokenDigest`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis.importing.values import ChunkColumns, Floats, Ids, Ints, Mask
from fspo.gradlog.run_folder import IMPORT

UNCERTAIN, NUCLEUS = np.log(0.8), 0.9
"""Log-probability below which a token is uncertain; share of d < 0 at such tokens above which a nucleus explains it."""
SCALED, SLOPED = 0.03, 1.2
"""A temperature is named if, at uncertain tokens, the size of its ratio's logarithm is above the first, and that of the
covariance of d with the sampler's log-probability above the second times E[d^2]."""
PAIRS = (("old", "sampler"), ("new", "sampler"), ("new", "old"))
"""Columns of log-probabilities that are compared, the first less the second: the first pair that a table has."""
LARGE_ERROR = 2.0  # mean exp(|d|) of a response above which an import names it
MASK_THEM = "they are left out here, and the trainer must mask them too (its mask: fspo import --columns mask=COLUMN)"
CAUSES = {
    "temperature": (
        "the sampler's log-probabilities belong to another temperature than the trainer's",
        "take both at the temperature of sampling: divide the trainer's logits by it, and let the sampler return "
        "processed log-probabilities",
    ),
    "shift": (
        "the two columns of log-probabilities are misaligned by one token, in these responses or from some token on",
        "move one of them by a token (AReaL's loss does: torch.roll), and mask texts that were tokenised again",
    ),
    "end": (
        "the last token of responses carries it: an end token that the sampler did not draw (forced at the token "
        "limit), or that sampler and trainer do not share",
        "mask that token, or score the same end token on both sides",
    ),
    "weights": (
        "tokens that the sampler was sure of are unlikely to the trainer, as no rounding makes them: the sampler had "
        "other weights or another input",
        "compare weights, prompt and template of sampler and trainer, and mask these responses",
    ),
    "nucleus": (
        "the sampler's log-probabilities are normalised over a nucleus (top-p or top-k): they lie above the trainer's "
        "at nearly all uncertain tokens",
        "set top_p 1 and no top_k, or renormalise the trainer's log-probabilities over the same tokens",
    ),
    "placeholder": ("log-probabilities are missing and a placeholder stands for them", MASK_THEM),
    "mask": (
        "a mask is missing: the sampler's log-probabilities are 0 in runs of tokens that it did not draw",
        MASK_THEM,
    ),
}
"""For each cause that the tokens may show, in the order in which it is looked for: what it is, and how it is fixed."""


@dataclass
class Noticed:
    """The tokens that were noticed for one reason (a placeholder, a log-probability above 0, ...): ``count`` tokens in
    ``responses`` responses. In `TokenDigest.above_zero` of a table of sums ``count`` is of responses.

    ``largest`` is the value farthest from 0, with its sign, in nats: of the log-ratio d, or of the log-probability for
    placeholders, zeros and values above 0. ``row`` is the table's row that holds it (`Ids`), and ``first`` the first
    row that holds such a token."""

    count: int = 0
    responses: int = 0
    largest: float = 0.0
    row: Ids = field(default_factory=dict)
    first: Ids = field(default_factory=dict)

    def add(self, values: Floats, row: Ints, ids: Callable[[int], Ids]) -> None:
        """Count the ``values`` (n,) of tokens, or of responses, that lie in the rows ``row`` (n,) of the chunk; ``ids``
        gives the table's own ids of a row."""
        if not len(values):
            return
        most = int(np.argmax(np.abs(values)))
        self.first = self.first or ids(int(row[0]))
        if abs(values[most]) > abs(self.largest):
            self.largest, self.row = float(values[most]), ids(int(row[most]))
        self.count += len(values)
        self.responses += len(np.unique(row))


@dataclass
class TokenDigest:
    """What the tokens of an imported table that the mask keeps show of d = ``base`` less ``against``, the
    log-probabilities of a trainer and of a sampler. Uncertain tokens are those that ``against`` gives a probability
    below .8."""

    base: str = ""  # the table's name of the old (else the new) policy's column
    against: str = ""  # and of the sampler's (else the old policy's)
    sampler: bool = True  # whether ``against`` is the sampler's; if not, zeros, confident and shifts are not looked for
    tokens: int = 0  # those that have both log-probabilities, without placeholders and zeros
    responses: int = 0  # those with such a token
    mean_ratio: float = 1.0  # mean of exp(d), d held within 20
    below: float = 0.0  # share of uncertain tokens with d < 0: near 1 if the sampler kept to a nucleus
    # Spread (sd) of base over that of against at uncertain tokens: against's temperature over base's, all else equal.
    temperature: float = 1.0
    # By shift, "-1", "0", "1": rms of base[t + shift] less against[t], nats, over uncertain tokens t with |d| > .2.
    shifts: dict[str, float] = field(default_factory=dict)
    placeholder: Noticed = field(default_factory=Noticed)  # log-probabilities that stand for missing ones
    zeros: Noticed = field(default_factory=Noticed)  # tokens in runs in which against is exactly 0 and base is not
    confident: Noticed = field(default_factory=Noticed)  # against holds them above .5, base 2 nats or more lower
    overflow: Noticed = field(default_factory=Noticed)  # |d| > 20, of which exp(d) is 5e8 and more, or infinite
    above_zero: Noticed = field(default_factory=Noticed)  # log-probabilities slightly above 0, held at 0
    # Up to 5 responses with the largest mean of exp(|d|) over their tokens, the largest first: the row as in Noticed,
    # "mean_error", which is this mean, and "d", the d of largest |d| (nats).
    largest: list[Ids] = field(default_factory=list)
    since: int | None = None  # the first rollout with tokens that are left out
    ends: Noticed = field(default_factory=Noticed)  # last tokens of their responses with |d| above 1
    shifted: Noticed = field(default_factory=Noticed)  # tokens of responses whose columns agree if one is moved by one
    means: str = ""  # says of a column of a table of sums that it holds means over tokens
    cause: str = ""  # the first of `CAUSES` of a large d that the tokens show; "" if they show none

    def places(self) -> str:
        """Say which tokens lack a sound log-probability, how many, and where the largest is; "" if none does."""
        texts = []
        words = {"placeholder": "placeholders", "zeros": "zeros in runs", "ends": "last tokens off by over 1 nat"}
        words |= {"confident": "tokens that the sampler was sure of", "overflow": "|log-ratio| above 20"}
        words = {"shifted": "misaligned"} if self.cause == "shift" else words
        for name, what in words.items():
            one: Noticed = getattr(self, name)
            if one.count and (name != "ends" or self.cause == "end"):
                size = f"{one.count} tokens of {one.responses} responses, largest {one.largest:+.3g}"
                texts.append(f"{what}: {size} at {at(one.row).replace(',', '')}")
        return f" ({'; '.join(texts)})" if texts else ""


def digest_of(run: Path) -> TokenDigest | None:
    """Return what the import of a run folder noticed about tokens; None if nothing is written there."""
    try:
        found = json.loads((run / IMPORT).read_text(encoding="utf-8"))["digest"]
        noticed = {k: Noticed(**found[k]) for k, v in vars(TokenDigest()).items() if isinstance(v, Noticed)}
        return TokenDigest(**{**found, **noticed})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def placeholders(values: Floats, row: Ints) -> Mask:
    """Return which log-probabilities (n,), of the responses ``row`` (n,), stand for missing ones.

    All values at or below -1000 do. A value below -.5 does if at least five tokens have exactly it, if they stand at
    three different positions or more (responses with one beginning agree at one position), and if they are at least
    five times as many as the tokens of any other value within 25 % of it (rounded log-probabilities repeat too)."""
    found = values <= -1000
    place = np.arange(len(row)) - np.searchsorted(row, row)
    one, count = np.unique(values[(values < -0.5) & ~found], return_counts=True)
    for value, times in zip(one[count >= 5], count[count >= 5], strict=True):
        near = (one >= 1.25 * value) & (one <= 0.75 * value) & (one != value)
        if times >= 5 * count[near].max(initial=1) and len(np.unique(place[values == value])) >= 3:
            found |= values == value
    return found


def zeros_in_runs(base: Floats, against: Floats, row: Ints) -> Mask:
    """Return which tokens (n,), of the responses ``row`` (n,), lie in runs of two or more where the sampler's
    log-probability ``against`` is exactly 0, though the trainer's, ``base``, is below -.001 at a token of the run.

    A sampler whose nucleus (top-p) holds one token gives 0 too, as does rounding. Where the tokens look like either (as
    where ``base`` is nowhere below -.001 in over a fifth of all runs), a run counts only if ``base`` is below -.001 at
    two of its tokens or more, and gives one of its tokens a probability below one half."""
    zero, doubt = against == 0, base < -1e-3
    if not np.any(zero & doubt):
        return zero & doubt
    begins = np.append(True, (row[1:] != row[:-1]) | (zero[1:] != zero[:-1]))
    run, starts = np.cumsum(begins) - 1, np.flatnonzero(begins)
    doubted = np.bincount(run, zero & doubt)
    wanted = (np.bincount(run) >= 2) & (doubted >= 1)
    sure, unsure = (base > -0.05) & doubt, against < UNCERTAIN
    agreed = np.mean(doubted[zero[starts]] == 0) > 0.2 or np.sum(against[sure] == 0) > 0.2 * np.sum(sure)
    if agreed or np.sum(base[unsure] < against[unsure]) > NUCLEUS * np.sum(unsure):
        wanted &= (doubted >= 2) & (np.fmin.reduceat(base, starts) < np.log(0.5))
    return zero & wanted[run]


def stands_before(base: Floats, against: Floats, keep: Mask) -> bool:
    """Return whether log-probabilities ``base`` (n,) must be moved a place later to agree with ``against`` (n,) at the
    uncertain tokens (`TokenDigest`) that ``keep`` (n,) marks. AReaL logs prox_logp so, and moves it before its loss."""
    told = keep & (against < UNCERTAIN)
    apart, aligned = (float(np.nansum((x - against)[told] ** 2)) for x in (base, np.roll(base, 1)))
    return 4 * aligned < apart


class Watch:
    """Sums over the tokens of a table, chunk by chunk, from which the `TokenDigest` is made at the end."""

    def __init__(self) -> None:
        self.digest = TokenDigest()
        self._sums = np.zeros(4)  # of d^2, exp(d), uncertain tokens, those of them with d < 0
        self._moments = np.zeros((3, 3))  # over uncertain tokens, of 1, base and against
        self._ends = self._shifted = 0.0  # sums of d^2 at last tokens, and in responses that look shifted by a token
        self._shifts = np.zeros(4)  # of shifted responses: sums of squares at shifts -1, 0, 1, and number of tokens
        self._errors: list[Floats] = []

    def look(self, found: dict[str, Floats], row: Ints, columns: ChunkColumns, rollout: Floats) -> Mask:
        """Add a chunk's tokens (n,) to the digest, and return which of them have sound log-probabilities: no
        placeholder and, of the sampler, no zero in a run.

        ``found`` holds the log-probabilities ``new``, ``old``, ``sampler`` (n,), as far as known, ``row`` (n,) the row
        of each token in ``columns``, and ``rollout`` (N,) the rollout of each row."""
        lost, ids, names = np.zeros(len(row), bool), columns.ids, columns.chosen
        base, against = next((pair for pair in PAIRS if {*pair} <= found.keys()), ("", ""))
        for values in (found[name] for name in ("new", "old", "sampler") if name in found):
            held = placeholders(values, row) & ~lost
            self.digest.placeholder.add(np.maximum(values[held], -1e300), row[held], ids)
            lost |= held
        if against == "sampler":
            zero = zeros_in_runs(found[base], found[against], row) & ~lost
            self.digest.zeros.add(found[base][zero], row[zero], ids)
            lost |= zero
        if lost.any():
            self.digest.since = int(min(rollout[row[lost]].min(), np.inf if (k := self.digest.since) is None else k))
        if base:
            vars(self.digest).update(base=names[base], against=names[against], sampler=against == "sampler")
            told = ~lost & np.isfinite(found[base]) & np.isfinite(found[against])
            if told.any():
                self._add(found[base][told], found[against][told], row[told], ids)
        return ~lost

    def _add(self, base: Floats, against: Floats, row: Ints, ids: Callable[[int], Ids]) -> None:
        """Add tokens (n,), of the rows ``row``, with finite log-probabilities ``base`` and ``against`` to the sums."""
        digest, d = self.digest, base - against
        digest.tokens += len(d)
        digest.overflow.add(d[np.abs(d) > 20], row[np.abs(d) > 20], ids)
        rows, first, count = np.unique(row, return_index=True, return_counts=True)
        digest.responses += len(rows)
        last = first + count - 1
        self._ends += float(d[last] @ d[last])
        digest.ends.add(d[last][np.abs(d[last]) > 1], row[last][np.abs(d[last]) > 1], ids)
        error = np.add.reduceat(np.exp(np.minimum(np.abs(d), 20)), first) / count
        self._errors.append(error)
        for i in np.argsort(-error, kind="stable")[:5]:
            far = max(d[row == rows[i]], key=abs)
            digest.largest.append({**ids(int(rows[i])), "d": float(far), "mean_error": float(error[i])})
        digest.largest = sorted(digest.largest, key=lambda one: -float(one["mean_error"]))[:5]
        unsure = against < UNCERTAIN
        self._sums += [d @ d, np.exp(np.clip(d, -20, 20)).sum(), unsure.sum(), np.sum(d[unsure] < 0)]
        if not digest.sampler:
            return
        sure = (against > np.log(0.5)) & (d <= -2)
        digest.confident.add(d[sure], row[sure], ids)
        uncertain = np.stack([np.ones(unsure.sum()), base[unsure], against[unsure]])
        self._moments += uncertain @ uncertain.T
        inner = np.flatnonzero(unsure[1:-1] & (np.abs(d[1:-1]) > 0.2) & (row[2:] == row[:-2])) + 1
        apart = [(base[inner + shift] - against[inner]) ** 2 for shift in (-1, 0, 1)]
        before, here, after = (np.bincount(row[inner], part, row[-1] + 1) for part in apart)
        tokens = np.bincount(row[inner], minlength=row[-1] + 1)
        shifted = (tokens >= 10) & (25 * np.minimum(before, after) < here)  # aligned, d is 5 times as small
        self._shifts += [float(part[shifted].sum()) for part in (before, here, after, tokens)]
        digest.shifted.add(d[shifted[row]], row[shifted[row]], ids)
        self._shifted += float(d[shifted[row]] @ d[shifted[row]])

    def finished(self) -> TokenDigest | None:
        """Return the digest; None if no token has log-probabilities of two policies, and no column holds means."""
        digest, n, confident = self.digest, self.digest.tokens, self.digest.confident
        if not n:
            return digest if digest.means else None
        sum_sq, ratios, unsure, below = self._sums
        digest.mean_ratio, digest.below = float(ratios / n), float(below / max(unsure, 1))
        rms = np.sqrt(self._shifts[:3] / max(self._shifts[3], 1))
        digest.shifts = dict(zip(("-1", "0", "1"), rms.tolist(), strict=True))
        sloped = 0.0
        if (uncertain := self._moments[0, 0]) >= 100:
            mean = self._moments / uncertain
            squares = np.maximum(np.diag(covariance := mean[1:, 1:] - np.outer(mean[0, 1:], mean[0, 1:])), 1e-12)
            digest.temperature = float(np.sqrt(squares[0] / squares[1]))
            # Noise in one column gives d a covariance with it of E[d^2] at most, and another temperature gives more.
            sloped = abs(covariance[0, 1] - squares[1]) / max(mean[1, 1] - 2 * mean[1, 2] + mean[2, 2], 1e-12)
        shown = {
            "temperature": abs(np.log(digest.temperature)) > SCALED and sloped > SLOPED,
            "shift": digest.shifted.responses >= 3 and self._shifted > sum_sq / 2,
            "end": digest.sampler and digest.ends.count >= 3 and self._ends > sum_sq / 2 and n > 4 * digest.responses,
            "weights": confident.count > 0.001 * n and confident.responses >= max(3, 0.1 * digest.responses),
            "nucleus": digest.sampler and unsure >= 100 and digest.below > NUCLEUS and digest.mean_ratio < 0.99,
            "placeholder": 10 * digest.placeholder.count > digest.zeros.count,  # not if few beside zeros
            "mask": digest.zeros.count,
        }
        digest.cause = next((cause for cause, test in shown.items() if test), "")
        return digest

    def notes(self) -> list[str]:
        """Return a sentence for each thing that was noticed, with the row in which it stands and its fix."""
        seen, d = self.digest, f"{self.digest.base} less {self.digest.against}"
        all_tokens = seen.tokens + seen.placeholder.count + seen.zeros.count
        noticed = {
            "placeholder": CAUSES["placeholder"],
            "zeros": CAUSES["mask"],
            "above_zero": ("their log-probabilities are slightly above 0", "they are held at 0"),
            "overflow": (f"|{d}| is above 20: exp of it breaks a product of weights", "mask them or their responses"),
        }
        noticed |= {name: CAUSES[c] for name, c in (("confident", "weights"), ("ends", "end")) if seen.cause == c}
        out: list[str] = []
        for name, (what, fix) in noticed.items():
            one: Noticed = getattr(seen, name)
            if one.count:
                where = f"the first in {at(one.first)}, the largest {one.largest:.4g} in {at(one.row)}"
                of = f" ({one.count / all_tokens:.2g})" if all_tokens else ""
                out.append(f"{one.count} tokens{of} of {one.responses} responses, {where}: {what}; {fix}")
        large = (errors := np.concatenate([np.zeros(0), *self._errors])) > LARGE_ERROR
        rest = max(errors[~large], default=0.0)
        if 0 < large.sum() <= max(0.1 * len(errors), 1) and errors[large].min() > 1.5 * rest:
            worst = [f"{x['mean_error']:.3g} in {at(x)} (a token {x['d']:.2g} nats off)" for x in seen.largest]
            out.append(
                f"{large.sum()} of {len(errors)} responses have a mean exp|{d}| above {LARGE_ERROR:g}, the others at "
                f"most {rest:.3f}; mask them, the largest first: {'; '.join(worst[: large.sum()])}"
            )
        shifts = seen.shifts or {"0": 0.0}
        place = "before" if shifts.get("-1") == (least := min(shifts.values())) else "after"
        measured = {
            "shift": f"{seen.base} stands one place {place} {seen.against}: rms {shifts['0']:.3g}, aligned {least:.3g}",
            "temperature": f"{seen.base} spreads {seen.temperature:.2f} times as far as {seen.against}",
            "nucleus": f"{d} is below 0 in {seen.below:.0%} (mean of exp over all tokens {seen.mean_ratio:.3f})",
        }
        if seen.cause in measured:
            out.append(f"at uncertain tokens {measured[seen.cause]}: {'; '.join(CAUSES[seen.cause])}")
        return out


def at(row: Ids) -> str:
    """Return as text the number of a table's row and its ids in the table's own names."""
    return ", ".join(f"{name} {value}" for name, value in row.items() if name not in ("d", "mean_error"))
