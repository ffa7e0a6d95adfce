"""The table positions: token log-ratios by position in the response, and the share of tokens that a token or prefix
rule keeps.

A log holds token log-ratios only if the training option ``log.tokens`` was set. From token log-ratios, rules on tokens
and on prefixes can be evaluated counterfactually, like rules on sequences. With ``--on engine`` responses with
staleness are left out, because of their tokens only the behaviour log-ratios D + E are known, not E.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from analysis.log.loading import Run, logged_columns
from analysis.log.notes import Notes
from analysis.log.ratio import CORRECTED
from analysis.log.rows import Floats, Ints, Rows, row_names
from analysis.rules.evaluate import Case
from analysis.rules.layout import Grouping
from analysis.tables.columns import UNKNOWN, BinKey, Interval, RuleKey, RunKey, mean_at
from fspo.base.errors import UserError
from fspo.gradlog import GradLog, read_log
from fspo.gradlog.files import log_files
from fspo.gradlog.schema import TOKEN_COLUMNS
from fspo.rules import CORRECTIONS, PRESETS, Rule
from fspo.stats.bins import Bins
from fspo.stats.clusters import MIN_CLUSTERS, TOO_FEW, ratios_of_sums, totals
from fspo.stats.intervals import proportion_interval

STALENESS = "staleness_log_ratio"
MOST_TOKENS = 2**24


class PositionRow(NamedTuple):
    """Tokens that a token or prefix rule keeps: one row for each rule and bin of token positions or response lengths.

    Only responses at first use count. Written if the log has token log-ratios; else empty. docs/theory.md section 2.
    """

    band: RuleKey
    by: Annotated[
        str, "position: bins of a token's place in its response, from 1; response: the bins of other tables", "text"
    ]
    place: BinKey
    count: Annotated[int, "tokens of responses with A != 0", "tokens"]
    clusters: Annotated[int, "clusters, prompts of one rollout, with such a token", "clusters"]
    estimate: Annotated[Interval, "share of these tokens that the rule does not cut", "share"]
    mean_log_ratio: Annotated[Interval, "mean log-ratio of these tokens", "nats"]
    sd_log_ratio: Annotated[float, "standard deviation of it", "nats"]
    reason: Annotated[str, "why there is no number; else empty", "text"]


@dataclass(frozen=True)
class Tokens:
    """The tokens of several rows of the log, joined in arrays (T,)."""

    row: Ints  # index of the row (response) that the token belongs to
    position: Ints  # place of the token in its response, from 1
    x: Floats  # token log-ratio, nats
    prefix: Floats  # sum of the response's token log-ratios up to and including this token

    @staticmethod
    def of(lists: list[Floats]) -> Tokens:
        """Join lists of token log-ratios into arrays; each row of the log gives one list, which is not empty."""
        lengths = np.array([len(x) for x in lists], np.int64)
        row, x = np.repeat(np.arange(len(lists)), lengths), np.concatenate(lists)
        position = np.arange(len(x)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        return Tokens(row, position, x, np.concatenate([np.cumsum(x) for x in lists]))

    def kept(self, rule: Rule, A: Floats) -> np.ndarray:
        """Return for each token whether a token or prefix rule leaves it alone (T,); ``A`` (N,) is each row's
        advantage."""
        if rule.level == "prefix":
            return rule.apply(self.prefix, self.position, A[self.row]).side == 0
        return rule.apply(self.x, np.ones(len(self.x)), A[self.row]).side == 0


def rules_on_tokens(run: Run) -> list[Case]:
    """Return the run's own rule, if it is a rule on tokens or prefixes, and then the presets that are rules on tokens
    or prefixes and act on the analysed ratio."""
    on = run.ratio.on
    known = CORRECTIONS if on in CORRECTED else {name: p.rule for name, p in PRESETS.items()}
    cases = [Case(replace(rule, on=on), name, "given") for name, rule in known.items() if rule.level != "sequence"]
    if run.rule is not None and run.rule.level != "sequence":
        cases.insert(0, Case(run.rule, run.rule.label, "trained"))
    return cases


@dataclass
class _Sums:
    """Sums over tokens by group of clusters and bin, arrays (G, K).

    The sums are the number of tokens, and the sums of their coordinate, of their log-ratio x and of x^2; for each rule,
    ``kept`` has the number of tokens that the rule leaves alone.
    """

    count: Floats
    coordinate: Floats
    x: Floats
    xx: Floats
    kept: list[Floats] = field(default_factory=list)

    def add(self, parts: Sequence[Floats]) -> None:
        """Add further tokens, in place. ``parts`` holds their sums in the order of the fields: number of tokens,
        coordinate, log-ratio, its square, then the number of tokens that each rule leaves alone."""
        for total, more in zip((self.count, self.coordinate, self.x, self.xx, *self.kept), parts, strict=True):
            total += more


def position_table(run: Run, bins: Bins, window_size: int) -> tuple[list[PositionRow], Notes]:
    """Make the rows of the table positions for each token or prefix rule and bin, and notes on reading the log.

    There are no rows if the log has no token log-ratios.
    """
    columns = TOKEN_COLUMNS[run.ratio.on]
    if not set(columns) <= logged_columns(log_files(run.path)[0], columns):
        return [], Notes()
    cases, layout = rules_on_tokens(run), Grouping.of(run, bins)
    positions = Bins(tuple(2.0**k for k in range(int(np.log2(MOST_TOKENS)) + 1)))
    sums: dict[str, _Sums] = {}
    notes = Notes()
    for rows, tokens, found in _windows(run, window_size, columns):
        notes += found
        if tokens is None:
            continue
        group = layout.group(rows)[tokens.row]
        kept = [tokens.kept(case.rule, rows.A).astype(np.float64) for case in cases]
        for by, edges, coordinate in (
            ("position", positions, tokens.position.astype(np.float64)),
            ("response", bins, rows.coordinate[tokens.row]),
        ):
            shape = layout.groups, len(edges)
            key = group * len(edges) + edges.index(coordinate)
            values = np.ones(len(key)), coordinate, tokens.x, tokens.x**2, *kept
            count, total, x, xx, *of_rules = (np.zeros(shape) for _ in values)
            sums.setdefault(by, _Sums(count, total, x, xx, of_rules)).add(
                [totals(key, shape[0] * shape[1], v).reshape(shape) for v in values]
            )
    out: list[PositionRow] = []
    for by, found in sums.items():
        for case, kept_sums in zip(cases, found.kept, strict=True):
            key = RuleKey.of(RunKey.of(run), case), by
            out += _rows(key, positions if by == "position" else bins, found, kept_sums)
    return out, notes


def _windows(run: Run, size: int, columns: Sequence[str]) -> Iterator[tuple[Rows, Tokens | None, Notes]]:
    """Yield for each window three things: rows, their token log-ratios, and notes on what was left out or damaged.

    The rows are those at first use that have A != 0 and a complete list of finite token log-ratios; if there are none,
    None stands for the token log-ratios. If the window's tokens cannot be read, all its rows are yielded, and None.
    """
    wanted = ["rollout", "step", "response_id", STALENESS, *columns]
    for _, known in run.windows(size):
        rollouts = int(known.rollout.min()), int(known.rollout.max())
        try:
            log = read_log(run.path, columns=wanted, rollouts=rollouts)
        except UserError as error:  # the log's columns of token log-ratios cannot be read
            yield known, None, Notes(damage=(f"the tokens of rollouts {rollouts[0]} to {rollouts[1]}: {error}",))
            continue
        place = row_names(*(log.column(c) for c in ("rollout", "step", "response_id"))).get_indexer(
            row_names(known.rollout, known.step, known.response)
        )
        at = np.flatnonzero((place >= 0) & (known.used == 0) & (known.A != 0))
        if run.ratio.on == "engine" and STALENESS in log:
            at = at[np.nan_to_num(log.column(STALENESS)[place[at]], nan=1.0) == 0]
        lists = _lists(log, columns, place[at])
        good = [i for i, x in enumerate(lists) if len(x) == known.length[at[i]] and np.all(np.isfinite(x))]
        rows = known.take(at[good])
        counts = Notes(counts={"token_lists_left_out": len(lists) - len(good)})
        yield rows, Tokens.of([lists[i] for i in good]) if good else None, counts


def _lists(log: GradLog, columns: Sequence[str], at: Ints) -> list[Floats]:
    """Return the token log-ratios of the rows ``at``, one array for each row.

    Of several columns, as the total ratio has (S and D + E), the lists are added token by token. A row in which a
    column has no list, or in which the lists differ in length, gets an empty array.
    """
    parts: list[Any] = []
    for name in columns:
        values = log.table[name].combine_chunks().take(at)
        flat, ends = np.asarray(values.flatten(), np.float64), np.cumsum(values.value_lengths().fill_null(0))
        parts.append(np.split(flat, np.asarray(ends)[:-1]) if len(at) else [])
    if len(parts) == 1:
        return parts[0]
    return [x + y if len(x) == len(y) else np.zeros(0) for x, y in zip(*parts, strict=True)]


def _rows(key: tuple[RuleKey, str], bins: Bins, sums: _Sums, kept: Floats) -> list[PositionRow]:
    some = sums.count.sum(1) > 0
    count = sums.count[some]
    share = ratios_of_sums(count, kept[some], count, binary=True)
    low, high = proportion_interval(share.value, share.variance, share.count, share.clusters)
    mean = ratios_of_sums(count, sums.x[some], count)
    number, squares, coordinate = (np.append(v.sum(0), v.sum()) for v in (count, sums.xx[some], sums.coordinate[some]))
    out: list[PositionRow] = []
    for k in range(len(bins) + 1):
        if not number[k]:
            continue
        few = share.clusters[k] < MIN_CLUSTERS
        place = BinKey.of(bins, k, float(coordinate[k] / number[k]))
        row = PositionRow(*key, place, int(number[k]), int(share.clusters[k]), UNKNOWN, UNKNOWN, np.nan, TOO_FEW)
        if not few:
            sd = float(np.sqrt(max(squares[k] / number[k] - mean.value[k] ** 2, 0.0)))
            row = row._replace(
                estimate=Interval(share.value[k], low[k], high[k]),
                mean_log_ratio=mean_at(mean, k),
                sd_log_ratio=sd,
                reason="",
            )
        out.append(row)
    return out
