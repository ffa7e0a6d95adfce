"""What another setting would have done: to one log, or in training."""
