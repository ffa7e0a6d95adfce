"""Check the log-ratios other than S: the mismatch of sampler and trainer (E, or D + E where versions are unknown), the
staleness D, and how much weight a correction of them leaves to responses of each length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.first_epoch import EACH, GAINED, LOST, WEIGHT_MARGIN
from analysis.doctor.line import FLOAT32, Line
from analysis.doctor.patient import MIN_ROWS, Floats, Mask, Rows
from analysis.importing.watch import CAUSES, Noticed, TokenDigest
from analysis.rules.recompute import ratio
from analysis.stats.anytime import AnytimeMean
from fspo.rules import CORRECTIONS, Rule, TokenMeans, exponent, importance_weight

LARGE = 0.1
"""Root mean square of the mismatch / sqrt(L), in nats, above which it is told whatever its cause. A bfloat16 sampler
with a float32 trainer gives about .04.
"""
MASKED = 0.05
"""A mismatch that looks like noise is told, for information, if the product mask masks more than this share of the
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
SAMPLER = "the sampler's log-probs"
RIVALS = {
    "a product weight capped at 2": Rule("fixed", 0.5, 1.0, outside="cap", on="behaviour"),
    "the product mask (mis)": CORRECTIONS["mis"],
    "the geometric mask (geo-mask)": CORRECTIONS["geo-mask"],
    "the sqrt mask (engine-sqrt)": CORRECTIONS["engine-sqrt"],
}
"""Corrections on responses that are compared on every mismatch: what each masks, and what it leaves, by length."""
Shares = dict[int, float]
"""Share of a weight by the least length of an octave of lengths, tokens."""


