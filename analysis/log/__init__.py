"""Read a run folder's gradient log into arrays: which rows can be analysed, from memory or streamed, and their bins."""
