"""Diagnostics of a gradient log by response length: tables with intervals, claims with fixed tests.

``fspo analyse RUN`` reads a run folder with :mod:`fspo.gradlog` and writes tables to ``RUN/analysis``, without
torch and without plots."""
