"""Logs without sampling noise: the tables that ``analysis`` makes of them hold the exact numbers of the distribution
that the log follows, up to the rounding of the log's float32.

Some of these logs hold each response as often as a distribution says. One holds every update that a policy can draw,
each as often as the others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from fspo.rules import OF_CLIP_RULES
from fspo.theory import Floats
from proofs_check.tools.policy import PolicyResponses, make_bandit
from tests.estimators.policy_logs import (
    EDGES,
    LENGTHS,
    OTHER,
    RANGE,
    RULE,
    Accepted,
    Groups,
    clipped_weights,
    cosine,
    counted,
    matched_factor,
    needed_factors,
    same_batch_cosine,
    spread,
    write_counted,
    write_groups,
)
from tests.estimators.tables import tables

ROUNDING = 1e-5
"""Largest relative error that the float32 numbers of a log may leave in a number of a table."""
COSINE = 0.1
"""Cosines below this number are compared by their absolute error over it. In a small cosine larger products cancel, and
the rounding of these products is left.
"""


class Pairs:
    """Numbers of a table, each with the exact number that it must be."""

    def __init__(self) -> None:
        self.errors: list[float] = []

    def add(self, value: Any, exact: Any, unit: float = 0.0) -> None:
        """Add a number, or several, with what it must be, or what each must be. The error of a number below ``unit`` is
        taken over ``unit``: for numbers that may be 0, and for sums in which larger numbers cancel.
        """
        value, exact = np.broadcast_arrays(np.asarray(value, float), exact)
        self.errors += (np.abs(value - exact) / np.maximum(np.abs(exact), max(unit, 1e-300))).ravel().tolist()

    def error(self) -> float:
        """The largest relative error; NaN if a number is NaN."""
        return float(np.max(self.errors))


def lemma(rng: np.random.Generator, lost: str = "", use: str = "first") -> Pairs:
    """Check the tables ``lemma``, ``cosine``, ``acceptance`` and ``lre`` on a log without sampling noise: each response
    has the share of the log's rows that is taken as its probability. The tables' numbers (T8's parts, T7's quantities,
    cosine, acceptance, LRE, effective sample size) must be those computed from these probabilities, up to the rounding
    of the log's float32.

    Near misses: ``lost`` names a quantity that is compared with a wrong value; ``use`` takes another epoch's rows.
    """
    bandit, counts = counted(rng)
    rows = tables("lemma", lambda run: write_counted(run, bandit, counts))
    some = bandit.advantages != 0
    mass, A, n = counts[some] / counts[some].sum(), bandit.advantages[some], bandit.lengths[some]
    here = (n == np.array(LENGTHS)[:, None]) * mass
    bins = np.vstack([mass, here])  # the shares of all lengths, then those of each length
    p, psi, w = here.sum(axis=1), bandit.psi[some] * A[:, None], np.exp(bandit.log_ratio[some])
    pairs = Pairs()
    for outside in OF_CLIP_RULES:
        weights, alone = (np.where(A > 0, x[1][some], x[0][some]) for x in clipped_weights(bandit, outside))
        kept, of = (alone, np.ones_like(w)) if outside == "drop" else (weights, w)
        a = (here @ kept) / (here @ of)
        r = a / (p @ a) - 1
        g, clipped = ((here @ (x[:, None] * psi)) / p[:, None] for x in (w, weights))
        norm = np.linalg.norm(p @ g)
        delta = np.divide(clipped, a[:, None], out=g.copy(), where=a[:, None] > 0) - g
        eta = float((p * (1 + r)) @ np.linalg.norm(delta, axis=1)) / norm
        # E|<g, u> - median| of three values lies between two of them; u turns in the plane of their differences.
        spread = (g - p @ g) * np.sqrt(p)[:, None] / norm
        kappa_2 = np.sqrt(np.linalg.eigvalsh(spread @ spread.T)[-1])
        plane = np.asarray(np.linalg.qr((g[1:] - g[0]).T, mode="r")).T / norm
        angle = np.linspace(0, np.pi, 400_000)
        along = np.vstack([np.zeros(angle.size), plane @ [np.cos(angle), np.sin(angle)]])
        kappa_inf = np.min(p @ np.abs(along[:, None] - along), axis=0).max()
        lre_1, lre_2 = p @ np.abs(r), np.sqrt(p @ r**2)
        stated = {
            "e_len": np.linalg.norm((p * r) @ g) / norm,
            "e_in": np.linalg.norm((p * (1 + r)) @ delta) / norm,
            "kappa_inf": kappa_inf,
            "kappa_2": kappa_2,
            "eta": eta,
            "rho": min(np.abs(r).max() * kappa_inf, lre_2 * kappa_2) + eta,
            "lre_inf": np.abs(r).max(),
        }
        stated["e_in"] = stated["e_len"] if lost == "e_in" else stated["e_in"]
        stated["kappa_2"] = np.sqrt(np.sum(spread**2)) if lost == "kappa_2" else stated["kappa_2"]
        (row,) = rows("lemma", outside=outside, updates=1)
        pairs.add([row[name] for name in stated], list(stated.values()))
        (same,) = rows("cosine", outside=outside, bin=-1)
        pairs.add([row["cosine"], same["estimate"]], cosine(p @ clipped, p @ g), unit=COSINE)
        where = {"outside": outside, "measure": "update" if outside == "drop" else "weight", "use": use}
        found = [row["estimate"] for row in rows("acceptance", **where) if row["bin"] >= 0]
        pairs.add(found, 1 - a if lost == "a" else a)
        lre = {row["norm"]: row for row in rows("lre", **where)}
        pairs.add([lre[norm]["plug_in"] for norm in ("inf", "l1", "l2")], [np.abs(r).max(), lre_1, lre_2])
        pairs.add([lre["l2_squared"]["plug_in"], lre["inf"]["estimate"]], [lre_2**2, np.abs(r).max()])
        # The estimate of LRE_2 is the root of that of LRE_2^2, or 0.
        pairs.add(lre["l2"]["estimate"], np.sqrt(max(lre["l2_squared"]["estimate"], 0.0)))
        total, squares = bins @ weights, bins.sum(axis=1) * (bins @ weights**2)
        # Of a length of which nothing is left, the table has no effective sample size.
        ess = np.divide(total**2, squares, out=np.zeros(squares.size), where=squares > 0)
        weighted = {"outside": outside, "measure": "weight", "subset": "nonzero"}
        found = [rows("acceptance", bin=k, **weighted)[0]["ess_share"] for k in range(-1, len(LENGTHS))]
        pairs.add(np.nan_to_num(found), 1 - ess if lost == "ess" else ess)
    return pairs


def cosines(rng: np.random.Generator, worst: Any = np.argmin) -> Pairs:
    """Check the table ``cosine`` on a log that is its distribution: the cosine at each length, and that of the length
    where it is smallest.

    Near miss: ``worst`` picks the length with the largest cosine in place of the smallest.
    """
    bandit, counts = counted(rng, step=0.15)
    rows = tables("cosines", lambda run: write_counted(run, bandit, counts), rules=(RULE, OTHER))
    here = (bandit.lengths == np.array(LENGTHS)[:, None]) * counts
    true = here @ (np.exp(bandit.log_ratio) * bandit.advantages * bandit.psi.T).T
    exact: dict[tuple[str, str], list[float]] = {}
    for rule, outside in (*((RULE, way) for way in OF_CLIP_RULES), (OTHER, "drop")):
        weights, _ = clipped_weights(bandit, outside, rule)
        chosen = np.where(bandit.advantages > 0, weights[1], weights[0]) * bandit.advantages
        clipped = here @ (chosen[:, None] * bandit.psi)
        # A length of which nothing is left has no cosine. As the smallest it counts as 0.
        of_lengths = [cosine(u, v) if np.any(u) else 0.0 for u, v in zip(clipped, true, strict=True)]
        whole = cosine(clipped.sum(axis=0), true.sum(axis=0))
        exact[rule, outside] = [*of_lengths, whole, of_lengths[int(worst(of_lengths))]]
    pairs = Pairs()
    for (rule, outside), values in exact.items():
        where = {"rule": rule, "outside": outside}
        for k in range(len(LENGTHS)):
            (row,) = rows("cosine", bin=k, **where)
            if np.isfinite(row["estimate"]) or values[k] != 0:
                pairs.add(row["estimate"], values[k], unit=COSINE)
        (row,) = rows("cosine", bin=-1, **where)
        pairs.add([row["estimate"], row["worst_bin"]], values[-2:], unit=COSINE)
    return pairs


def acceptances(rng: np.random.Generator, later: int = 0, weighted: bool = True, some: bool = True) -> Pairs:
    """Check the tables ``trend``, ``acceptance`` and ``cosine`` on logs that are their distribution: the slope of the
    acceptance over log2 of the length, where two windows have other distributions; what a range that is matched to a
    target acceptance accepts, and its cosine.

    A response stands in the log many times, and all its rows are accepted together. Some targets are the share of the
    rows up to the last row of a response; others need one row more, so that the next response is accepted too.

    Near misses: ``later`` 1 takes the range that accepts the next value too; without ``weighted``, each response
    counts alike in the trend of the weight acceptance; without ``some``, matched update acceptance counts A = 0 too.
    """
    bandit, counts = counted(rng)
    at = np.repeat(np.arange(counts.size), counts)
    A, mass = bandit.advantages[at], np.full(at.size, 1 / at.size)
    cases = [("drop", "band"), *product(OF_CLIP_RULES, ("update", "weight"))]
    pairs = Pairs()

    # In the second window, long responses are more frequent, and those beyond the band by their length.
    beyond = np.abs(bandit.log_ratio) > RANGE * np.sqrt(bandit.lengths)
    two = np.array([counts, counts // 3 * (1 + bandit.lengths.astype(int) * (1 + 2 * beyond))])
    rows = tables("two blocks", lambda run: write_counted(run, bandit, two), window=1)
    of = np.repeat(np.indices(two.shape)[1].ravel(), two.ravel())
    for outside, measure in cases:
        (row,) = rows("trend", outside=outside, measure=measure, subset="all" if measure == "band" else "nonzero")
        true = Accepted.of(bandit, of, np.full(of.size, 1 / of.size), bandit.advantages[of], outside, measure)
        pairs.add(row["slope"], true.trend(weighted))

    # Some responses are accepted at any range, because A * S < 0, or under cap because S < 0. The targets are larger
    # than their share, by a row at least after rounding, so that some range gives them.
    S, sign = bandit.log_ratio[at][A != 0], np.sign(A[A != 0])
    least = max(float(np.mean(S <= 0)), float(np.mean(S * sign <= 0))) + 2 / S.size
    targets = {least + (1 - least) / 2}
    for outside, measure in (("drop", "band"), ("drop", "update"), ("cap", "update")):
        values = np.sort(needed_factors(bandit, at, A, outside, measure))
        ends = np.flatnonzero(values[:-1] < values[1:]) + 1
        end = int(ends[np.searchsorted(ends, least * values.size, side="right")])
        targets |= {end / values.size, (end + 1) / values.size}
    rows = tables("matched", lambda run: write_counted(run, bandit, counts), targets=tuple(targets))
    for (outside, measure), target in product(cases, targets):
        where = {"source": "matched", "target": target, "outside": outside}
        counting = A if some or measure == "band" else np.where(A == 0, 1.0, A)
        factor = matched_factor(bandit, at, counting, outside, measure, target, later)
        matched = Accepted.of(bandit, at, mass, A, outside, measure, factor)
        found = rows("acceptance", measure=measure, subset="all" if measure == "band" else "nonzero", **where)
        pairs.add([row["estimate"] for row in found], [*matched.by_bin(EDGES)[1], matched.mean])
        if measure == "update":
            weights, _ = clipped_weights(bandit, outside, RULE, factor)
            clipped = np.where(A > 0, weights[1][at], weights[0][at]) * A @ bandit.psi[at]
            (row,) = rows("cosine", bin=-1, **where)
            pairs.add(row["estimate"], cosine(clipped, np.exp(bandit.log_ratio[at]) * A @ bandit.psi[at]), unit=COSINE)
    return pairs


def exponent(rng: np.random.Generator, still: bool = False) -> Pairs:
    """Check the tables ``scaling`` and ``moments`` on a log in which S, given the length L and the sign of A, is one of
    two numbers, both with the probability 1/2: ``mu L - sigma L^H`` and ``mu L + sigma L^H``. So Var(S|L) is
    ``sigma^2 L^(2H)``. Responses with A > 0, with A < 0 and with A = 0 have each their own mu, sigma and H.

    The log has two updates. In the second, S is twice that of the first. So the mean of S is 3/2, and its variance
    within an update is 5/2, of those of the first update.

    Near miss: with ``still``, responses with A = 0 count among those with A != 0.
    """
    bandit, counts = counted(rng)
    mu, sigma, H = (
        rng.choice([-1, 1]) * rng.uniform(0.005, 0.02, 3),
        rng.uniform(0.01, 0.1, 3),
        rng.uniform(0.3, 0.9, 3),
    )
    # Each response stands in the log with three signs of A, and with both numbers S for each sign.
    six = PolicyResponses(*(np.repeat(x, 6, axis=0) for x in (bandit.responses.symbols, bandit.responses.lengths)))
    dist = np.tile([0, 0, 1, 1, 2, 2], counts.size)
    A = np.array([1.0, -1.0, 0.0])[dist] * np.repeat(rng.uniform(0.5, 1.5, counts.size), 6)
    bandit, number = replace(bandit, responses=six, advantages=A), np.repeat(counts // 6 + 1, 6) * (1 + dist)
    L = bandit.lengths
    S: Floats = np.array([[1.0], [2.0]]) * (mu[dist] * L + sigma[dist] * L ** H[dist] * np.resize([-1.0, 1.0], L.size))
    rows = tables("exponent", lambda run: write_counted(run, bandit, np.array([number, number]), S))

    at_length, pairs = np.array(LENGTHS)[:, None] == L, Pairs()
    for subset in ("all", "nonzero"):
        chosen = number * ((A != 0) | (subset == "all") | still)

        def mean(x: Floats, here: Floats = chosen) -> float:
            """Return the mean of x, (2, N) or (N,), over the rows of both updates, response i ``here[i]`` times."""
            return float(np.mean(x @ here) / here.sum())

        for k, here in ((-1, chosen), *enumerate(chosen * at_length)):
            (row,) = rows("moments", subset=subset, bin=k)
            variance = mean((S - mean(S, here)) ** 2, here) * 2 * here.sum() / (2 * here.sum() - 1)
            exact = [mean(S, here), variance, mean(np.exp(S), here)]
            pairs.add([row["mean_S"], row["var_S"], row["mean_weight"]], exact)
        (row,) = rows("scaling", subset=subset, sign="all")
        pairs.add(row["drift_per_token"], mean(S) / mean(L))
        for k, sign in enumerate(("positive", "negative")):
            (row,) = rows("scaling", subset=subset, sign=sign)
            exact = [2 * H[k], np.log(2.5 * sigma[k] ** 2), 1.5 * mu[k]]
            pairs.add([row["slope_2H"], row["intercept"], row["drift_per_token"]], exact)
    return pairs


def even_policy(rng: np.random.Generator) -> Groups:
    """Return all groups of two responses of a policy with three equally probable responses, of 1, 2 and 2 tokens.

    Each way to clip changes the mean update by at least a tenth of its length, and leaves a mean update that is not
    near 0, of which a table would say that it cannot be told from 0.
    """
    while True:
        bandit = make_bandit(rng, vocabulary=1, max_length=2, step=0.6)
        old = np.zeros_like(bandit.old)
        old[0, -1, 0] = np.log(2)  # The first symbol ends the response with probability 1/3, the second with 1/2.
        bandit = replace(bandit, old=old, new=old + bandit.new - bandit.old)
        groups = Groups(bandit, rng.normal(size=3))
        A, whole = groups.advantage(), np.broadcast_to(np.exp(bandit.log_ratio), (2, 3))
        true = groups.sums(whole, A).mean(axis=0)
        clipped = [groups.sums(clipped_weights(bandit, outside)[0], A) for outside in OF_CLIP_RULES]
        usable = min(float(np.sum((u.mean(axis=0) - true) ** 2)) for u in clipped) > 0.01 * np.sum(true**2)
        usable &= all(np.sum(u.mean(axis=0) ** 2) > 0.05 * np.mean(np.sum(u**2, axis=1)) for u in clipped)
        if usable:
            return groups


def outcomes(rng: np.random.Generator, prompts: int = 3, zeros: bool = False, plug_in: float = 0.0) -> Pairs:
    """Check the tables ``population`` and ``cosine`` on a log of every update of some prompts that a policy of three
    equally probable responses can draw, with two responses to each prompt. Sums over the log are then expected values.

    Where both responses to a prompt are the same, their rewards are equal and A = 0. The table's errors of an update
    (T11) average over the responses with A != 0 and take the number of their prompts as given. Only pairs of responses
    to different prompts count, and over all updates these are independent.

    Near misses: ``zeros`` takes as true T11's variance, in which prompts with A = 0 count as zeros; with ``plug_in`` 1
    the true squared bias is inflated by the covariance of one update, as that of the plug-in is.
    """
    groups = even_policy(rng)
    bandit, number = groups.bandit, len(groups.members)
    updates = np.array(list(product(range(number), repeat=prompts)))
    rows = tables(
        f"outcomes of {prompts} prompts",
        lambda run: write_groups(run, groups, groups.members[updates]),
        edges=(1, 2, 3),
        window=len(updates),
    )
    A = groups.advantage()
    whole = np.broadcast_to(np.exp(bandit.log_ratio), (2, 3))
    some = np.any(A != 0, axis=1)
    p, given = np.full(number, 1 / number), some / some.sum()
    share = float(np.mean(some))
    counts = some[updates].sum(axis=1)
    # An update with fewer than two prompts with A != 0 has no pair, so the table leaves it out.
    one_of = float(np.mean(1 / counts[counts >= 2]))

    def variance(terms: Floats) -> float:
        """Return the variance of the mean of ``terms`` (M, D) over the prompts of an update, divided by ``share``."""
        return spread(p, terms) / share**2 / prompts if zeros else spread(given, terms) * one_of

    true, pairs = groups.sums(whole, A), Pairs()
    for outside in OF_CLIP_RULES:
        weights, _ = clipped_weights(bandit, outside)
        clipped = groups.sums(weights, A)
        bias = float(np.sum((given @ (clipped - true)) ** 2)) + plug_in * variance(clipped - true)
        exact = {
            "cosine": cosine(given @ clipped, given @ true),
            "bias2": bias / variance(true),
            "variance": variance(clipped) / variance(true),
            "mse": (bias + variance(clipped)) / variance(true),
        }
        where = {"outside": outside, "bin": -1}
        for quantity, value in exact.items():
            (row,) = rows("population", quantity=quantity, **where)
            pairs.add(row["estimate"], value, unit=COSINE if quantity == "cosine" else 0.0)
        (row,) = rows("cosine", **where)
        pairs.add(row["estimate"], same_batch_cosine(p, clipped, true, prompts), unit=COSINE)
    return pairs


CLAIMS = (lemma, cosines, acceptances, exponent, outcomes)
NEAR_MISSES = {
    "e_len for e_in": partial(lemma, lost="e_in"),
    "the trace for the largest eigenvalue": partial(lemma, lost="kappa_2"),
    "share clipped for share accepted": partial(lemma, lost="a"),
    "share of rows without effect for the share with": partial(lemma, lost="ess"),
    "rows of the later epoch": partial(lemma, use="reused"),
    "the best length for the worst": partial(cosines, worst=np.argmax),
    "the next matched range": partial(acceptances, later=1),
    "weight acceptance's trend not weighted": partial(acceptances, weighted=False),
    "matched on A = 0 too": partial(acceptances, some=False),
    "A = 0 counts": partial(exponent, still=True),
    "prompts with equal rewards count as zeros": partial(outcomes, prompts=2, zeros=True),
    "plug-in for the squared bias": partial(outcomes, prompts=2, plug_in=1.0),
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_tables_hold_the_truth(claim):
    assert claim(np.random.default_rng(11)).error() <= ROUNDING


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_fails(name):
    assert NEAR_MISSES[name](np.random.default_rng(11)).error() > ROUNDING
