"""The clip rules inside other people's trainers: `trl` (a trainer class), `verl` (a plugin), `prime_rl` (a loss).

All call `fspo.objective.objective`; none is imported here, because most need their own library.
"""
