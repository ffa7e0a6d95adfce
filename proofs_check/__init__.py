"""Checks of every statement of docs/theory.md by independent methods, each with a control that must fail."""
