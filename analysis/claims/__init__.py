"""The claims C1 to C7 and M1: what each estimates, its margin, and how it is judged."""
