"""Check the log-ratios other than S: the mismatch of sampler and trainer (E, or D + E where versions are unknown) with
what corrections do to it by length, and the part D of the policy lag."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.doctor.first_epoch import EACH, GAINED, LOST, WEIGHT_MARGIN
from analysis.doctor.issues import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.line import FLOAT32, LOOK, SENT, SERIES, SOUND, Line, bend, grows_with, rises, separated
from analysis.doctor.patient import MIN_ROWS, Floats, Mask, Rows
from analysis.importing.watch import CAUSES, TokenDigest
from analysis.rules.recompute import ratio
from analysis.stats.anytime import AnytimeMean
from fspo.rules import CORRECTIONS, Rule, TokenMeans, importance_weight

LARGE = 0.1
"""Root mean square of the mismatch / sqrt(L), in nats, above which it is reported whatever its cause. A bfloat16
sampler with a float32 trainer gives about .04."""
MASKED = 0.05  # noise is reported, as information, if the product mask masks more than this of the longest responses
MOST = 2 / 3  # a correction in use is reported if it takes more than this of the shortest or longest responses
POSITIVE = 0.05
"""In a sound run x + k3 has mean 0, and is taken to be above 0 in at least this share of the responses (x, k3: see
`Mismatch`). Truncated sampling (top-p, top-k) makes x + k3 negative in all responses."""
STALE = 0.2  # rms of D where older weights sampled, nats, above which a run without a correction is reported
RISE = 2.0  # the mismatch rises only if it is this many times as large in the last quarter of rollouts as in the first
SAMPLER = "the sampler's log-probs"
CAPPED = "the mean of a product weight capped at 2 is"
PRODUCT = "the product mask (mis) masks"
RIVALS = {  # corrections on responses that are compared on every mismatch: what each masks or leaves, by length
    CAPPED: Rule("fixed", 0.5, 1.0, outside="cap", on="behaviour"),
    PRODUCT: CORRECTIONS["mis"],
    "the geometric mask (geo-mask) masks": CORRECTIONS["geo-mask"],
    "the sqrt mask (engine-sqrt) masks": CORRECTIONS["engine-sqrt"],
}
USED = "the correction in use removes"
OF_LAG = "sample with newer weights, or bound D + E; nothing is wrong with the tokens"
NO_TOKENS = TokenDigest()
LEFT_OUT = ("placeholder", "mask")  # causes whose tokens the import leaves out, so the others tell what else is wrong


class Cause(NamedTuple):
    """What a mismatch shows, its fix, the rollout where it begins; ``small`` describes it if no defect, else ""."""

    what: str
    fix: str
    since: int | None = None
    small: str = ""


@dataclass(frozen=True)
class Mismatch:
    """The mismatch x of sampler and trainer in the first row of each response: E or, where fewer than ``MIN_ROWS`` rows
    have an E, D + E. Arrays (n,) are of the line's rows, NaN where unknown; the tests are made on responses that would
    have been logged whatever their reward."""

    line: Line  # the size of x, and the line fitted to x + k3
    of_E: bool  # whether x is E
    k3: Floats  # sum of e^s - 1 - s over the token log-ratios s of x, nats
    lag: Floats  # policy lag (`Rows.lag`), updates
    removed: Floats  # 1 where the logged weight of a correction is 0, else 0
    weight: AnytimeMean  # tests whether E[e^x] > 1
    token: AnytimeMean  # tests whether E[x + k3] differs from 0
    below: AnytimeMean  # tests whether x + k3 is above 0 in less than the share ``POSITIVE`` of the responses
    others: Mismatch | None = None  # of the other responses, if few carry most of the sum of x^2 / L

    @staticmethod
    def of(rows: Rows, fair: Mask, of_E: bool | None = None) -> Mismatch:
        """Measure the mismatch in all rows (N,) of a run, and test it in those that ``fair`` (N,) marks (`by_rewards`).
        ``of_E`` says whether x is E or D + E; None: as enough rows have an E or not."""
        both, first = ratio(rows.columns, "behaviour"), rows.first & (rows["length"] >= 1)
        E = rows["engine_log_ratio"]
        of_E = bool(np.isfinite(E[first]).sum() >= MIN_ROWS) if of_E is None else of_E
        known = first & np.isfinite(E if of_E else both)
        x, lag, drawn, rows = (E if of_E else both)[known], rows.lag[known], fair[known], rows.take(known)
        rollout, k3 = rows["rollout"], rows["engine_k3_sum" if of_E else "behaviour_k3_sum"]
        line = Line(rows, x, k3)
        weight = AnytimeMean.of((importance_weight(x) - 1)[drawn], rollout[drawn], EACH)
        token = AnytimeMean.of((k3 + x)[drawn], rollout[drawn], EACH, LOST, GAINED)
        y = x + line.k3
        signed = drawn & (y != 0)
        below = AnytimeMean.of(np.where(y[signed] > 0, POSITIVE - 1, POSITIVE), rollout[signed], EACH)
        logged = rows["correction_weight"]
        removed = np.where(np.isfinite(logged), logged == 0, np.nan)
        rest = np.delete(np.arange(len(x)), line.carriers)
        others = None if len(rest) == len(x) else Mismatch.of(rows.take(rest).copy(), drawn[rest], of_E)
        return Mismatch(line, of_E, k3, lag, removed, weight, token, below, others)

    def answer(self, correction: Rule | None = None, *, same: bool = False, tokens: TokenDigest = NO_TOKENS) -> Answer:
        """Say what differs between sampler and trainer, since when, how it grows with the length, and what to set.

        A cause is named only if its own test says so: tests of tokens; a few responses that make up most of the sum of
        x^2 / L; whether x + k3 has mean 0 and e^x mean 1 (T13); the sign of x; the policy lag; a rise over rollouts.
        Else x is reported as noise, at most as information.

        ``correction`` is the correction in use, ``same`` whether the configuration says that sampler and trainer are
        one program at one precision, so that E should be 0, ``tokens`` what the import noticed about the tokens."""
        line, tokens = self.line, tokens if tokens.sampler else NO_TOKENS
        named, places, left_out = tokens.cause, tokens.places(), tokens.cause in LEFT_OUT
        if line.n < MIN_ROWS and not named:
            return not_checked("the log holds neither engine_log_ratio nor behaviour_log_ratio")
        what, fix, since, small = self._shown(same)
        if named:
            cause, cure = CAUSES[named]
            rest = f"; without these tokens: {what}" if left_out and what else ""
            what, fix = cause + places + rest, f"{cure}; {fix}" if rest and not small else cure
            since, small = tokens.since if left_out else line.since(), ""
        elif self.others:
            what += places
        groups, done = (self.others or self).rivals(correction) if line.n else ([], {})
        taken = max(done.get(USED, [0.0])[:2])
        if takes_most := taken > MOST:
            what += f"; the correction in use removes {taken:.0%} of some lengths"
            fix = f"{fix}; take a sqrt band (engine-sqrt) or a wider range (docs/theory.md, T2, T10)"
        rivals = ""
        if done and (small or self.others or takes_most):
            forms = {name: "{:.2f}" if name == CAPPED else "{:.1%}" for name in done}
            told = (f"{name} {', '.join(map(forms[name].format, shares))}" for name, shares in done.items())
            rivals = f". {'Of the others, by' if self.others else 'By'} length ({'; '.join(groups)}): {'; '.join(told)}"
        x, growth, (deviation, each_root) = "E" if self.of_E else "D + E", line.growth(), line.spread()
        grows, (mean, low, high) = math.isfinite(growth[0]), (1 + v for v in (self.others or self).weight.interval())
        evidence = [
            Evidence(f"mean of e^{x if self.of_E else '(D + E)'} (expected: 1)", mean, low, high),
            *[Evidence(f"exponent of L with which the spread of {x} grows", *growth)] * grows,
            *(self.others or self).line.evidence(x),
        ] * (not named or left_out)  # of tokens that are wrong neither a mean weight nor a line tells anything
        minor = small and not takes_most
        if minor and line.rms <= LARGE and done[PRODUCT][-2:][0] <= MASKED:
            agree = "sampler and trainer agree up to rounding"
            return clear(agree if line.rms <= FLOAT32 else small + rivals, *evidence)
        if small or fix == SOUND:
            fix += f"; where a correction is wanted, take a sqrt mask of range {max(2 * each_root, 1e-3):.2g}"
        size = f"{x} of sampler and trainer has a spread of {each_root:.2g} nats a root token (sd {deviation:.2g} nats)"
        size += " but for the responses named next" * (self.others is not None)
        size = size if line.n else f"no response has a log-ratio {x}"
        size += ", which grows as L^{:.2f} [{:.2f}, {:.2f}]".format(*growth) if grows else ""
        if not self.of_E and small and not np.isfinite(self.lag).any():
            size += " (no versions: lag may be in it)"
        severity = Severity.INFO if minor else Severity.WARNING
        return found(f"{size}. {what[:1].upper()}{what[1:]}{rivals}", fix, *evidence, since=since, severity=severity)

    def _shown(self, same: bool) -> Cause:
        """Return what x shows, whatever the import noticed about tokens. If few responses carry most of x (`others` is
        set), name these and say what the others show; else return the cause that all show."""
        if self.others is None:
            return self._cause(same) if self.line.n else Cause("", "")
        rest, line = self.others._shown(same), self.others.line
        sound = line.n >= MIN_ROWS and rest.small and line.rms <= LARGE
        what, fix = ("", SOUND) if sound else (f"; without them: {rest.what}", f"{LOOK}; {rest.fix}")
        return Cause(self.line.carried() + what, fix, int(self.line.rollout[self.line.carriers].min()))

    def _cause(self, same: bool) -> Cause:
        """Return what all responses together show in x."""
        line = self.line
        if broken := self._broken():
            what = f"{broken[0]} (mean of the weight {1 + self.weight.interval()[0]:.3g}, expected 1)"
            fix = "let the sampler return processed log-probabilities of the tokens that it drew (temperature and "
            fix += "top-p included), sum both over the same tokens, and compare weights and versions"
            return Cause(what, fix, min(since for since in (broken[1], line.since()) if since is not None))
        if line.systematic():
            fix = "compare weights' versions, temperature and truncated sampling of sampler and trainer"
            return Cause(f"it is small, and not noise alone: {line.cause(SAMPLER)}", fix, line.since())
        if same and line.rms > FLOAT32:
            what = "sampler and trainer are one program at one precision, and E is not 0: its mean is that of noise"
            return Cause(what, "compare temperature, weights' version and precision of both", line.since())
        if not self.of_E and (of_lag := self._of_lag()):
            return Cause(of_lag, OF_LAG, small=of_lag)
        if rise := self._rise():
            return rise
        what = "noise: its mean is -E[k3], as of two distributions of which one drew"
        fix = "nothing is wrong with the tokens; no product of token ratios stays near 1 over long responses"
        if line.rms > LARGE:
            old, new = np.count_nonzero(self.lag > 0), np.count_nonzero(self.lag == 0)
            fix = "compare temperature, precision and weights' versions of the sampler and of the old log-probs"
            other = "coarser numbers (fp8, int8), other weights or another temperature sampled"
            if old and not self.of_E and min(old, new) < MIN_ROWS:  # too few of one kind to rule the lag out
                other, fix = f"older weights sampled {old} responses, so the policy lag may be all of it", OF_LAG
            what = what.removeprefix("noise: ") + f", but larger than bfloat16 makes it: {other}"
        return Cause(what, fix, small="sampler and trainer differ as programs of another precision do")

    def _rise(self) -> Cause | None:
        """Return since when x is larger, if it rises over the rollouts to ``RISE`` times its size or more, or jumps."""
        number, size, rows = self.line.by_rollout
        quarter = max(len(number) // 4, 1)
        ends = slice(quarter), slice(-quarter, None)
        first, last = (math.sqrt(np.average(size[at] ** 2, weights=rows[at])) for at in ends)
        larger = len(number) >= SERIES and last > RISE * first > 0 and rises(size)
        if last <= LARGE / 4 or not (larger or (rows.min() >= SERIES and separated(size))):
            return None
        at, step = bend(size)
        what = f"it rises over the run to {last:.2g} nats a root token (its begin is an estimate): "
        what += "the sampler leaves the trainer"
        if step:
            what = f"it jumps from {size[:at].mean():.2g} to {size[at:].mean():.2g} nats a root token: the sampler has "
            what += "other weights or another input"
        return Cause(what, SENT, int(number[at]))

    def _of_lag(self) -> str:
        """Say how much larger x is where older weights sampled, if it is; else return ""."""
        lag, size = (values[np.isfinite(self.lag)] for values in (self.lag, self.line.size))
        if not (lag > 0).any() or not grows_with(np.sqrt(size), lag):
            return ""
        old, new = size[lag > lag.min()], size[lag == lag.min()]
        return (
            f"it is the policy lag: {math.sqrt(old.mean()):.2g} nats a root token in the {len(old)} responses that "
            f"older weights sampled, {math.sqrt(new.mean()):.2g} in the {len(new)} of the least lag ({lag.min():.0f})"
        )

    def _broken(self) -> tuple[str, int] | None:
        """Return a cause and the rollout that proved it if E[e^x] > 1, E[x + k3] != 0 or x + k3 rarely > 0; or None."""
        from scipy.stats import binom

        line, weight, token, below = self.line, self.weight, self.token, self.below
        tests = [weight.above if weight.mean > WEIGHT_MARGIN else None]
        if np.nansum(self.k3) > 0 and abs(token.mean) > WEIGHT_MARGIN:
            tests.append(token.above if token.mean > 0 else token.below)
        if line.systematic() and line.rms > LARGE / 2:
            tests.append(line.since() or 0)
        tests.append(below.above if line.n and abs(line.x.mean()) > WEIGHT_MARGIN else None)
        certain = [rollout for rollout in tests if rollout is not None]
        if not certain or line.rms <= FLOAT32:
            return None
        # An equality is broken at the level of all tests; which of its causes it is may then be tested at 1 in 100.
        positive, why = round(POSITIVE * below.count - below.total), line.cause(SAMPLER)
        if line.x.sum() < 0 and not line.per_response and binom.cdf(positive, below.count, POSITIVE) < 0.01:
            why = "it is hardly ever above 0 and grows with the length: tokens were drawn by top-p or top-k, or masked"
        return why, min(certain)

    def rivals(self, correction: Rule | None = None) -> tuple[list[str], dict[str, list[float]]]:
        """Return the names of K ranges of lengths (the first and the last octave with enough responses, and all), and
        by name of each correction in ``RIVALS``, and of the one in use (``USED``), K numbers: the share of the
        responses in the range that a mask drops, or the mean weight that a cap leaves them; of a cap in use 1 less it.

        A correction with a drift gets one for all responses, made from the mean of k3 (-x if unknown) a token."""
        x, L = self.line.x, self.line.L
        octave = np.log2(L).astype(np.int64)
        n = np.bincount(octave)
        bins = np.flatnonzero((n > 0) & (n >= min(MIN_ROWS, n.sum() / 4))).tolist()
        groups = {f"{2**k} to {2 ** (k + 1) - 1} tokens": octave == k for k in (*bins[:1], *bins[-1:])}
        groups["all"] = octave >= 0
        A, done = np.ones_like(x), {}
        rate = max(float(np.where(np.isfinite(self.k3), self.k3, -x).sum() / L.sum()), 0.0)
        used = {USED: correction} if correction is not None and correction.level == "sequence" else {}
        for name, rule in (RIVALS | used).items():
            applied = rule.apply(x, L, A, 0 * A + rule.centre(TokenMeans(rate, 2 * rate)))
            effect = np.asarray(applied.clipped_weight if rule.outside == "cap" else applied.side != 0, np.float64)
            effect = 1 - effect if name == USED and rule.outside == "cap" else effect
            done[name] = [max(float(effect[which].mean()), 0.0) for which in groups.values()]
        if not used and np.nansum(self.removed) > 0:
            done[USED] = [float(np.nanmean(self.removed[which])) for which in groups.values()]
        return list(groups), done


def staleness(rows: Rows, corrected: bool, *, imported: bool = False) -> Answer:
    """Check the policy lag: how many updates lie between the weights that sampled and the old weights, by the logged
    versions; and how large D, the log-ratio of the old weights to those that sampled, is.

    ``rows`` are all rows (N,) of a run, ``corrected`` says whether it trained with a correction, and ``imported``
    whether the log was made from another trainer's table, in which the weights' version may not count updates."""
    lag, both, exact = rows.lag, ratio(rows.columns, "behaviour"), rows.has("policy_version")
    known = rows.first & (rows["length"] >= 1) & np.isfinite(lag)
    if not known.any():
        lacking = [name for name in ("policy_version", "behaviour_version") if not np.isfinite(rows[name]).any()]
        return not_checked(f"the log holds no {' and no '.join(lacking)}")
    lag, D, both, rollout = (x[known] for x in (lag, rows["staleness_log_ratio"], both, rows["rollout"]))
    old, ahead, contradicting = lag > 0, lag < 0, (lag == 0) & np.isfinite(D) & (np.abs(D) > 1e-9)
    than = "older weights" if exact else "weights older than the newest seen by then"
    stale = f"{old.mean():.0%} {'' if exact else 'or more '}of the responses were sampled by {than}"
    stale += f" (up to {lag.max():.0f} {'updates' if exact else 'versions'})"
    of_old, of_new, both = (x[np.isfinite(x)] for x in (D[old], both[~old], both[old]))
    rms_D, rms_new, rms_both = (math.sqrt(np.mean(x * x)) if len(x) else math.nan for x in (of_old, of_new, both))
    share = Evidence("responses that older weights sampled", float(old.mean()), unit="share")
    unmoved = len(of_old) > 0 and not of_old.any()
    S, after = rows.S[np.isfinite(rows.S)], rows.S[(rows["updates_since_rollout"] >= 1) & np.isfinite(rows.S)]
    parts = "; if steps count updates, --columns policy_version=STEP of import parts D from E" * (not exact)
    fix = "write behaviour_version when the response is sampled, and log old log-probs of that version"
    fix = f"judge and bound D + E (--on behaviour){parts}" if imported else fix
    severity, text, since = Severity.WARNING, "", int(rollout[old].min()) if old.any() else None
    if old.any() and not unmoved and len(S) and not S.any():
        severity, fix = Severity.INFO, "judge and bound D + E (a correction on the rollout-policy ratio)"
        text = f"S is 0 in every row, yet {stale}: old log-probs were recomputed, so the ratio's denominator never "
        text += "sampled, and no clip on S sees the lag"
    elif ahead.any():
        text = f"responses were sampled by weights {-lag.min():.0f} newer than the policy's, by their versions"
        fix = "let both columns of versions count alike: both from 0 or both from 1, both updates or both rollouts"
        since = int(rollout[ahead].min())
    elif contradicting.any():
        text = f"D is not 0 in {contradicting.sum()} responses that, by version, the present weights sampled"
        since = int(rollout[contradicting].min())
    elif unmoved and len(of_old) >= MIN_ROWS and len(after) and np.mean(after != 0) > 0.5 and not imported:
        text = "D is 0 in every response that, by version, older weights sampled, though updates move S"
    elif len(both) and not both.any():
        text = f"{stale}, yet D + E is exactly 0 in all of them: old log-probs are the sampler's, only copied"
        fix = "compute old log-probs with the trainer's weights before the first update (AReaL: recompute_logprob)"
    elif len(of_old) < old.sum() / 2:
        severity, text = Severity.INFO, f"{stale}, and their D is not known"
        text += f": the rms of their D + E is {rms_both:.2g} nats" if len(both) else ""
        text += f", of the others {rms_new:.2g}" if len(both) and len(of_new) else ""
    elif rms_D > STALE and not corrected:
        text = f"{stale}, and nothing corrects their ratio (rms of D {rms_D:.2g} nats)"
        fix = "set a correction on the rollout-policy ratio, or sample with newer weights"
    if text:
        return found(text, fix, share, since=since, severity=severity)
    return clear("older weights did not sample, hardly differ, or are corrected", share)
