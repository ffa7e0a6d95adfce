"""Warnings, damage and row counts that an analysis step reports beside its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Notes:
    """Lines of text for the reader of an analysis, and row counts.

    ``a + b`` has the lines of both, a line that is in both only once, and the sums of the counts.

    Attributes
    ----------
    damage : tuple of str
        Which parts of the log could not be read.
    warnings : tuple of str
        What the reader should know before trusting the tables.
    counts : mapping of str to int
        Numbers of rows, keyed like the counts in ``summary.json``.
    """

    damage: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Notes) -> Notes:
        counts = Counter(self.counts)
        counts.update(other.counts)
        damage, warnings = self.damage + other.damage, self.warnings + other.warnings
        return Notes(tuple(dict.fromkeys(damage)), tuple(dict.fromkeys(warnings)), dict(counts))
