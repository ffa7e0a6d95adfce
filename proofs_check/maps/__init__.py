"""Tables that show where each rule is fair and what its clipping costs, over many laws of S given the length.

``fspo maps`` writes them; `proofs_check.maps.tables` explains every column.
"""

PARTS = ("fairness", "price")
"""The two maps, of fairness and of the price of clipping; either can be computed without the other."""
