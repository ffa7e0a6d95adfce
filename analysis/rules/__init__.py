"""What a clip rule does to the rows of a log: replayed, row by row, or summed by length bin."""
