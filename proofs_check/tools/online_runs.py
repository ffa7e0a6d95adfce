"""Measure the acceptance of bands that follow a target, after learning, under each log-ratio model (T14).

In each of several independent runs `OnlineRule`, the class that training uses, learns a band from the responses that a
log-ratio model draws. Then, before each of several later updates, the band is applied to fresh responses of every
length. The acceptance at a length is the mean over those updates: the long-run acceptance of which T14 speaks.
Tests treat runs as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fspo.rules import Rule, TokenMeans, excess_quantile, scaled, standardized_excess
from fspo.rules.online import OnlineRule
from fspo.theory import Floats
from proofs_check.models import (
    AdvantageDrift,
    AutoregressiveTokens,
    ExponentialTokens,
    FractionalNoise,
    GaussianTokens,
    Heteroscedastic,
    LogRatioModel,
    MarkovTokens,
    ScaledGamma,
    ScaledStudent,
    ShiftedLengths,
    StudentTokens,
    matching_means,
)
from proofs_check.tools.settings import MU, SIGMA, TARGET

LENGTHS: Floats = np.array([m * 2.0**k for k in range(3, 9) for m in (1.0, 1.5)])
"""Lengths of the simulated responses, with equal shares: 8, 12, 16, 24 ... 384 tokens."""
RULES = {
    "fspo": Rule("sqrt", 0.03, 0.03, drift="kl"),
    "learnt range": Rule("sqrt", 0.3, 0.3, drift="kl", adapt="range", target=TARGET, target_rate="band"),
    "learnt exponent": Rule(
        "power", 0.3, 0.3, gamma=0.5, drift="kl", adapt="exponent", target=TARGET, target_rate="band"
    ),
}
"""The rules by name. A band that follows a target starts with a range far wider than the one that meets it."""
ROWS = 240
"""Number of responses in an update."""
LEARN, JUDGE, RUNS = 32, 16, 16
"""Number of updates before a run's band is judged, number of updates at which it is judged, and number of independent
runs.
"""
EACH = 48
"""Number of fresh responses of each length to which a judged band is applied."""

MODELS: Mapping[str, LogRatioModel] = {
    "gaussian": GaussianTokens(MU, SIGMA),
    "scaled-student": ScaledStudent(MU, SIGMA, df=3.0),
    "scaled-gamma": ScaledGamma(MU, SIGMA, shape=1.0),
    "heteroscedastic": Heteroscedastic(MU, SIGMA, beta=0.15),
    "fractional": FractionalNoise(MU, SIGMA, hurst=0.35),
    "student-tokens": StudentTokens(MU, SIGMA, df=3.0),
    "exponential-tokens": ExponentialTokens(MU, SIGMA),
    "ar1": AutoregressiveTokens(MU, SIGMA, ar=0.95),
    "markov": MarkovTokens(MU, SIGMA, persistence=0.9, share=0.2, mean_part=0.9, noise_ratio=3.0),
    "shifted-lengths": ShiftedLengths(),
    "advantage-drift": AdvantageDrift(MU, SIGMA, pull=0.003, positive=0.5, trend=-0.4),
}
"""The log-ratio models under which bands learn, by their names in ``proofs_check.models``."""
FAIR = ("gaussian", "scaled-student", "scaled-gamma")
"""Log-ratio models under which FSPO's band around the model's drift accepts the same share at every length (T1)."""
POWER = ("heteroscedastic", "fractional")
"""Log-ratio models under which FSPO's band accepts some lengths more often than others, but a band whose half-width
grows with another power of L does not.
"""


@dataclass(frozen=True)
class Learnt:
    """What one rule learnt under one log-ratio model, over several runs.

    Attributes
    ----------
    accepted : array (RUNS, K)
        Acceptance in each run at each of ``LENGTHS``, averaged over the updates at which the band is judged.
    gamma : array (RUNS,)
        The band's exponent after the last update.
    """

    accepted: Floats
    gamma: Floats

    @property
    def trend(self) -> Floats:
        """Return two numbers for each simulated run, (RUNS, 2): its mean acceptance over the lengths, and the
        covariance over the lengths of acceptance and standardised log length.
        """
        z = np.log(LENGTHS)
        z = (z - z.mean()) / z.std()
        return np.stack([self.accepted.mean(axis=1), self.accepted @ z / z.size], axis=1)


def drawn(rng: np.random.Generator, model: LogRatioModel, rows: int) -> tuple[Floats, Floats, Floats]:
    """Draw S, L and A of independent responses. A is 1, because band acceptance does not depend on it."""
    n = rng.choice(LENGTHS, rows)
    return model.sample(rng, n), n, np.ones(rows)


def learnt(
    rng: np.random.Generator, model: LogRatioModel, rules: Sequence[Rule], runs: int = RUNS
) -> tuple[Learnt, ...]:
    """Let several rules learn separately from the same responses of one log-ratio model, and return what each learnt.

    A rule that follows no target gets a fixed range, as a pilot run would set it: the one at which it accepts the share
    TARGET of the responses of a run's first LEARN updates.
    """
    means, k = matching_means(model), LENGTHS.size
    accepted = np.zeros((len(rules), runs, k))
    gammas = np.zeros((len(rules), runs))
    for run in range(runs):
        online, pilot = [OnlineRule(rule) for rule in rules], []
        for t in range(LEARN + JUDGE):
            if t == LEARN:
                rows = tuple(np.concatenate(part) for part in zip(*pilot, strict=True))
                online = [_calibrated(one, rows, means) for one in online]
            if t >= LEARN:
                n = np.tile(LENGTHS, EACH)
                S = model.sample(rng, n)
                for i, one in enumerate(online):
                    kept = one.rule.apply(S, n, np.ones_like(n), one.rule.centre(means)).in_band.reshape(EACH, k)
                    accepted[i, run] += kept.mean(axis=0) / JUDGE
            rows = drawn(rng, model, ROWS)
            pilot.append(rows)
            for one in online:
                one.observe(*rows, one.template.centre(means))
        gammas[:, run] = [0.5 if one.rule.gamma is None else one.rule.gamma for one in online]
    return tuple(Learnt(*parts) for parts in zip(accepted, gammas, strict=True))


def _calibrated(online: OnlineRule, rows: tuple[Floats, ...], means: TokenMeans) -> OnlineRule:
    rule = online.template
    if rule.adapt != "none":
        return online
    S, n, A = rows
    return OnlineRule(scaled(rule, excess_quantile(standardized_excess(rule, S, n, A, rule.centre(means)), TARGET)))
