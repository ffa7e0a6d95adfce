"""Read logged score sketches as vectors, make inner products of them, and bound the error that sketching adds."""
