"""Statistics of clustered rows: ratios and slopes with their intervals, and bins of length."""
