"""``fspo plan``: find out before a run whether it fits a machine, and how many tokens an update has."""
