"""Sampling of responses by one of several engines.

All engines but vLLM draw the same tokens, because the random numbers depend only on seed, response and position."""
