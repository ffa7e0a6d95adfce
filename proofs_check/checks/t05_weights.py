"""T5: weights and lengths."""

from __future__ import annotations

import mpmath as mp
import numpy as np

from fspo.rules import preset
from proofs_check.frame import Method, Test, check, near_miss
from proofs_check.models import CHAIN
from proofs_check.tools.compare import all_of, close, equal, means
from proofs_check.tools.policy import (
    PolicyResponses,
    all_responses,
    exact_next_symbol,
    make_bandit,
    scores,
    token_log_probs,
)
from proofs_check.tools.settings import DIGITS


@check("T5", Method.ENUMERATED, "softmax policies: E_old[e^S | L] and e^{s_t} - 1 uncorrelated", "of p_new/p_old", 1e-9)
@near_miss("means under the new policy", law="new")
@near_miss("s_t itself uncorrelated", centred=False)
@near_miss("uncorrelated given one length", first="common")
def enumerated(rng: np.random.Generator, law: str = "old", first: str = "all", centred: bool = True) -> Test:
    """Over all responses of softmax policies whose lengths shift: the mean of e^S at length l is p_new(l)/p_old(l); the
    e^{s_t} - 1 have mean 0 and are uncorrelated between positions. x: of the ratio. Near misses: means under the new
    policy, s_t in the place of e^{s_t} - 1, and the second part for the responses of the most frequent length alone.
    """
    stated, exact, sizes = [], [], []
    for _ in range(10):
        bandit = make_bandit(rng, step=0.5)
        old, new, n = bandit.p_old, bandit.p_new, bandit.lengths
        mass = new if law == "new" else old
        for length in np.unique(n):
            at = n == length
            stated.append(new[at].sum() / old[at].sum())
            exact.append(mass[at] @ np.exp(bandit.log_ratio[at]) / mass[at].sum())
        d = np.expm1(bandit.token_log_ratios) if centred else bandit.token_log_ratios  # 0 after the end
        common = np.bincount(n.astype(int), old).argmax()
        p = old if first == "all" else np.where(n == common, old, 0) / old[n == common].sum()
        moments = (d * p[:, None]).T @ d
        size = np.sqrt(np.outer(np.diag(moments), np.diag(moments)))
        apart = ~np.eye(len(moments), dtype=bool) & (size > 0)
        sizes += [*np.abs(moments[apart] / size[apart]), *np.abs(p @ d)]
    return all_of(equal(stated, exact, 1e-10), lambda x: close(1 + np.array(sizes), 1, 1e-11))


@check("T5", Method.ATTACKED, "the same from flat to nearly deterministic, at 50 digits", "of p_new/p_old", 1e-13)
@near_miss("old policy without full support", banned=True)
@near_miss("first token left out of S", skip_first=True)
def fifty_digits(rng: np.random.Generator, banned: bool = False, skip_first: bool = False) -> Test:
    """Policies from flat to nearly deterministic, in 50 digits where float64 seems to refute: the mean weight at each
    length, and the correlations. Near misses: an old policy that never draws a symbol, and S without its first token.
    """
    stated, exact, sizes = [], [], []
    for _ in range(40):
        vocabulary, length = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        shape = (length, vocabulary + 1, vocabulary + 1)
        old, new = (rng.choice([0.0, 0.3, 3.0, 12.0]) * rng.standard_normal(shape) for _ in range(2))
        if banned:
            old[0, vocabulary, rng.integers(0, vocabulary + 1)] = -np.inf
        responses = all_responses(vocabulary, length)
        with mp.workdps(DIGITS):
            of_old, of_new = (token_probabilities(theta, responses) for theta in (old, new))
            ratios = of_new / np.where(of_old > 0, of_old, mp.mpf(1))
            if skip_first:
                ratios[:, 0] = mp.mpf(1)
            p, q, drawn = of_old.prod(axis=1), of_new.prod(axis=1), of_old.prod(axis=1) > 0
            for n in np.unique(responses.lengths):
                at = responses.lengths == n
                if p[at].sum() > 0:
                    exact.append(float((p[at & drawn] * ratios[at & drawn].prod(axis=1)).sum() / q[at].sum()))
                    stated.append(1.0)
            d = ratios[drawn] - 1
            for i in range(length):
                for j in range(i):
                    terms = p[drawn] * d[:, i] * d[:, j]
                    sizes.append(float(abs(terms.sum()) / max(abs(terms).sum(), mp.mpf(10) ** -40)))
    return all_of(equal(stated, exact, 1e-14), lambda x: close(1 + np.array([0.0, *sizes]), 1, 1e-15))


def token_probabilities(theta: np.ndarray, responses: PolicyResponses) -> np.ndarray:
    """Return the probability of each token of each response in mpmath's precision, (N, T); 1 after its end."""
    table, found = exact_next_symbol(theta), np.full(responses.symbols.shape, mp.mpf(1), dtype=object)
    for i, row in enumerate(responses.symbols.tolist()):
        for t in range(int(responses.lengths[i])):
            found[i, t] = table[t, row[t - 1] if t else theta.shape[1] - 1, row[t]]
    return found


@check("T5", Method.SIMULATED, "a chain that stops sooner: mean weights by length, over all", "of mean weight", 0.02)
@near_miss("1 at each length", instead="one")
@near_miss("normal S with drift -KL", instead="-KL")
def chain(rng: np.random.Generator, instead: str = "", draws: int = 60_000) -> Test:
    """Drawn responses of a chain that stops sooner: the mean of e^S at four lengths, and 1 over all responses. Near
    misses: 1 at each length, and the mean weight of normal S with the chain's drift and scale.
    """
    lengths = np.array([2.0, 20, 60, 120])
    given = CHAIN.given(lengths)
    stated = {"one": np.ones(4), "-KL": np.exp(-CHAIN.kl_per_token() * lengths + [one.variance / 2 for one in given])}
    ratios = stated.get(instead, np.array([one.ratio for one in given]))
    n = np.broadcast_to(lengths, (draws, 4))
    weights = preset("none").rule.apply(CHAIN.sample(rng, n), n, np.ones_like(n)).weight
    given_length = means(np.asarray(weights), ratios)
    if instead:
        return given_length
    S, _ = CHAIN.sample_all(rng, draws)
    return all_of(given_length, means(np.exp(S)[:, None], [1.0]))


@check("T5", Method.SIMULATED, "first use: mean weight 1 on fresh responses after a step", "of mean weight", 0.05)
@near_miss("responses that were trained on", trained_on=True)
def first_use(rng: np.random.Generator, trained_on: bool = False, batches: int = 1_500, size: int = 32) -> Test:
    """After a training step on a batch the mean of e^S is 1 on fresh responses; a near miss takes those of the step."""
    responses = all_responses(2, 4)
    old = 0.5 * rng.standard_normal((4, 3, 3))
    log_old = token_log_probs(old, responses).sum(axis=1)
    psi, reward = scores(old, responses), (responses.symbols == 1).sum(axis=1) / 4
    p = np.exp(log_old) / np.exp(log_old).sum()
    found = []
    for _ in range(batches):
        rows = rng.choice(p.size, size, p=p)
        new = old + (2.0 * reward[rows] @ psi[rows] / size).reshape(old.shape)
        seen = rows if trained_on else rng.choice(p.size, size, p=p)
        found.append(np.exp(token_log_probs(new, responses).sum(axis=1) - log_old)[seen].mean())
    return means(np.array(found)[:, None], [1.0])
