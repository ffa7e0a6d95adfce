"""Compute statistics of a log: LRE with intervals, the law of the errors of acceptances, acceptance as a smooth curve
of length, the exponent of a fair band, and tests that may be looked at after each rollout."""
