"""Training: the loop, updates, optimizers, checkpoints, metrics, and the gradient log that a run writes."""
