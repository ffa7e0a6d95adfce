"""Turn other trainers' logs (TRL, verl, TensorBoard, plain tables) into a run folder without sketches."""
