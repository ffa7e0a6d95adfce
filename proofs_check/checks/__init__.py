"""The checks, a module for each statement, T1 to T14, of docs/theory.md. "Falsified by x" says how a test makes its
statement false by x, to measure its resolution. Arguments but ``rng`` and sizes of samples make near misses."""
