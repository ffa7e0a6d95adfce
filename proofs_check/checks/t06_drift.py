"""T6: the drift given the length."""

from __future__ import annotations

import math

import numpy as np

from fspo import theory
from proofs_check.frame import Method, Outcome, Test, check, near_miss
from proofs_check.models import CHAIN
from proofs_check.tools.compare import beside, equal, holds, mean_is
from proofs_check.tools.policy import make_bandit


@check("T6", Method.ENUMERATED, "(a) softmax policies: shift of lengths less KL given the length", "of the KL", 1e-7)
@near_miss("shift of lengths left out", shift=False)
@near_miss("KL reversed", reverse=True)
def enumerated(rng: np.random.Generator, shift: bool = True, reverse: bool = False) -> Test:
    """Test T6 (a) at each length of ten random softmax policies before and after a random step:
    `theory.drift_given_length`, from the length's probability under the new over that under the old policy, and from
    KL(old || new) of its responses, is the mean of S, summed over these responses under the old policy. Falsified by x,
    the test multiplies the KL by 1 + x. Near misses: ``shift`` False takes 1 for that ratio; ``reverse`` takes KL(new
    || old)."""
    kls, ratios, exact = [], [], []
    for _ in range(10):
        bandit = make_bandit(rng, step=0.6)
        old, new = bandit.p_old, bandit.p_new
        for length in np.unique(bandit.lengths):
            at = bandit.lengths == length
            p, q = old[at] / old[at].sum(), new[at] / new[at].sum()
            kls.append(max(float((q if reverse else p) @ np.log(p / q)) * (-1 if reverse else 1), 0.0))
            ratios.append(new[at].sum() / old[at].sum() if shift else 1.0)
            exact.append(p @ bandit.log_ratio[at])

    def test(x: float) -> Outcome:
        stated = theory.drift_given_length(ratios, np.array(kls) * (1 + x))
        return holds(1e-10 - np.abs(stated - exact), "mean of S")

    return test


@check("T6", Method.CLOSED, "(a) a chain that stops sooner: forward sums against the chain rule", "of E[S | L]", 1e-8)
@near_miss("shift of lengths left out", shift=False)
def forward_sums(rng: np.random.Generator, shift: bool = True) -> Test:
    """Test T6 (a) on `CHAIN`, whose new policy stops sooner, at 10, 100 and 1,000 tokens: `theory.drift_given_length`,
    with the KL given the length by the chain rule over tokens, is the mean of S by exact sums over states. Falsified by
    x: the stated mean times 1 + x. The near miss, ``shift`` False, states that lengths do not shift."""
    del rng
    lengths = [10, 100, 1_000]
    given = CHAIN.given(lengths)
    kl = np.array([CHAIN.kl_given(n) for n in lengths])
    stated = theory.drift_given_length([one.ratio if shift else 1.0 for one in given], kl)
    return equal(stated, [one.mean for one in given], 1e-9)


@check("T6", Method.CLOSED, "(b) there the centre is the mean of S within .01 deviations", "of Var(S | L)", 0.2)
@near_miss("-KL a token", instead="-KL")
@near_miss("log E[e^S | L]", instead="log")
def fair_centre(rng: np.random.Generator, instead: str = "") -> Test:
    """Test T6 (b) on the chain `CHAIN`, where S given L is nearly normal: `theory.fair_centre` of the exact E[e^S | L]
    and Var(S | L) is within .01 standard deviations of E[S | L] at 10, 100 and 1,000 tokens; and docs/theory.md prints
    this distance, and that of minus the KL per token, rightly. Falsified by x: Var times 1 + x. Near misses: the centre
    is minus the KL per token (``instead`` "-KL"; lengths shift) or log E[e^S | L] ("log"; without Var/2)."""
    del rng
    lengths = np.array([10, 100, 1_000])
    given = CHAIN.given(lengths)
    mean, var, ratio = (np.array([getattr(one, name) for one in given]) for name in ("mean", "variance", "ratio"))
    far = np.abs(CHAIN.kl_per_token() * lengths + mean) / np.sqrt(var)
    near = np.abs(theory.fair_centre(ratio, var) - mean) / np.sqrt(var)
    gaps = [*(0.05 - np.abs(far[1:] - [3.1, 7.1])), *(5e-4 - np.abs(near[1:] - [0.002, 0.008]))]

    def test(x: float) -> Outcome:
        centre = theory.fair_centre(ratio, var * (1 + x))
        centre = {"-KL": -CHAIN.kl_per_token() * lengths, "log": np.log(ratio)}.get(instead, centre)
        off = np.abs(centre - mean) / np.sqrt(var)
        return holds(0.01 - off, "deviations of S", note=f"off by at most {np.max(off):.1g} standard deviations")

    return beside(test, holds(gaps, "the page's digits"))


@check("T6", Method.CLOSED, "(c) no shift of lengths and KL k (l - 1): mean -k (l - 1)", "of k", 1e-10)
@near_miss("lengths shift", shifted=True)
def without_shift(rng: np.random.Generator, shifted: bool = False) -> Test:
    """Test T6 (c) on a chain whose states stop alike under both policies, and whose moves differ alike in each state:
    no length shifts, and each token but the first, whose distribution is the same, has one KL between the policies, k
    nats. So the mean of S at l tokens is -k (l - 1), compared with exact sums at four lengths, 2 to 1,000. Falsified by
    x, the test multiplies this by 1 + x. In the near miss, ``shifted``, the new policy stops sooner: lengths shift."""
    del rng
    moves = np.array([[[0.7, 0.3], [0.3, 0.7]], [[0.6, 0.4], [0.4, 0.6]]])
    ends = np.array([[0.02, 0.02], [0.03 if shifted else 0.02] * 2])
    chain = type(CHAIN).of([0.5, 0.5], moves, ends)
    k = 0.7 * math.log(7 / 6) + 0.3 * math.log(3 / 4)
    lengths = np.array([2, 10, 100, 1_000])
    return equal(-k * (lengths - 1), chain.mean(lengths), 1e-11)


@check("T6", Method.SIMULATED, "(a) drawn responses of that chain", "standard deviations of S", 0.05)
@near_miss("-KL a token", instead="-KL")
@near_miss("shift of lengths left out", instead="no shift")
def drawn(rng: np.random.Generator, instead: str = "", draws: int = 40_000) -> Test:
    """Test T6 (a) on drawn responses of the chain `CHAIN`, ``draws`` at each of four lengths, 2 to 160 tokens: the mean
    of S is `theory.drift_given_length`, from exact sums. Falsified by x, the test adds x standard deviations of S to
    the stated mean. Near misses forget that lengths shift: ``instead`` "-KL" states minus the KL per token times the
    length, "no shift" minus the KL given the length."""
    lengths = np.array([2.0, 20, 80, 160])
    given = CHAIN.given(lengths)
    kl = np.array([CHAIN.kl_given(int(n)) for n in lengths])
    mean = theory.drift_given_length([one.ratio for one in given], kl)
    mean = {"-KL": -CHAIN.kl_per_token() * lengths, "no shift": -kl}.get(instead, mean)
    scale = np.sqrt([one.variance for one in given])
    S = CHAIN.sample(rng, np.broadcast_to(lengths, (draws, 4)))
    return lambda x: mean_is((S - mean) / scale, np.full(4, x))
