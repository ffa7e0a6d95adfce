"""Well-known training sets and benchmarks: their names on the Hugging Face hub, their options, and their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    # Columns of prompt and answer; a row's are the first pair that it has. A dot leads into a nested column.
    ("prompt", "reward_model.ground_truth"),  # DAPO-Math-17k
    ("prompt", "answer"),
    ("question", "answer"),  # GSM8K
    ("problem", "answer"),  # DeepScaleR, MATH-500, AIME
    ("Problem", "Answer"),
    ("prompt", "solution"),  # DAPO-Math-17k-Processed
)
MARK = "####"
"""What GSM8K writes before the answer at the end of a worked solution."""

BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
_MATH = {"judge": {"verifier": "math"}}

TRAINING_SETS: dict[str, dict[str, Any]] = {
    # Name of a set -> values of options of fspo.tasks.dataset.DatasetConfig. DAPO's prompts say where to put the
    # answer, so they get no suffix.
    "dapo-math-17k": {"path": "BytedTsinghua-SIA/DAPO-Math-17k", **_MATH},
    "deepscaler": {"path": "agentica-org/DeepScaleR-Preview-Dataset", "suffix": BOXED, **_MATH},
    "gsm8k": {"path": "openai/gsm8k", "subset": "main", "eval_split": "test", "suffix": BOXED, **_MATH},
}

BENCHMARKS: dict[str, dict[str, Any]] = {
    "math500": {"path": "HuggingFaceH4/MATH-500", "split": "test", "suffix": BOXED, **_MATH},
    "aime24": {"path": "HuggingFaceH4/aime_2024", "split": "train", "suffix": BOXED, **_MATH},
    "aime25": {"path": "math-ai/aime25", "split": "test", "suffix": BOXED, **_MATH},
    "gsm8k": {"path": "openai/gsm8k", "subset": "main", "split": "test", "suffix": BOXED, **_MATH},
}

_PLACE = ("subset", "split", "eval_split")
"""Options of a known set that describe its copy on the Hugging Face hub; they are left out if the user names a file."""


def known_options(known: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a known data set with the user's ``options`` in place of those of the same name.

    Of the option ``judge``, a mapping, only the fields that the user gives are replaced. If the user gives ``path``,
    the subset and the splits of the copy on the Hugging Face hub are left out."""
    merged = {key: value for key, value in known.items() if "path" not in options or key not in _PLACE}
    merged |= options
    if isinstance(known.get("judge"), Mapping) and isinstance(options.get("judge"), Mapping):
        merged["judge"] = {**known["judge"], **options["judge"]}
    return merged
