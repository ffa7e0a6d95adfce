"""The claims C1 to C7: estimand, margin and verdict of each."""
