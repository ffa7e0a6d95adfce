"""What clip rules and corrections do to the rows of a gradient log, computed row by row or summed by length bin."""
