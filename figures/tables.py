"""Read the tables of runs, and select the rows that several figures draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.log.partition import LENGTH, Partition, find_partition
from analysis.log.ratio import UPDATE, WORDS, known_ratio
from analysis.tables.files import read_analysis
from analysis.tables.printed import SCORING
from figures.style import OUTSIDE_MARKERS
from fspo.base.errors import UserError, unknown_name
from fspo.rules import Ratio

OF_OWN_RULE = ("over_time",)
"""Tables about the rule with which the run trained: its clip rule, or for another log-ratio than S its correction."""
NEEDS = {
    "over_time": "a log that names the rule that trained (imported logs: fspo import --rule)",
    **dict.fromkeys(("cosine", "lemma", "population"), f"scores of responses ({SCORING})"),
    "training": "metrics.jsonl, a trainer's scalars by step",
}
"""What a table needs that a log may lack, by the table's name."""
AS_TRAINED = "as trained"
REFERENCES = ("none", "random", "exact")
"""Names in a column of rules that are no rule with a band on S: no clip, random drops, exact weights."""

Frame = Any
"""A pandas DataFrame or Series; pandas' type annotations do not allow to check how rows are selected."""


class NothingToDraw(Exception):
    """Raised if the input of a figure is missing or empty; the message tells the user why."""


@dataclass(frozen=True)
class Tables:
    """The analysis tables of several runs, stacked.

    Attributes
    ----------
    frames : dict of DataFrame
        By table name; a table that no run has is absent.
    summaries : dict
        ``summary.json`` by run name.
    partition : Partition
        What responses are binned by.
    on : str
        The log-ratio that the tables are about: "update" (S), "engine" (E) or "behaviour" (D + E).
    """

    frames: dict[str, Frame]
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    partition: Partition = LENGTH
    on: Ratio = "update"

    @property
    def symbol(self) -> str:
        """How captions write the log-ratio that the tables are about, for example "D + E"."""
        return WORDS[self.on].text

    @property
    def math(self) -> str:
        """Symbol of the tables' log-ratio (S, E, ...) on axes: what stands between the dollar signs of Matplotlib's
        notation."""
        return WORDS[self.on].math

    @property
    def by_length(self) -> bool:
        """Whether responses are binned by length, and not by another column of the log."""
        return self.partition == LENGTH

    @property
    def bin_word(self) -> str:
        """What responses are binned by, in the words of a caption."""
        return "length" if self.by_length else f"“{self.partition.label}”"

    def only_by_length(self, why: str) -> None:
        """Raise NothingToDraw, whose message is ``why``, unless responses are binned by length."""
        if not self.by_length:
            raise NothingToDraw(why)

    def only(self, rules: Iterable[str]) -> Tables:
        """Return these tables with only the rows of ``rules`` and of what they are compared with (no clip, random
        drops, exact weights). A table without a column for rules stays complete.

        Raise UserError if no table has a row of one of ``rules``."""
        names, frames = {*rules, *REFERENCES}, dict(self.frames)
        of_rules = {n: next((c for c in ("rule", "trained_rule") if c in f), "") for n, f in frames.items()}
        seen = {str(rule) for name, column in of_rules.items() if column for rule in frames[name][column]}
        for rule in rules:
            if rule not in seen:
                raise unknown_name("rule", rule, tuple(sorted(seen)))
        for name, column in of_rules.items():
            if column:
                frames[name] = frames[name][frames[name][column].isin(names)]
        return replace(self, frames=frames)

    def __getitem__(self, name: str) -> Frame:
        frame = self.frames.get(name)
        if frame is None or frame.empty:
            fix = f": it needs {NEEDS[name]}" if name in NEEDS else ""
            raise NothingToDraw(f"table '{name}' is missing or empty{fix}")
        return frame


def load(runs: Sequence[Path], by: str = LENGTH.column, on: str = UPDATE.on) -> Tables:
    """Read the analysis tables of each run: from ``RUN/analysis``, or from the folder of the partition ``by`` and the
    log-ratio ``on``.

    Raise UserError if a run cannot be read (`analysis.tables.files.read_analysis`), or the partition or the ratio is
    unknown."""
    runs, partition, ratio = [Path(run) for run in runs], find_partition(by), known_ratio(on)
    if not runs:
        raise UserError("name at least one run folder: fspo figures RUN")
    parts: dict[str, list[Frame]] = {}
    summaries = {}
    for run, label in zip(runs, _labels(runs), strict=True):
        found, summary = read_analysis(run, partition, ratio)
        summaries[label] = summary
        for name, frame in found.items():
            if not frame.empty:
                own: dict[str, Any] = {"run": label}
                if name in OF_OWN_RULE and summary.get("own_rule"):
                    own |= {"trained_rule": summary["own_rule"]}
                parts.setdefault(name, []).append(frame.assign(**own))
    frames = {name: pd.concat(found, ignore_index=True) for name, found in parts.items()}
    return Tables(frames, summaries, partition, ratio)


def _labels(runs: Sequence[Path]) -> list[str]:
    resolved = [run.resolve() for run in runs]
    if len(set(resolved)) < len(resolved):
        raise UserError("the same run folder is named twice; name each run once")
    names = [run.name for run in resolved]
    return [f"{r.parent.name}/{r.name}" if names.count(r.name) > 1 else r.name for r in resolved]


