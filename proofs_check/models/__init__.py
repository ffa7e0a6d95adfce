"""Log-ratio models: laws of S given the length L (docs/theory.md section 4).

Each model has a drift ``mu`` and a scale ``sigma`` per token, from which the centre of a rule's band follows, the
``mean`` and ``variance`` of S at each length, and, if there is a formula, its ``cdf``. ``MODELS`` names them all.
"""

from __future__ import annotations

from typing import Any

from fspo.base.errors import UserError, unknown_name
from proofs_check.models.base import JointModel, LogRatioModel, TokenModel, matching_means
from proofs_check.models.joint import AdvantageDrift, IndependentAdvantage, ShiftedLengths
from proofs_check.models.scaled import (
    AutoregressiveTokens,
    FractionalNoise,
    GaussianTokens,
    Heteroscedastic,
    ScaledGamma,
    ScaledStudent,
)
from proofs_check.models.tokens import ExponentialTokens, MarkovTokens, StudentTokens, TokenByToken

MODELS: dict[str, type[Any]] = {
    "gaussian": GaussianTokens,
    "ar1": AutoregressiveTokens,
    "markov": MarkovTokens,
    "student-tokens": StudentTokens,
    "scaled-student": ScaledStudent,
    "exponential-tokens": ExponentialTokens,
    "scaled-gamma": ScaledGamma,
    "heteroscedastic": Heteroscedastic,
    "fractional": FractionalNoise,
    "shifted-lengths": ShiftedLengths,
    "advantage-drift": AdvantageDrift,
}
"""Every model by name; ``make_model`` builds one."""


def make_model(name: str, **parameters: Any) -> Any:
    """Return a model by name, such as ``make_model("fractional", mu=0.0, sigma=0.03, hurst=0.6)``.

    Raises
    ------
    UserError
        For an unknown name, and for parameters that are unknown, missing or out of range.
    """
    if name not in MODELS:
        raise unknown_name("model", name, tuple(MODELS))
    fields = MODELS[name].__dataclass_fields__
    for key in parameters:
        if key not in fields:
            raise unknown_name(f"parameter of model {name!r}", key, tuple(fields))
    try:
        return MODELS[name](**parameters)
    except TypeError as error:  # a parameter is missing, and the error of the model's constructor names it
        raise UserError(f"model {name!r}: {str(error).split('() ')[-1]}") from error


__all__ = [
    "MODELS",
    "AdvantageDrift",
    "AutoregressiveTokens",
    "ExponentialTokens",
    "FractionalNoise",
    "GaussianTokens",
    "Heteroscedastic",
    "IndependentAdvantage",
    "JointModel",
    "LogRatioModel",
    "MarkovTokens",
    "ScaledGamma",
    "ScaledStudent",
    "ShiftedLengths",
    "StudentTokens",
    "TokenByToken",
    "TokenModel",
    "make_model",
    "matching_means",
]
