"""Maps of where each rule is fair and what its clipping costs: tables over models of S.
``python -m proofs_check.maps`` writes them; `proofs_check.maps.tables` documents every column.
"""
