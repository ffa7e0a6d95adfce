"""T14: long-run acceptance of a band that follows a target.

All checks run the class that the trainer uses.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fspo.rules import Rule, standardized_excess
from fspo.rules.online import GAIN, OnlineRule
from fspo.theory import Floats
from proofs_check.frame import Method, Test, check, near_miss
from proofs_check.models import LogRatioModel, matching_means
from proofs_check.tools.compare import all_of, at_most, means
from proofs_check.tools.settings import MODELS

TARGET, LENGTHS = 0.8, 4.0 ** np.arange(2, 6)


def template(adapt: str, target: float = TARGET, width: float = 0.3) -> Rule:
    """Return a sqrt band around the drift whose range, or range and exponent, follow a target band acceptance."""
    shape, gamma = ("power", 0.5) if adapt == "exponent" else ("sqrt", None)
    learnt: dict[str, Any] = {"adapt": adapt, "target": target, "target_rate": "band"}
    return Rule(shape, width, width, gamma=gamma, drift="kl", **learnt)  # type: ignore[arg-type]


def drawn(rng: np.random.Generator, model: LogRatioModel, number: int) -> tuple[Floats, Floats]:
    """Draw log-ratios and lengths, log-uniform between 8 and 2,048."""
    n = np.exp(rng.uniform(math.log(8), math.log(2048), number)).round()
    return model.sample(rng, n), n


@check("T14", Method.ATTACKED, "errors at most D/(T G_T), D at most B - A + G_1, adversaries too", "of the bounds", 0.1)
@near_miss("G_1 for G_T", first_gain=True)
@near_miss("D <= B - A", added=1e-12)
def long_run(rng: np.random.Generator, first_gain: bool = False, added: float = 1.0) -> Test:
    """The error of the mean acceptance is at most D/(T G_T), D at most B - A + G_1, G_1 = 1, and under ``exponent`` the
    error of the covariance with z at most D/(T G_T) of eta: rows of every log-ratio model whose scale jumps between
    updates, an adversary that puts all rows just inside or outside the band, rows always inside or always outside, and
    rows of one excess.
    """
    rows = []
    for i in range(48):
        adapt, kind = ("range", "exponent")[i % 2], i // 2 % 4
        target = (0.03, 0.97)[i // 8 % 2] if kind >= 2 else float(rng.uniform(0.05, 0.95))
        online, model = OnlineRule(template(adapt, target, 0.03)), list(MODELS.values())[i % len(MODELS)]
        m, errors, trends, path, excess = online.template.centre(matching_means(model)), [], [], [], []
        factor, walk = 1.0, rng.uniform(0, 0.6)
        for t in range(60 + i % 60):
            S, n = drawn(rng, model, int(rng.integers(4, 20)))
            S = m * n + factor * (S - m * n)
            if t and kind == 1 and rng.random() < 0.2:
                S = online.rule.band(n, m)[1] * 1.0 + rng.choice([-1e-3, 1e-3])
            if t and kind == 2:
                S = m * n + np.sqrt(n) * (0.2 if target < 0.5 else 0.0)
            if kind == 3:
                S = m * n + 0.02 * np.sqrt(n)
            state = online.state
            excess.append(
                np.log(np.maximum(standardized_excess(online.template, S, n, np.ones(n.size), m, "band"), 1e-300))
            )
            if t:
                z = (np.log(n) - state["centre"]) / state["spread"]
                missed = target - (excess[-1] <= state["log_scale"] + state["slope"] * z)
                errors.append(float(missed.mean()))
                trends.append(float((missed * z).mean()))
                path.append((state["log_scale"], state["slope"]))
            online.observe(S, n, np.ones(n.size), m)
            factor = float(np.clip(factor * np.exp(walk * rng.standard_normal()), 0.1, 10))
        path.append((online.state["log_scale"], online.state["slope"]))
        D, T = np.ptp(path, axis=0), len(errors)
        gain = 1.0 if first_gain else max(GAIN, 1 / math.sqrt(T))
        rows.append((abs(np.mean(errors)), D[0] / (T * gain), "error"))
        slopes = np.array(path)[:, 1] / online.state["spread"] + 0.5
        if adapt == "exponent" and slopes.min() > 1e-9 and slopes.max() < 2 - 1e-9:
            rows.append((abs(np.mean(trends)), D[1] / (T * gain), "slope"))
        if adapt == "range" and kind != 2:  # a still row has no excess
            levels = np.concatenate([*excess, [path[0][0]]])
            rows.append((D[0], np.ptp(levels) + added, "D"))
    values, bounds, kinds = zip(*rows, strict=True)
    return at_most(values, bounds, 1e-9, kinds)


@check("T14", Method.SIMULATED, "learnt bands accept the target where a power of L scales S", "of the target", 0.03)
@near_miss("another target by .02", adapts=("range",), target=TARGET + 0.02)
@near_miss("range alone, scale grows like l^.15", adapts=("range",), model=MODELS["heteroscedastic"])
@near_miss("range alone, fractional noise", adapts=("range",), model=MODELS["fractional"])
def learnt(
    rng: np.random.Generator, adapts: tuple[str, ...] = ("range", "exponent"), model: LogRatioModel | None = None,
    target: float = TARGET, chains: int = 40,
) -> Test:  # fmt: skip
    """From a range ten times too wide the acceptance at four lengths goes to the target: the range alone under Gaussian
    S, range and exponent under fractional noise, H = .65. Updates 60 to 90 of 256 rows.
    """
    tests = []
    for adapt in adapts:
        dist = model or MODELS["Gaussian" if adapt == "range" else "fractional"]
        found, token_means = [], matching_means(dist)
        for _ in range(chains):
            online, kept = OnlineRule(template(adapt)), []
            for t in range(90):
                if t >= 60:
                    n = np.tile(LENGTHS, 16)
                    m = online.rule.centre(token_means)
                    kept.append(online.rule.apply(dist.sample(rng, n), n, np.ones(n.size), m).in_band)
                S, n = drawn(rng, dist, 256)
                online.observe(S, n, np.ones(256), online.template.centre(token_means))
            found.append(np.mean(kept, axis=0).reshape(16, LENGTHS.size).mean(axis=0))
        tests.append(means(np.array(found), np.full(LENGTHS.size, target)))
    return all_of(*tests)
