"""Check every statement of docs/theory.md by independent methods, each check with a control that must fail."""
