"""Does a run fit a machine? ``python -m fspo.plan``: memory of each GPU, and token counts of a step."""
