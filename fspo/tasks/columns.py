"""Names of the columns that hold prompt and answer in well-known data sets; the first row tells which set it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

MARKED = r"regex:####\s*(.+)"
"""Extraction pattern for GSM8K, which writes ``####`` before the answer at the end of a worked solution."""


@dataclass(frozen=True)
class DatasetColumns:
    """The columns that hold the prompt and the answer of a row.

    Attributes
    ----------
    prompt, answer : str
        Column names; a dot leads into a nested column: ``reward_model.ground_truth``.
    extract : str
        How the answer is extracted from the answer column, as in `fspo.tasks.verify.make_extractor`.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    extract: str = "none"


LAYOUTS: dict[str, DatasetColumns] = {
    # `detect` takes the first of these entries whose prompt and answer columns a data set has, so their order matters.
    "DAPO-Math-17k": DatasetColumns("prompt", "reward_model.ground_truth"),
    "prompt and answer": DatasetColumns("prompt", "answer"),
    "GSM8K": DatasetColumns("question", "answer", MARKED),
    "DeepScaleR, MATH-500, AIME": DatasetColumns("problem", "answer"),
    "question and answer": DatasetColumns("question", "answer"),
    "DAPO-Math-17k-Processed": DatasetColumns("prompt", "solution"),
}


def detect(
    row: Mapping[str, Any], prompt: str | None = None, answer: str | None = None, extract: str | None = None
) -> DatasetColumns:
    """Find the columns of a data set from its first row; upper and lower case in column names are not distinguished.

    Parameters
    ----------
    row : mapping
        Column name -> value.
    prompt, answer, extract : str, optional
        Column names and way of extraction that the user gave; they replace those that would be found.

    Returns
    -------
    DatasetColumns
        The first entry of `LAYOUTS` whose columns the row has, with what the user gave put in. If there is none, the
        columns ``prompt`` and ``answer``, again with what the user gave put in.
    """
    for layout in LAYOUTS.values():
        found = [_spelt(row, prompt or layout.prompt), _spelt(row, answer or layout.answer)]
        if None in found:
            continue
        value = cell(row, str(found[1]))
        if layout.extract == MARKED and not (isinstance(value, str) and "####" in value):
            continue
        return DatasetColumns(str(found[0]), str(found[1]), extract or layout.extract)
    plain = DatasetColumns()
    return replace(plain, prompt=prompt or plain.prompt, answer=answer or plain.answer, extract=extract or "none")


def cell(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column (dots lead into nested columns); raise KeyError if the row lacks it."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(column)
        value = value[part]
    return value


def _spelt(row: Mapping[str, Any], column: str) -> str | None:
    """Return the name of a column as the row spells it, upper and lower case being equal; None if the row lacks it."""
    for name in (column, *(name for name in row if isinstance(name, str) and name.lower() == column.lower())):
        try:
            cell(row, name)
        except KeyError:
            continue
        return name
    return None
