"""hypothesis as a search for counterexamples: seeded, keeping nothing between runs, shrinking nothing."""

from __future__ import annotations

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

EXAMPLES = 700
"""Examples of one search."""
_SETTINGS = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.target),  # a counterexample is judged, not read
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
)
T = TypeVar("T")


def counterexample(rng: np.random.Generator, strategy: SearchStrategy[T], broken: Callable[[T], bool]) -> T | None:
    """An example of ``strategy`` for which ``broken``, or None after ``EXAMPLES`` of them.

    ``broken`` may call ``hypothesis.target`` to lead the search. The same generator gives the same examples.
    """
    with _no_constants_of_loaded_modules():
        try:
            return find(strategy, broken, settings=_SETTINGS, random=random.Random(int(rng.integers(2**32))))
        except NoSuchExample:
            return None


def _no_constants_of_loaded_modules() -> AbstractContextManager[Any]:
    """hypothesis also draws numbers that it reads from the source of loaded modules, and keeps them in a folder.

    Then the same seed would give other examples after an edit elsewhere, or in another process. Releases without
    this feature need nothing.
    """
    if hasattr(providers, "Constants") and hasattr(providers.HypothesisProvider, "_local_constants"):
        return patch.object(providers.HypothesisProvider, "_local_constants", providers.Constants())
    return nullcontext()
