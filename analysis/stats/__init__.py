"""Estimates that need more than a ratio: the Length Reweighting Error, the law of its errors, and smooth curves."""
