"""Compute statistics of a log: LRE with intervals, the exponent of L at which a band accepts all lengths alike, and
tests of a mean that may be looked at after each rollout.
"""
