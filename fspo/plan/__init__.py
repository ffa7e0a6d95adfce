"""``fspo plan``: find out before a run whether it fits a machine, what takes the memory, and what to change."""
