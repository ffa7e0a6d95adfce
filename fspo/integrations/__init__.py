"""The clip rules inside other trainers: `trl` (a trainer class), `verl` (a plugin), `prime_rl` and
`rllm` (loss functions).

All of them call `fspo.objective.objective`. None is imported here, because `trl` and `verl` need these libraries.
"""
