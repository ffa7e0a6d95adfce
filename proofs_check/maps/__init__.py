"""Tables that show where each rule is fair and what its clipping costs, over many models of S.

``python -m proofs_check.maps`` writes them; `proofs_check.maps.tables` explains every column.
"""
