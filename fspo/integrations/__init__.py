"""The clip rules inside other people's trainers: `trl` (a trainer class) and `verl` (a plugin).

Both call `fspo.objective.objective`; neither is imported here, because each needs its own library.
"""
