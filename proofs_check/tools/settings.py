"""Drift and scale of log-ratio models, lengths, and digits that several checks of the theory share."""

from __future__ import annotations

import numpy as np

from fspo.theory import Floats
from proofs_check.models import (
    AutoregressiveTokens,
    FractionalNoise,
    GaussianTokens,
    Heteroscedastic,
    LogRatioModel,
    ScaledStudent,
)

MU, SIGMA = -0.00045, 0.03
"""Drift mu = -sigma^2/2 (nats per token) and scale sigma (nats per root token) of the log-ratio models that checks
sample from."""
MODELS: dict[str, LogRatioModel] = {
    "Gaussian": GaussianTokens(MU, SIGMA),
    "AR(1)": AutoregressiveTokens(MU, SIGMA, 0.6),
    "Student": ScaledStudent(MU, SIGMA, df=3.0),
    "heteroscedastic": Heteroscedastic(MU, SIGMA, beta=0.15),
    "fractional": FractionalNoise(MU, SIGMA, hurst=0.65),
}
"""Models of S given L by name; a power of L scales S, exactly or, under AR(1), in the limit."""
LENGTHS: Floats = np.array([1.0, 2, 7, 33, 250, 2_000, 16_384, 131_072, 1_000_000, 10_000_000])
"""Lengths in tokens at which formulas are compared with exact values."""
GRID: Floats = np.array([4.0, 16, 64, 256, 1024, 4096])
"""Lengths in tokens at which simulated checks draw responses."""
DIGITS = 50
"""Decimal digits of the computations with mpmath."""
