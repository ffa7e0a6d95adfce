"""What every room uses: one-line errors, checks of input, whole files, the command line, keyed random numbers."""
