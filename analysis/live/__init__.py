"""Follow runs while they are written, and show them on a local page."""
