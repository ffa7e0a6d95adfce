"""Training: the training loop, its updates, optimizers, checkpoints and metrics, and the rows of the gradient log."""
