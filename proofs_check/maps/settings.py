"""The points of the fairness map: a base case, the base case with one factor changed, and grids in which two change.

Base case: S given the length l is N(-sigma^2 l/2, sigma^2 l) with sigma = 0.03, as for independent tokens of a policy
at first use; 12 lengths on a logarithmic grid around 512 with l_max/l_min = 16, equal shares; equal lower and upper
range, c_lo = c_hi; the share of positive advantages falls from .7 at the shortest length to .3 at the longest; S is
independent of A.

=============  =============================================================================================
factor         value
=============  =============================================================================================
drift_error    (0 - mu) sqrt(l_max)/sigma: how far the mean of S at the longest length lies below 0, in standard
               deviations; first use implies sigma sqrt(l_max)/2 (the base case)
drift_factor   factor by which the estimates k3 and sigma^2 are wrong, from which rules with the drift kl, gaussian
               or tilted get their centre; 1: no error
exponent       H of Var(S|l) = sigma^2 l (l/512)^(2H-1), mean -Var/2
tail           1/degrees of freedom of Student-t tokens (0 is Gaussian), mean -sigma^2 l/2
ar1            coefficient of stationary Gaussian AR(1) tokens, long-run scale sigma (T6)
switching      second eigenvalue of the two-state chain that the tokens' variance follows (scales 1 to 3)
length_ratio   l_max/l_min
asymmetry      c_hi/c_lo, at a fixed geometric mean (T11)
sign_share     P(A>0|l_min) - P(A>0|l_max), the one as far above 1/2 as the other is below (T11)
sign_drift     half the difference between the means of S for A>0 and A<0 at l_max, in standard deviations (T11)
=============  =============================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fspo.base.errors import unknown_name
from fspo.rules import TokenMeans
from fspo.theory import Floats, ar1_variance_ratio
from proofs_check.maps.laws import Law, Normal, Student, Switching
from proofs_check.models import AutoregressiveTokens

SIGMA = 0.03
"""Scale sigma of S in the base case: the standard deviation of S is SIGMA sqrt(L), in nats."""
MIDDLE = 512.0
RATIO = 16.0
SIGN_SHARE = 0.4
NUM_LENGTHS = 12
TYPICAL_PROMPTS = 512
"""Number of prompts in an update at which figures and studies read errors from the table mse_map."""


@dataclass(frozen=True)
class MapPoint:
    """One point of the fairness map: lengths, and the laws of S for positive and negative advantages.

    Attributes
    ----------
    factor, value, factor_2, value_2
        Names and values of the changed factors, as in the table at the head of the module; ``factor_2`` is "" if only
        one was changed.
    model : str
        Name of the law of S.
    lengths, p : arrays (K,)
        The lengths, and their shares.
    positive, negative : Law
        Laws of S given l for A > 0 and for A < 0.
    share : array (K,)
        P(A > 0 | l).
    means : TokenMeans
        Expected k3 and s^2 per token, from which a rule's centre follows; infinite where they do not exist.
    asymmetry : float
        Upper range over lower range, c_hi / c_lo.
    simulate : bool
        Whether the map also has rows from drawn responses at this point.
    """

    factor: str
    value: float
    factor_2: str
    value_2: float
    model: str
    lengths: Floats
    p: Floats
    positive: Law
    negative: Law
    share: Floats
    means: TokenMeans
    asymmetry: float
    simulate: bool = False


_BASE: dict[str, float] = {
    "drift_error": math.nan,
    "drift_factor": 1.0,
    "exponent": 0.5,
    "tail": 0.0,
    "ar1": 0.0,
    "switching": math.nan,
    "length_ratio": RATIO,
    "asymmetry": 1.0,
    "sign_share": SIGN_SHARE,
    "sign_drift": 0.0,
}

FACTORS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "drift_error": ((0, 0.25, 0.5, 0.68, 1, 1.5, 2, 3), (0, 2)),
    "drift_factor": ((0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2), ()),
    "exponent": ((0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 1), (0.7,)),
    "tail": ((0, 0.1, 0.2, 1 / 3, 0.5, 2 / 3, 0.8), (1 / 3, 0.8)),
    "ar1": ((-0.9, -0.5, 0, 0.5, 0.8, 0.9, 0.95, 0.99), (0.9,)),
    "switching": ((0, 0.9, 0.98, 0.995, 0.999), (0.995,)),
    "length_ratio": ((2, 4, 8, 16, 32, 64, 256), (64,)),
    "asymmetry": ((0.25, 0.5, 0.75, 1, 4 / 3, 2, 4), (2,)),
    "sign_share": ((0, 0.2, 0.4, 0.6, 0.8), ()),
    "sign_drift": ((-1, -0.5, 0, 0.25, 0.5, 1, 2), (1,)),
}
"""For each factor: its values in the fairness map, and those of the values at which the map also has rows from drawn
responses.
"""

GRIDS: tuple[tuple[str, tuple[float, ...], str, tuple[float, ...], str], ...] = (
    ("drift_error", (0, 0.25, 0.5, 1, 1.5, 2, 3), "exponent", (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1), "band"),
    ("length_ratio", (2, 4, 8, 16, 32, 64, 256), "exponent", (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1), "band"),
    ("asymmetry", (0.25, 0.5, 0.75, 1, 4 / 3, 2, 4), "sign_share", (0, 0.2, 0.4, 0.6, 0.8), "update"),
)
"""Grids of the fairness map in which two factors change. Each is given by the first factor and its values, the second
factor and its values, and the kind of acceptance whose LRE is mapped.
"""


def lengths_on(ratio: float) -> Floats:
    """Return NUM_LENGTHS whole lengths, evenly spaced on a logarithmic scale around MIDDLE. ``ratio``: the longest over
    the shortest.
    """
    return np.round(MIDDLE * np.geomspace(ratio**-0.5, ratio**0.5, NUM_LENGTHS))


def setting(
    factor: str, value: float, factor_2: str = "", value_2: float = math.nan, simulate: bool = False
) -> MapPoint:
    """Return the point of the fairness map where one or two factors have the given values, the others the base case's.

    Raises
    ------
    UserError
        For an unknown factor.
    """
    point = dict(_BASE)
    for name, new in ((factor, value), (factor_2, value_2)):
        if name:
            if name not in _BASE:
                raise unknown_name("factor", name, tuple(_BASE))
            point[name] = new
    lengths = lengths_on(point["length_ratio"])
    # Place of each length on a logarithmic scale, on which the shortest length is at -1/2 and the longest at 1/2.
    middle = np.log(lengths / MIDDLE) / np.log(lengths[-1] / lengths[0])
    share = 0.5 - point["sign_share"] * middle
    model, positive, negative, means = _laws(point, lengths, share)
    if point["drift_factor"] != 1:
        means = TokenMeans(means.k3 * point["drift_factor"], means.sigma2 * point["drift_factor"])
    return MapPoint(
        factor,
        value,
        factor_2,
        value_2,
        model,
        lengths,
        np.full(lengths.size, 1 / lengths.size),
        positive,
        negative,
        share,
        means,
        point["asymmetry"],
        simulate,
    )


@dataclass(frozen=True)
class Point:
    """A point of the fairness map before its laws of S are computed: one or two changed factors with their values, and
    the kinds of acceptance whose LRE is mapped. `setting` computes the laws, which takes time.
    """

    factor: str
    value: float
    factor_2: str = ""
    value_2: float = math.nan
    measures: tuple[str, ...] = ("band", "update", "weight")
    simulate: bool = False

    def setting(self) -> MapPoint:
        """Compute the laws of S at this point of the fairness map; return them with the point's lengths and factors."""
        return setting(self.factor, self.value, self.factor_2, self.value_2, self.simulate)


