"""Names of rules and of their parts that earlier releases knew, and what replaces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fspo.base.errors import UserError, unknown_name

GONE_PRESETS = {
    "fspo-gaussian": "preset fspo with drift gaussian",
    "fspo-tilted": "preset fspo with drift tilted",
    "fspo-signed": "preset fspo-kl",
    "fspo-truncate": "preset fspo with outside truncate",
    "fspo-cap": "preset fspo with outside cap",
    "fspo-auto": "preset fspo with adapt range and target 0.9",
    "fspo-conformal": "preset fspo-adaptive",
    "power": "preset fspo with gamma 0.75",
    "ctpo": "preset fspo, or grpo for a band on each token",
}
"""Preset -> what replaces it."""
GONE_PARTS = {
    "shape": {"prefix": "sqrt or token"},
    "drift": {"signed": "kl"},
    "adapt": {"bins": "range or exponent"},
    "on": {"total": "update, with a correction"},
}
"""Field of `fspo.rules.Rule` -> value -> what replaces it."""


class GoneError(UserError):
    """A rule that this release no longer has."""


def check_name(what: str, name: str, names: Sequence[str], gone: Mapping[str, str]) -> None:
    """Check that ``name`` is one of ``names``; ``what`` says what they name, as in "rule drift".

    Raises GoneError for a name of an earlier release, one of ``gone``, and else UserError with the nearest known name.
    """
    if name in names:
        return
    if name in gone:
        raise GoneError(f"{what} {name!r} is gone: use {gone[name]}")
    raise unknown_name(what, name, tuple(names))
