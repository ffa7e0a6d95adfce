"""The clip rules inside other trainers: `trl` (a trainer class), `verl` (a plugin), `custom_loss` (a loss function for
prime-rl and one for rLLM).

All of them call `fspo.objective.objective`. None is imported here, because `trl` and `verl` need these libraries.
"""
