"""Tools of the checks: comparisons, distributions, small policies, and strata."""
