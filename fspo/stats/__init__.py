"""Statistics of responses that depend on each other in clusters: ratios, slopes, their intervals, bins of length."""
