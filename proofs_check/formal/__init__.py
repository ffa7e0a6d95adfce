"""Machine-checked proofs: the Coq scripts (``*.v``), what runs them and what they establish."""
