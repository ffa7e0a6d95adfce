"""Diagnostics of a gradient log by response length: tables with intervals, claims with fixed tests.

``python -m analysis RUN`` reads a run folder with :mod:`fspo.gradlog` and writes tables to ``RUN/analysis``, without
torch and without plots.
"""
