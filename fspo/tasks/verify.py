r"""Verifiers that give a response its reward: exact match, math-verify, or a function that the user names.

Verifiers that may hang (math-verify, user functions, user regular expressions) run in worker processes that can be
killed (`fspo.tasks.verifier_pool`). Plain text comparison takes time linear in the text and runs in this process.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np

from fspo.base.errors import UserError, unknown_name
from fspo.tasks.base import Example, Rewards, check_batch
from fspo.tasks.verifier_pool import VerifierPool

EXTRACTIONS: tuple[str, ...] = ("none", "boxed", "last-number", "regex:<pattern>")
VERIFIERS: tuple[str, ...] = ("exact", "math", "<module>:<function>")
USER_ARGUMENTS: tuple[str, ...] = ("prompt", "response", "answer", "info", "finished")

_NUMBER = re.compile(r"(?:(?<![\w)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\d)\.\d+)")
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class VerifierConfig:
    """How responses are judged by a verifier.

    Attributes
    ----------
    verifier : str
        ``"exact"``, ``"math"`` (math-verify: mathematical equality) or ``"module:function"``, a function that
        takes any of the keywords prompt, response, answer, info, finished and returns a number.
    extract : str
        Part of the response that is judged: ``"none"`` all of it, ``"boxed"`` the last ``\\boxed{...}``,
        ``"last-number"`` the last number (compared as a number), ``"regex:<pattern>"`` the last match (its first
        group if the pattern has one). A response without such a part is wrong. ``"math"`` finds the answer by itself.
    case_sensitive : bool
        Whether ``"exact"`` distinguishes upper and lower case.
    require_finished : bool
        Give reward 0 to a response that was cut at the length limit, without judging it. By default such a response
        is judged like any other, as TRL and verl do.
    timeout_s, workers, memory_limit_gib
        See `fspo.tasks.verifier_pool.VerifierPool`.
    """

    verifier: str = "exact"
    extract: str = "none"
    case_sensitive: bool = True
    require_finished: bool = False
    timeout_s: float = 5.0
    workers: int = 2
    memory_limit_gib: float | None = 4.0


def normalise(text: str, case_sensitive: bool = True) -> str:
    """Normalise a text: Unicode NFKC, one blank for each run of white space, ends stripped, case folded if asked."""
    text = " ".join(unicodedata.normalize("NFKC", text).split())
    return text if case_sensitive else text.casefold()


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete ``\boxed{...}`` with balanced braces; None when there is none.

    The text is read once, so a response that repeats an unclosed ``\boxed{`` many times takes linear time.
    """
    # For each brace that is still open: the position at which its content starts, or -1 if it is not that of a \boxed.
    open_braces: list[int] = []
    best, found = -1, None
    for token in _BRACES.finditer(text):
        if token.group() == "}":
            start = open_braces.pop() if open_braces else -1
            if start > best:
                best, found = start, text[start : token.start()]
        elif token.group().endswith("{") and not token.group().startswith("\\{"):
            open_braces.append(token.end() if token.group() != "{" else -1)
    return None if found is None else found.strip()


def last_number(text: str) -> str | None:
    """Return the last number of a text without thousands separators; None when there is none.

    A sign after a digit, letter or closing bracket is an operator: the last number of ``5-3`` is 3.
    """
    found = None
    for match in _NUMBER.finditer(text.replace("\u2212", "-")):
        found = match.group()
    return None if found is None else found.replace(",", "")


def make_extractor(how: str) -> Callable[[str], str | None]:
    """Return the function that extracts from a text the part that is judged, and returns None if there is none.

    Raises
    ------
    UserError
        If ``how`` is unknown, or is a regular expression that does not compile.
    """
    if how == "none":
        return str
    if how == "boxed":
        return last_boxed
    if how == "last-number":
        return last_number
    if how.startswith("regex:"):
        try:
            pattern = re.compile(how.removeprefix("regex:"), re.DOTALL)
        except re.error as error:
            raise UserError(f"extraction pattern {how!r} does not compile ({error}): correct it") from error
        return partial(_last_match, pattern)
    raise unknown_name("extraction", how, EXTRACTIONS)


def _last_match(pattern: re.Pattern[str], text: str) -> str | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    if found is None:
        return None
    return found.group(1 if pattern.groups else 0)


def exact_match(response: str, answer: str, *, extract: str = "none", case_sensitive: bool = True) -> float:
    """Return 1.0 if the text extracted from the response equals the answer after `normalise`, else 0.0.

    With ``"last-number"`` both sides are compared as decimal numbers: ``1,234.50`` equals ``1234.5``.
    """
    found = make_extractor(extract)(response)
    if found is None:
        return 0.0
    if extract == "last-number":
        try:
            return float(Decimal(found) == Decimal(answer.strip().replace(",", "")))
        except InvalidOperation as error:
            raise UserError(f"the answer {answer!r} is no number: use another extraction than last-number") from error
    return float(normalise(found, case_sensitive) == normalise(answer, case_sensitive))


def _exact_factory(extract: str, case_sensitive: bool) -> Callable[..., float]:
    return partial(exact_match, extract=extract, case_sensitive=case_sensitive)


