"""The checks of the theory. A module's name gives the statements of docs/theory.md that it checks, and the method."""
