"""Check every statement of docs/theory.md by independent methods, each check with near misses that must fail."""
