"""Options of the task, and of the evaluation on its held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fspo.config.option_ranges import Ranged, number


@dataclass(frozen=True)
class TaskConfig(Ranged, group="task"):
    """The task: the prompts to train on and how responses are judged.

    Parameters
    ----------
    name : str
        "chain-add" (repeated addition, for the embedded model), "even-tokens" (for models with random weights),
        "gym:<reasoning-gym task>", "dataset" (the user's data), or a known training set: "dapo-math-17k", "deepscaler",
        "gsm8k".
    options : dict
        Options of the task, for example {"path": "train.jsonl", "judge": {"verifier": "math"}}.
    chat_template : bool, optional
        Force the tokenizer's chat template on or off; by default it is used where there is one.
    max_prompt_tokens : int
        Greatest length of a prompt, tokens. Longer prompts are left out and counted.
    """

    name: str = "chain-add"
    options: dict[str, Any] = field(default_factory=dict)
    chat_template: bool | None = None
    max_prompt_tokens: int = number(2048, 1)


@dataclass(frozen=True)
class EvalConfig(Ranged, group="eval"):
    """Evaluation of a training run on held-out prompts.

    Parameters
    ----------
    every : int
        Rollouts from one evaluation to the next; there is one before the first and after the last too. 0 for never.
    prompts : int
        Number of held-out prompts; one response is sampled to each.
    temperature : float
        Sampling temperature; 0 takes the most probable token.
    """

    every: int = number(5, 0)
    prompts: int = number(256, 1)
    temperature: float = number(1.0, 1e-3, 1e3, also=(0,))
