"""Other trainers' logs (TRL, verl, TensorBoard, plain tables) turned into a run folder without sketches."""
