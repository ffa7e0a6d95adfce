"""Parts of the reproduction of the claims: cached stages, sizes and training runs."""
