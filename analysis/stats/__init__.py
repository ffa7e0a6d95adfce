"""Estimates that a table needs beyond plain ratios: Length Reweighting Error, its law, smooth curves."""
