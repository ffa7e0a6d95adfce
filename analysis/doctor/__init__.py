"""What is wrong with a run: findings, each with its evidence and a cure."""