@dataclass(frozen=True)
class Mismatch:
    """The mismatch x of sampler and trainer in the first row of each response: E or, where E is unknown, D + E.

    Attributes
    ----------
    line : Line
        The size of E or, where fewer than ``MIN_ROWS`` rows have an E, of D + E.
    of_E : bool
        Whether ``line`` is of E.
    x, k3, L : float array (N,)
        x, the sum of e^s - 1 - s over its token log-ratios s (NaN where unknown), and the length.
    weight, token, below : AnytimeMean
        Tests whether E[e^x] > 1, whether E[x + k3] differs from 0, and whether x + k3 is above 0 in less than the share
        ``POSITIVE`` of the responses; of responses that would have been logged whatever their reward.
    """

    line: Line
    of_E: bool
    x: Floats
    k3: Floats
    L: Floats
    weight: AnytimeMean
    token: AnytimeMean
    below: AnytimeMean

    @staticmethod
    def of(rows: Rows, fair: Mask) -> Mismatch:
        """Measure the mismatch in all rows (N,) of a run; ``fair`` (N,) marks those logged whatever their reward."""
        first = rows.first & (rows["length"] >= 1)
        both, rows = ratio(rows.columns, "behaviour")[first], rows.take(first)
        E, L, rollout, response = rows["engine_log_ratio"], rows.L, rows["rollout"], rows["response_id"]
        E_k3, both_k3 = rows["engine_k3_sum"], rows["behaviour_k3_sum"]
        of_E = bool(np.isfinite(E).sum() >= MIN_ROWS)
        line = Line(E if of_E else both, L, rollout, E_k3 if of_E else both_k3, response)
        x, k3 = np.where(np.isfinite(E), E, both), np.where(np.isfinite(E), E_k3, both_k3)
        drawn, known = fair[first], np.isfinite(k3)
        weight = AnytimeMean.of((importance_weight(x) - 1)[drawn], rollout[drawn], EACH)
        token = AnytimeMean.of((k3 + x)[drawn], rollout[drawn], EACH, LOST, GAINED)
        # In a row without k3 the sign of x counts instead, if |x| is at most 1 nat.
        y = np.where(known, k3 + x, x)
        signed = drawn & np.isfinite(y) & (y != 0) & (known | (np.abs(x) <= 1))
        below = AnytimeMean.of(np.where(y[signed] > 0, POSITIVE - 1, POSITIVE), rollout[signed], EACH)
        good = np.isfinite(x)
        return Mismatch(line, of_E, x[good], k3[good], L[good], weight, token, below)

    def answer(self, *, same: bool = False, tokens: TokenDigest | None = None, left: Shares | None = None) -> Answer:
        """Say what differs between sampler and trainer, since when, how it grows with the length, and what to set.

        A cause is named only if its own test says so: the import's tests of tokens, the carriers of the sum of squares,
        the equalities E[x + k3] = 0 and E[e^x] = 1 (docs/theory.md, T13), the side of 0 on which x lies, and its rise
        over rollouts. If none does, x looks like noise, which is at most information.

        Parameters
        ----------
        same : bool
            Whether the configuration says that sampler and trainer are one program at one precision, so that E is 0.
        tokens : TokenDigest, optional
            What the import noticed about the table's tokens.
        left : dict of int to float, optional
            Share of the weight that the run's correction leaves, by the least length of an octave.
        """
        name, line = "mismatch", self.line
        cause = CAUSES.get(tokens.cause) if tokens is not None and tokens.sampler else None
        if line.n < MIN_ROWS and cause is None:
            return not_checked(name, "the log holds neither engine_log_ratio nor behaviour_log_ratio")
        x = "E" if self.of_E else "D + E"
        title = f"{x} of sampler and trainer" + ("" if self.of_E else " (versions unknown: lag may be in it)")
        mean, low, high = self.weight.interval()
        evidence = [Evidence(f"mean of e^{x if self.of_E else '(D + E)'} (expected: 1)", 1 + mean, 1 + low, 1 + high)]
        evidence += line.evidence(x)
        carriers, share = line.carriers()
        since: int | None = line.since()
        if tokens is not None and cause is not None:
            what, fix = f"{cause[0]}{_where(tokens)}", cause[1]
        elif carriers:
            places = ", ".join(f"rollout {r} response {i} ({v:+.3g} nats)" for r, i, v in carriers[:3])
            number = f"{len(carriers)} of {line.n:.0f} responses carry {share:.0%} of it"
            what, fix = (
                f"{number}: {places}{_where(tokens)}",
                "look at their tokens and mask them; the others are sound",
            )
            since = min(r for r, _, _ in carriers)
        elif broken := self._broken():
            since = broken[1] if since is None else min(broken[1], since)
            what = f"{broken[0]} (mean of the weight {1 + mean:.3g}, expected 1)"
            fix = (
                "let the sampler return processed log-probabilities of the tokens that it drew (temperature and top-p "
                "included), sum both over the same tokens, and compare weights and versions"
            )
        elif line.systematic():
            what = f"it is small, and not noise alone: {line.cause(SAMPLER)}"
            fix = "compare weights' versions, temperature and truncated sampling of sampler and trainer"
        elif same and line.rms > FLOAT32:
            what = "sampler and trainer are one program at one precision, and E is not 0: its mean is that of noise"
            fix = "compare temperature, weights' version and precision of sampler and trainer"
        elif (rise := line.rise()) > RISE and line.last > LARGE / 4:
            what = f"it rises over the run, {rise:.1f} times: the sampler leaves the trainer as weights move"
            fix = "look at what the sampler gets of each update: all weights, the adapter, the scales, a cache"
        else:
            what, fix, since = "noise: its mean is -E[k3], as of two distributions of which one drew", "", None
        (rivals, of_rivals), worst = self._compared(left or {})
        evidence += of_rivals
        size = f"{title}: spread {line.each_root:.2g} nats a root token (sd {line.deviation:.2g} nats)"
        growth = line.growth()
        size += ", which grows as L^{:.2f} [{:.2f}, {:.2f}]".format(*growth) if math.isfinite(growth[0]) else ""
        if since is None and not (line.rms > LARGE or worst > MASKED) and what.startswith("noise"):
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

    def _broken(self) -> tuple[str, int] | None:
        """Return the cause that a broken equality of the sampler shows, and the rollout in which it was certain."""
        from scipy.stats import binom

        line = self.line
        tests = [self.weight.above] if self.weight.mean > WEIGHT_MARGIN else []
        if np.nansum(self.k3) > 0 and abs(self.token.mean) > WEIGHT_MARGIN:
            tests.append(self.token.above if self.token.mean > 0 else self.token.below)
        certain = [rollout for rollout in tests if rollout is not None]
        if line.systematic() and line.rms > LARGE / 2:
            certain.append(line.since() or 0)
        one_sided = self.below.above is not None and abs(line.x.mean()) > WEIGHT_MARGIN
        certain += [self.below.above] if one_sided and self.below.above is not None else []
        if not certain or line.rms <= FLOAT32:
            return None
        # An equality is broken at the level of all tests; which of its causes it is may then be tested at 1 in 100.
        positive = round((POSITIVE - self.below.mean) * self.below.count)
        one_sided = self.below.count > 0 and line.x.sum() < 0 and not line.per_response
        if one_sided and binom.cdf(positive, self.below.count, POSITIVE) < 0.01:
            text = "it is hardly ever above 0 and grows with the length: tokens were drawn by top-p or top-k, or masked"
            return text, min(certain)
        return line.cause(SAMPLER), min(certain)

    def _compared(self, left: Shares) -> tuple[tuple[str, list[Evidence]], float]:
        """Say what each of ``RIVALS`` and the run's correction do to the shortest and to the longest responses.

        A drift is that of all responses: the median of k3 / L or, where k3 is unknown, of -x / L. Return the text with
        its evidence, and the share of the longest responses that the product mask masks.
        """
        octave = np.log2(self.L).astype(np.int64)
        n = np.bincount(octave)
        bins = np.flatnonzero((n > 0) & (n >= min(MIN_ROWS, n.sum() / 4)))
        if not len(bins):
            return ("", []), 0.0
        ends = sorted({int(bins[0]), int(bins[-1])})
        rate = max(float(np.median(np.where(np.isfinite(self.k3), self.k3, -self.x) / self.L)), 0.0)
        A, texts, evidence, means = np.ones_like(self.x), [], [], []
        for label, rule in RIVALS.items():
            done = rule.apply(self.x, self.L, A, 0 * A + rule.centre(TokenMeans(rate, 2 * rate)))
            of_weight = "weight" in label
            means.append(np.asarray(done.clipped_weight if of_weight else done.side != 0, np.float64))
            values = [float(means[-1][octave == k].mean()) for k in ends]
            does = "leaves" if of_weight else "masks"
            texts.append(f"{label} {does} {' and '.join(f'{100 * value:.3g}' for value in values)} %")
            evidence += [
                Evidence(f"{label} {does}, L from {2**k}", value, unit="share")
                for k, value in zip(ends, values, strict=True)
            ]
        for at, value in left.items():
            evidence.append(Evidence(f"weight that the run's correction leaves, L from {at}", value, unit="share"))
        of = " and of ".join(f"{2**k} to {2 ** (k + 1) - 1}" for k in ends)
        text = (
            f"Of responses of {of} tokens {', '.join(texts)}; of all, the product weight leaves {means[0].mean():.1%}"
        )
        return (text, evidence), float(means[1][octave == ends[-1]].mean())


