"""Figures drawn from the tables of ``python -m proofs_check.maps``."""
