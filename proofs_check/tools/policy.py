"""A tabular softmax policy small enough that every expectation is a finite sum over all its responses.

At position t the next symbol is drawn from softmax(theta[t, previous symbol]). Of the symbols 0, 1, ..., V, the last
ends the response. The score of a response y is the gradient psi = grad log pi(y) of this policy, not a made-up vector,
so the checks test statements about the update on a real policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from fspo.base.errors import UserError
from fspo.rules import DriftStats, Rule, calibrate, preset
from fspo.theory import Floats


@dataclass(frozen=True)
class PolicyResponses:
    """Responses of a small policy: all of them, or a sample.

    Attributes
    ----------
    symbols : int array (N, T)
        Symbols, padded with -1 after the end.
    lengths : int array (N,)
        Number of symbols, the end symbol included; T if the response was cut off."""

    symbols: np.ndarray
    lengths: np.ndarray


def all_responses(vocabulary: int, max_length: int) -> PolicyResponses:
    """Return all responses of ``vocabulary`` symbols and the end symbol, those cut off at ``max_length`` too."""
    if vocabulary < 1 or max_length < 1:
        raise UserError("a policy needs at least one symbol and one position")
    rows, of = [], range(vocabulary)
    for length in range(1, max_length + 1):
        rows += [(*y, vocabulary) + (-1,) * (max_length - length) for y in product(of, repeat=length - 1)]
    rows += list(product(of, repeat=max_length))
    symbols = np.array(rows)
    return PolicyResponses(symbols, (symbols >= 0).sum(axis=1))


def token_log_probs(theta: Floats, responses: PolicyResponses) -> Floats:
    """Return log pi of each token, (N, T), 0 after the end, under the logits ``theta`` (T, V + 1, V + 1) by position,
    previous symbol (V at the start) and next symbol."""
    log_pi = theta - np.log(np.exp(theta).sum(axis=-1, keepdims=True))
    position, previous, symbol, live = states(theta, responses)
    return np.where(live, log_pi[position, previous, symbol], 0.0)


def next_symbol(theta: Floats) -> Floats:
    """Return the policy's probabilities of the next symbol (T, V + 1, V + 1), by position, previous and next symbol,
    from logits ``theta`` of this shape."""
    return np.exp(theta) / np.exp(theta).sum(axis=-1, keepdims=True)


def scores(theta: Floats, responses: PolicyResponses) -> Floats:
    """Return each response's score, (N, theta.size): the gradient of its log-probability in the logits ``theta``."""
    pi = next_symbol(theta)
    _, previous, symbol, live = states(theta, responses)
    psi = np.zeros((responses.lengths.size, *theta.shape))
    rows = np.arange(responses.lengths.size)
    for t in range(theta.shape[0]):
        on = live[:, t]
        psi[rows[on], t, previous[on, t]] -= pi[t, previous[on, t]]
        psi[rows[on], t, previous[on, t], symbol[on, t]] += 1.0
    return psi.reshape(responses.lengths.size, -1)


def slopes(f: Callable[[Floats], float], theta: Floats, step: float = 1e-5) -> Floats:
    """Return the gradient of f at the logits ``theta`` by central differences, (theta.size,)."""
    ends = step * np.eye(theta.size).reshape(-1, *theta.shape)
    return np.array([f(theta + end) - f(theta - end) for end in ends]) / (2 * step)


