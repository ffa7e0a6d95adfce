"""The tabular policy: probabilities sum to 1, scores are gradients, strata are expectations; the chain of the four
distributions, and truncated sampling by hand."""

import numpy as np
import pytest

from fspo.base.errors import UserError
from fspo.rules import preset
from proofs_check.tools.chain import make_chain, truncated
from proofs_check.tools.policy import all_responses, make_bandit, next_symbol, scores, strata, token_log_probs


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
def test_strata_are_means_by_length(name, outside):
    bandit = make_bandit(np.random.default_rng(2), vocabulary=2, max_length=3)
    rule = preset(name, outside=outside, range_lo=0.1, range_hi=0.1).rule
    p, g, clipped, a = strata(bandit, rule)
    psi = scores(bandit.new, bandit.responses)
    S, L, A = bandit.token_log_ratios.sum(axis=1), bandit.responses.lengths.astype(float), bandit.advantages
    applied = rule.apply(S, L, A)
    w, m, scale = applied.weight, applied.multiplier, A / (L if rule.weight == "geometric" else 1)
    for k, length in enumerate(np.unique(L[A != 0])):
        at = (length == L) & (A != 0)
        shares = bandit.p_old[at] / bandit.p_old[at].sum()
        assert p[k] == pytest.approx(bandit.p_old[at].sum())
        np.testing.assert_allclose(g[k], (shares * (scale * w)[at]) @ psi[at], atol=1e-14)
        np.testing.assert_allclose(clipped[k], (shares * (scale * w * m)[at]) @ psi[at], atol=1e-14)
        kept = shares @ m[at] if outside == "drop" else shares @ (w * m)[at] / (shares @ w[at])
        assert a[k] == pytest.approx(kept)


def test_drift_stats_are_the_kl_per_token():
    bandit = make_bandit(np.random.default_rng(3))
    kl = -bandit.p_old @ bandit.log_ratio  # KL(old || new) of whole responses
    assert bandit.drift_stats().k3 == pytest.approx(kl / (bandit.p_old @ bandit.responses.lengths))


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [(1.0, None, 3), (0.81, None, 3), (0.8, None, 2), (0.51, None, 2), (0.5, None, 1), (1.0, 2, 2), (0.5, 2, 1)],
)
def test_truncation_keeps_the_most_likely_symbols_up_to_top_p(top_p, top_k, kept):
    probabilities, order = np.array([0.2, 0.5, 0.3]), [1, 2, 0]
    found = next_symbol(truncated(np.log(probabilities[None, None]), top_p, top_k))[0, 0]
    expected = np.where(np.isin([0, 1, 2], order[:kept]), probabilities, 0)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-14)


def test_the_parts_of_a_chain_add_up_to_new_less_draw():
    chain = make_chain(np.random.default_rng(0), top_p=0.8, temperature=0.9)
    on = chain.drawn
    assert 0 < on.sum() < on.size
    assert chain.p_draw.sum() == pytest.approx(1, abs=1e-12)
    total = np.log(chain.probability(chain.new)[on]) - np.log(chain.p_draw[on])
    np.testing.assert_allclose((chain.update + chain.staleness + chain.engine)[on], total, rtol=1e-9, atol=1e-12)
