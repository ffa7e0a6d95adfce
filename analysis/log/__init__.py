"""A run folder as arrays of rows: which rows can be used, in memory or streamed, and what they are binned by."""
