"""Verifiers that give a response its reward: exact match, math-verify, or a function that the user names.

Verifiers that may hang (math-verify, user functions) run in worker processes that can be killed
(`fspo.tasks.verifier_pool`). The comparison of texts takes time linear in them and runs in this process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fspo.base.errors import UserError, unknown_name
from fspo.tasks.base import Example, Rewards
from fspo.tasks.verifier_pool import VerifierPool

VERIFIERS: tuple[str, ...] = ("exact", "math", "<module>:<function>")
MATH_MEMORY_GIB = 4.0
"""Address space that a worker of math-verify may take: sympy would write out a tower of powers."""


@dataclass(frozen=True)
class VerifierConfig:
    """How responses are judged by a verifier.

    Attributes
    ----------
    verifier : str
        ``"exact"`` (the whole response is the answer, but for white space and Unicode forms), ``"math"`` (math-verify:
        the last boxed answer, formula or number equals the answer mathematically) or ``"module:function"``, a function
        that takes ``response`` and ``answer``, two texts, and returns a number.
    timeout_s, workers
        Time limit of one judgement, seconds, and number of worker processes that judge; both do not matter to
        ``"exact"``.
    """

    verifier: str = "exact"
    timeout_s: float = 5.0
    workers: int = 2


def normalise(text: str) -> str:
    """Return a text in a form in which equal answers are the same string: Unicode NFKC, each run of white space made
    one blank, none at the ends."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def math_factory() -> Callable[..., float]:
    """Build a verifier that compares answers with the package math-verify.

    The package's own time limit (``signal.alarm``) is switched off, because `VerifierPool` limits the time."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # Forms of an answer that math-verify looks for: a boxed one first, else the last formula or number.
    forms = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def read(text: str) -> list:
        return parse(text, extraction_config=forms, parsing_timeout=0, raise_on_error=True)

    def judge(response: str, answer: str) -> float:
        # math-verify recognises LaTeX only inside math delimiters such as $. Columns of reference answers rarely have
        # delimiters, so add them.
        bare = not any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
        gold = (bare and read(f"${answer}$")) or read(answer)
        if not gold:
            raise UserError(f"math-verify cannot read the answer {answer[:80]!r}: use the exact verifier")
        found = read(response)
        return float(bool(found) and verify(gold, found, timeout_seconds=None, raise_on_error=True))

    return judge


def load_function(path: str) -> Callable[..., Any]:
    """Import the user's reward function ``module:function`` and check that it can be called with response and answer.

    Raises UserError if the module or function does not exist, or the function cannot be called so."""
    module_name, _, name = path.partition(":")
    here = os.getcwd()
    # Let Python look for modules in the working folder too, which it does not do for a console script.
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), name)
        inspect.signature(function).bind(response="", answer="")
    except ImportError as error:
        raise UserError(f"reward function {path!r}: cannot import {module_name!r} ({error})") from error
    except AttributeError as error:
        raise UserError(f"reward function {path!r}: {module_name!r} has no {name!r}; write module:function") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"reward function {path!r}: {error}: take the keywords response and answer") from error
    return function


class Verifier:
    """Judges responses to examples by the verifier that its configuration names.

    Raises UserError for an unknown verifier, a missing package, or a reward function that cannot be loaded."""

    def __init__(self, config: VerifierConfig) -> None:
        self.config = config
        self.pool: VerifierPool | None = None
        limits = {"workers": config.workers, "timeout_s": config.timeout_s}
        if config.verifier == "math":
            if importlib.util.find_spec("math_verify") is None:
                raise UserError('the math verifier needs math-verify: pip install ".[math]" in fspo\'s repository')
            self.pool = VerifierPool(math_factory, memory_limit_gib=MATH_MEMORY_GIB, **limits)
        elif ":" in config.verifier:
            load_function(config.verifier)
            # There is no memory limit here, because a user's function may load a model.
            self.pool = VerifierPool(load_function, (config.verifier,), **limits)
        elif config.verifier != "exact":
            raise unknown_name("verifier", config.verifier, VERIFIERS)

    def close(self) -> None:
        """Stop the worker processes that judge, if there are any."""
        if self.pool is not None:
            self.pool.close()

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return the rewards of ``responses[i]`` to ``examples[i]``; a truncated response is judged like any other."""
        pairs = [(response, example.answer) for response, example in zip(responses, examples, strict=True)]
        if self.pool is None:
            same = [normalise(response) == normalise(answer) for response, answer in pairs]
            return Rewards(np.array(same, np.float64), ["ok"] * len(same))
        return self.pool.score([{"response": response, "answer": answer} for response, answer in pairs])
