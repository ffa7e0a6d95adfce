"""The report of an import: which columns and scalars were used, which were unknown, and which diagnostics lack data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fspo.base.command_line import next_step

NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    # For each diagnostic that an imported log allows: the columns that it needs. Of several tuples of columns any one
    # is enough.
    "acceptance by length, LRE, scaling of Var(S|L)": (("log_ratio", "length"),),
    "update acceptance and clip sides (A != 0)": (("log_ratio", "length", "advantage"),),
    "intervals over prompts": (("prompt_id",),),
    "first use apart from trained-on responses": (("times_used",), ("response_id",)),
    "updates since the rollout (rows before any update apart)": (("updates_since_rollout",), ("rollout", "step")),
    "the trained rule's own rows": (("rule",), ("lo", "hi", "multiplier")),
    "bands with drift (fspo-kl and others)": (("k3_sum", "sum_sq_log_ratio"),),
    "truncation": (("truncated",),),
    "mismatch between sampler and trainer by length (--on behaviour)": (("behaviour_log_ratio", "length"),),
    "mismatch of the engine alone, without staleness, by length (--on engine)": (("engine_log_ratio", "length"),),
    "cosines, cosine lemma (T7, T8), bias and variance": (("score_unit",),),
}


@dataclass
class Report:
    """The report of one import, which is printed and stored as import.json."""

    source: str
    run: str
    files: dict[str, list[str]] = field(default_factory=dict)  # by kind ("table", "scalars", ...): names of files read
    rows: int = 0
    rollouts: int = 0
    known: dict[str, int] = field(default_factory=dict)  # for each log-ratio: number of imported rows that have it
    # For each column of the gradient log that was copied: the column of the imported table that it is from.
    columns: dict[str, str] = field(default_factory=dict)
    # For each column of the gradient log that was computed: the columns of the imported table that it is computed from.
    derived: dict[str, str] = field(default_factory=dict)
    user_columns: list[str] = field(default_factory=list)
    unknown_columns: list[str] = field(default_factory=list)
    # For each metric of another trainer that has a counterpart here: the name of the counterpart.
    metrics: dict[str, str] = field(default_factory=dict)
    # For each metric of another trainer without a counterpart here: its meaning, or how it differs from a similar one.
    different_metrics: dict[str, str] = field(default_factory=dict)
    unknown_metrics: list[str] = field(default_factory=list)
    metric_lines: int = 0
    # For each metric, the number of its values that are no finite numbers; also the number of lines without a step.
    not_stored: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    # Options for a second import, which name columns for the lengths or log-probabilities that this import lacks.
    again: str = ""
    damage: list[str] = field(default_factory=list)  # one line for each file that could not be read completely

    def missing(self) -> dict[str, str]:
        """Return the diagnostics that cannot be computed, each with the columns that it lacks."""
        have = set(self.columns) | set(self.derived)
        found: dict[str, str] = {}
        for diagnostic, ways in NEEDS.items():
            if not any(set(way) <= have for way in ways):
                wanting = [", ".join(sorted(set(way) - have)) for way in ways]
                found[diagnostic] = " or ".join(wanting)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for import.json."""
        return {**self.__dict__, "not_stored": dict(self.not_stored), "cannot_be_computed": self.missing()}

    def lines(self) -> list[str]:
        """Return the report of an import as lines of text, which ``fspo import`` prints."""
        out = [f"{self.source} -> {self.run}"]
        for kind, names in self.files.items():
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            out.append(f"  read {kind}: {shown}")
        out.append(
            f"  {self.rows} responses in {self.rollouts} rollout{'s' * (self.rollouts != 1)}, "
            f"{self.metric_lines} lines of scalars"
        )
        if self.rows:
            known = ", ".join(f"{ratio} {count}" for ratio, count in self.known.items())
            out.append(f"  rows in which a log-ratio is known, by its name for fspo analyse --on: {known}")
        given = (self.columns | self.derived).items()
        pairs = [ours if ours == theirs else f"{ours} <- {theirs}" for ours, theirs in given]
        out += _wrapped("columns used", pairs)
        out += _wrapped("columns not known, kept as user.*", self.user_columns)
        out += _wrapped("columns not known, not kept (no plain numbers or text)", self.unknown_columns)
        renamed = [name if name == ours else f"{ours} <- {name}" for name, ours in self.metrics.items()]
        out += _wrapped("scalars under our names", renamed)
        differing = [f"{name} ({why})" for name, why in self.different_metrics.items()]
        out += _wrapped("scalars with another meaning, kept under imported/", differing)
        out += _wrapped("scalars not known, kept under imported/", self.unknown_metrics)
        out += _wrapped("left out, no number", [f"{name} ({count}x)" for name, count in self.not_stored.items()])
        out += [f"  damaged: {line}" for line in self.damage]
        out += [f"  not read: {line}" for line in self.ignored]
        out += [f"  cannot be computed: {what}: no {wanting}" for what, wanting in self.missing().items()]
        out += [f"  note: {note}" for note in self.notes]
        on = next((f" --on {name}" for name in ("engine", "behaviour") if self.known.get(name)), "")
        if self.again:
            return [*out, next_step("import", [self.source], f" {self.again} --output {self.run}-again")]
        if self.rows:
            out.append(next_step("doctor", [self.run]))
        if any(self.known.values()):
            out.append(next_step("analyse", [self.run], on))
        return out


def _wrapped(title: str, names: list[str], limit: int = 40) -> list[str]:
    if not names:
        return []
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return [f"  {title}: " + ", ".join(names[:limit]) + more]
