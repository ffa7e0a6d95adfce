"""Machine-checked proofs: the Coq scripts (``*.v``), the code that runs Coq, and the list of proved theorems."""
