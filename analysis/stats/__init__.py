"""Compute statistics of a log: LRE with intervals, the distribution of the errors of acceptances, acceptance as a
smooth curve of length, the power of L at which a band accepts all lengths alike, and tests that may be looked at after
each rollout."""
