"""Compute what clip rules and corrections do to the rows of a gradient log, row by row or as sums by length bin."""
