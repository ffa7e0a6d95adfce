"""The clip rules inside other trainers: `trl` (a trainer class) and `verl` (a plugin).

Both take their loss from `fspo.objective`. This module imports neither, because they need the libraries TRL and verl.
"""
