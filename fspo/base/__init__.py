"""Helpers of all other packages: one-line errors, checks of input, files, the command line, processes, memory, and
random numbers that depend on a key alone."""
