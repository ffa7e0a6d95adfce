"""Check the log-ratios other than S: the mismatch of sampler and trainer (E, or D + E where versions are unknown), the
staleness D, and how much weight a correction of them leaves to responses of each length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.laws import EACH, GAINED, LOST, WEIGHT_MARGIN
from analysis.doctor.line import FLOAT32, Line
from analysis.doctor.patient import MIN_ROWS, Floats, Mask, Rows
from analysis.importing.digest import Noticed, TokenDigest
from analysis.rules.recompute import ratio
from analysis.stats.anytime import AnytimeMean
from fspo.rules import CORRECTIONS, Rule, TokenMeans, exponent, importance_weight

LARGE = 0.1
"""Root mean square of the mismatch / sqrt(L), in nats, above which it is told whatever its cause. A bfloat16 sampler
with a float32 trainer gives about .04.
"""
CUT = 0.05
"""A mismatch that looks like noise is told, for information, if the product mask cuts more than this share of the
longest responses, or if it exceeds ``LARGE``.
"""
THIRD = 1 / 3
"""A correction is reported if it leaves less than this share of the weight in some octave of lengths (L to 2 L): the
sum of the responses' weights after it over the sum before it.
"""
POSITIVE = 0.05
"""In a sound run x + k3 has mean 0, and x + k3 is taken to be above 0 in at least this share of the responses. x is E,
or D + E where E is unknown; k3 is the sum of e^s - 1 - s over the token log-ratios s of x. Truncated sampling (top-p,
top-k) makes x + k3 negative in all responses.
"""
STALE = 0.2
"""Root mean square of the staleness D of stale responses, nats, above which a run without a correction is reported."""
RISE = 2.0
"""The mismatch counts as growing over the run if its root mean square in the last quarter of the rollouts exceeds that
in the first quarter by this factor.
"""
OCTAVES = 24
SAMPLER = "the sampler's log-probs"
RIVALS = {
    "a product weight cut at 2": Rule("fixed", 0.5, 1.0, outside="cap", on="behaviour"),
    "the product mask (mis)": CORRECTIONS["mis"],
    "the geometric mask (geo-mask)": CORRECTIONS["geo-mask"],
    "the sqrt mask (engine-sqrt)": CORRECTIONS["engine-sqrt"],
}
"""Corrections on responses that are compared on every mismatch: what each cuts, and what it leaves, by length."""
BY_TOKENS = {
    "placeholder": ("log-probs are missing and a placeholder stands for them", "leave these tokens out (mask them)"),
    "mask": ("a mask is missing: the sampler's log-probs are 0 in runs of tokens that it did not draw", "mask them"),
    "shift": ("the two columns of log-probs are shifted by a token", "shift one of them by a token"),
    "weights": (
        "tokens that the sampler was sure of are unlikely to the trainer, as no rounding makes them: the sampler had "
        "other weights or another input",
        "compare weights, prompt and template of sampler and trainer, and mask these responses",
    ),
    "temperature": (
        "the sampler's log-probs belong to another temperature than the trainer's",
        "divide the trainer's logits by the sampling temperature, and let the sampler return processed log-probs",
    ),
    "nucleus": (
        "the sampler's log-probs are normalised over a nucleus (top-p or top-k): they lie above the trainer's at "
        "nearly all uncertain tokens",
        "set top_p 1 and no top_k, or renormalise the trainer's log-probs over the same tokens",
    ),
}
"""For each cause that an import names from the tokens (`analysis.importing.digest.TokenDigest.cause`): what it is, and
how it is fixed."""


@dataclass
class Mismatch:
    """Sums over rows for the checks of E and D: E, D + E and weights by octave of the length, D by age of the weights.

    An octave is the range of lengths [2^k, 2^(k+1)). Pass complete rollouts to ``add``.

    Parameters
    ----------
    correction : Rule, optional
        The correction that the run trained with.
    same : bool
        Whether the configuration says that sampler and trainer are one program at one precision, so that E is 0.
    imported : bool
        Whether the log was made from another trainer's table, in which the weights' version may not count updates.
    tokens : TokenDigest, optional
        What the import noticed about the table's tokens.
    """

    correction: Rule | None = None
    same: bool = False
    imported: bool = False
    tokens: TokenDigest | None = None
    engine: Line = field(default_factory=Line)
    both: Line = field(default_factory=Line)
    weight: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    token: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH, LOST, GAINED))
    k3: float = 0.0
    below: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    # For each octave of lengths: number of rows, sum of the weights after the correction, sum of the weights before it.
    kept: Floats = field(default_factory=lambda: np.zeros((OCTAVES, 3)))
    # For each rival and octave of lengths: number of responses, number of those that it cuts, sum of what it leaves.
    rivals: Floats = field(default_factory=lambda: np.zeros((len(RIVALS), OCTAVES, 3)))
    # By lag (updates between the weights that sampled and the old weights): number of responses, number whose D
    # is known, sum of squares of these D, number whose D + E is known, sum of squares of these D + E.
    lags: dict[int, Floats] = field(default_factory=dict)
    stale_since: int | None = None
    contradicting: int = 0
    # moved: number of rows with a known S, and how many of them have S != 0; both also of rows after an update.
    # still: number of stale responses whose D is known, and how many of these responses have D exactly 0.
    moved: Floats = field(default_factory=lambda: np.zeros(4))
    still: Floats = field(default_factory=lambda: np.zeros(2))

    def add(self, rows: Rows, fair: Mask) -> None:
        """Add the rows of complete rollouts to this object's sums, from which the checks of E and D are made.

        Only the first row of each response counts, except in the fields ``kept`` and ``moved``, for which every row
        counts. ``fair`` (N,) marks the rows that would have been logged whatever their reward.
        """
        first = rows.first & (rows["length"] >= 1)
        c = rows.columns
        L, rollout, octave = rows.L, rows["rollout"], np.log2(rows.L).astype(np.int64)
        E, behaviour = c["engine_log_ratio"], ratio(c, "behaviour")
        self.engine.add(E[first], L[first], rollout[first], c["engine_k3_sum"][first], rows["response_id"][first])
        self.both.add(
            behaviour[first], L[first], rollout[first], c["behaviour_k3_sum"][first], rows["response_id"][first]
        )
        x = np.where(np.isfinite(E), E, behaviour)
        k3 = np.where(np.isfinite(E), c["engine_k3_sum"], c["behaviour_k3_sum"])
        drawn = first & fair
        self.weight.add((importance_weight(x) - 1)[drawn], rollout[drawn])
        self.token.add((k3 + x)[drawn], rollout[drawn])
        self.k3 += float(np.nansum(k3[drawn]))
        # `below` tests whether x + k3 is above 0 in less than the share ``POSITIVE`` of the responses. In a row without
        # k3 the sign of x counts instead, if |x| is at most 1 nat.
        known = np.isfinite(k3)
        y = np.where(known, k3 + x, x)
        signed = drawn & np.isfinite(y) & (y != 0) & (known | (np.abs(x) <= 1))
        self.below.add(np.where(y[signed] > 0, POSITIVE - 1, POSITIVE), rollout[signed])
        self._rivals(rows.take(first & np.isfinite(x)), x[first & np.isfinite(x)], k3[first & np.isfinite(x)])
        weight = c["correction_weight"]
        if self.correction is not None:
            base = importance_weight(exponent(ratio(c, self.correction.on), L, self.correction.weight))
            base = base if self.correction.level == "sequence" else np.ones_like(L)
            good = np.isfinite(weight) & np.isfinite(base)
            self._tally(self.kept, octave, good, np.ones_like(L), weight, base)
        lag, D = (
            rows["policy_version"] - rows["updates_since_rollout"] - rows["behaviour_version"],
            c["staleness_log_ratio"],
        )
        known = first & np.isfinite(lag)
        self.contradicting += int(np.sum(known & (lag == 0) & np.isfinite(D) & (np.abs(D) > 1e-9)))
        S = rows.S[np.isfinite(rows.S)]
        after = rows.S[(rows["updates_since_rollout"] >= 1) & np.isfinite(rows.S)]
        self.moved += (len(S), np.sum(S != 0), len(after), np.sum(after != 0))
        stale = known & (lag > 0) & np.isfinite(D)
        self.still += (stale.sum(), np.sum(D[stale] == 0))
        for number in np.unique(lag[known]):
            here = known & (lag == number)
            sums = self.lags.setdefault(int(number), np.zeros(5))
            sums[0] += here.sum()
            for k, values in ((1, D[here]), (3, behaviour[here])):
                sums[k : k + 2] += (np.isfinite(values).sum(), np.nansum(values * values))
        if self.stale_since is None and np.any(lag[known] > 0):
            self.stale_since = int(rollout[known & (lag > 0)].min())

    def _rivals(self, rows: Rows, x: Floats, k3: Floats) -> None:
        """Add what each of ``RIVALS`` does to responses with the log-ratio ``x`` (N,).

        A drift is that of all rows given: the median of k3 / L or, where k3 is unknown, of -x / L.
        """
        if not len(x):
            return
        L, octave, everything = rows.L, np.log2(rows.L).astype(np.int64), np.ones(len(x), bool)
        rate = max(float(np.median(np.where(np.isfinite(k3), k3, -x) / L)), 0.0)
        for sums, rule in zip(self.rivals, RIVALS.values(), strict=True):
            done = rule.apply(x, L, np.ones_like(x), np.zeros_like(x) + rule.centre(TokenMeans(rate, 2 * rate)))
            cut = np.asarray(done.side != 0, np.float64)
            self._tally(sums, octave, everything, np.ones_like(x), cut, np.asarray(done.clipped_weight, np.float64))

    @staticmethod
    def _tally(sums: Floats, octave: np.ndarray, which: np.ndarray, *values: Floats) -> None:
        octave = np.minimum(octave, OCTAVES - 1)
        for k, x in enumerate(values):
            sums[:, k] += np.bincount(octave[which], x[which], OCTAVES)

    def answers(self) -> list[Answer]:
        """Return the answers about the mismatch, about the run's correction of it, and about staleness."""
        return [self._mismatch(), self._correction(), self._staleness()]

    def _mismatch(self) -> Answer:
        """Say what differs between sampler and trainer, since when, how it grows with the length, and what to set.

        A cause is named only if its own test says so: the import's tests of tokens, the carriers of the sum of squares,
        the laws E[x + k3] = 0 and E[e^x] = 1 (docs/theory.md, T13), the side of 0 on which x lies, and the trend over
        rollouts. If none does, x looks like noise, which is at most information.
        """
        name, of_E = "mismatch", self.engine.n >= MIN_ROWS
        line = self.engine if of_E else self.both
        cause = BY_TOKENS.get(self.tokens.cause) if self.tokens is not None and self.tokens.sampler else None
        if line.n < MIN_ROWS and cause is None:
            return not_checked(name, "the log holds neither engine_log_ratio nor behaviour_log_ratio")
        x = "E" if of_E else "D + E"
        title = f"{x} of sampler and trainer" + ("" if of_E else " (versions unknown: lag may be in it)")
        mean, low, high = self.weight.interval()
        evidence = [Evidence(f"mean of e^{x if of_E else '(D + E)'} (law: 1)", 1 + mean, 1 + low, 1 + high)]
        evidence += line.evidence(x)
        carriers, share = line.carriers()
        since: int | None = line.since()
        if self.tokens is not None and cause is not None:
            what, fix = f"{cause[0]}{_where(self.tokens)}", cause[1]
        elif carriers:
            places = ", ".join(f"rollout {r} response {i} ({v:+.3g} nats)" for r, i, v in carriers[:3])
            number = f"{len(carriers)} of {line.n:.0f} responses carry {share:.0%} of it"
            what, fix = (
                f"{number}: {places}{_where(self.tokens)}",
                "look at their tokens and mask them; the others are sound",
            )
            since = min(r for r, _, _ in carriers)
        elif broken := self._broken(line):
            since = broken[1] if since is None else min(broken[1], since)
            what = f"{broken[0]} (mean of the weight {1 + mean:.3g}, law 1)"
            fix = (
                "let the sampler return processed log-probabilities of the tokens that it drew (temperature and top-p "
                "included), sum both over the same tokens, and compare weights and versions"
            )
        elif line.systematic():
            what = f"it is small, and not noise alone: {line.cause(SAMPLER)}"
            fix = "compare weights' versions, temperature and truncated sampling of sampler and trainer"
        elif self.same and line.rms > FLOAT32:
            what = "sampler and trainer are one program at one precision, and E is not 0: its mean is that of noise"
            fix = "compare temperature, weights' version and precision of sampler and trainer"
        elif (rise := line.rise()) > RISE and line.last > LARGE / 4:
            what = f"it rises over the run, {rise:.1f} times: the sampler leaves the trainer as weights move"
            fix = "look at what the sampler gets of each update: all weights, the adapter, the scales, a cache"
        else:
            what, fix, since = "noise: its mean is -E[k3], as of two laws of which one drew", "", None
        (rivals, of_rivals), worst = self._compared()
        evidence += of_rivals
        size = f"{title}: spread {line.each_root:.2g} nats a root token (sd {line.deviation:.2g} nats)"
        growth = line.growth()
        size += ", which grows as L^{:.2f} [{:.2f}, {:.2f}]".format(*growth) if math.isfinite(growth[0]) else ""
        if since is None and not (line.rms > LARGE or worst > CUT) and what.startswith("noise"):
            text = "sampler and trainer agree up to rounding"
            if line.rms > FLOAT32:
                text = "sampler and trainer differ as programs of another precision do. " + rivals
            return clear(name, text, *evidence)
        noise = what.startswith("noise")
        if noise:
            fix = "nothing is wrong with the tokens; no product of token ratios stays near 1 over long responses"
        advice = f"; where a correction is wanted, take a sqrt mask of range {max(2 * line.each_root, 1e-3):.2g}"
        return found(
            name,
            Severity.INFO if noise else Severity.WARNING,
            f"{size}: {what}. {rivals}",
            fix + (advice if noise or carriers else ""),
            *evidence,
            since=since,
        )

    def _broken(self, line: Line) -> tuple[str, int] | None:
        """Return the cause that a broken law of the sampler shows, and the rollout in which it was certain; or None."""
        from scipy.stats import binom

        tests = [self.weight.above] if self.weight.mean > WEIGHT_MARGIN else []
        if self.k3 > 0 and abs(self.token.mean) > WEIGHT_MARGIN:
            tests.append(self.token.above if self.token.mean > 0 else self.token.below)
        certain = [rollout for rollout in tests if rollout is not None]
        if line.systematic() and line.rms > LARGE / 2:
            certain.append(line.since() or 0)
        one_sided = self.below.above is not None and abs(line.x / line.n) > WEIGHT_MARGIN
        certain += [self.below.above] if one_sided and self.below.above is not None else []
        if not certain or line.rms <= FLOAT32:
            return None
        # A law is broken at the level of all laws; which of its causes it is may then be tested at 1 in 100.
        positive = round((POSITIVE - self.below.mean) * self.below.count)
        one_sided = self.below.count > 0 and line.x < 0 and not line.per_response
        if one_sided and binom.cdf(positive, self.below.count, POSITIVE) < 0.01:
            text = "it is hardly ever above 0 and grows with the length: tokens were drawn by top-p or top-k, or masked"
            return text, min(certain)
        return line.cause(SAMPLER), min(certain)

    def _compared(self) -> tuple[tuple[str, list[Evidence]], float]:
        """Say what each of ``RIVALS`` and the run's correction do to the shortest and to the longest responses.

        Return the text with its evidence, and the share of the longest responses that the product mask cuts.
        """
        n = self.rivals[0, :, 0]
        bins = np.flatnonzero((n > 0) & (n >= min(MIN_ROWS, n.sum() / 4)))
        if not len(bins):
            return ("", []), 0.0
        ends = sorted({int(bins[0]), int(bins[-1])})
        texts, evidence = [], []
        for label, sums in zip(RIVALS, self.rivals, strict=True):
            values = [float(x) for x in sums[ends, 2 if "weight" in label else 1] / sums[ends, 0]]
            does = "leaves" if "weight" in label else "cuts"
            texts.append(f"{label} {does} {' and '.join(f'{100 * value:.3g}' for value in values)} %")
            evidence += [
                Evidence(f"{label} {does}, L from {2**k}", value, unit="share")
                for k, value in zip(ends, values, strict=True)
            ]
        for at, value in self._left().items():
            evidence.append(Evidence(f"weight that the run's correction leaves, L from {at}", value, unit="share"))
        of = " and of ".join(f"{2**k} to {2 ** (k + 1) - 1}" for k in ends)
        left = self.rivals[0, :, 2].sum() / n.sum()
        text = f"Of responses of {of} tokens {', '.join(texts)}; of all, the product weight leaves {left:.1%}"
        return (text, evidence), float(self.rivals[1, ends[-1], 1] / n[ends[-1]])

    def _left(self) -> dict[int, float]:
        """Return the share of the responses' weight that the correction leaves, for each octave of lengths (2^k to
        2^(k+1) - 1 tokens), by the octave's least length. Octaves with too few rows are left out.
        """
        n, left, base = self.kept.T
        return {2**k: float(left[k] / base[k]) for k in np.flatnonzero((n >= MIN_ROWS) & (base > 0)).tolist()}

    def _correction(self) -> Answer:
        name = "correction"
        if self.correction is None:
            return not_checked(name, "the log's header names no correction")
        shares = self._left()
        if not shares:
            return not_checked(name, "no octave of lengths has enough rows with a correction_weight")
        evidence = [Evidence(f"weight left, L from {at}", share, unit="share") for at, share in shares.items()]
        worst = min(shares, key=lambda at: shares[at])
        if shares[worst] >= THIRD:
            return clear(name, "the correction leaves every length more than a third of its weight", *evidence)
        return found(
            name,
            Severity.WARNING,
            f"correction {self.correction.label} leaves responses of {worst} to {2 * worst - 1} tokens "
            f"{shares[worst]:.0%} of their weight",
            "a product mask cuts long responses and a geometric one short ones (docs/theory.md, T2, T10): take a sqrt "
            "band (engine-sqrt) or a wider range; or mend the mismatch",
            *evidence,
        )

    def _staleness(self) -> Answer:
        name = "staleness"
        if not self.lags:
            return not_checked(name, "the log holds no behaviour_version")
        total = sum(s[0] for s in self.lags.values())
        stale = {lag: s for lag, s in self.lags.items() if lag > 0}
        number = sum(s[0] for s in stale.values())
        share = Evidence("responses that older weights sampled", number / total, unit="share")
        evidence = [share]
        for lag, s in sorted(stale.items())[:6]:
            for what, n, square in (("D", s[1], s[2]), ("D + E", s[3], s[4])):
                if n and (what == "D" or not s[1]):
                    name_of = f"rms of {what} at a lag of {lag} updates"
                    evidence.append(Evidence(name_of, math.sqrt(square / n), unit="nats"))
        none = self.still[0] > 0 and self.still[1] == self.still[0]  # all of the known D are 0
        if number and not none and self.moved[0] and not self.moved[1]:
            return found(
                name,
                Severity.INFO,
                f"S is 0 in every row, yet {share.value:.0%} of the responses were sampled by older versions: old "
                "log-probs were recomputed, so the ratio's denominator never sampled, and no clip on S sees the lag",
                "judge and bound D + E (a correction on the behaviour ratio), or keep the sampler's version of old "
                "log-probs",
                *evidence,
                since=self.stale_since,
            )
        version = "write behaviour_version when the response is sampled"
        if any(lag < 0 for lag in self.lags):
            summary = "responses were sampled by weights that did not exist yet, by their versions"
            return found(name, Severity.WARNING, summary, version, *evidence)
        if self.contradicting:
            summary = f"D is not 0 in {self.contradicting} responses that, by version, the present weights sampled"
            return found(name, Severity.WARNING, summary, version, *evidence)
        unmoved = self.still[0] >= MIN_ROWS and self.still[1] == self.still[0]
        if unmoved and 2 * self.moved[3] > self.moved[2] and not self.imported:
            summary = "D is 0 in every response that, by version, older weights sampled, though updates move S"
            return found(name, Severity.WARNING, summary, version, *evidence, since=self.stale_since)
        measured = sum(s[1] for s in stale.values())
        if measured < number / 2:
            both = sum(s[3] for s in stale.values())
            size = math.sqrt(sum(s[4] for s in stale.values()) / both) if both else math.nan
            summary = f"{share.value:.0%} of the responses were sampled by older weights, and their D is not known"
            summary += f": the rms of their D + E is {size:.2g} nats" if both else ""
            fix = "log old log-probabilities of the version that sampled; until then judge D + E as one ratio"
            return found(name, Severity.INFO, summary, fix, *evidence, since=self.stale_since)
        rms = math.sqrt(sum(s[2] for s in stale.values()) / max(measured, 1))
        if rms > STALE and self.correction is None:
            return found(
                name,
                Severity.WARNING,
                f"{share.value:.0%} of the responses were sampled by older weights, and nothing corrects their ratio "
                f"(rms of D {rms:.2g} nats)",
                "set a correction on the behaviour ratio, or sample with newer weights",
                *evidence,
                since=self.stale_since,
            )
        text = "no response is stale" if not stale else "stale responses hardly differ, or are corrected"
        return clear(name, text, *evidence)


def _where(tokens: TokenDigest | None) -> str:
    """Say what the import noticed in how many tokens, and where most of all; "" if nothing."""
    texts = []
    for what in ("placeholder", "zeros", "confident", "overflow") if tokens is not None and tokens.sampler else ():
        noticed: Noticed = getattr(tokens, what)
        if noticed.count:
            place = " ".join(f"{key} {value}" for key, value in noticed.row.items())
            number = f"{noticed.count} tokens of {noticed.responses} responses"
            texts.append(f"{what}: {number}, largest {noticed.largest:+.3g} at {place}")
    return f" ({'; '.join(texts)})" if texts else ""
