"""Read a run folder's gradient log into arrays, at once or in chunks: select the rows that can be analysed, and find
the coordinate that puts each row into a bin."""
