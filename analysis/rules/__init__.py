"""What clip rules do to the rows of a log, computed row by row or summed by length bin."""
