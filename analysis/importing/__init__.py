"""Turn other trainers' logs (TRL, verl and others, plain tables) into a run folder without sketches."""
