"""Check T8, T11 and T12: compare the tables that ``analysis`` makes of a small policy's logs with sums over all
responses of the policy.

The log is written with the trainer's columns and writer, and read, binned, clipped and estimated by the code that
analyses real runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fspo.rules import OF_CLIP_RULES
from fspo.stats.intervals import t_quantile
from fspo.theory import Floats
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.compare import bonferroni, close
from proofs_check.tools.drawn_logs import (
    GROUP,
    LENGTHS,
    RANGE,
    RULE,
    Groups,
    clipped_weights,
    write_counted,
    write_drawn,
)
from proofs_check.tools.policy import Bandit, make_bandit

PROMPTS, ROLLOUTS = 24, 30
Select = Callable[..., list[dict[str, Any]]]


def tables(write: Callable[[Path], None]) -> Select:
    """Analyse the gradient log that ``write`` writes, and return a function that looks up rows of the resulting tables.

    The function takes a table's name and values of columns, and returns the table's rows that have these values. If no
    value of the column ``use`` is given, it returns rows about first use.
    """
    from analysis.log.loading import load_run
    from analysis.options import Options
    from analysis.run import analyse, shared_bins

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        run = load_run(folder)
        options = Options(rules=(RULE,), targets=(), edges=(*LENGTHS, LENGTHS[-1] + 1), draws=1)
        found, _ = analyse(run, shared_bins([run], options), options)

    def rows(table: str, **where: Any) -> list[dict[str, Any]]:
        wanted = {"rule": RULE, "source": "given", "use": "first"} | where
        return [r for r in found[table].to_dict("records") if all(r[name] == value for name, value in wanted.items())]

    return rows


def covered(found: Mapping[str, dict[str, Any]], truth: Mapping[str, float], wanted: float) -> Outcome:
    """Test that the estimates in rows of tables agree with the true values, by z-tests whose standard errors come from
    the rows' confidence intervals.
    """
    from scipy.stats import norm

    z, coarse = [], []
    for name, row in found.items():
        value, end = row["estimate"], row["ci_low"] if truth[name] < row["estimate"] else row["ci_high"]
        se = abs(end - value) / t_quantile(np.inf)
        gap = abs(value - truth[name])
        z.append(float(np.divide(gap, se, out=np.full((), np.inf), where=se > 0)) if gap > 1e-9 else 0.0)
        coarse.append(4 * se / max(abs(truth[name]), 0.05))
    note = f"the largest of {len(z)} errors has {np.max(z):.1f} standard errors"
    return Outcome(p_value=bonferroni(2 * norm.sf(z)), resolution=float(np.max(coarse)), wanted=wanted, note=note)


def small_policy(rng: np.random.Generator) -> Bandit:
    """Return a policy of 15 responses of 1 to 3 tokens, and a step that moves a third of them out of the band."""
    return make_bandit(rng, vocabulary=2, max_length=LENGTHS[-1], step=0.05)


def rates(groups: Groups, outside: str, measure: str, sign: float) -> tuple[Floats, Floats]:
    """Return, for each length, its share of the responses that count for the acceptance named ``measure`` (band, update
    or weight), and that acceptance. ``sign`` -1 (a control) changes the sign of every advantage.
    """
    bandit, at = groups.bandit, groups.members.ravel()
    mass, A = np.repeat(groups.mass(bandit.p_old), GROUP), sign * groups.advantage("rloo").ravel()
    weights, alone = (np.where(A > 0, x[1][at], x[0][at]) for x in clipped_weights(bandit, outside))
    whole = np.exp(bandit.log_ratio[at]) if measure == "weight" else np.ones(at.size)
    band = bandit.log_ratio[at] ** 2 <= RANGE**2 * bandit.lengths[at]
    above = {"band": band, "update": alone, "weight": weights}[measure]
    mass = mass * (A != 0) if measure != "band" else mass
    here = mass * (bandit.lengths[at] == np.array(LENGTHS)[:, None])
    return here.sum(axis=1) / mass.sum(), (here @ above) / (here @ whole)


def acceptance(rng: np.random.Generator, sign: float = 1.0, first: bool = True) -> Outcome:
    """Check band, update and weight acceptance by length, and LRE_2: the tables made from drawn groups of responses
    must agree with the true values. Some groups have equal rewards, so that their advantages are 0.

    Two controls: with ``sign`` -1 the true values are computed from advantages of the wrong sign; without ``first``,
    table rows about responses that were trained on take the place of those about first use.
    """
    groups = Groups(small_policy(rng), rng.integers(0, 2, 15).astype(float), np.zeros(GROUP))
    rows = tables(lambda run: write_drawn(run, groups, "rloo", rng, PROMPTS, ROLLOUTS, scored=False))
    found, truth = {}, {}
    for outside, measure in (("drop", "band"), ("drop", "update"), ("truncate", "weight"), ("cap", "weight")):
        where = {"outside": outside, "measure": measure, "subset": "all" if measure == "band" else "nonzero"}
        where["use"] = "first" if first else "reused"
        p, a = rates(groups, outside, measure, sign)
        for k in range(len(LENGTHS)):
            (found[f"{outside}, {measure}, {k}"],) = rows("acceptance", bin=k, **where)
            truth[f"{outside}, {measure}, {k}"] = float(a[k])
        (found[f"{outside}, {measure}, LRE"],) = rows("lre", norm="l2_squared", **where)
        truth[f"{outside}, {measure}, LRE"] = float(p @ (a / (p @ a) - 1) ** 2)
    return covered(found, truth, wanted=1.0)


def cosine(u: Floats, v: Floats) -> float:
    """Return the cosine of two vectors."""
    return float(u @ v / np.sqrt((u @ u) * (v @ v)))


def population(rng: np.random.Generator, estimator: Any, bias: float = 1.0, other: int = 0) -> Outcome:
    """Check the table ``population``, made from drawn groups of responses: the cosines with the population and with a
    fresh rollout, and T12's bias, variance and mean squared error. Check also the cosine on the same batch, where
    clipped and true update share their noise.

    Two controls: ``bias`` multiplies the squared bias in the true values; ``other`` takes the true values of another
    choice of what happens outside the band.
    """
    groups = Groups(small_policy(rng), rng.normal(size=15), np.array([0.0, 0.31, 0.53]))
    rows = tables(lambda run: write_drawn(run, groups, estimator, rng, PROMPTS, ROLLOUTS))
    bandit = groups.bandit
    p, fresh = groups.mass(bandit.p_old), groups.mass(bandit.p_new)
    whole = np.broadcast_to(np.exp(bandit.log_ratio), (2, bandit.lengths.size))
    A, alone = groups.advantage(estimator), groups.advantage("rloo")
    true, gradient = groups.sums(whole, A), fresh @ groups.sums(np.ones_like(whole), alone)

    def trace(terms: Floats) -> float:
        return float(p @ (terms**2).sum(axis=1) - np.sum((p @ terms) ** 2)) / PROMPTS

    def batch(u: Floats, v: Floats) -> float:
        return float(p @ (u * v).sum(axis=1)) / PROMPTS + (1 - 1 / PROMPTS) * float((p @ u) @ (p @ v))

    found, truth = {}, {}
    for k, outside in enumerate(OF_CLIP_RULES):
        weights, _ = clipped_weights(bandit, OF_CLIP_RULES[(k + other) % len(OF_CLIP_RULES)])
        clipped = groups.sums(weights, A)
        squared = bias * float(np.sum((p @ (clipped - true)) ** 2))
        exact = {
            ("population", "cosine"): cosine(p @ clipped, p @ true),
            ("fresh", "cosine"): cosine(p @ groups.sums(weights, alone, by=A), gradient),
            ("population", "bias2"): squared / trace(true),
            ("population", "variance"): trace(clipped) / trace(true),
            ("population", "mse"): (squared + trace(clipped)) / trace(true),
        }
        for (reference, quantity), value in exact.items():
            name = f"{outside}, {reference}, {quantity}"
            where = {"outside": outside, "reference": reference, "quantity": quantity, "bin": -1}
            (found[name],), truth[name] = rows("population", **where), value
        name = f"{outside}, same batch"
        (found[name],) = rows("cosine", outside=outside, bin=-1, weight="sequence")
        truth[name] = batch(clipped, true) / np.sqrt(batch(clipped, clipped) * batch(true, true))
    return covered(found, truth, wanted=2.0)


def lemma(rng: np.random.Generator, lost: str = "") -> Outcome:
    """Check the tables ``lemma``, ``cosine``, ``acceptance`` and ``lre`` on a log without sampling noise: each response
    has the share of the log's rows that is taken as its probability. The tables' numbers (T8's parts, T7's quantities,
    cosine, acceptance, LRE) must be those computed from these probabilities, up to the rounding of the log's float32.

    ``lost`` (a control) names a quantity that is compared with a wrong value, so that the check must fail.
    """
    bandit = replace(small_policy(rng), advantages=np.append(rng.normal(size=13), [0.0, 0.0]))
    counts = np.round(600 * bandit.p_old).astype(int) + 5
    rows = tables(lambda run: write_counted(run, bandit, counts))
    some = bandit.advantages != 0
    mass, A, n = counts[some] / counts[some].sum(), bandit.advantages[some], bandit.lengths[some]
    here = (n == np.array(LENGTHS)[:, None]) * mass
    p, psi, w = here.sum(axis=1), bandit.psi[some] * A[:, None], np.exp(bandit.log_ratio[some])
    values, exact = [], []
    for outside in OF_CLIP_RULES:
        weights, alone = (np.where(A > 0, x[1][some], x[0][some]) for x in clipped_weights(bandit, outside))
        kept, of = (alone, np.ones_like(w)) if outside == "drop" else (weights, w)
        a = (here @ kept) / (here @ of)
        r = a / (p @ a) - 1
        g, clipped = ((here @ (x[:, None] * psi)) / p[:, None] for x in (w, weights))
        norm = np.linalg.norm(p @ g)
        delta = np.divide(clipped, a[:, None], out=g.copy(), where=a[:, None] > 0) - g
        sizes = [np.linalg.norm(x, axis=1) for x in (g, g - p @ g, delta)]
        shares = p, p, p * (1 + r)
        kappa, kappa_c, eta = (float(share @ size) / norm for share, size in zip(shares, sizes, strict=True))
        kappa_c2, lre_2 = np.sqrt(p @ sizes[1] ** 2) / norm, np.sqrt(p @ r**2)
        stated = {
            "cosine": cosine(p @ clipped, p @ g),
            "e_len": np.linalg.norm((p * r) @ g) / norm,
            "e_in": np.linalg.norm((p * (1 + r)) @ delta) / norm,
            "kappa": kappa,
            "kappa_c": kappa_c,
            "kappa_c2": kappa_c2,
            "eta": eta,
            "rho": min(np.abs(r).max() * min(kappa, kappa_c), lre_2 * kappa_c2) + eta,
            "lre_inf": np.abs(r).max(),
            "a_bar": p @ a,
        }
        stated["e_in"] = stated["e_len"] if lost == "e_in" else stated["e_in"]
        stated["kappa_c"] = stated["kappa"] if lost == "kappa_c" else stated["kappa_c"]
        (row,) = rows("lemma", outside=outside, updates=1)
        (same,) = rows("cosine", outside=outside, bin=-1, weight="sequence")
        where = {"outside": outside, "measure": "update" if outside == "drop" else "weight"}
        values += [*(row[name] for name in stated), same["estimate"]]
        exact += [*stated.values(), stated["cosine"]]
        values += [row["estimate"] for row in rows("acceptance", **where) if row["bin"] >= 0]
        exact += list(1 - a if lost == "a" else a)
        values += [row["plug_in"] for row in rows("lre", **where) if row["norm"] != "l2_squared"]
        exact += [np.abs(r).max(), p @ np.abs(r), lre_2]
    # `close` compares relative errors. Add 1 to the tables' numbers and to the exact ones, so that near 0 the absolute
    # error counts.
    return close(1 + np.array(values), 1 + np.array(exact), 1e-5, f"{len(values)} numbers of four tables")


CHECKS = (
    Check(
        "T8",
        Method.ENUMERATED,
        "analysis of a log that is its law: T7's and T8's quantities, cosine, acceptance, LRE",
        lemma,
        {
            "e_len for e_in": partial(lemma, lost="e_in"),
            "kappa for kappa_c": partial(lemma, lost="kappa_c"),
            "share cut for share kept": partial(lemma, lost="a"),
        },
    ),
    Check(
        "T11",
        Method.SIMULATED,
        "analysis of a drawn log: acceptance by length and LRE",
        acceptance,
        {
            "the other sign of A": partial(acceptance, sign=-1.0),
            "rows that were trained on": partial(acceptance, first=False),
        },
    ),
    *(
        Check(
            "T12",
            Method.SIMULATED,
            f"analysis of a drawn log, {name}: cosines, bias, variance, squared error",
            partial(population, estimator=name),
            {control: partial(population, estimator=name, **change)},
        )
        for name, control, change in (
            ("rloo", "bias doubled", {"bias": 4.0}),
            ("grpo", "truncate for drop", {"other": 1}),
            ("dr_grpo", "cap for drop", {"other": 2}),
        )
    ),
)
