"""``fspo sweep``: what other settings of the rule and the update would have done to the responses of one run's log."""