def states(theta: Floats, responses: PolicyResponses) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return of all tokens (N, T) the position, previous symbol, symbol (0 after the end) and if a token exists."""
    live = responses.symbols >= 0
    symbol = np.where(live, responses.symbols, 0)
    start = np.full((len(symbol), 1), theta.shape[1] - 1)
    previous = np.concatenate([start, symbol[:, :-1]], axis=1)
    return np.broadcast_to(np.arange(theta.shape[0]), symbol.shape), previous, symbol, live


PRESETS = ("rloo", "gspo", "fspo", "fspo-kl")
"""Presets under which the update of a small policy is checked against T7 and T8."""


@dataclass(frozen=True)
class SmallPolicy:
    """A small policy before and after a training step, with all its N responses and their advantages.

    Attributes
    ----------
    old, new : arrays (T, V + 1, V + 1)
        Logits by position, previous and next symbol.
    responses : PolicyResponses
        All N responses that the policy can draw.
    advantages : array (N,)
        The advantage of each response."""

    old: Floats
    new: Floats
    responses: PolicyResponses
    advantages: Floats

    def probability(self, theta: Floats) -> Floats:
        """Return the probability of each response under the logits ``theta``, (N,)."""
        return np.exp(token_log_probs(theta, self.responses).sum(axis=1))

    @cached_property
    def psi(self) -> Floats:
        """Scores of all responses under the new policy, (N, P): gradients of log pi_new with respect to P logits."""
        return scores(self.new, self.responses)


@dataclass(frozen=True)
class Bandit(SmallPolicy):
    """A `SmallPolicy` whose old weights drew the responses, some with A = 0; it gives their log-ratios and lengths."""

    @cached_property
    def token_log_ratios(self) -> Floats:
        """Token log-ratios s_t of each response, nats, (N, T); 0 after the end."""
        return token_log_probs(self.new, self.responses) - token_log_probs(self.old, self.responses)

    @cached_property
    def log_ratio(self) -> Floats:
        """Log-ratio S of each response, nats, (N,)."""
        return self.token_log_ratios.sum(axis=1)

    @cached_property
    def lengths(self) -> Floats:
        """Lengths L in tokens, (N,)."""
        return self.responses.lengths.astype(np.float64)

    @cached_property
    def p_old(self) -> Floats:
        """Probability of each response under the old policy, (N,)."""
        return self.probability(self.old)

    @property
    def p_new(self) -> Floats:
        """Probability of each response under the new policy, (N,)."""
        return self.probability(self.new)

    def drift_stats(self) -> DriftStats:
        """Return three expectations under the old policy, from which a rule's drift follows: the sum of k3 over a
        response's tokens, the sum of their squared token log-ratios, and the length."""
        s, p = self.token_log_ratios, self.p_old
        k3 = (np.expm1(s) - s).sum(axis=1)
        return DriftStats(float(p @ k3), float(p @ (s**2).sum(axis=1)), float(p @ self.responses.lengths))


def make_bandit(rng: np.random.Generator, vocabulary: int = 3, max_length: int = 6, step: float = 0.3) -> Bandit:
    """Return a `Bandit` with random old logits, new logits that are ``step`` times random numbers away, and random
    advantages, about a fifth of which are 0. It has ``vocabulary`` symbols and at most ``max_length`` tokens."""
    shape = (max_length, vocabulary + 1, vocabulary + 1)
    old = 0.5 * rng.standard_normal(shape)
    responses = all_responses(vocabulary, max_length)
    advantages = rng.standard_normal(responses.lengths.size) + 0.2 * (responses.lengths - max_length / 2)
    advantages[rng.random(advantages.size) < 0.2] = 0.0
    return Bandit(old, old + step * rng.standard_normal(shape), responses, advantages)


def calibrated(bandit: Bandit, name: str, target: float) -> Rule:
    """Return the rule of a preset with its range scaled so that its band holds the share ``target`` of all responses of
    the small policy ``bandit``. Each response counts once, whatever its probability."""
    rule = preset(name).rule
    m = rule.centre(bandit.drift_stats())
    return calibrate(rule, bandit.log_ratio, bandit.lengths, bandit.advantages, target, m)


def update_terms(bandit: Bandit, rule: Rule) -> tuple[Floats, Floats]:
    """Return each response's clipped gradient M w A psi and its unclipped one, w A psi, (N, P) each, for P logits."""
    applied = rule.apply(bandit.log_ratio, bandit.lengths, bandit.advantages, rule.centre(bandit.drift_stats()))
    psi = bandit.psi * bandit.advantages[:, None]
    return applied.clipped_weight[:, None] * psi, applied.weight[:, None] * psi


def strata(bandit: Bandit, rule: Rule) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what T7 needs of the K lengths of a small policy, exact sums over all its responses with A != 0.

    Returns
    -------
    p : array (K,)
        Probability of the length with A != 0 under the old policy; the sum is below 1 where some A = 0.
    g, clipped : arrays (K, D)
        Mean of w A psi at the length and, clipped by ``rule``, of M w A psi, for D logits.
    a : array (K,)
        Update acceptance at the length, the mean of M, under drop; else weight acceptance, sum of M w over that of w.
    """
    keep = np.flatnonzero(bandit.advantages != 0)
    mass = bandit.p_old[keep]
    S, A, lengths = bandit.log_ratio[keep], bandit.advantages[keep], bandit.lengths[keep]
    applied = rule.apply(S, lengths, A, rule.centre(bandit.drift_stats()))
    psi = bandit.psi[keep]
    # Under a geometric weight the gradient has a factor 1/L (docs/theory.md section 2).
    scale = A / (lengths if rule.weight == "geometric" else 1.0)
    groups = np.unique(lengths)
    member = (lengths[None, :] == groups[:, None]) * mass
    p = member.sum(axis=1)
    member = member / p[:, None]
    g = member @ ((scale * applied.weight)[:, None] * psi)
    clipped = member @ ((scale * applied.clipped_weight)[:, None] * psi)
    if rule.outside == "drop":
        a = member @ applied.multiplier
    else:
        a = (member @ applied.clipped_weight) / (member @ applied.weight)
    return p, g, clipped, a