def prefer(frame: Frame, column: str, *values: str | float) -> Frame:
    """Return the rows whose ``column`` has the first of ``values`` that occurs in it. Return no row if none of them
    occurs, and all rows if the table lacks that column."""
    if column not in frame:
        return frame
    for value in values:
        chosen = frame[frame[column] == value]
        if not chosen.empty:
            return chosen
    return frame.iloc[:0]


def need(frame: Frame, why: str) -> Frame:
    """Return the table ``frame`` if it has rows, else raise NothingToDraw, whose message is ``why``."""
    if frame.empty:
        raise NothingToDraw(why)
    return frame


def reasons(frame: Frame) -> str:
    """Return in parentheses at most three different entries of a table's column ``reason``, which says why values are
    missing; "" if it has none."""
    texts = sorted({str(r) for r in frame["reason"].dropna() if str(r)}) if "reason" in frame else []
    return f" ({'; '.join(texts[:3])})" if texts else ""


def plain_outside(frame: Frame) -> Frame:
    """Return the rows of one treatment outside the band: those of drop or, if there are none, of mask, else truncate,
    else cap."""
    return prefer(frame, "outside", *OUTSIDE_MARKERS)


def drawable(frame: Frame, columns: Sequence[str] = ("estimate",)) -> Frame:
    """Return the rows whose ``columns`` are all finite.

    Raise NothingToDraw if no row is left; the message gives the table's reasons."""
    numbers = frame[list(columns)].astype(float)
    kept = frame[(numbers.notna() & (numbers.abs() < float("inf"))).all(axis=1)]
    return need(kept, f"no finite value to draw{reasons(frame)}")


def shared_log(frame: Frame) -> Frame:
    """Return the rows of the one run on whose log rules are compared: a run that trained unclipped, else the one with
    the lowest seed. A run without any estimate is taken only if there is no other."""
    told = frame.loc[frame["estimate"].notna(), "run"] if "estimate" in frame else frame["run"]
    order = frame[["run", "trained_rule", "seed"]].drop_duplicates()
    order = order.assign(untold=~order["run"].isin(told), clipped=order["trained_rule"] != "none")
    run = order.sort_values(["untold", "clipped", "seed", "run"], kind="stable")["run"].iloc[0]
    return frame[frame["run"] == run]


def views(frame: Frame) -> Frame:
    """Return the rows of a table that compare rules, panel by panel, with the panel's title in a new column ``panel``.

    There is one panel for each target acceptance, with all rules on one run's log; if no rule has a range that meets a
    target, one panel with all rules at their presets' ranges. A last panel shows each run's own rule, as it trained, on
    the run's own log. The new column ``log`` is the run on whose log a panel compares rules; it is "" in the last
    panel."""
    frame = frame[frame["rule"] != "none"]
    matched, given = (frame[frame["source"] == source] for source in ("matched", "given"))
    found: list[Frame] = []
    if len(matched):
        rows = shared_log(matched)
        for target in sorted({float(t) for t in rows["target"].dropna()}, reverse=True):
            at = rows[(rows["target"] - target).abs() < 1e-9]
            word = "masked" if (at["outside"] == "mask").any() else "clipped"
            found.append(at.assign(panel=f"{percent(1 - target)} {word}", log=at["run"]))
    elif len(given):
        rows = shared_log(given)
        found.append(rows.assign(panel="given range", log=rows["run"]))
    trained = frame[frame["source"] == "trained"]
    if len(trained):
        found.append(trained.assign(panel=AS_TRAINED, log=""))
    if not found:
        raise NothingToDraw("no rows of a rule with a band")
    return pd.concat(found)


def view_words(rows: Frame) -> str:
    """Return words for a caption that say on whose log rules are compared, from the drawn rows' column ``log``."""
    shared = next((log for log in rows["log"] if log), "")
    words = [f"All rules on the log of run {shared}"] if shared else []
    if (rows["log"] == "").any():
        words.append(f"“{AS_TRAINED}”: each run's own rule on its own log")
    text = "; ".join(words)
    return text[:1].upper() + text[1:]


def split(rows: Frame, column: str = "panel", names: Mapping[Any, str] | None = None) -> dict[str, Frame]:
    """Return a mapping from each value of a column to the rows with this value, in the order of the table.

    With ``names``, the mapping has only the values to which ``names`` gives a name. Its keys are then these names, in
    the order of ``names``."""
    parts = dict(list(rows.groupby(column, sort=False)))
    if names is None:
        return {str(value): part for value, part in parts.items()}
    return {name: parts[value] for value, name in names.items() if value in parts}


def first_use(frame: Frame) -> Frame:
    """Return the rows whose column ``use`` says first epoch if there are any (docs/theory.md section 1), else those
    that say all epochs together, else those of later epochs."""
    return prefer(frame, "use", "first", "all", "reused")


def lemma_updates(tables: Tables) -> tuple[Frame, str]:
    """Return the rows of table ``lemma`` in the first epoch, with the words "for each scored update" or "for each block
    of rollouts". The rows are those of single updates if there are any, else those of blocks."""
    rows = first_use(tables["lemma"])
    if (rows["updates"] == 1).any():
        return rows[rows["updates"] == 1], "for each scored update"
    return rows, "for each block of rollouts"


def count_words(counts: Frame) -> str:
    """Return the positive ``counts`` as words for a caption: the one number, or the least and the largest."""
    counts = counts[counts > 0]
    if counts.empty:
        return "0"
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def percent(share: float) -> str:
    """Return a share as text in percent, with few digits."""
    return f"{100 * share:.3g} %"
