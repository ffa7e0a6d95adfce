"""What an import notices about the tokens of a table, told at once and kept for the doctor in import.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path

from fspo.gradlog.run_folder import IMPORT

DIGEST = "tokens"
"""Key of import.json under which the `TokenDigest` stands, as plain values; the key is absent without token lists."""


@dataclass
class Noticed:
    """Tokens (in ``above_zero`` of a table of sums: responses) in which one thing was noticed.

    ``count`` tokens, a ``share`` of those that count, in ``responses``. ``largest`` is the value farthest from 0, with
    its sign, in nats: of the log-ratio d, or of the log-probability for placeholders, zeros and values above 0. ``row``
    holds it, in the table's own names, such as {"row": 20, "idx": 19, "step": 7}, where "row" is its number in the
    table from 1; ``first`` is the first row that holds one.
    """

    count: int = 0
    share: float = 0.0
    responses: int = 0
    largest: float = 0.0
    row: dict[str, int | float | str] = field(default_factory=dict)
    first: dict[str, int | float | str] = field(default_factory=dict)


@dataclass
class TokenDigest:
    """Sums over the tokens that count, of d = ``base`` less ``against``: log-probabilities of a trainer and a sampler.

    Uncertain tokens are those that ``against`` gives a probability below .8.

    Attributes
    ----------
    base, against : str
        The table's names of the old (else the new) policy's column, and of the sampler's (else the old policy's).
    sampler : bool
        Whether ``against`` is the sampler's. If not, only ``placeholder``, ``overflow``, ``above_zero`` are looked for.
    tokens, responses : int
        Tokens that count and have both log-probabilities, without placeholders and zeros; responses with such a token.
    rms, mean_ratio : float
        Root mean square of d (nats), and the mean of exp(d) with d held within 20.
    uncertain, below : int, float
        Number of uncertain tokens, and the share of them with d < 0: near 1 if the sampler kept to a nucleus.
    temperature : float
        Standard deviation of ``base`` over that of ``against`` at uncertain tokens: the temperature of ``against``, as
        a multiple of that of ``base``, if nothing else differs.
    shifts : dict
        "-1", "0", "1" -> root mean square of base[t + shift] less against[t] over uncertain tokens that have a
        neighbour on both sides; nats.
    placeholder : Noticed
        Log-probabilities at or below -1000, or one value below 0 repeated to the last digit in a share of the tokens
        that no model gives.
    zeros : Noticed
        Tokens in runs in which ``against`` is exactly 0 and ``base`` is not: a mask is missing.
    confident : Noticed
        Tokens that ``against`` holds above .5 and ``base`` puts 2 nats or more lower: other weights or another input.
    overflow : Noticed
        Tokens with |d| above 20, which exp(d) in a weight turns into 5e8 and more, or with an infinite d.
    above_zero : Noticed
        Log-probabilities slightly above 0, held at 0.
    largest : list of dict
        Up to 5 responses with the largest |d| of a token, the largest first: the row as in `Noticed`, "d" (nats) and
        "mean_error", the mean of exp(|d|) over its tokens.
    cause : str
        The first of "temperature", "shift", "weights" and "nucleus" whose test says so of the tokens; else
        "placeholder" or "mask" if there are such tokens, which were left out; else "".
    """

    base: str = ""
    against: str = ""
    sampler: bool = True
    tokens: int = 0
    responses: int = 0
    rms: float = 0.0
    mean_ratio: float = 1.0
    uncertain: int = 0
    below: float = 0.0
    temperature: float = 1.0
    shifts: dict[str, float] = field(default_factory=dict)
    placeholder: Noticed = field(default_factory=Noticed)
    zeros: Noticed = field(default_factory=Noticed)
    confident: Noticed = field(default_factory=Noticed)
    overflow: Noticed = field(default_factory=Noticed)
    above_zero: Noticed = field(default_factory=Noticed)
    largest: list[dict[str, int | float | str]] = field(default_factory=list)
    cause: str = ""


def digest_of(run: Path) -> TokenDigest | None:
    """Return what the import of a run folder noticed about tokens; None if nothing is written there."""
    try:
        found = json.loads((run / IMPORT).read_text(encoding="utf-8"))[DIGEST]
        digest = TokenDigest()
        for name in {each.name for each in fields(digest)} & found.keys():
            noticed = isinstance(getattr(digest, name), Noticed)
            setattr(digest, name, Noticed(**found[name]) if noticed else found[name])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return digest