def weight_left(rows: Rows, rule: Rule | None) -> Shares:
    """Return the share of the responses' weight that the correction ``rule`` leaves, for each octave of lengths (2^k to
    2^(k+1) - 1 tokens), by the octave's least length. Octaves with fewer than ``MIN_ROWS`` rows are left out.
    """
    if rule is None:
        return {}
    left, L = rows["correction_weight"], rows.L
    base = importance_weight(exponent(ratio(rows.columns, rule.on), L, rule.weight))
    base = base if rule.level == "sequence" else np.ones_like(L)
    good = np.isfinite(left) & np.isfinite(base)
    octave = np.log2(L[good]).astype(np.int64)
    n, after, before = (np.bincount(octave, x) for x in (np.ones(len(octave)), left[good], base[good]))
    return {2**k: float(after[k] / before[k]) for k in np.flatnonzero((n >= MIN_ROWS) & (before > 0)).tolist()}


def correction(shares: Shares, rule: Rule | None) -> Answer:
    """Check whether the correction leaves some octave of lengths less than a third of their weight (`weight_left`)."""
    name = "correction"
    if rule is None:
        return not_checked(name, "the log's header names no correction")
    if not shares:
        return not_checked(name, "no octave of lengths has enough rows with a correction_weight")
    evidence = [Evidence(f"weight left, L from {at}", share, unit="share") for at, share in shares.items()]
    worst = min(shares, key=lambda at: shares[at])
    if shares[worst] >= THIRD:
        return clear(name, "the correction leaves every length more than a third of its weight", *evidence)
    return found(
        name,
        Severity.WARNING,
        f"correction {rule.label} leaves responses of {worst} to {2 * worst - 1} tokens "
        f"{shares[worst]:.0%} of their weight",
        "a product mask masks long responses and a geometric one short ones (docs/theory.md, T2, T10): take a sqrt "
        "band (engine-sqrt) or a wider range; or mend the mismatch",
        *evidence,
    )


