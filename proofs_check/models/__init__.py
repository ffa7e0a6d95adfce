"""Log-ratio models: distributions of S given the length L (docs/theory.md section 4).

Each model has a drift ``mu`` and a scale ``sigma`` per token, from which the centre of a rule's band follows, the
``mean`` and ``variance`` of S at each length, and, if there is a formula, its ``cdf``."""

from __future__ import annotations

from proofs_check.models.base import LogRatioModel, TokenModel, matching_means
from proofs_check.models.chain import CHAIN, StoppedChain
from proofs_check.models.scaled import (
    AutoregressiveTokens,
    FractionalNoise,
    GaussianTokens,
    Heteroscedastic,
    ScaledGamma,
    ScaledStudent,
)
from proofs_check.models.tokens import ExponentialTokens, MarkovTokens, StudentTokens, TokenByToken
