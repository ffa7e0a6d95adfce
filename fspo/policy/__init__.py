"""Log-probabilities of response tokens under a policy, and scores (their gradients), as sketches or in full."""
