"""The checks. Each module is named by the statements of docs/theory.md that it checks and by its method."""
