"""The coefficient M w A of a response's score in the clipped gradient: for every response of a small policy, section 2
of docs/theory.md gives the same as the rule objects and as the gradient of the trainer's loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from fspo.objective import objective, ratio_stats
from fspo.rules import Drift, Rule, drift_stats
from fspo.rules.clip import WAYS, Outside
from fspo.theory import Floats
from proofs_check.tools.policy import Bandit, make_bandit, token_log_probs
from tests.estimators import defined

CLIPS = (
    *((outside, None) for outside in get_args(Outside)),
    *((outside, 1.5) for outside, way in WAYS.items() if way.cuts == "active"),
)
"""The ways to clip that are checked: what happens outside the band, and how many half-widths above the centre the dual
clip's edge lies (None: no dual clip).
"""
Coefficients = Callable[[Rule, Bandit], Floats]


def by_rules(rule: Rule, bandit: Bandit) -> Floats:
    """Return the coefficient M w A of each response (N,) as ``Rule.apply`` computes it."""
    s, A = bandit.token_log_ratios, bandit.advantages
    m = rule.centre(drift_stats(s, bandit.responses.symbols >= 0))
    return rule.apply(bandit.log_ratio, bandit.lengths, A, m).clipped_weight * A


def by_loss(rule: Rule, bandit: Bandit) -> Floats:
    """Return the coefficient M w A of each response (N,) as the trainer's loss implies it: minus the derivative of
    ``fspo.objective``'s loss by the log-probability of one of the response's tokens (any one, they all give the same
    value), times the number of responses.
    """
    new, old = (torch.tensor(token_log_probs(theta, bandit.responses)) for theta in (bandit.new, bandit.old))
    mask = torch.tensor(bandit.responses.symbols >= 0)
    A = torch.tensor(bandit.advantages)
    stats = ratio_stats(vars(objective(new, old, mask, A, Rule("none")).records))
    new.requires_grad_()
    objective(new, old, mask, A, rule, m=rule.centre(stats)).loss.backward()
    assert new.grad is not None
    found = -len(A) * new.grad
    if not bool(torch.all(torch.where(mask, found == found[:, :1], found == 0))):
        raise ValueError("the tokens of a response do not share one coefficient, or a masked token has one")
    return found[:, 0].numpy()


@pytest.mark.parametrize("found", [by_rules, by_loss])
def test_every_response_has_the_coefficient_of_section_2(found):
    """For each drift and each way to clip the coefficient M w A is the one that section 2 of docs/theory.md defines."""
    rng = np.random.default_rng(11)
    bandit = make_bandit(rng, vocabulary=3, max_length=5, step=0.3)
    bandit = replace(bandit, advantages=rng.choice([-1.5, -0.5, 0.0, 0.5, 2.0], len(bandit.advantages)))
    s, S, A, n = bandit.token_log_ratios, bandit.log_ratio, bandit.advantages, bandit.lengths
    for name in defined.DRIFTS:
        m = defined.drift(name, s, n, np.ones(len(A))) * n
        for outside, dual in CLIPS:
            rule: Any = Rule("sqrt", 0.1, 0.12, drift=name, outside=outside, dual=dual)  # type: ignore[arg-type]
            lo, hi = m - 0.1 * np.sqrt(n), m + 0.12 * np.sqrt(n)
            M = np.array([defined.multiplier(outside, dual, *row) for row in zip(S, A, lo, hi, m, strict=True)])
            np.testing.assert_allclose(found(rule, bandit)[A != 0], (M * np.exp(S) * A)[A != 0], atol=1e-9)
            for sign in (-1, 1):
                assert np.any(M[np.sign(A) == sign] != 1), f"{rule.label}: nothing of sign {sign} is clipped"


def test_every_drift_and_multiplier_is_defined():
    assert get_args(Drift) == defined.DRIFTS
    for outside, expected in {"drop": 0.0, "truncate": math.exp(-0.5), "cap": math.exp(-0.5), "mask": 0.0}.items():
        assert defined.multiplier(outside, None, 1.5, 1.0, -1.0, 1.0, 0.0) == pytest.approx(expected)
        assert defined.multiplier(outside, None, 0.5, 1.0, -1.0, 1.0, 0.0) == 1.0
