"""What is read from a policy: log-probabilities of response tokens, and scores (their gradients), sketched or exact."""
