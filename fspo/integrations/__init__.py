"""The clip rules inside other trainers: `trl` (a trainer class), `verl` (a plugin), `custom_loss` (a loss function for
prime-rl and one for rLLM).

All of them take their loss from `fspo.objective`. This module imports none of them, because `trl` and `verl` need the
libraries TRL and verl.
"""
