"""Logged score sketches as vectors and inner products, and the error of the sketch."""
