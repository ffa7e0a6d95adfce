"""Statistics: Length Reweighting Error with intervals, law of errors of acceptances, smooth curves, anytime tests."""
