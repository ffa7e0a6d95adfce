"""The checks: a module for each statement, T1 to T14, of docs/theory.md. "Falsified by x" says what a test makes false
by a number x to measure its resolution (`proofs_check.frame`). Arguments but ``rng`` and sizes make near misses."""
