"""Search for counterexamples with the package hypothesis. What it tries depends on the seed alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

from proofs_check.frame import Outcome

EXAMPLES = 700
"""Largest number of examples that one search tries."""
_SETTINGS = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    # A counterexample that was found is not made simpler (Hypothesis's phase shrink), because any one decides.
    phases=(Phase.generate, Phase.target),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
)
T = TypeVar("T")


def counterexample(rng: np.random.Generator, strategy: SearchStrategy[T], broken: Callable[[T], bool]) -> T | None:
    """Return an example of the hypothesis strategy ``strategy`` for which ``broken`` is true, or None if none was found
    among at most ``EXAMPLES``.

    ``broken`` may call ``hypothesis.target`` to lead the search. The same random generator gives the same examples.
    """
    with _no_constants_of_loaded_modules():
        try:
            return find(strategy, broken, settings=_SETTINGS, random=random.Random(int(rng.integers(2**32))))
        except NoSuchExample:
            return None


def search(
    rng: np.random.Generator, strategy: SearchStrategy[Any], excess: Callable[[Any], float], needed: int, unit: str
) -> Outcome:
    """Let hypothesis search for a counterexample to a statement, and return the outcome of the check.

    ``excess`` returns the amount by which an example breaks the statement: at most 0 if the statement holds for it, NaN
    if it says nothing about the example. The outcome is undecided if fewer than ``needed`` examples gave a number.
    """
    seen: list[float] = []

    def broken(example: Any) -> bool:
        value = excess(example)
        if not math.isnan(value):
            seen.append(value)
        return value > 0

    found = counterexample(rng, strategy, broken)
    if found is not None:
        return Outcome(-max(seen), unit, note=f"counterexample: {' '.join(repr(found).split())}"[:300])
    if len(seen) < needed:
        return Outcome(note=f"only {len(seen)} cases")
    return Outcome(-max(seen), unit, note=f"{len(seen)} cases, none breaks the claim")


def _no_constants_of_loaded_modules() -> AbstractContextManager[Any]:
    """Return a context in which hypothesis does not try the numbers that it finds in the source of loaded modules,
    because examples must depend on the seed alone.
    """
    if hasattr(providers, "Constants") and hasattr(providers.HypothesisProvider, "_local_constants"):
        return patch.object(providers.HypothesisProvider, "_local_constants", providers.Constants())
    return nullcontext()