def staleness(rows: Rows, corrected: bool, *, imported: bool = False) -> Answer:
    """Check the policy lag: how many updates lie between the weights that sampled and the old weights, by the versions
    that are logged, and the log-ratio D between them.

    Parameters
    ----------
    rows : Rows
        All rows (N,) of a run.
    corrected : bool
        Whether the run trained with a correction.
    imported : bool
        Whether the log was made from another trainer's table, in which the weights' version may not count updates.
    """
    name, S = "staleness", rows.S
    lag = rows["policy_version"] - rows["updates_since_rollout"] - rows["behaviour_version"]
    known = rows.first & (rows["length"] >= 1) & np.isfinite(lag)
    if not known.any():
        return not_checked(name, "the log holds no behaviour_version")
    lag, D, both, rollout = (
        x[known] for x in (lag, rows["staleness_log_ratio"], ratio(rows.columns, "behaviour"), rows["rollout"])
    )
    old = lag > 0
    share = Evidence("responses that older weights sampled", float(old.mean()), unit="share")
    since = int(rollout[old].min()) if old.any() else None
    evidence = [share]
    for number in np.unique(lag[old])[:6]:
        here = lag == number
        what, x = ("D", D[here]) if np.isfinite(D[here]).any() else ("D + E", both[here])
        if np.isfinite(x).any():
            evidence.append(Evidence(f"rms of {what} at a lag of {number:.0f} updates", _rms(x), unit="nats"))
    of_old = D[old & np.isfinite(D)]
    unmoved = len(of_old) > 0 and not of_old.any()
    S = S[np.isfinite(S)]
    if old.any() and not unmoved and len(S) and not S.any():
        return found(
            name,
            Severity.INFO,
            f"S is 0 in every row, yet {share.value:.0%} of the responses were sampled by older versions: old "
            "log-probs were recomputed, so the ratio's denominator never sampled, and no clip on S sees the lag",
            "judge and bound D + E (a correction on the rollout-policy ratio), or keep the sampler's version of old "
            "log-probs",
            *evidence,
            since=since,
        )
    version = "write behaviour_version when the response is sampled"
    if np.any(lag < 0):
        summary = "responses were sampled by weights that did not exist yet, by their versions"
        return found(name, Severity.WARNING, summary, version, *evidence)
    if contradicting := int(np.sum((lag == 0) & np.isfinite(D) & (np.abs(D) > 1e-9))):
        summary = f"D is not 0 in {contradicting} responses that, by version, the present weights sampled"
        return found(name, Severity.WARNING, summary, version, *evidence)
    after = rows.S[(rows["updates_since_rollout"] >= 1) & np.isfinite(rows.S)]
    if unmoved and len(of_old) >= MIN_ROWS and len(after) and np.mean(after != 0) > 0.5 and not imported:
        summary = "D is 0 in every response that, by version, older weights sampled, though updates move S"
        return found(name, Severity.WARNING, summary, version, *evidence, since=since)
    if len(of_old) < old.sum() / 2:
        summary = f"{share.value:.0%} of the responses were sampled by older weights, and their D is not known"
        if np.isfinite(both[old]).any():
            summary += f": the rms of their D + E is {_rms(both[old]):.2g} nats"
        fix = "log old log-probabilities of the version that sampled; until then judge D + E as one ratio"
        return found(name, Severity.INFO, summary, fix, *evidence, since=since)
    if len(of_old) and _rms(of_old) > STALE and not corrected:
        return found(
            name,
            Severity.WARNING,
            f"{share.value:.0%} of the responses were sampled by older weights, and nothing corrects their ratio "
            f"(rms of D {_rms(of_old):.2g} nats)",
            "set a correction on the rollout-policy ratio, or sample with newer weights",
            *evidence,
            since=since,
        )
    text = "stale responses hardly differ, or are corrected" if old.any() else "no response is stale"
    return clear(name, text, *evidence)


def _rms(x: Floats) -> float:
    return float(np.sqrt(np.nanmean(x * x)))


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
