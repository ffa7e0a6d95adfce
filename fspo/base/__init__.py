"""Helpers of all other packages: one-line errors, checks of input, files, the command line, keyed random numbers."""
