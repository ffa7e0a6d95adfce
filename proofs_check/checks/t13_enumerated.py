"""Check T13: the mean of e^R, with R the log-ratio of a policy to the law that drew the tokens (section 6). There are
three cases: both can draw the same responses; top-p or top-k truncates the law; the reported log-probs are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np
from hypothesis import strategies as st

from fspo.rules import token_k3
from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.chain import SAMPLERS, Chain, make_chain, truncated
from proofs_check.tools.compare import close, holds, mean_is, worst
from proofs_check.tools.falsify import search
from proofs_check.tools.policy import all_responses, exact_next_symbol, next_symbol, scores, token_log_probs
from proofs_check.tools.settings import DIGITS


def prefixes(chain: Chain) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield each prefix that a response of the sampler can have, as three things: the position of the symbol after the
    prefix, the last symbol of the prefix, and the indices of the responses that begin with it.
    """
    symbols = chain.responses.symbols
    for t in range(symbols.shape[1]):
        live = np.flatnonzero(chain.drawn & (symbols[:, t] >= 0))
        _, group = np.unique(symbols[live, :t], axis=0, return_inverse=True)
        for one in np.unique(group):
            rows = live[group.ravel() == one]
            yield t, int(symbols[rows[0], t - 1]) if t else chain.draw.shape[1] - 1, rows


def after_prefix(rng: np.random.Generator, mass: bool = True, reversed_kl: bool = False) -> Outcome:
    """Check T13 (b) after each prefix of a response. Q is the law that draws the next symbol, P the policy's law of it,
    r = log P - log Q of the drawn symbol, k the probability under P of the symbols that Q can draw, and KL = KL(Q||P).
    The mean of e^r is k, that of r is -KL, that of k3 = e^r - 1 - r is KL - (1 - k), and -KL <= log k.
    """
    outcomes, slack = [], []
    for sampler in SAMPLERS:
        chain = make_chain(rng, max_length=4, **sampler)
        Q, P = next_symbol(chain.draw), next_symbol(chain.sampling)
        r = chain.token_log_ratios(chain.sampling, chain.draw)
        for t, previous, rows in prefixes(chain):
            q, p = Q[t, previous], P[t, previous]
            on = q > 0
            k = p[on].sum() if mass else 1.0
            kl = float((p if reversed_kl else q)[on] @ np.log(q[on] / p[on]))
            law, r_t = chain.p_draw[rows] / chain.p_draw[rows].sum(), r[rows, t]
            found = law @ np.exp(r_t), law @ r_t, law @ token_k3(r_t)
            outcomes.append(close(found, [k, -kl, kl - (1 - k)], 1e-9))
            slack.append(np.log(k) - found[1])
    formula = worst(*outcomes)
    return formula if min(slack) > -1e-12 else holds(slack, "log k less the mean of r, nats")


def wrong_log_probs(rng: np.random.Generator, claim: str = "stated") -> Outcome:
    """Check T13 where the sampler draws from q but reports the probabilities q_hat of another temperature. Let p be the
    trainer's law, and e^r = p/q_hat the ratio of the next token. Its mean is the sum of p q / q_hat over tokens. If q =
    p, that is 1 + chi^2(p, q_hat), and the mean of r is KL(p, q_hat) and not negative.
    """
    outcomes, slack = [], []
    for temperature in (0.5, 0.8, 1.25, 2.0):
        chain = make_chain(rng, max_length=4, noise=0.0, temperature=temperature)
        tables = {name: next_symbol(theta) for name, theta in (("p", chain.sampling), ("q", chain.draw))}
        for drawn, computed, reported in (("q", "q", "p"), ("q", "p", "q"), ("q", "p", "p"), ("p", "p", "q")):
            law, p, q_hat = (tables[name] for name in (drawn, computed, reported))
            logits = {"p": chain.sampling, "q": chain.draw}
            probability = chain.probability(logits[drawn])
            r = chain.token_log_ratios(logits[computed], logits[reported])
            for t, previous, rows in prefixes(chain):
                share = probability[rows] / probability[rows].sum()
                mean, mean_r = share @ np.exp(r[rows, t]), share @ r[rows, t]
                row = (t, previous)
                stated = float(law[row] @ (p[row] / q_hat[row]))
                outcomes.append(close(mean, 1.0 if claim == "one" else stated, 1e-11))
                if computed == drawn:
                    chi2 = float(((p[row] - q_hat[row]) ** 2 / q_hat[row]).sum())
                    outcomes.append(close(mean, 1 + chi2, 1e-11))
                    sign = -1.0 if claim == "negative" else 1.0
                    slack += [sign * mean_r - 1e-15, mean - 1]
    formula = worst(*outcomes)
    return formula if formula.margin < 0 else holds(slack, "excess of the mean of e^r and of r")


