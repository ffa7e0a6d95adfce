"""Read logged score sketches as vectors, make inner products of them, and estimate the error that sketching adds."""
