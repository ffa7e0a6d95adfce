"""Check T14: bands that follow a target acceptance, updated by the trainer's code (docs/theory.md sections 2 and 6)."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from fspo.rules import Rule
from fspo.rules.online import GAIN, MAX_HALF_WIDTH, OnlineRule
from fspo.theory import Floats
from proofs_check.frame import Check, Method, Outcome
from proofs_check.models import FractionalNoise, GaussianTokens, Heteroscedastic, LogRatioModel, matching_means
from proofs_check.tools.compare import holds, mean_is
from proofs_check.tools.settings import MU, SIGMA, TARGET

GRID = 4.0 ** np.arange(2, 6)
"""Lengths at which the share of responses in the band is measured: 16 to 1,024 tokens."""
CEILING = math.log(MAX_HALF_WIDTH / 0.003) - 1e-9
HETEROSCEDASTIC, FRACTIONAL = Heteroscedastic(MU, SIGMA, beta=0.15), FractionalNoise(MU, SIGMA, hurst=0.65)


def template(adapt: str, target: float = TARGET) -> Rule:
    """Return fspo-kl's rule with a range ten times too wide and a target acceptance that its band must learn to meet.
    ``adapt`` says what is learnt: the range, or the exponent too.
    """
    shape, gamma = ("power", 0.5) if adapt == "exponent" else ("sqrt", None)
    learnt = {"adapt": adapt, "target": target, "target_rate": "band"}
    return Rule(shape, 0.3, 0.3, gamma=gamma, drift="kl", **learnt)  # type: ignore[arg-type]


def drawn(rng: np.random.Generator, model: LogRatioModel, number: int) -> tuple[Floats, Floats]:
    """Draw log-ratios S and lengths L of ``number`` responses, with L log-uniform between 8 and 2,048."""
    n = np.exp(rng.uniform(math.log(8), math.log(2048), number)).round()
    return model.sample(rng, n), n


def long_run(rng: np.random.Generator, factor: float = 1.0) -> Outcome:
    """Check T14 (bands that follow a target): after T updates the mean acceptance is within D/(T G_T) of the target.
    G_T is the gain (step size) of the last update; D is the largest less the least value that the log of the range has
    had. The scale of S changes at random between updates, or an adversary puts all S just inside or just outside the
    band.
    """
    slack = []
    for _ in range(100):
        target, rows = rng.uniform(0.05, 0.95), int(rng.integers(1, 20))
        online = OnlineRule(Rule("sqrt", 0.003, 0.003, adapt="range", target=target, target_rate="band"))
        accepted, theta = [], []
        scale, walk = 0.1, rng.uniform(0, 0.6)
        for _ in range(int(rng.integers(5, 120))):
            S = scale * rng.standard_normal(rows)
            if rng.random() < 0.2:  # an adversary puts every S just inside or just outside the band
                S = np.full(rows, online.rule.range_hi * rng.choice([0.999, 1.001]))
            if online.state["updates"]:
                accepted.append(online.rule.apply(S, np.ones(rows), np.ones(rows)).in_band.mean())
                theta.append(online.state["log_scale"])
            online.observe(S, np.ones(rows), np.ones(rows))
            scale = float(np.clip(scale * np.exp(walk * rng.standard_normal()), 1e-3, 3))
        theta.append(online.state["log_scale"])
        if max(theta) >= CEILING:  # leave out runs whose range reached its upper limit: T14 excludes them
            continue
        last = max(GAIN, 1 / math.sqrt(len(accepted)))
        bound = (max(theta) - min(theta)) / (len(accepted) * last)
        slack.append(factor * bound - abs(float(np.mean(accepted)) - target))
    return holds(slack, "probability", rounding=1e-12, sequences=len(slack))


def telescoping(rng: np.random.Generator, exponent: float = 0.5) -> Outcome:
    """Check T14 (bands that follow a target): at update t the log of the range moves by the gain max(1/2, 1/sqrt(t))
    times (target less acceptance), so after all updates it has moved by the sum of these, up to rounding.
    """
    gaps = []
    for _ in range(30):
        online = OnlineRule(template("range"))
        moved = 0.0
        for t in range(60):
            S, n = drawn(rng, GaussianTokens(MU, SIGMA * math.exp(0.02 * t)), 64)
            means, A = matching_means(GaussianTokens(MU, SIGMA)), np.ones(64)
            if t:
                share = online.rule.apply(S, n, A, online.rule.centre(means)).in_band.mean()
                moved += max(0.5, t**-exponent) * (TARGET - share)
            online.observe(S, n, A, online.template.centre(means))
            if t == 0:
                start = online.state["log_scale"]
        gaps.append(1e-9 - abs(online.state["log_scale"] - start - moved))
    return holds(gaps, "nats", updates=60)


def learnt_acceptance(
    rng: np.random.Generator, adapt: str, model: LogRatioModel, target: float = TARGET, chains: int = 50
) -> Outcome:
    """Check that a band that follows a target reaches it at each of the four lengths of ``GRID``: mean acceptance over
    updates 81 to 120 of 256 responses each, averaged over ``chains`` independent runs. ``adapt`` says what is learnt:
    the range, or the exponent too.
    """
    means, found = matching_means(model), []
    for _ in range(chains):
        online = OnlineRule(template(adapt))
        kept = []
        for t in range(120):
            S, n = drawn(rng, model, 256)
            if t >= 80:
                at = np.tile(GRID, 16)
                kept.append(
                    online.rule.apply(model.sample(rng, at), at, np.ones_like(at), online.rule.centre(means)).in_band
                )
            online.observe(S, n, np.ones_like(S), online.template.centre(means))
        found.append(np.mean(kept, axis=0).reshape(16, GRID.size).mean(0))
    return mean_is(np.array(found), np.full(GRID.size, target), wanted=0.02, chains=chains)


CHECKS = (
    Check(
        "T14",
        Method.ATTACKED,
        "average acceptance within D / (T G_T), laws that jump and an adversary",
        long_run,
        {"a tenth of the bound": partial(long_run, factor=0.1)},
    ),
    Check(
        "T14",
        Method.CLOSED,
        "theta moves by the sum of G_t (target - a_t)",
        telescoping,
        {"gains 1/t": partial(telescoping, exponent=1.0)},
    ),
    Check(
        "T14",
        Method.SIMULATED,
        "range goes to the target, Gaussian S",
        partial(learnt_acceptance, adapt="range", model=GaussianTokens(MU, SIGMA)),
        {
            "another target by .01": partial(
                learnt_acceptance, adapt="range", model=GaussianTokens(MU, SIGMA), target=TARGET + 0.01
            ),
            "scale grows like l^.15": partial(learnt_acceptance, adapt="range", model=HETEROSCEDASTIC),
        },
    ),
    Check(
        "T14",
        Method.SIMULATED,
        "exponent: fair under fractional noise, H = .65",
        partial(learnt_acceptance, adapt="exponent", model=FRACTIONAL),
        {"range alone": partial(learnt_acceptance, adapt="range", model=FRACTIONAL)},
    ),
)
