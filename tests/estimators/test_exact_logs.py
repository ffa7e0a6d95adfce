"""Logs without sampling noise: tables hold the exact numbers of the distribution that the log follows.

Some of these logs hold each response as often as a distribution says. One holds every update that a policy can draw.
"""

from __future__ import annotations

from dataclasses import replace
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
"""Cosines below this number are compared by their absolute error over it, because larger products cancel in them."""


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def same(value: Any, exact: Any, unit: float = 0.0) -> None:
    """Compare one or several numbers with what they must be; the error of one below ``unit`` is taken over ``unit``."""
    value, exact = np.broadcast_arrays(np.asarray(value, float), exact)
    error = np.abs(value - exact) / np.maximum(np.abs(exact), max(unit, 1e-300))
    assert np.all(error <= ROUNDING), (value, exact)


def test_lemma(rng: np.random.Generator) -> None:
    """Check the tables ``lemma``, ``cosine``, ``acceptance`` and ``lre``: each response has the share of the log's rows
    that is taken as its probability.
    """
    bandit, counts = counted(rng)
    rows = tables(lambda run: write_counted(run, bandit, counts))
    some = bandit.advantages != 0
    mass, A, n = counts[some] / counts[some].sum(), bandit.advantages[some], bandit.lengths[some]
    here = (n == np.array(LENGTHS)[:, None]) * mass
    bins = np.vstack([mass, here])  # the shares of all lengths, then those of each length
    p, psi, w = here.sum(axis=1), bandit.psi[some] * A[:, None], np.exp(bandit.log_ratio[some])
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
        (row,) = rows("lemma", outside=outside, updates=1)
        same([row[name] for name in stated], list(stated.values()))
        (whole,) = rows("cosine", outside=outside, bin=-1)
        same([row["cosine"], whole["estimate"]], cosine(p @ clipped, p @ g), unit=COSINE)
        where = {"outside": outside, "measure": "update" if outside == "drop" else "weight"}
        found = [row["estimate"] for row in rows("acceptance", **where) if row["bin"] >= 0]
        same(found, a)
        lre = {row["norm"]: row for row in rows("lre", **where)}
        same([lre[norm]["plug_in"] for norm in ("inf", "l1", "l2")], [np.abs(r).max(), lre_1, lre_2])
        same([lre["l2_squared"]["plug_in"], lre["inf"]["estimate"]], [lre_2**2, np.abs(r).max()])
        # The estimate of LRE_2 is the root of that of LRE_2^2, or 0.
        same(lre["l2"]["estimate"], np.sqrt(max(lre["l2_squared"]["estimate"], 0.0)))
        total, squares = bins @ weights, bins.sum(axis=1) * (bins @ weights**2)
        # Of a length of which nothing is left, the table has no effective sample size.
        ess = np.divide(total**2, squares, out=np.zeros(squares.size), where=squares > 0)
        weighted = {"outside": outside, "measure": "weight", "subset": "nonzero"}
        found = [rows("acceptance", bin=k, **weighted)[0]["ess_share"] for k in range(-1, len(LENGTHS))]
        same(np.nan_to_num(found), ess)


def test_cosines(rng: np.random.Generator) -> None:
    """The table ``cosine`` has the exact cosine at each length, over all lengths, and the smallest of any length."""
    bandit, counts = counted(rng, step=0.15)
    rows = tables(lambda run: write_counted(run, bandit, counts), rules=(RULE, OTHER))
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
        exact[rule, outside] = [*of_lengths, whole, min(of_lengths)]
    for (rule, outside), values in exact.items():
        where = {"rule": rule, "outside": outside}
        for k in range(len(LENGTHS)):
            (row,) = rows("cosine", bin=k, **where)
            if np.isfinite(row["estimate"]) or values[k] != 0:
                same(row["estimate"], values[k], unit=COSINE)
        (row,) = rows("cosine", bin=-1, **where)
        same([row["estimate"], row["worst_bin"]], values[-2:], unit=COSINE)


