"""Tables that show where each rule is fair and what its clipping costs, over many models of S.

``fspo maps`` writes them; `proofs_check.maps.tables` explains every column.
"""

PARTS = ("fairness", "price")
"""The parts of the maps, which can be computed one without the other."""
