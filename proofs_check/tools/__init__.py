"""Tools of the checks: ball arithmetic (numbers with proved error bounds), comparisons, searches for counterexamples,
counts of accepted draws, and a small policy.
"""
