"""What checks are made of: ball arithmetic, comparisons, searches, counting, a tabular policy."""
