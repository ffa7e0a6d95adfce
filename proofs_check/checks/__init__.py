"""The checks: a module for each statement of docs/theory.md. In a docstring "x: of the KL" says that the resolution is
found by multiplying the KL by 1 + x (`proofs_check.frame`). Arguments other than ``rng`` make near misses."""
