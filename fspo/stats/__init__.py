"""Ratios of sums over clusters with their intervals, and bins."""
