"""What a step noticed beside its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Notes:
    """Lines for the reader of a run, and counts. Notes are added: each line is kept once, counts are summed.

    Attributes
    ----------
    damage : tuple of str
        What could not be read.
    warnings : tuple of str
        What to know before the tables are believed.
    counts : mapping of str to int
        Numbers of rows, by a key of ``summary.json``'s counts.
    """

    damage: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Notes) -> Notes:
        counts = Counter(self.counts)
        counts.update(other.counts)
        lines = [tuple(dict.fromkeys(a + b)) for a, b in zip(self.lines, other.lines, strict=True)]
        return Notes(lines[0], lines[1], dict(counts))

    @property
    def lines(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Damage and warnings."""
        return self.damage, self.warnings
