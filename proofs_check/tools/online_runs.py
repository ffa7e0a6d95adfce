"""What bands that follow a target do under each log-ratio model, after they have learnt (docs/theory.md T14, T15).

Independent runs of the trainer's own class learn from a model's responses; then each run's bands, as they are before
later updates, are shown fresh responses of every length. The acceptance at a length is the mean over those updates:
what training sees in the long run, the estimand of T14 and T15. A run is the unit of every interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fspo.rules import Rule, TokenMeans, excess_quantile, preset, scaled, standardized_excess
from fspo.rules.online import OnlineRule
from fspo.stats.intervals import PERCENT
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
from proofs_check.tools.lre_interval import simulated_lre
from proofs_check.tools.settings import MU, SIGMA, TARGET

LENGTHS: Floats = np.array([m * 2.0**k for k in range(3, 9) for m in (1.0, 1.5)])
"""8 to 384 tokens, two lengths in each power of two, in equal shares: runs learn from them and are judged at them."""
RULES = ("fspo", "fspo-auto", "fspo-adaptive", "fspo-conformal")
ROWS, ROLLOUT = 240, 8
"""Responses of an update, updates of a rollout."""
LEARN, JUDGE, RUNS = 32, 16, 16
"""Updates before a run's bands are judged, updates at which they are, and independent runs."""
EACH = 48
"""Fresh responses of each length that a judged band is shown."""

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
"""Every model of ``proofs_check.models``, by its name there."""
WORDS = {
    "gaussian": "Gaussian tokens",
    "scaled-student": "heavy tails, one scaled law",
    "scaled-gamma": "skewed, one scaled law",
    "heteroscedastic": "scale grows like L^.15",
    "fractional": "fractional noise, H = .35",
    "student-tokens": "heavy-tailed tokens",
    "exponential-tokens": "skewed tokens",
    "ar1": "AR(1) tokens, .95",
    "markov": "Markov-modulated tokens",
    "shifted-lengths": "policy that stops sooner",
    "advantage-drift": "drift by the sign of A",
}
"""What each model is, for tables and figures."""
FAIR = ("gaussian", "scaled-student", "scaled-gamma")
"""Where plain FSPO around the drift is exactly fair (T1)."""
TIES = ("shifted-lengths",)
"""Where S takes so few values that responses tie: T15 then promises at least its share."""
POWER = ("heteroscedastic", "fractional")
"""Where it is not, and a band of another exponent is: one scale family, Var(S|L) a power of L."""


@dataclass(frozen=True)
class Learnt:
    """What one rule did under one model.

    Attributes
    ----------
    accepted : array (RUNS, K)
        Of each run at each length of ``LENGTHS``, mean over the judged updates.
    squares : array (RUNS,)
        Mean over a run's judged updates of the squared LRE_2 of that update's band, without the noise of ``EACH``.
    gamma : array (RUNS,)
        The band's exponent in the end.
    """

    accepted: Floats
    squares: Floats
    gamma: Floats

    @property
    def trend(self) -> Floats:
        """Mean acceptance and its covariance with the standardized log length, (RUNS, 2)."""
        z = np.log(LENGTHS)
        z = (z - z.mean()) / z.std()
        return np.stack([self.accepted.mean(axis=1), self.accepted @ z / z.size], axis=1)


def template(name: str, drift: str = "kl") -> Rule:
    """A preset with the given drift, started ten times too wide where it follows a target."""
    rule = preset(name, drift=drift).rule
    return rule if rule.adapt == "none" else replace(rule, range_lo=0.3, range_hi=0.3, target=TARGET)


def drawn(rng: np.random.Generator, model: LogRatioModel, rows: int) -> tuple[Floats, Floats, Floats]:
    """S, L and A of independent responses; A does not matter to a band's acceptance."""
    n = rng.choice(LENGTHS, rows)
    return model.sample(rng, n), n, np.ones(rows)


def learnt(
    rng: np.random.Generator, model: LogRatioModel, rules: Sequence[Rule], runs: int = RUNS
) -> tuple[Learnt, ...]:
    """Independent runs of several rules under one model, on the same responses.

    A rule that follows no target gets the range that accepts TARGET of a run's first LEARN updates, as a pilot run
    would set it.
    """
    means, k = matching_means(model), LENGTHS.size
    accepted = np.zeros((len(rules), runs, k))
    squares, gammas = np.zeros((len(rules), runs)), np.zeros((len(rules), runs))
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
                    squares[i, run] += squared_lre(kept) / JUDGE
            rows = drawn(rng, model, ROWS)
            pilot.append(rows)
            for one in online:
                one.observe(*rows, one.template.centre(means))
                if t % ROLLOUT == ROLLOUT - 1:
                    one.end_rollout()
        gammas[:, run] = [0.5 if one.rule.gamma is None else one.rule.gamma for one in online]
    return tuple(Learnt(*parts) for parts in zip(accepted, squares, gammas, strict=True))


def _calibrated(online: OnlineRule, rows: tuple[Floats, ...], means: TokenMeans) -> OnlineRule:
    rule = online.template
    if rule.adapt != "none":
        return online
    S, n, A = rows
    return OnlineRule(scaled(rule, excess_quantile(standardized_excess(rule, S, n, A, rule.centre(means)), TARGET)))


def squared_lre(kept: Floats) -> float:
    """LRE_2 squared over equal shares from independent indicators (N, K), less the sampling variance that it holds."""
    number, k = kept.shape
    a = kept.mean(axis=0)
    noise = (1 - 1 / k) * float(np.mean(a * (1 - a))) / (number - 1)
    return (float(np.var(a)) - noise) / float(a.mean()) ** 2


def survey(
    rng: np.random.Generator, drift: str = "kl", models: Mapping[str, LogRatioModel] = MODELS, runs: int = RUNS
) -> Iterator[tuple[str, dict[str, Learnt]]]:
    """Every rule of RULES under each model in turn: the model's name, and what each rule did."""
    rules = [template(name, drift) for name in RULES]
    for name, model in models.items():
        yield name, dict(zip(RULES, learnt(rng, model, rules, runs), strict=True))


def lre_row(found: Learnt) -> dict[str, Any]:
    """LRE of the long-run acceptance with simultaneous intervals over runs, and LRE_2 of one update's band."""
    shares = np.full(LENGTHS.size, 1 / LENGTHS.size)
    row = simulated_lre(shares, found.accepted, np.ones_like(found.accepted))
    return row | {"lre_2_update": math.sqrt(max(float(found.squares.mean()), 0.0)), "gamma": float(found.gamma.mean())}


def text_table(found: Mapping[str, Mapping[str, Learnt]]) -> str:
    """One line for each model and rule."""
    lines = [f"{'model':20}{'rule':16}{f'LRE_2 [{PERCENT}]':24}{f'LRE_inf [{PERCENT}]':24}{'accepted':10}exponent"]
    for model, by_rule in found.items():
        for rule, one in by_rule.items():
            row = lre_row(one)
            two, most = (
                f"{row[name]:.3f} [{row[name + '_low']:.3f}, {row[name + '_high']:.3f}]"
                for name in ("lre_2", "lre_inf")
            )
            lines.append(f"{model:20}{rule:16}{two:24}{most:24}{row['acceptance']:<10.3f}{row['gamma']:.2f}")
    return "\n".join(lines)