def test_acceptances(rng: np.random.Generator) -> None:
    """Check the tables ``trend``, ``acceptance`` and ``cosine``: the slope of the acceptance over log2 of the length,
    where two windows have other distributions; what a range that is matched to a target accepts, and its cosine.

    A response stands in the log many times, and all its rows are accepted together. Some targets are the share of the
    rows up to the last row of a response; others need one row more, so that the next response is accepted too.
    """
    bandit, counts = counted(rng)
    at = np.repeat(np.arange(counts.size), counts)
    A, mass = bandit.advantages[at], np.full(at.size, 1 / at.size)
    cases = [("drop", "band"), *product(OF_CLIP_RULES, ("update", "weight"))]

    # In the second window, long responses are more frequent, and those beyond the band by their length.
    beyond = np.abs(bandit.log_ratio) > RANGE * np.sqrt(bandit.lengths)
    two = np.array([counts, counts // 3 * (1 + bandit.lengths.astype(int) * (1 + 2 * beyond))])
    rows = tables(lambda run: write_counted(run, bandit, two), window=1)
    of = np.repeat(np.indices(two.shape)[1].ravel(), two.ravel())
    for outside, measure in cases:
        (row,) = rows("trend", outside=outside, measure=measure, subset="all" if measure == "band" else "nonzero")
        true = Accepted.of(bandit, of, np.full(of.size, 1 / of.size), bandit.advantages[of], outside, measure)
        same(row["slope"], true.trend())

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
    rows = tables(lambda run: write_counted(run, bandit, counts), targets=tuple(targets))
    for (outside, measure), target in product(cases, targets):
        where = {"source": "matched", "target": target, "outside": outside}
        factor = matched_factor(bandit, at, A, outside, measure, target)
        matched = Accepted.of(bandit, at, mass, A, outside, measure, factor)
        found = rows("acceptance", measure=measure, subset="all" if measure == "band" else "nonzero", **where)
        same([row["estimate"] for row in found], [*matched.by_bin(EDGES)[1], matched.mean])
        if measure == "update":
            weights, _ = clipped_weights(bandit, outside, RULE, factor)
            clipped = np.where(A > 0, weights[1][at], weights[0][at]) * A @ bandit.psi[at]
            (row,) = rows("cosine", bin=-1, **where)
            same(row["estimate"], cosine(clipped, np.exp(bandit.log_ratio[at]) * A @ bandit.psi[at]), unit=COSINE)


def test_exponent(rng: np.random.Generator) -> None:
    """Check the tables ``scaling`` and ``moments`` on a log in which S, given the length L and the sign of A, is one of
    two numbers, both with the probability 1/2: ``mu L - sigma L^H`` and ``mu L + sigma L^H``. So Var(S|L) is
    ``sigma^2 L^(2H)``. Responses with A > 0, with A < 0 and with A = 0 have each their own mu, sigma and H.

    The log has two updates. In the second, S is twice that of the first. So the mean of S is 3/2, and its variance
    within an update is 5/2, of those of the first update.
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
    rows = tables(lambda run: write_counted(run, bandit, np.array([number, number]), S))

    at_length = np.array(LENGTHS)[:, None] == L
    for subset in ("all", "nonzero"):
        chosen = number * ((A != 0) | (subset == "all"))

        def mean(x: Floats, here: Floats = chosen) -> float:
            """Return the mean of x, (2, N) or (N,), over the rows of both updates, response i ``here[i]`` times."""
            return float(np.mean(x @ here) / here.sum())

        for k, here in ((-1, chosen), *enumerate(chosen * at_length)):
            (row,) = rows("moments", subset=subset, bin=k)
            variance = mean((S - mean(S, here)) ** 2, here) * 2 * here.sum() / (2 * here.sum() - 1)
            exact = [mean(S, here), variance, mean(np.exp(S), here)]
            same([row["mean_S"], row["var_S"], row["mean_weight"]], exact)
        (row,) = rows("scaling", subset=subset, sign="all")
        same(row["drift_per_token"], mean(S) / mean(L))
        for k, sign in enumerate(("positive", "negative")):
            (row,) = rows("scaling", subset=subset, sign=sign)
            exact = [2 * H[k], np.log(2.5 * sigma[k] ** 2), 1.5 * mu[k]]
            same([row["slope_2H"], row["intercept"], row["drift_per_token"]], exact)


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


def test_outcomes(rng: np.random.Generator) -> None:
    """Check the tables ``population`` and ``cosine`` on a log of every update of three prompts that a policy of three
    equally probable responses can draw, with two responses to each prompt. Sums over the log are then expected values.

    Where both responses to a prompt are the same, their rewards are equal and A = 0. The table's errors of an update
    (T11) average over the responses with A != 0 and take the number of their prompts as given. Only pairs of responses
    to different prompts count, and over all updates these are independent.
    """
    prompts, groups = 3, even_policy(rng)
    bandit, number = groups.bandit, len(groups.members)
    updates = np.array(list(product(range(number), repeat=prompts)))
    rows = tables(
        lambda run: write_groups(run, groups, groups.members[updates]),
        edges=(1, 2, 3),
        window=len(updates),
    )
    A = groups.advantage()
    whole = np.broadcast_to(np.exp(bandit.log_ratio), (2, 3))
    some = np.any(A != 0, axis=1)
    p, given = np.full(number, 1 / number), some / some.sum()
    counts = some[updates].sum(axis=1)
    # An update with fewer than two prompts with A != 0 has no pair, so the table leaves it out.
    one_of = float(np.mean(1 / counts[counts >= 2]))

    def variance(terms: Floats) -> float:
        """Return the variance of the mean of ``terms`` (M, D) over the prompts of an update with A != 0."""
        return spread(given, terms) * one_of

    true = groups.sums(whole, A)
    for outside in OF_CLIP_RULES:
        weights, _ = clipped_weights(bandit, outside)
        clipped = groups.sums(weights, A)
        bias = float(np.sum((given @ (clipped - true)) ** 2))
        exact = {
            "cosine": cosine(given @ clipped, given @ true),
            "bias2": bias / variance(true),
            "variance": variance(clipped) / variance(true),
            "mse": (bias + variance(clipped)) / variance(true),
        }
        where = {"outside": outside, "bin": -1}
        for quantity, value in exact.items():
            (row,) = rows("population", quantity=quantity, **where)
            same(row["estimate"], value, unit=COSINE if quantity == "cosine" else 0.0)
        (row,) = rows("cosine", **where)
        same(row["estimate"], same_batch_cosine(p, clipped, true, prompts), unit=COSINE)
