"""T5: weights and lengths."""

from __future__ import annotations

import numpy as np

from fspo.rules import preset
from proofs_check.frame import Method, Test, check, near_miss
from proofs_check.models import CHAIN
from proofs_check.tools.compare import all_of, beside, close, equal, means
from proofs_check.tools.policy import make_bandit


@check("T5", Method.ENUMERATED, "softmax policies: E_old[e^S | L] and e^{s_t} - 1 uncorrelated", "of p_new/p_old", 1e-9)
@near_miss("means under the new policy", drawn_by="new")
@near_miss("old policy without full support", drawn_by="part of old")
@near_miss("s_t itself uncorrelated", centred=False)
@near_miss("uncorrelated given one length", first="common")
def enumerated(rng: np.random.Generator, drawn_by: str = "old", first: str = "all", centred: bool = True) -> Test:
    """Test T5 over all responses of ten random softmax policies before and after a step that shifts lengths: the mean
    of e^S at each length is the length's new over its old probability; over all lengths the tokens' e^{s_t} - 1 have
    mean 0 and no correlation between positions. Falsified by x: that ratio times 1 + x. Near misses: ``drawn_by`` takes
    means under the new policy, or an old one that cannot draw half of the responses; ``first`` "common" the mean over
    one length, which depends on later tokens; ``centred`` False s_t for e^{s_t} - 1."""
    stated, exact, sizes = [], [], []
    for _ in range(10):
        bandit = make_bandit(rng, step=0.5)
        old, new, n = bandit.p_old, bandit.p_new, bandit.lengths
        some = rng.random(old.size) < 0.5
        some[np.unique(n, return_index=True)[1]] = True
        mass = {"old": old, "new": new, "part of old": np.where(some, old, 0)}[drawn_by]
        old = old if drawn_by == "new" else mass
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
    return beside(equal(stated, exact, 1e-10), close(1 + np.array(sizes), 1, 1e-11))


@check("T5", Method.SIMULATED, "a chain that stops sooner: mean weights by length, over all", "of mean weight", 0.02)
@near_miss("1 at each length", instead="one")
@near_miss("normal S with drift -KL", instead="-KL")
def chain(rng: np.random.Generator, instead: str = "", draws: int = 60_000) -> Test:
    """Test T5 on drawn responses of the chain `CHAIN`, whose new policy stops sooner: the mean of e^S is the length's
    exact probability under the new policy over that under the old one, at four lengths, ``draws`` responses each, and 1
    over all responses. Falsified by x, the test multiplies the stated means by 1 + x. Near misses forget that lengths
    shift: ``instead`` "one" states 1 at each length, "-KL" that of normal S with minus the KL per token as drift."""
    lengths = np.array([2.0, 20, 60, 120])
    given = CHAIN.given(lengths)
    stated = {"one": np.ones(4), "-KL": np.exp(-CHAIN.kl_per_token() * lengths + [one.variance / 2 for one in given])}
    ratios = stated.get(instead, np.array([one.ratio for one in given]))
    n = np.broadcast_to(lengths, (draws, 4))
    weights = preset("none").rule.apply(CHAIN.sample(rng, n), n, np.ones_like(n)).weight
    given_length = means(np.asarray(weights), ratios)
    if instead:
        return given_length
    S, _ = CHAIN.sample_all(rng, 4 * draws)
    return all_of(given_length, means(np.exp(S)[:, None], [1.0]))
