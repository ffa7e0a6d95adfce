"""FSPO: Fair Sequence Policy Optimization (arXiv 2509.09177). Importing this package pulls in no torch."""

__version__ = "0.1.0"
