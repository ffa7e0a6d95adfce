"""T8: the split of the update's error between strata and inside."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from fspo.rules import OF_CLIP_RULES, preset
from fspo.theory import cosine_lemma
from proofs_check.frame import Method, Test, check, near_miss
from proofs_check.tools.compare import all_of, beside, close, holds, unbroken, vectors
from proofs_check.tools.policy import calibrated, make_bandit, slopes, strata, update_terms
from proofs_check.tools.strata import Strata, random_strata


@check("T8", Method.CLOSED, "g_clip/a_bar = g + e_len + e_in on random strata", "of e_len + e_in", 1e-9)
@near_miss("e_in left out", inner=False)
def identity(rng: np.random.Generator, inner: bool = True) -> Test:
    """Test T8's identity on 300 random sets of strata: the clipped gradient over the mean acceptance, less the
    unclipped one, is the sum of two errors of `theory.cosine_lemma`: e_len, by unequal acceptances of strata, and e_in,
    what clipping takes inside strata. The left side is computed apart, in extended precision. Falsified by x, the test
    multiplies the sum by 1 + x. The near miss, ``inner`` False, leaves e_in out of it."""
    found, stated = [], []
    for _ in range(300):
        case = random_strata(rng)
        p, g, clipped, a = (np.asarray(part, np.longdouble) for part in (case.p, case.g, case.clipped, case.a))
        p = p / p.sum()
        left, lemma = p @ clipped / (p @ a), case.lemma()
        size = float(np.abs(left).max() + np.abs(lemma.e_len).max() + np.abs(lemma.e_in).max())
        found.append((left - p @ g) / size)
        stated.append((lemma.e_len + inner * lemma.e_in) / size)
    return vectors(found, stated, 1e-11, "distance of the sides")


def shortest(rng: np.random.Generator, negative: bool, by_clipped: bool) -> Test:
    """Test in exact fractions that T8's number a* = max(0, <c, g>)/|g|^2 is the only a >= 0 at which the vector c - a g
    is shortest, for up to 200 pairs of vectors c and g of three small whole numbers. The test compares all a = k/|g|^2
    with k = 0, 1, ..., 27, one of which is a*. Falsified by x, the test multiplies a* by 1 + x. Near misses (of
    `projection`): ``negative`` allows a* < 0, ``by_clipped`` divides by |c|^2 in place of |g|^2."""
    cases = []
    for c, g in rng.integers(-3, 4, (200, 2, 3)):
        along, size, of_c = int(c @ g), int(g @ g), int(c @ c)
        if size and of_c:
            losses = [((size * c - k * g) ** 2).sum() for k in range(28)]  # times |g|^4; <c, g> is at most 27
            best = [Fraction(k, size) for k, loss in enumerate(losses) if loss == min(losses)]
            cases.append((along if negative else max(along, 0), of_c if by_clipped else size, best))

    def broken(x: float, along: int, size: int, best: list[Fraction]) -> bool:
        return best != [Fraction(along, size) * (1 + Fraction(x))]

    return unbroken(broken, cases, "pairs of c and g")


@check("T8", Method.CLOSED, "a* leaves the shortest loss inside: scalar search, exact fractions", "of a*", 1e-5)
@near_miss("a* < 0 allowed", negative=True)
@near_miss("over |c|^2", by_clipped=True)
@near_miss("the loss is orthogonal to g wherever g is not 0", everywhere=True)
@near_miss("a* makes eta least too", of_eta=True)
def projection(
    rng: np.random.Generator, negative: bool = False, by_clipped: bool = False, everywhere: bool = False,
    of_eta: bool = False,
) -> Test:  # fmt: skip
    """Test on 40 random sets of strata, with clipped mean gradients c and unclipped ones g, that of all a >= 0 the
    acceptance a* = max(0, <c, g>)/|g|^2, 0 where g = 0, makes each |c - a g|, the loss inside a stratum, least: by
    scalar search, and in fractions (`shortest`). At a* the mean loss, from `theory.cosine_lemma`, is the mean of these,
    not above that at other a; c - a* g is orthogonal to g where a* > 0. Falsified by x: a* times 1 + x. Near misses:
    ``negative`` allows a* < 0, ``by_clipped`` divides by |c|^2, ``everywhere`` states the orthogonality at a* = 0 too,
    ``of_eta`` that a* makes eta least, the mean loss over |g| and the mean of a: a larger a can lower it."""
    stated, exact, gaps, more = [], [], [], []
    for _ in range(40):
        K, D = int(rng.integers(2, 8)), int(rng.integers(1, 6))
        p, g, c = rng.dirichlet(np.ones(K)), rng.standard_normal((K, D)), rng.standard_normal((K, D))
        g[0], c[1] = 0.0, g[1] * rng.uniform(0.5, 2)
        along, size = (c * g).sum(axis=1), ((c if by_clipped else g) ** 2).sum(axis=1)
        a = np.divide(along if negative else np.maximum(along, 0), size, out=np.zeros(K), where=size > 0)
        squares = [lambda b, c=c[i], g=g[i]: np.sum((c - b * g) ** 2) for i in range(K)]
        found: Any = [minimize_scalar(f, bounds=(0, 1e3), method="bounded", options={"xatol": 1e-12}) for f in squares]
        stated += a[1:].tolist()
        exact += [one.x for one in found[1:]]
        gaps += ((c - a[:, None] * g) * g).sum(axis=1)[(a > 0) | everywhere].tolist()
        if a.min() >= 0:
            rates = a, 1.5 * a, a + rng.exponential(size=K)
            eta = np.array([cosine_lemma(p, b, g, c).eta for b in rates])
            mean_loss = eta * np.linalg.norm(p @ g) * [float(p @ b) for b in rates]
            gaps.append(mean_loss[0] - float(p @ np.sqrt([one.fun for one in found])))
            more += (eta[1:] - eta[0] if of_eta else mean_loss[1:] - mean_loss[0]).tolist()
    close_to = lambda x: close(1 + np.array(stated) * (1 + x), 1 + np.array(exact), 1e-6)  # noqa: E731
    searched = beside(close_to, close(1 + np.array(gaps), 1, 1e-11), holds([0.0, *more], "loss of other rates"))
    return all_of(searched, shortest(rng, negative, by_clipped))


@check("T8", Method.ENUMERATED, "g is the gradient of E_new[A]", "of g", 1e-6)
@near_miss("weight w left out", weighted=False)
def true_update(rng: np.random.Generator, weighted: bool = True) -> Test:
    """Test that the unclipped gradient g, summed over all responses of a softmax policy, is the gradient of the new
    policy's mean advantage by central differences. Falsified by x, the test multiplies g by 1 + x. The near miss,
    ``weighted`` False, leaves out w: the sum is then the mean of A psi under the old policy, not the new one."""
    bandit = make_bandit(rng, vocabulary=2, max_length=4)
    p, g, _, _ = strata(bandit, preset("none").rule)
    total = p @ g if weighted else (bandit.p_old * bandit.advantages) @ bandit.psi
    numeric = slopes(lambda theta: float(bandit.probability(theta) @ bandit.advantages), bandit.new)
    return vectors([numeric], [total], 1e-8 * np.linalg.norm(numeric), "distance of the gradients")


@check("T8", Method.ENUMERATED, "the clipped gradient of softmax policies, no strata", "of the errors", 1e-8)
@near_miss("e_in left out", inner=False)
@near_miss("the accepted share of all weight for the mean of b(l)", of_weight=True)
def policies(rng: np.random.Generator, inner: bool = True, of_weight: bool = False) -> Test:
    """Test T8 over all responses of softmax policies, for three presets with drop, truncate and cap: the sum of M w A
    psi over the mean acceptance, less the sum of w A psi, is e_len + e_in of `theory.cosine_lemma`, the errors between
    and inside lengths. Falsified by x: e_len + e_in times 1 + x. Near misses: ``inner`` False leaves out e_in;
    ``of_weight`` takes (but for drop) not the mean of the lengths' weight acceptances but that of all responses."""
    found, stated = [], []
    for name in ("rloo", "fspo", "fspo-kl"):
        bandit = make_bandit(rng, vocabulary=2, max_length=4, step=0.1)
        some = bandit.advantages != 0
        mass = bandit.p_old * some / bandit.p_old[some].sum()
        lengths = mass * (bandit.lengths == np.unique(bandit.lengths[some])[:, None])
        for outside in OF_CLIP_RULES:
            rule = replace(calibrated(bandit, name, 0.8), outside=outside)
            applied = rule.apply(bandit.log_ratio, bandit.lengths, bandit.advantages, rule.centre(bandit.drift_stats()))
            rate = mass @ applied.multiplier
            if outside != "drop":
                groups = mass[None] if of_weight else lengths
                rate = groups.sum(axis=1) @ ((groups @ applied.clipped_weight) / (groups @ applied.weight))
            clipped, true = (mass @ terms for terms in update_terms(bandit, rule))
            lemma = Strata(*strata(bandit, rule)).lemma()
            found.append((clipped / rate - true) / lemma.g_norm)
            stated.append((lemma.e_len + inner * lemma.e_in) / lemma.g_norm)
    return vectors(found, stated, 1e-10, "distance of the gradients")
