"""Check for coincidences that chance cannot explain: rows with different ids that are equal to the last bit,
minibatches sorted by length, advantages that depend on length.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from analysis.doctor.findings import Answer, Evidence, Severity, clear, found, not_checked
from analysis.doctor.laws import EACH
from analysis.doctor.patient import MIN_ROWS, Floats, Rows
from analysis.log.copies import COPIES, LEAST, LONG, SAME_PROMPT, find_copies, marks
from analysis.log.rows import numbered, repeated
from analysis.stats.anytime import AnytimeMean

MARKS = 32
"""Number of rows of each rollout whose hashes are kept, so that a later rollout that copies it is recognised."""
HELD, LEAST_HELD = 0.005, 5
"""S is reported as held at a limit if at least the share ``HELD`` of the rows has exactly the log's greatest (or least)
S, and these rows are of at least ``LEAST_HELD`` prompts. Rows of fewer prompts may be responses of equal text, which is
no defect.
"""
LENGTHS = 10
"""The check length_pile judges a log only if at least this many different lengths lie below the token limit."""
PILE, LEAST_PILE = 0.005, 10
"""The check length_pile reports responses that have the length of the token limit, or more, and are not marked as
truncated, if they are at least the share ``PILE`` of all responses and at least ``LEAST_PILE`` responses.
"""
MARKED = 3
"""If at least this many responses are marked as truncated, and the share ``ONE_LIMIT`` of them has the same length,
that length is taken as the token limit.
"""
ONE_LIMIT = 0.9
CUT_OFF, TIMES = 0.01, 4.0
"""Where no response is marked as truncated, the greatest length is taken for a token limit if at least this share of
the responses has it, and this many times as many as any length in the upper half of the lengths below it.
"""
UNCHANGED = 0.5
"""S is reported as not computed again if at least this share of the later uses have exactly the S of the use before."""
ONE_LENGTH = 0.9
"""Lengths are reported as those of padded minibatches if in this share of them all responses have one length."""
SORTED = 0.3
"""Minibatches are reported as sorted by length if the share of the variance of log length that lies between minibatches
exceeds the share to be expected by chance by at least this.
"""
BY_LENGTH = 0.97
"""The correlation of A with the length inside groups is reported if its absolute value exceeds this."""


@dataclass
class Coincidences:
    """Counts and sums over a log's rows, from which ``fspo doctor`` finds copied rows, S held at a limit, minibatches
    sorted by length, and advantages that depend on length. Pass complete rollouts to ``add``, in order.

    Parameters
    ----------
    limit : int, optional
        The token limit of responses, if the configuration says it.
    """

    limit: int | None = None
    judged: int = 0
    mixed: int = 0
    copies: int = 0
    same_prompt: int = 0
    copied: dict[int, int] = field(default_factory=dict)  # For each copied rollout, the earlier rollout that it copies.
    # For the hash of each remembered row (some rows of each rollout are remembered): the first rollout that has it.
    marks: dict[int, int] = field(default_factory=dict)
    # For the greatest and the least S: its value, the numbers of rows and of prompts that have it, and the first
    # rollout that has it.
    held: dict[str, tuple[float, int, int, int]] = field(default_factory=dict)
    coarse: Counter[str] = field(default_factory=Counter)
    again: Floats = field(default_factory=lambda: np.zeros(2))  # later uses of moved responses; those with S unchanged
    batches: Floats = field(default_factory=lambda: np.zeros(2))  # minibatches of several prompts; those of one length
    lengths: Counter[int] = field(default_factory=Counter)  # number of responses by length
    truncated: Counter[int] = field(default_factory=Counter)  # those marked as truncated
    flagged: bool = False
    between: AnytimeMean = field(default_factory=lambda: AnytimeMean(EACH))
    share: Floats = field(default_factory=lambda: np.zeros(2))
    # First row for x = length, second for x = log length: sums over responses of x^2, x A and A^2, with x and A less
    # the means of their group.
    products: Floats = field(default_factory=lambda: np.zeros((2, 3)))
    groups: int = 0
    since: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        """Add rows of complete rollouts to the counts and sums by which coincidences are found: copied rows, S held
        at a limit, minibatches sorted by length, advantages that depend on length.
        """
        since = rows["updates_since_rollout"]
        moved = rows.take(np.isfinite(rows.S) & (since >= 1) & (rows.S != 0) & (rows["length"] >= 1))
        if len(moved):
            self._copies(moved)
            self._held(moved)
            order = np.lexsort((moved["step"], moved["response_id"], moved["rollout"]))
            key, S = numbered(moved["rollout"], moved["response_id"])[order], moved.S[order]
            later = (key[1:] == key[:-1]) & (np.diff(moved["step"][order]) > 0)
            self.again += (later.sum(), np.sum(later & (S[1:] == S[:-1])))
        first = rows.take(rows.first & (rows["length"] >= 1))
        if len(first):
            self._lengths(first)
            self._minibatches(first)
            self._advantages(first)

    def _copies(self, rows: Rows) -> None:
        sums = [np.nan_to_num(rows[c]) for c in ("log_ratio", "reward", "sum_sq_log_ratio", "k3_sum")]
        keys = (rows[c] for c in ("rollout", "step", "prompt_id", "response_id", "length"))
        copies = find_copies(*keys, *sums)
        self.judged += int(copies.judged.sum())
        self.mixed += int(copies.mixed.sum())
        self.copies += int(copies.prompts.sum())
        self.same_prompt += int(copies.pairs.sum())
        for name, which in (("copies", copies.prompts), ("same", copies.pairs)):
            if which.any():
                self.since.setdefault(name, int(rows["rollout"][which].min()))
        long = rows.take(rows.L >= LONG)
        if not len(long):
            return
        mark = marks(*(x[rows.L >= LONG] for x in (rows.L, *sums)))
        for rollout in np.unique(long["rollout"]):
            least = mark[long["rollout"] == rollout]
            if len(least) > 4 * MARKS:
                least = np.partition(least, 4 * MARKS)[: 4 * MARKS]
            here = np.unique(least)[:MARKS].tolist()
            earlier = Counter(self.marks[m] for m in here if m in self.marks)
            if earlier and len(here) >= 8 and earlier.most_common(1)[0][1] >= len(here) / 2:
                self.copied[int(rollout)] = earlier.most_common(1)[0][0]
            self.marks |= {m: int(rollout) for m in here if m not in self.marks}

    def _held(self, rows: Rows) -> None:
        """Count the rows with exactly the greatest or the least S so far, and the rows whose S a 16-bit float can hold.

        Many rows of the first kind show that S was held at a limit, many of the second that it was rounded.
        """
        S = rows.S
        for end, x in (("greatest", float(S.max())), ("least", float(S.min()))):
            at = np.asarray(x == S)
            number = int(at.sum())
            prompts = len(np.unique(np.stack([rows["rollout"][at], rows["prompt_id"][at]]), axis=1).T)
            value, count, before, rollout = self.held.get(end, (x, 0, 0, int(rows["rollout"].min())))
            beyond = x > value if end == "greatest" else x < value
            if beyond:
                self.held[end] = x, number, prompts, int(rows["rollout"][at].min())
            elif x == value:
                self.held[end] = x, count + number, before + prompts, rollout
        single = S.astype(np.float32)
        self.coarse["rows"] += len(S)
        with np.errstate(over="ignore"):
            self.coarse["float16"] += int(np.sum(S.astype(np.float16) == S))
        self.coarse["bfloat16"] += int(np.sum((single == S) & ((single.view(np.uint32) & 0xFFFF) == 0)))

    def _lengths(self, rows: Rows) -> None:
        truncated = rows["truncated"] == 1
        self.flagged |= rows.has("truncated")
        for counter, which in ((self.lengths, slice(None)), (self.truncated, truncated)):
            length, number = np.unique(rows.L[which].astype(np.int64), return_counts=True)
            counter.update(dict(zip(length.tolist(), number.tolist(), strict=True)))

    def _minibatches(self, rows: Rows) -> None:
        """Add, for each rollout, how much more its minibatches differ in length than chance explains.

        The measure is the share of the variance of the prompts' mean log lengths that lies between minibatches, less
        the share expected if whole prompts were put into minibatches at random.
        """
        for rollout in np.unique(rows["rollout"]):
            here = rows.take(rows["rollout"] == rollout)
            prompt = numbered(here["prompt_id"], here["step"])
            count = np.bincount(prompt)
            mean = np.bincount(prompt, np.log(here.L)) / count
            step = np.zeros(len(count), np.int64)
            step[prompt] = here["step"]
            batch = numbered(step)
            number = int(batch.max()) + 1
            rows_of = numbered(here["step"])
            longest, least = np.zeros(number), np.full(number, np.inf)
            np.maximum.at(longest, rows_of, here.L)
            np.minimum.at(least, rows_of, here.L)
            several = np.bincount(batch) >= 2
            self.batches += (several.sum(), np.sum(several & (longest == least)))
            if number < 2 or len(mean) < 2 * number or mean.std() < 1e-9:
                continue
            size = np.bincount(batch)
            inside = np.bincount(batch, mean) / size
            share = float(np.sum(size * (inside - mean.mean()) ** 2) / np.sum((mean - mean.mean()) ** 2))
            chance = (number - 1) / (len(mean) - 1)
            self.share += (share - chance, 1)
            self.between.add(np.array([share - chance]), np.array([rollout]))

    def _advantages(self, rows: Rows) -> None:
        rows = rows.take(np.isfinite(rows["advantage"]))
        if not len(rows):
            return
        group, A = numbered(rows["rollout"], rows["prompt_id"]), rows["advantage"]
        count = np.bincount(group)
        distinct = np.bincount(numbered(group), ~repeated(group, rows["length"].astype(np.int64)))
        use = (distinct >= 3)[group] & (np.bincount(group, np.abs(A)) > 0)[group]
        self.groups += int(np.sum((distinct >= 3) & (np.bincount(group, np.abs(A)) > 0)))
        for k, x in enumerate((rows.L, np.log(rows.L))):
            x = x - (np.bincount(group, x) / count)[group]
            a = A - (np.bincount(group, A) / count)[group]
            self.products[k] += [float(np.sum(p * use)) for p in (x * x, x * a, a * a)]

    def answers(self) -> list[Answer]:
        """Return the doctor's answers about coincidences in a run: one for each check of this module."""
        return [self._twice(), self._values(), self._pile(), self._sorted(), self._by_length()]

    def _twice(self) -> Answer:
        name = "counted_twice"
        if self.judged < MIN_ROWS:
            return not_checked(name, f"{self.judged} rows of {LONG} tokens or more with S other than 0")
        copies = self.copies / self.judged
        same = self.same_prompt / self.mixed if self.mixed >= LEAST else 0.0
        evidence = (
            Evidence("rows equal to the last bit to one of another prompt in the same step", copies, unit="share"),
            Evidence("rows with copies of another id, in pairs, where a group's rows differ", same, unit="share"),
            Evidence("rollouts that copy an earlier one", float(len(self.copied))),
        )
        if copies < COPIES and same < SAME_PROMPT and not self.copied:
            return clear(name, "no response stands under two ids", *evidence)
        since = [self.since[n] for n, on in (("copies", copies >= COPIES), ("same", same >= SAME_PROMPT)) if on]
        texts = [f"rollout {a} copies rollout {b}" for a, b in list(self.copied.items())[:3]]
        if since:
            texts.append(f"{max(copies, same):.0%} of the rows have S, L and sums of another id, to the last bit")
        return found(
            name,
            Severity.CRITICAL,
            "; ".join(texts) + ": responses are counted twice, and intervals are too narrow",
            "look for a rank whose rows were gathered and logged again, or a file copied under another number",
            *evidence,
            since=min([*since, *self.copied]),
        )

    def _values(self) -> Answer:
        name, rows = "values_of_s", self.coarse["rows"]
        if rows < MIN_ROWS:
            return not_checked(name, f"{rows} rows with S other than 0")
        ends = {end: v for end, v in self.held.items() if v[1] >= HELD * rows and v[2] >= LEAST_HELD}
        coarse = next((kind for kind in ("bfloat16", "float16") if self.coarse[kind] > 0.99 * rows), "")
        if self.again[0] >= MIN_ROWS and self.again[1] > UNCHANGED * self.again[0]:
            return found(
                name,
                Severity.CRITICAL,
                f"{self.again[1] / self.again[0]:.0%} of the responses have the same S, to the last bit, at a later "
                "update: new log-probs are not computed again after updates",
                "compute the new log-probabilities at each update, under the weights that it changes",
                Evidence("later uses with an unchanged S", self.again[1] / self.again[0], unit="share"),
            )
        if ends:
            end, (value, count, prompts, since) = next(iter(ends.items()))
            return found(
                name,
                Severity.WARNING,
                f"{count} rows of {prompts} prompts have exactly the {end} S, {value:.6g}: S is held at a limit before "
                "the rule sees it",
                "log S as it is, and let the rule bound the weight",
                Evidence(f"rows at the {end} S", count / rows, unit="share"),
                since=since,
            )
        if coarse:
            return found(
                name,
                Severity.WARNING,
                f"every S is a {coarse} number: sums over many tokens lose the changes of single tokens",
                "subtract and sum log-probabilities in float32 or float64",
                Evidence(f"rows whose S is a {coarse} number", self.coarse[coarse] / rows, unit="share"),
            )
        return clear(name, "S has all its digits and is held nowhere")

    def _pile(self) -> Answer:
        """Check whether responses that the token limit cut off are not marked as truncated.

        Many responses of one length count as cut off only if that length is the token limit, because answers of a fixed
        form may all have one length too.
        """
        name = "length_pile"
        if not self.flagged or not len(self.lengths):
            return not_checked(name, "the log does not say which responses are truncated")
        if self.batches[0] >= LENGTHS and self.batches[1] >= ONE_LENGTH * self.batches[0] and len(self.lengths) > 2:
            return found(
                name,
                Severity.WARNING,
                f"in {self.batches[1]:.0f} of {self.batches[0]:.0f} minibatches all responses have one length: padding "
                "counts in the length",
                "count the tokens of the loss's mask, which ends with the end-of-sequence token",
                Evidence("minibatches of one length", self.batches[1] / self.batches[0], unit="share"),
            )
        marked, limit = self.truncated.total(), self.limit
        usual, times = max(self.truncated.items(), key=lambda item: item[1], default=(0, 0))
        if marked >= MARKED and times >= ONE_LIMIT * marked:
            limit = usual
        guessed = False
        if not marked and (largest := max(self.lengths)) and (limit is None or largest < limit):
            upper = [n for length, n in self.lengths.items() if largest / 2 <= length < largest]
            here = self.lengths[largest]
            if here >= max(CUT_OFF * self.lengths.total(), LEAST_PILE, TIMES * max(upper, default=here)):
                limit, guessed = largest, True
        if limit is None:
            return not_checked(name, "neither the configuration nor responses marked as truncated show a token limit")
        different = sum(length < limit for length in self.lengths)
        if different < LENGTHS:
            return not_checked(name, f"{different} lengths below the token limit, {LENGTHS} are wanted")
        unmarked, total, low = self.lengths - self.truncated, self.lengths.total(), int(0.8 * limit)
        at, over = unmarked[limit], sum(n for length, n in unmarked.items() if length > limit)
        below = sum(n for length, n in self.lengths.items() if low <= length < limit) / (limit - low)
        pile = at >= 5 * below + 5 * math.sqrt(below)
        evidence = tuple(
            Evidence(f"responses of {what} {limit} tokens, the limit, not marked as truncated", n / total, unit="share")
            for what, n in (("exactly", at), ("more than", over))
        )
        wrong = over + at * pile
        if wrong < max(PILE * total, LEAST_PILE):
            return clear(name, "no pile of ended responses at the token limit, and none beyond", *evidence)
        return found(
            name,
            Severity.INFO if guessed else Severity.WARNING,
            f"{wrong:.0f} responses have exactly {limit} tokens, the most, and none is marked as truncated: they may "
            "be cut off at a limit"
            if guessed
            else f"{wrong:.0f} responses have {limit} tokens, the limit, or more, and are not marked as truncated",
            "mark responses that meet the token limit (column truncated), do not reward them as ended, and count no "
            "padding in the length",
            *evidence,
        )

    def _sorted(self) -> Answer:
        name = "sorted_minibatches"
        if self.share[1] < 3:
            return not_checked(name, "fewer than 3 rollouts with several minibatches of several prompts")
        mean = float(self.share[0] / self.share[1])
        evidence = Evidence("variance of log length between minibatches beyond chance", mean, unit="share")
        if mean < SORTED or (self.between.above is None and self.share[1] > 8):
            return clear(name, "minibatches are cut without regard to length", evidence)
        return found(
            name,
            Severity.WARNING,
            "minibatches are sorted by length: updates since the rollout and length are one thing, so no curve over "
            "length can be told from one over staleness",
            "shuffle prompts before they are cut into minibatches",
            evidence,
        )

    def _by_length(self) -> Answer:
        name = "advantage_by_length"
        if self.groups < 20:
            return not_checked(name, f"{self.groups} groups with three lengths and an advantage, 20 are wanted")
        with np.errstate(invalid="ignore", divide="ignore"):
            r = self.products[:, 1] / np.sqrt(self.products[:, 0] * self.products[:, 2])
        best = int(np.nanargmax(np.abs(r))) if np.isfinite(r).any() else 0
        evidence = Evidence(f"correlation of A and {('L', 'log L')[best]} inside groups", float(r[best]))
        if not abs(r[best]) > BY_LENGTH:
            return clear(name, "A is no function of the length", evidence)
        return found(
            name,
            Severity.WARNING,
            "inside groups the advantage is a function of the length: the reward counts tokens",
            "look at the reward: a length penalty or bonus outweighs everything else",
            evidence,
        )
