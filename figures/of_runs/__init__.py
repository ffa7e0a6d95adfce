"""Figures drawn from the tables of runs."""
