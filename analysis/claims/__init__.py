"""The claims C1 to C7: what each estimates, its margin, and how it is judged."""
