"""Tools of the checks: ball arithmetic, comparisons, searches, counting of accepted draws, a tabular policy."""
