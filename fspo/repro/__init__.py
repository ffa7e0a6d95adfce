"""What the reproduction of the claims is made of: cached stages, and presets."""
