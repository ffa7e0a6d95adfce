"""Tools of the checks: interval arithmetic, comparisons, searches, counting of accepted draws, and a small policy."""
