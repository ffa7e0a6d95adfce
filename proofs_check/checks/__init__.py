"""The checks, named by the statements of docs/theory.md that they check and by their method."""
