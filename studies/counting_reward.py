"""The graded reward of studies/pretrained.py: half for numbers before the first mistake, half for a right answer."""

from __future__ import annotations


def graded(response: str, answer: str) -> float:
    """Return the reward, 0 to 1, of a response that should be a list of numbers in order (``answer``): half of the
    share of the answer's numbers that stand before the first mistake, plus 1/2 if the response is the answer and
    nothing else.

    Responses to one prompt then rarely have equal rewards, so that nearly every update has a gradient."""
    given, wanted = response.split(), answer.split()
    wrong = [i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b]
    right = wrong[0] if wrong else min(len(given), len(wanted))
    return right / len(wanted) / 2 + (given == wanted) / 2