def math_factory(extract: str = "none") -> Callable[..., float]:
    """Build a verifier that compares answers with the package math-verify.

    The package's own time limit (``signal.alarm``) is switched off, because `VerifierPool` limits the time.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # Forms of an answer that math-verify looks for: a boxed one first, else the last formula or number.
    forms = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    extractor = make_extractor(extract)

    def parse_bare(text: str) -> list:
        # math-verify recognises LaTeX only inside math delimiters such as $. Columns of reference answers rarely have
        # delimiters, so add them.
        marked = text if any(mark in text for mark in ("$", "\\boxed", "\\(", "\\[")) else f"${text}$"
        for form in (marked, text):
            parsed = parse(form, extraction_config=forms, parsing_timeout=0, raise_on_error=True)
            if parsed:
                return parsed
        return []

    def judge(response: str, answer: str) -> float:
        gold = parse_bare(answer)
        if not gold:
            raise UserError(f"math-verify cannot read the answer {answer[:80]!r}: use the exact verifier")
        if extract == "none":
            found = parse(response, extraction_config=forms, parsing_timeout=0, raise_on_error=True)
        else:
            text = extractor(response)
            found = parse_bare(text) if text else []
        return float(bool(found) and verify(gold, found, timeout_seconds=None, raise_on_error=True))

    return judge


def load_function(path: str) -> Callable[..., Any]:
    """Import the user's reward function ``module:function`` and check that it can be called with USER_ARGUMENTS.

    USER_ARGUMENTS are the keywords that a reward function may take: prompt, response, answer, info and finished.

    Raises
    ------
    UserError
        If the module or function does not exist, or the function requires a parameter that is not in USER_ARGUMENTS.
    """
    module_name, _, name = path.partition(":")
    here = os.getcwd()
    # Let Python look for modules in the working folder too, which it does not do for a console script.
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise UserError(f"reward function {path!r}: cannot import {module_name!r} ({error})") from error
    except AttributeError as error:
        raise UserError(f"reward function {path!r}: {module_name!r} has no {name!r}; write module:function") from error
    if not callable(function):
        raise UserError(f"reward function {path!r} is {type(function).__name__}, not callable: name a function")
    for parameter in _parameters(function).values():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if not optional and (parameter.name not in USER_ARGUMENTS or parameter.kind is parameter.POSITIONAL_ONLY):
            raise UserError(
                f"reward function {path!r} wants {parameter.name!r}: take any of the keywords "
                f"{', '.join(USER_ARGUMENTS)}, or **kwargs"
            )
    return function


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except ValueError as error:
        raise UserError(f"{function!r} hides its parameters: wrap it in a Python function") from error


def user_factory(path: str) -> Callable[..., Any]:
    """Load a user's reward function and return a verifier that calls it with only the keywords that it takes."""
    function = load_function(path)
    parameters = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function

    def judge(**call: Any) -> Any:
        return function(**{key: value for key, value in call.items() if key in parameters})

    return judge


class Verifier:
    """Judges responses to examples by the verifier that its configuration names.

    Raises
    ------
    UserError
        For an unknown verifier or extraction, a missing package, or a reward function that cannot be loaded.
    """

    def __init__(self, config: VerifierConfig) -> None:
        make_extractor(config.extract)
        self.config = config
        self.pool: VerifierPool | None = None
        self._in_place: Callable[..., float] | None = None
        options = {"workers": config.workers, "timeout_s": config.timeout_s}
        self._is_user_function = ":" in config.verifier
        if config.verifier == "exact":
            # Match the user's regular expression in a worker process, which can be killed if matching takes too long.
            if config.extract.startswith("regex:"):
                self.pool = VerifierPool(_exact_factory, (config.extract, config.case_sensitive), **options)
            else:
                self._in_place = _exact_factory(config.extract, config.case_sensitive)
        elif config.verifier == "math":
            if importlib.util.find_spec("math_verify") is None:
                raise UserError('the math verifier needs math-verify: pip install "fspo[math]"')
            self.pool = VerifierPool(
                math_factory, (config.extract,), memory_limit_gib=config.memory_limit_gib, **options
            )
        elif self._is_user_function:
            if config.extract != "none":
                raise UserError("extract has no effect on your own reward function: remove it")
            load_function(config.verifier)
            # There is no memory limit here, because a user's function may load a model.
            self.pool = VerifierPool(user_factory, (config.verifier,), **options)
        else:
            raise unknown_name("verifier", config.verifier, VERIFIERS)

    def close(self) -> None:
        """Stop the worker processes, if there are any."""
        if self.pool is not None:
            self.pool.close()

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return the rewards of ``responses[i]`` to ``examples[i]``."""
        check_batch(examples, responses, finished)
        judged = [i for i in range(len(responses)) if finished[i] or not self.config.require_finished]
        values = np.zeros(len(responses))
        status = ["ok"] * len(responses)
        if self.pool is None:
            assert self._in_place is not None
            for i in judged:
                values[i] = self._in_place(response=responses[i], answer=examples[i].answer)
            return Rewards(values, status)
        calls = []
        for i in judged:
            call: dict[str, Any] = {"response": responses[i], "answer": examples[i].answer}
            if self._is_user_function:
                call |= {
                    "prompt": examples[i].prompt,
                    "info": examples[i].info,
                    "finished": bool(finished[i]),
                }
            calls.append(call)
        rewards = self.pool.score(calls)
        for place, i in enumerate(judged):
            values[i], status[i] = rewards.values[place], rewards.status[place]
        return Rewards(values, status, rewards.messages)
