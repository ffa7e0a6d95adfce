"""Which columns of a data set hold the prompt and the answer: the layouts of well-known sets, told apart by a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

MARKED = r"regex:####\s*(.+)"
"""How GSM8K marks the answer at the end of a worked solution."""


@dataclass(frozen=True)
class Columns:
    """Where a row's prompt and answer are.

    Attributes
    ----------
    prompt, answer : str
        Column names; a dot goes into a nested one: ``reward_model.ground_truth``.
    extract : str
        What of the answer column is the answer, as in `fspo.tasks.verify.make_extractor`.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    extract: str = "none"


LAYOUTS: dict[str, Columns] = {
    # The first one whose columns a row has is taken.
    "DAPO-Math-17k": Columns("prompt", "reward_model.ground_truth"),
    "prompt and answer": Columns("prompt", "answer"),
    "GSM8K": Columns("question", "answer", MARKED),
    "DeepScaleR, MATH-500, AIME": Columns("problem", "answer"),
    "question and answer": Columns("question", "answer"),
    "DAPO-Math-17k-Processed": Columns("prompt", "solution"),
}


def detect(
    row: Mapping[str, Any], prompt: str | None = None, answer: str | None = None, extract: str | None = None
) -> Columns:
    """Columns of a data set from its first row; capitals in column names do not matter.

    Parameters
    ----------
    row : mapping
    prompt, answer, extract : str, optional
        Parts that the user named; they win.

    Returns
    -------
    Columns
        The named parts in the first layout that the row has, else in that of ``prompt`` and ``answer``.
    """
    for layout in LAYOUTS.values():
        found = [_spelt(row, prompt or layout.prompt), _spelt(row, answer or layout.answer)]
        if None in found:
            continue
        value = cell(row, str(found[1]))
        if layout.extract == MARKED and not (isinstance(value, str) and "####" in value):
            continue
        return Columns(str(found[0]), str(found[1]), extract or layout.extract)
    plain = Columns()
    return replace(plain, prompt=prompt or plain.prompt, answer=answer or plain.answer, extract=extract or "none")


def cell(row: Mapping[str, Any], column: str) -> Any:
    """Value of a column, whose dots go into nested ones; KeyError where there is none."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(column)
        value = value[part]
    return value


def _spelt(row: Mapping[str, Any], column: str) -> str | None:
    """The column's name as the row spells it; None where it has none."""
    for name in (column, *(name for name in row if isinstance(name, str) and name.lower() == column.lower())):
        try:
            cell(row, name)
        except KeyError:
            continue
        return name
    return None
