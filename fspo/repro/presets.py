"""How large a reproduction by ``paper_repro.py`` is: the sizes of its presets quick, paper and smoke."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fspo.rules import COMPARED
from fspo.tasks.chain_add import ChainAddConfig, max_response_tokens
from fspo.tasks.products import MAX_RESPONSE_TOKENS

JUDGING_SEEDS = (21, 22, 23, 24, 25)
"""Seeds of the runs in results/paper. The catalogue of claims has changed since they were judged, so verdicts on runs
with these seeds are exploratory."""
TASKS: dict[str, dict[str, Any]] = {
    "chain-add": {},
    "chain-add-64": {
        "task.options.max_steps": 64,
        "sampling.max_new_tokens": max_response_tokens(ChainAddConfig(max_steps=64)),
    },
    "products": {
        "task.name": "gym:products",
        "task.options.max_digits": 2,
        "sampling.max_new_tokens": MAX_RESPONSE_TOKENS,
    },
}
"""Tasks of a reproduction: options of ``fspo train``. Correct responses to chain-add have 8 to 256 tokens, and correct
responses to chain-add-64 have 8 to 512, which is six doublings. The task products of reasoning-gym multiplies two
numbers of at most two digits; correct responses have 4 to 187 tokens."""


@dataclass(frozen=True)
class ReproductionSizes:
    """How large a reproduction is: what is trained, how long, with how many seeds.

    Attributes
    ----------
    rules, seeds : tuples
        Every rule is trained once with every seed.
    rollouts, unclipped_rollouts : int
        Number of rollouts of each run that clips, and of each run that does not (rule none; on the first of these
        ranges are calibrated).
    tasks : tuple of str
        Names in `TASKS`; everything is trained and judged on each task.
    jobs, threads : int
        Number of training processes that run at the same time, and of threads of each process.
    options : dict
        Further options of ``fspo train``.
    checks : str
        Statements whose checks run, separated by commas; empty for all.
    """

    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    rollouts: int
    unclipped_rollouts: int
    tasks: tuple[str, ...] = ("chain-add",)
    jobs: int = 2
    threads: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    checks: str = ""


PRESETS = {
    "quick": ReproductionSizes(COMPARED, JUDGING_SEEDS[:3], 14, 10),
    # Cosines with the population or a fresh rollout as the truth need an unclipped run of every seed, and scores of the
    # responses at their first use. Minibatch 0 of each rollout is not scored, because S is 0 in it.
    "paper": ReproductionSizes(
        (*COMPARED, "fspo-kl", "fspo-adaptive", "none"),
        JUDGING_SEEDS,
        20,
        30,
        tuple(TASKS),
        # More held-out prompts than a run has by default make the rewards' means more certain, at little cost.
        options={"log.score_minibatches": [1, 2, 3], "eval.prompts": 1024},
    ),
    "smoke": ReproductionSizes(
        ("rloo", "fspo"),
        (0,),
        2,
        2,
        options={"batch.prompts": 16, "batch.minibatches": 2, "eval.prompts": 32, "optim.warmup_updates": 1},
        checks="T12",
    ),
}


def on_task(base: ReproductionSizes, task: str) -> ReproductionSizes:
    """Return the sizes of a reproduction on one of its tasks alone."""
    return replace(base, tasks=(task,), options=base.options | TASKS[task])


def with_changes(base: ReproductionSizes, **changes: Any) -> ReproductionSizes:
    """Return a copy of a reproduction's sizes with the given changes; a change that is None is left out."""
    return replace(base, **{name: value for name, value in changes.items() if value is not None})
