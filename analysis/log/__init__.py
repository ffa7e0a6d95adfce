"""Read a run folder's gradient log into arrays: which rows can be analysed, all at once or in chunks, and the
coordinate that bins divide.
"""
