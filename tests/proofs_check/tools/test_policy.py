"""The tabular policy: probabilities sum to 1, scores are gradients, strata are expectations."""

from __future__ import annotations

import numpy as np
import pytest

from fspo.base.errors import UserError
from fspo.rules import preset
from proofs_check.tools.policy import all_responses, make_bandit, scores, strata, token_log_probs


def test_all_responses_are_counted_and_distinct():
    responses = all_responses(3, 4)
    # 1 + 3 + 9 + 27 that end, 81 cut off
    assert len(responses.lengths) == 1 + 3 + 9 + 27 + 81
    assert len({tuple(row) for row in responses.symbols}) == len(responses.lengths)
    for row, length in zip(responses.symbols, responses.lengths, strict=True):
        assert np.all(row[length:] == -1)
        assert np.all(row[: length - 1] < 3)
    with pytest.raises(UserError):
        all_responses(0, 3)


def test_probabilities_sum_to_one_and_by_hand():
    theta = np.zeros((2, 3, 3))
    theta[0, 2] = np.log([2.0, 1.0, 1.0])  # start state: symbol 0 has probability 1/2, the end 1/4
    responses = all_responses(2, 2)
    p = np.exp(token_log_probs(theta, responses).sum(axis=1))
    assert p.sum() == pytest.approx(1.0)
    assert p[0] == pytest.approx(0.25)  # ends at once
    assert p[responses.symbols[:, 0] == 0] == pytest.approx(0.5 / 3)


def test_scores_are_the_gradient_of_log_pi():
    rng = np.random.default_rng(0)
    responses = all_responses(2, 3)
    theta = rng.standard_normal((3, 3, 3))
    psi, h = scores(theta, responses), 1e-6
    for i in range(theta.size):
        step = np.zeros(theta.size)
        step[i] = h
        up, down = (token_log_probs(theta + s * step.reshape(theta.shape), responses).sum(axis=1) for s in (1, -1))
        np.testing.assert_allclose(psi[:, i], (up - down) / (2 * h), atol=1e-8)


@pytest.mark.parametrize(("name", "outside"), [("fspo", "drop"), ("gspo", "truncate"), ("rloo", "cap")])
def test_strata_against_a_plain_loop(name, outside):
    bandit = make_bandit(np.random.default_rng(2), vocabulary=2, max_length=3)
    rule = preset(name, outside=outside, range_lo=0.1, range_hi=0.1).rule
    p, g, clipped, a = strata(bandit, rule)
    psi = scores(bandit.new, bandit.responses)
    sums: dict[int, list] = {}
    for i, length in enumerate(bandit.responses.lengths):
        A, mass = bandit.advantages[i], bandit.p_old[i]
        if A == 0:
            continue
        S = bandit.token_log_ratios[i].sum()
        out = rule.apply(np.array([S]), np.array([float(length)]), np.array([A]))
        scale = A / (length if rule.weight == "geometric" else 1)
        w, m = float(out.weight[0]), float(out.multiplier[0])
        terms = [mass, mass * scale * w * psi[i], mass * scale * w * m * psi[i], mass * m, mass * w * m, mass * w]
        old = sums.setdefault(int(length), [0.0] * 6)
        sums[int(length)] = [x + y for x, y in zip(old, terms, strict=True)]
    for k, length in enumerate(sorted(sums)):
        mass, true, cut, kept, weight_kept, weight = sums[length]
        assert p[k] == pytest.approx(mass)
        np.testing.assert_allclose(g[k], true / mass, atol=1e-14)
        np.testing.assert_allclose(clipped[k], cut / mass, atol=1e-14)
        assert a[k] == pytest.approx(kept / mass if outside == "drop" else weight_kept / weight)


def test_drift_stats_are_the_kl_per_token():
    bandit = make_bandit(np.random.default_rng(3))
    kl = -bandit.p_old @ bandit.log_ratio  # KL(old || new) of whole responses
    assert bandit.drift_stats().k3 == pytest.approx(kl / (bandit.p_old @ bandit.responses.lengths))