def first_use(
    rng: np.random.Generator, seen: str = "fresh", ratio: str = "behaviour", batches: int = 1_500, size: int = 32
) -> Outcome:
    """Check that T13 needs first use. The old weights come from the sampling weights by a training step on one batch.
    The mean of e^E, even over that batch, is the sampling policy's probability of the responses that the sampler can
    draw. The mean of e^(D+E) is the old policy's probability of them on fresh responses only. The sampler adds noise to
    the logits and keeps top-p .8.
    """
    responses = all_responses(2, 4)
    sampling = 0.5 * rng.standard_normal((4, 3, 3))
    draw = truncated(sampling + 0.3 * rng.standard_normal(sampling.shape), top_p=0.8)
    q = np.exp(token_log_probs(draw, responses).sum(axis=1))
    drawn, log_v = q > 0, token_log_probs(sampling, responses).sum(axis=1)
    weight_e = np.divide(np.exp(log_v), q, out=np.zeros_like(q), where=drawn)
    psi, reward = scores(sampling, responses), (responses.symbols == 1).sum(axis=1) / 4
    found = []
    for _ in range(batches):
        rows = rng.choice(q.size, size, p=q / q.sum())
        old = sampling + (2.0 * reward[rows] @ psi[rows] / size).reshape(sampling.shape)
        log_old = token_log_probs(old, responses).sum(axis=1)
        kept = np.exp(log_old)[drawn].sum()
        at = rows if seen == "trained on" else rng.choice(q.size, size, p=q / q.sum())
        weight = np.exp(log_old - log_v) * (weight_e if ratio == "behaviour" else 1.0)
        found.append((1 + weight_e[rows].mean() - np.exp(log_v)[drawn].sum(), 1 + weight[at].mean() - kept))
    return mean_is(np.array(found), np.ones(2), wanted=0.05, batches=batches, batch_size=size)


@st.composite
def laws(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Draw the logits of a policy and of a sampler, from flat to nearly deterministic, and the number of symbols from
    which they make responses. The sampler cannot draw some symbols (logit -inf).
    """
    vocabulary, length = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = (length, vocabulary + 1, vocabulary + 1)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    P, Q = (draw(st.sampled_from([0.0, 0.3, 3.0, 12.0])) * rng.standard_normal(shape) for _ in range(2))
    top_k = draw(st.integers(1, vocabulary + 1))
    return P, truncated(Q, top_k=top_k), vocabulary


def masses_by_length(table: np.ndarray, drawn: np.ndarray) -> list[Any]:
    """Return, for each length 1..T, a policy's probability of the responses of that length that a sampler can draw,
    by forward recursion.

    Parameters
    ----------
    table : object array (T, V + 1, V + 1)
        Probability of the next symbol by position and previous symbol; symbol V ends a response and precedes the first.
    drawn : bool array (T, V + 1, V + 1)
        Which next symbols the sampler can draw, by position and previous symbol.
    """
    reached = np.array([mp.mpf(0)] * (table.shape[1] - 1) + [mp.mpf(1)], dtype=object)
    masses = []
    for step, counted in zip(table, drawn, strict=True):
        ends = reached @ np.where(counted, step, mp.mpf(0))
        masses.append(ends[-1])
        reached = np.append(ends[:-1], mp.mpf(0))
    masses[-1] += reached.sum()  # add the responses that are cut off at the last position
    return masses


def means_attack(rng: np.random.Generator, claim: str = "mass") -> Outcome:
    """Check T13 (a) and (b): hypothesis finds no policy P and sampler Q for which one of two means under Q is wrong.
    With R = log P - log Q, the mean of e^R at a length is P's over Q's probability of the responses of that length that
    Q can draw. The mean of e^R/K is 1, where K is the product, over the tokens, of P's probability of the next symbols
    that Q can draw. Both sides have 50 digits.
    """

    def excess(example: tuple[np.ndarray, np.ndarray, int]) -> float:
        P, Q, vocabulary = example
        responses = all_responses(vocabulary, P.shape[0])
        with mp.workdps(DIGITS):
            p, q = (exact_next_symbol(theta) for theta in (P, Q))
            drawn = q > 0
            kept = np.where(drawn, p, mp.mpf(0)).sum(axis=2)
            sums, overall = [mp.mpf(0)] * P.shape[0], mp.mpf(0)
            for symbols, length in zip(responses.symbols, responses.lengths, strict=True):
                at = [(t, symbols[t - 1] if t else vocabulary, symbols[t]) for t in range(length)]
                if all(drawn[where] for where in at):
                    R = mp.fsum(mp.log(p[where] / q[where]) for where in at)
                    weight = mp.fprod(q[where] for where in at) * mp.exp(R)
                    sums[length - 1] += weight
                    mass = mp.mpf(1) if claim == "k forgotten" else mp.fprod(kept[t, before] for t, before, _ in at)
                    overall += weight / mass
            of_p = masses_by_length(p, np.ones_like(drawn) if claim == "all" else drawn)
            of_q = masses_by_length(q, drawn)
            gaps = [abs(overall - 1)]
            gaps += [abs(x / total - mass / total) for x, mass, total in zip(sums, of_p, of_q, strict=True) if total]
            return float(max(gaps) - mp.mpf(10) ** -20)

    return search(rng, laws(), excess, 100, "gap below 1e-20")


CHECKS = (
    Check(
        "T13",
        Method.ENUMERATED,
        "after each prefix: means of e^r, r and k3",
        after_prefix,
        {
            "mean 1 for k": partial(after_prefix, mass=False),
            "KL the other way round": partial(after_prefix, reversed_kl=True),
        },
    ),
    Check(
        "T13",
        Method.ENUMERATED,
        "log-probs of another temperature: sum p q/q_hat, at least 1 where p drew",
        wrong_log_probs,
        {"mean 1": partial(wrong_log_probs, claim="one"), "mean of r <= 0": partial(wrong_log_probs, claim="negative")},
    ),
    Check(
        "T13",
        Method.ATTACKED,
        "hypothesis: laws from flat to nearly deterministic, symbols cut, 50 digits",
        means_attack,
        {
            "responses that cannot be drawn counted": partial(means_attack, claim="all"),
            "k forgotten": partial(means_attack, claim="k forgotten"),
        },
    ),
    Check(
        "T13",
        Method.SIMULATED,
        "after a training step: E at any use, D + E at first use",
        first_use,
        {
            "D + E on the responses of the step": partial(first_use, seen="trained on"),
            "D alone": partial(first_use, ratio="staleness"),
        },
    ),
)