def points() -> list[Point]:
    """Return every point of the fairness map: those with one changed factor, then the grids with two."""
    found = [Point(f, v, simulate=v in drawn) for f, (values, drawn) in FACTORS.items() for v in values]
    for factor, values, factor_2, values_2, measure in GRIDS:
        found += [Point(factor, v, factor_2, w, (measure,)) for v in values for w in values_2]
    return found


def _laws(point: dict[str, float], lengths: Floats, positive: Floats) -> tuple[str, Law, Law, TokenMeans]:
    """Return the law of S at one point of the fairness map: its name, the law for A > 0, the law for A < 0, and the
    expected k3 and s^2 of a token, from which the rules' drifts follow.

    ``point`` holds the value of every factor of the map at this point (such as the exponent), ``positive`` the share of
    A > 0 at each length.
    """
    mu = -(SIGMA**2) / 2
    if point["tail"] > 0:
        df = 1 / point["tail"]
        law = Student(mu * lengths, lengths, SIGMA, df, MIDDLE)
        square = law.token_scale**2 * df / (df - 2) if df > 2 else math.inf
        # The mean of e^s is infinite for a Student-t token log-ratio s, and so is that of k3 = e^s - 1 - s.
        return "student", law, law, TokenMeans(math.inf, square + mu**2)
    if not math.isnan(point["switching"]):
        # A token's log-ratio has the variance ``low`` in one state of the Markov chain and 9 times that in the other;
        # the mean of the two variances is SIGMA^2.
        low = SIGMA**2 / 5
        law = Switching(lengths, low, 9 * low, point["switching"])
        return "markov", law, law, _token_means(mu, SIGMA**2)
    if point["ar1"] != 0:
        ar = point["ar1"]
        tokens = AutoregressiveTokens(mu, SIGMA, ar)
        variance = SIGMA**2 * lengths * ar1_variance_ratio(ar, lengths)
        law = Normal(mu * lengths, np.sqrt(variance), lambda rng, n: tokens.sample(rng, np.tile(lengths, (n, 1))))
        return "ar1", law, law, _token_means(mu, SIGMA**2 * (1 - ar) / (1 + ar))
    variance = SIGMA**2 * lengths * (lengths / MIDDLE) ** (2 * point["exponent"] - 1)
    mean = -variance / 2
    if not math.isnan(point["drift_error"]):
        mean = mean + (-point["drift_error"] * SIGMA / math.sqrt(lengths[-1]) - mu) * lengths
    shift = point["sign_drift"] * SIGMA * lengths / math.sqrt(lengths[-1])
    scale = np.sqrt(variance)
    # A rule estimates k3 and s^2 as means over the tokens of all responses, so a length counts in their expectations in
    # proportion to its tokens. A token of a response of length l is taken as N(mean/l, variance/l), with mean and
    # variance those of S at l.
    tokens = lengths / lengths.sum()
    sides = [(tokens * positive, mean + shift), (tokens * (1 - positive), mean - shift)]
    found = [_token_means(m / lengths, variance / lengths, w) for w, m in sides]
    means = TokenMeans(sum(one.k3 for one in found), sum(one.sigma2 for one in found))
    name = "gaussian" if point["exponent"] == 0.5 else "power_law"
    return name, Normal(mean + shift, scale), Normal(mean - shift, scale), means


def _token_means(mean: Floats | float, variance: Floats | float, share: Floats | float = 1.0) -> TokenMeans:
    """Return the expectations of k3 = e^s - 1 - s and of s^2 over tokens s with the law N(mean, variance), averaged
    with the weights ``share``.
    """
    k3 = np.expm1(mean + variance / 2) - mean
    return TokenMeans(float(np.sum(share * k3)), float(np.sum(share * (variance + mean**2))))
