"""The claims about training: their catalogue, numbers and verdicts."""
