"""The report of an import: which columns and scalars were used, which were unknown, and which diagnostics lack data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from analysis.importing.watch import TokenDigest
from fspo.base.command_line import next_step


@dataclass
class Report:
    """The report of one import, which is printed and stored as import.json."""

    source: str
    run: str
    files: dict[str, list[str]] = field(default_factory=dict)  # by kind ("table", "scalars", ...): names of files read
    rows: int = 0
    rollouts: int = 0
    known: dict[str, int] = field(default_factory=dict)  # for each log-ratio: number of imported rows that have it
    moved: bool = False  # whether a row with S came after an update of its rollout
    columns: dict[str, str] = field(default_factory=dict)  # our column -> the table's that it was copied from
    derived: dict[str, str] = field(default_factory=dict)  # our column -> what it was computed from
    user_columns: list[str] = field(default_factory=list)
    unknown_columns: list[str] = field(default_factory=list)
    metrics: dict[str, str] = field(default_factory=dict)  # another trainer's metric -> ours of the same meaning
    foreign_metrics: list[str] = field(default_factory=list)  # those without a counterpart here
    metric_lines: int = 0
    not_stored: Counter[str] = field(default_factory=Counter)  # metric -> number of its values that are not finite
    notes: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)  # columns of log-probabilities of unknown policies
    digest: TokenDigest | None = None
    damage: list[str] = field(default_factory=list)  # one line for each file that could not be read completely

    def note(self, text: str) -> None:
        """Add the sentence ``text`` to the notes, unless they hold it already."""
        if text not in self.notes:
            self.notes.append(text)

    def lines(self) -> list[str]:
        """Return the report of an import as lines of text, which ``fspo import`` prints."""
        found = self.columns | self.derived
        rollouts = "1 rollout" if self.rollouts == 1 else f"{self.rollouts} rollouts"
        listed = {f"read {kind}": names for kind, names in self.files.items()} | {
            "found": [f"{self.rows} responses in {rollouts}", f"{self.metric_lines} lines of scalars"],
            "rows in which a log-ratio is known, by its name for --on": [f"{r} {n}" for r, n in self.known.items()],
            "columns used": [ours if ours == name else f"{ours} <- {name}" for ours, name in found.items()],
            "columns not known, kept as user.*": self.user_columns,
            "columns not known, not kept": self.unknown_columns,
            "scalars under our names": [n if n == ours else f"{ours} <- {n}" for n, ours in self.metrics.items()],
            "other scalars, kept under imported/ for the doctor": self.foreign_metrics,
            "left out, no number": [f"{name} ({count}x)" for name, count in self.not_stored.items()],
        }
        out = [f"{self.source} -> {self.run}"]
        for title, names in listed.items():
            more = f", and {len(names) - 40} more" if len(names) > 40 else ""
            out += [f"  {title}: {', '.join(names[:40])}{more}"] if names else []
        out += [f"  damaged: {line}" for line in self.damage]
        out += [f"  not read: {line}" for line in self.ignored]
        out += [f"  note: {note}" for note in self.notes]
        if self.rows or self.metric_lines:
            out.append(next_step("doctor", [self.run]))
        if "length" in found:
            on = max(("engine", "behaviour"), key=lambda ratio: self.known.get(ratio, 0))
            views = [""] * self.moved + [f" --on {on}"] * bool(self.known.get(on))
            out += [next_step("analyse", [self.run], view) for view in views]
        return out
