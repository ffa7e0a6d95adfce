"""T12: what clipping can move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fspo import theory
from fspo.rules import preset
from fspo.theory import Floats
from proofs_check.frame import Method, Outcome, Test, check, near_miss
from proofs_check.tools.compare import at_most, beside, equal, holds, vectors
from proofs_check.tools.policy import Bandit, make_bandit, update_terms


@check("T12", Method.ENUMERATED, "(a) all S in a band: p_new/p_old between its edges", "of the band", 1e-6)
@near_miss("old policy without full support", support=False)
@near_miss("a band that holds the means of S", means=True)
def moved_lengths(rng: np.random.Generator, support: bool = True, means: bool = False) -> Test:
    """Test T12 (a) over all responses of 24 softmax policies, with the narrowest sqrt band that holds all S: each
    length's probability under the new policy over that under the old one lies between e^lo and e^hi, lo and hi the
    band's edges at that length. With one symbol beside the end all responses of a length are one, and the bound is
    reached. Falsified by x, the test multiplies the edges, in nats, by 1 - x. Near misses: ``support`` False: the old
    policy cannot draw half of the responses; ``means``: the band holds only the means of S at each length."""
    values, bounds, kinds = [], [], []
    for i in range(24):
        bandit = make_bandit(rng, vocabulary=1 + i % 3, max_length=5, step=0.05)
        S, n, old, new = bandit.log_ratio, bandit.lengths, bandit.p_old, bandit.p_new
        if not support:
            old = np.where(rng.random(old.size) < 0.5, old, 0.0)
            old[[int(np.flatnonzero(n == length)[0]) for length in np.unique(n)]] += 1e-6
        lengths = np.unique(n)
        at = n == lengths[:, None]
        held = (at * old) @ S / (at @ old) / np.sqrt(lengths) if means else S / np.sqrt(n)
        ends = {"range_lo": max(-float(held.min()), 1e-9), "range_hi": max(float(held.max()), 1e-9)}
        rule = replace(preset("fspo").rule, **ends)
        low, high = theory.length_shift_bounds(rule, lengths)
        ratio = np.log((at @ new) / (at @ old))
        values += np.abs(ratio).tolist()
        bounds += np.where(ratio > 0, np.log(high), -np.log(low)).tolist()
        kinds += (ratio > 0).tolist()
    return at_most(values, bounds, 1e-9, kinds)


@check("T12", Method.CLOSED, "1.6, 6.8 and 47 times at 256, 4,096 and 16,384 tokens", "of their logarithms", 1e-11)
@near_miss("exponent .51", exponent=0.51)
def default_range(rng: np.random.Generator, exponent: float = 0.5) -> Test:
    """Test that docs/theory.md prints rightly how many times as frequent fspo's range .03 lets a length become: 1.6,
    6.8 and 47 times at 256, 4,096 and 16,384 tokens, e^(.03 sqrt(L)). Falsified by x, the test multiplies the
    logarithms of these numbers by 1 + x. The near miss, ``exponent`` .51, has L^.51 for sqrt(L)."""
    del rng
    lengths = [256, 4_096, 16_384]
    exact = 0.03 * np.array([16.0, 64.0, 128.0]) ** (2 * exponent)
    _, high = theory.length_shift_bounds(preset("fspo").rule, lengths)
    printed = holds([0.05, 0.05, 0.5] - np.abs(np.exp(exact) - [1.6, 6.8, 47.0]), "the page's digits")
    return beside(equal(np.log(high), exact, 1e-12), printed)


def stationary(rng: np.random.Generator) -> tuple[Bandit, Floats]:
    """Return a policy that is a stationary point of its expected advantage (g = 0), and a random direction of length 1
    in its logits. The advantages are random ones less their least-squares fit by the scores."""
    bandit = make_bandit(rng, vocabulary=2, max_length=3, step=0.0)
    root = np.sqrt(bandit.p_old)
    fitted, *_ = np.linalg.lstsq(root[:, None] * bandit.psi, root * bandit.advantages, rcond=None)
    away = rng.standard_normal(bandit.old.shape)
    return replace(bandit, advantages=bandit.advantages - bandit.psi @ fitted), away / np.linalg.norm(away)


def rollout(bandit: Bandit, name: str = "fspo") -> tuple[float, bool]:
    """Return how far 20 gradient steps of size .3 by the preset ``name`` move the logits, and if they clip anything."""
    rule, clipped, start = preset(name).rule, False, bandit.new
    for _ in range(20):
        terms, _ = update_terms(bandit, rule)
        terms = terms / bandit.lengths[:, None] if rule.weight == "geometric" else terms  # 1/L: section 2
        clipped |= bool(np.any(rule.apply(bandit.log_ratio, bandit.lengths, bandit.advantages).multiplier != 1))
        step = (bandit.p_old @ terms).reshape(bandit.new.shape)
        bandit = Bandit(bandit.old, bandit.new + 0.3 * step, bandit.responses, bandit.advantages)
    return float(np.linalg.norm(bandit.new - start)), clipped


@check("T12", Method.ENUMERATED, "(b) stationary points stay; nothing is clipped near them", "from the point", 1e-6)
@near_miss("a start 1 away", far=True)
@near_miss("not stationary", other=True)
@near_miss("the weight e^(S/L) of gspo", name="gspo")
def fixed_points(rng: np.random.Generator, far: bool = False, other: bool = False, name: str = "fspo") -> Test:
    """Test T12 (b) on six policies: 20 clipped steps from a stationary point (gradient 0) move nothing, and 20 from a
    point .001 away clip nothing. Falsified by x, the first start x away from it. Near misses: ``far`` starts the second
    1 away, ``other`` has no stationary points; ``name`` gspo, whose weight e^(S/L) makes another gradient."""
    policies = [stationary(rng) for _ in range(6)]
    if other:
        policies = [(make_bandit(rng, vocabulary=2, max_length=3, step=0.0), away) for _, away in policies]
    near = []
    for bandit, away in policies:
        moved = bandit.old + (1.0 if far else 1e-3) * away
        near.append(rollout(Bandit(moved, moved, bandit.responses, bandit.advantages))[1])

    def test(x: float) -> Outcome:
        gone = []
        for bandit, away in policies:
            start = bandit.old + x * away
            gone.append(rollout(Bandit(start, start, bandit.responses, bandit.advantages), name)[0])
        if any(near):
            return Outcome(-1.0, "response clipped", note="a response was clipped near a stationary point")
        return holds(1e-11 - np.array(gone), "distance moved")

    return test


@check("T12", Method.CLOSED, "(c) a bias tau b moves a zero by -tau J^-1 b", "of the shift", 0.01)
@near_miss("+ for -", sign=1.0)
@near_miss("J transposed", transposed=True)
def bias_of_zero(rng: np.random.Generator, sign: float = -1.0, transposed: bool = False) -> Test:
    """Test T12 (c) for ten random cubic fields g (gradients) of 3 parameters that are 0 at a point, where their
    derivative is J, and quadratic biases b: the zero of g + tau b moves from that point by -tau J^-1 b, up to a
    relative error of .02 at tau = 10^-3 and .002 at 10^-4. Falsified by x, the test multiplies the stated shift by 1 +
    x. Near misses: ``sign`` 1 states the opposite shift, ``transposed`` takes J^T for J."""
    shifts, stated, taus = [], [], np.array([1e-3, 1e-4])
    for _ in range(10):
        J, b, curved, bent = (rng.standard_normal(shape) for shape in ((3, 3), 3, (3, 3, 3), (3, 3)))
        J += 4 * np.eye(3) * np.sign(rng.standard_normal())
        used = J.T if transposed else J
        for tau in taus:
            zero = np.zeros(3)
            for _ in range(100):  # J theta = -(the rest of the field): a contraction near 0
                rest = (curved @ zero) @ zero + zero**3 + tau * (b + bent @ zero + zero**2)
                zero = -np.linalg.solve(J, rest)
            shifts.append(zero / tau)
            stated.append(sign * np.linalg.solve(used, b))
    near = np.tile([0.02, 0.002], 10) * np.linalg.norm(stated, axis=1)
    return vectors(shifts, stated, near, "distance over tau")
