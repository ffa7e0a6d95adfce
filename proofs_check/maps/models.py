"""The models of the price map (table mse_map). A model is an old policy, the training step that leads to the new
policy, and the rewards of the responses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq

from fspo.theory import Floats
from proofs_check.maps.policies import LocationPolicy, Policy, SoftmaxPolicy
from proofs_check.maps.settings import MIDDLE, RATIO, SIGMA, lengths_on
from proofs_check.tools.policy import Bandit, all_responses, scores


def _softmax(name: str, trained: bool) -> SoftmaxPolicy:
    """Return a softmax policy whose responses have up to 7 tokens, made of 3 symbols. The reward is 1 where a linear
    function of the response's score, plus noise, is above its mean.

    The step from the old to the new policy has the length at which KL(old||new) per response is SOFTMAX_KL. Its
    direction is the gradient of the mean reward if ``trained``, else random.
    """
    rng = np.random.default_rng(7)
    positions, symbols = 7, 3
    shape = (positions, symbols + 1, symbols + 1)
    old, score, direction = rng.standard_normal((3, *shape))
    old = old / 2
    # Make the symbol that ends a response less probable, so that no short response has a large probability.
    old[:, :, symbols] -= 1.5
    responses = all_responses(symbols, positions)
    bandit = Bandit(old, old, responses, np.ones(responses.lengths.size))
    mass, psi = bandit.p_old, scores(old, responses)
    value = (psi @ score.ravel()) + 0.05 * rng.standard_normal(mass.size)
    reward = (value > mass @ value).astype(np.float64)
    advantages = reward - mass @ reward
    step = ((mass * advantages) @ psi).reshape(shape) if trained else direction
    step = step / np.linalg.norm(step)

    def kl(log_size: float) -> float:
        moved = Bandit(old, old + math.exp(log_size) * step, responses, advantages)
        return -float(mass @ moved.log_ratio)

    root: Any = brentq(lambda log_size: kl(log_size) - SOFTMAX_KL, -4.0, 4.0)
    return SoftmaxPolicy.of(name, Bandit(old, old + math.exp(root) * step, responses, advantages))


SOFTMAX_KL = 0.3
"""KL(old||new) of the softmax policies, nats per response. It is about that of the price map's other models, which is
the mean of sigma^2 L/2 over their lengths.
"""


def _location(name: str, headers: Floats | None = None, shares: Floats | None = None, **options: Any) -> LocationPolicy:
    """Return a policy with Gaussian tokens (`LocationPolicy`). At each length half of the responses have reward 1, or
    the share that the option ``positive`` gives for that length.
    """
    lengths = lengths_on(RATIO)
    positive = options.pop("positive", np.full(lengths.size, 0.5))
    h = np.ones(1) if headers is None else headers
    q = np.ones(1) if shares is None else shares
    # A header is a factor on the size of the training step in one response (see LocationPolicy). If there are as many
    # headers as lengths and no ``shares``, the k-th header is that of all responses of the k-th length. Else every
    # length has every header, with the probabilities ``shares``.
    if h.size == lengths.size and shares is None and headers is not None:
        return LocationPolicy(name, lengths, h, np.full(lengths.size, 1 / lengths.size), positive, **options)
    p = np.repeat(q / lengths.size, lengths.size)
    return LocationPolicy(
        name, np.tile(lengths, h.size), np.repeat(h, lengths.size), p, np.tile(positive, h.size), **options
    )


def _heavy_headers() -> tuple[Floats, Floats]:
    """Return seven values of the header h and their shares among responses. `LocationPolicy` scales a response's
    log-ratios by its h. The values approximate a lognormal law of h, which makes S skewed and heavy-tailed.
    """
    x, w = np.polynomial.hermite_e.hermegauss(7)
    h = np.exp(x / 2)
    w = w / w.sum()
    return h / math.sqrt(float(w @ h**2)), w


ALIGNED = 0.7
MODELS: dict[str, tuple[str, Callable[[], Policy]]] = {
    "independent": (
        "A psi independent of S given L (T13's hypothesis): the gradient along directions that the step left alone",
        lambda: _location("independent", blind=True),
    ),
    "aligned": ("reward aligned with the step, as in training", lambda: _location("aligned", overlap=ALIGNED)),
    "opposed": ("reward against the step, as after overshooting", lambda: _location("opposed", overlap=-ALIGNED)),
    "by_length": (
        "aligned; short responses are right more often (.8 to .2)",
        lambda: _location("by_length", overlap=ALIGNED, positive=np.linspace(0.8, 0.2, lengths_on(RATIO).size)),
    ),
    "far": ("aligned, a step twice as long", lambda: _location("far", overlap=ALIGNED, sigma=2 * SIGMA)),
    "power_law": (
        "aligned, Var(S|L) ~ L^1.4: H = 0.7",
        lambda: _location("power_law", (lengths_on(RATIO) / MIDDLE) ** 0.2, overlap=ALIGNED),
    ),
    "heavy": (
        "aligned, the size of the step varies by response: S left-skewed and heavy-tailed",
        lambda: _location("heavy", *_heavy_headers(), overlap=ALIGNED),
    ),
    "softmax": ("tabular softmax policy, random step", lambda: _softmax("softmax", trained=False)),
    "softmax_trained": (
        "tabular softmax policy, step along the reward's gradient",
        lambda: _softmax("softmax_trained", trained=True),
    ),
}
"""Models of the price map by name: a description, and the function that makes the model."""
