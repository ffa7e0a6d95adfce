"""The graded reward of studies/pretrained.py."""

from __future__ import annotations


def graded(response: str, answer: str) -> float:
    """Return how much of the answer's numbers the response gives in order, from its first on: half of the share of
    numbers before the first mistake, and the other half if the response is the answer and nothing else.

    Responses to one prompt then rarely have equal rewards, so that nearly every update has a gradient.
    """
    given, wanted = response.split(), answer.split()
    wrong = [i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b]
    right = wrong[0] if wrong else min(len(given), len(wanted))
    return right / len(wanted) / 2 + (given == wanted) / 2
