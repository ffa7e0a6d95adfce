"""What a reproduction trains: sets of runs whose estimates judge the claims (analysis/claims), by preset and task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fspo.repro.stages import Job
from fspo.rules import COMPARED, COMPARED_ADVANTAGE
from fspo.tasks.chain_add import ChainAdd, ChainAddConfig
from fspo.tasks.products import MAX_RESPONSE_TOKENS

Options = Mapping[str, Any]

TASKS: dict[str, Options] = {
    "chain-add": {},
    "chain-add-64": {
        "task.options.max_steps": 64,
        "sampling.max_new_tokens": ChainAdd(ChainAddConfig(max_steps=64)).max_response_tokens(),
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

WARMUP_SEEDS = 100
"""A run with seed s has a warm-up of its own, whose seed is s times this number. A warm-up that fails tries the next
seeds; the distance keeps these apart from the seeds of other runs."""


@dataclass(frozen=True)
class RunSet:
    """Runs that answer one question: each arm is trained with each seed.

    Attributes
    ----------
    arms : mapping of str to options
        Name of the arm, under which its estimates are listed -> its options of ``fspo train``.
    seeds : mapping of str to tuple of int
        Seeds by task; a task that is not named has no such runs.
    rollouts : int
        Number of rollouts of each run.
    options : mapping
        Options of ``fspo train`` that all arms have.
    scored : int
        Number of seeds, from the first on, whose runs log sketches of scores, from which cosines are computed.
    """

    arms: Mapping[str, Options]
    seeds: Mapping[str, tuple[int, ...]]
    rollouts: int
    options: Options = field(default_factory=dict)
    scored: int = 0


@dataclass(frozen=True)
class ReproductionDesign:
    """All that a reproduction does.

    Attributes
    ----------
    sets : mapping of str to RunSet
        Sets of runs by the name that `analysis.claims.catalogue` gives them.
    shared_warmup : bool
        Whether all runs of a task start from one warmed-up model. This saves minutes; seeds then differ in their data
        alone.
    checks : str
        Statements whose checks run, separated by commas; empty for all.
    """

    sets: Mapping[str, RunSet]
    shared_warmup: bool = False
    checks: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks on which runs are trained."""
        return tuple(task for task in TASKS if any(task in runs.seeds for runs in self.sets.values()))

    @property
    def seeds(self) -> set[tuple[str, str, int]]:
        """All seeds that are planned, each as (task, name of its set of runs, seed)."""
        return {(t, name, s) for name, runs in self.sets.items() for t, some in runs.seeds.items() for s in some}

    @property
    def seed_counts(self) -> Counter[tuple[str, str]]:
        """Number of seeds, by (name of the set of runs, task)."""
        return Counter((name, task) for task, name, _ in self.seeds)


UNCLIPPED: dict[str, Options] = {"none": {"rule.preset": "none"}}


def _equal(rules: tuple[str, ...], target: float, adapt: str = "range") -> dict[str, Options]:
    """Return an arm for each rule: its ``adapt`` follows an acceptance ``target`` of the responses with A != 0."""
    same = {"rule.adapt": adapt, "rule.target": target, "rule.target_rate": "update"}
    return {rule: {"rule.preset": rule, **same} for rule in rules}


EQUAL: dict[str, Options] = _equal(COMPARED, 0.95)
"""Training at an equal clip rate: 5 % of the responses with non-zero advantage."""
ONE_EPOCH: Options = {"batch.minibatches": 8, "batch.epochs": 1, "eval.every": 0, "log.score_every": 0}
"""Seven of eight rows of a rollout are then of the first epoch and follow an update."""
STRESS: dict[str, Options] = (
    UNCLIPPED
    | _equal(COMPARED, 0.5)
    | _equal(("fspo-adaptive",), 0.5, adapt="exponent")
    | {
        "fspo-default": {"rule.preset": "fspo"},
        "fspo-wide-above": {"rule.preset": "fspo", "rule.range_hi": 0.15},
        "rloo-default": {"rule.preset": "rloo"},
        "rloo-wide-above": {"rule.preset": "rloo", "rule.range_hi": 1.0},
    }
)
"""Training where a rollout has many updates: without a clip; with half of the responses clipped, as at fspo's default
range (with 5 % training stalls as without a clip), by one range or one for each side; at default ranges; and with an
upper range five times as wide."""
MANY_UPDATES: Options = {
    "batch.minibatches": 4,
    "batch.epochs": 8,
    "optim.learning_rate": 4e-4,
    "eval.every": 0,
    "log.score_every": 0,
}
SCORED: Options = {"log.score_every": 1, "log.score_minibatches": [2, 6]}
"""Score sketches of two of the eight minibatches."""


def _seeds(first: int, number: int) -> tuple[int, ...]:
    return tuple(range(first, first + number))


_SMALL: Options = ONE_EPOCH | {"batch.prompts": 16}
PRESETS: dict[str, ReproductionDesign] = {
    "smoke": ReproductionDesign(
        {
            "unclipped": RunSet(UNCLIPPED, {"chain-add": (1, 2)}, 2, _SMALL, scored=1),
            "equal": RunSet({"fspo": EQUAL["fspo"]}, {"chain-add": (1,)}, 2, _SMALL),
        },
        shared_warmup=True,
        checks="T11",
    ),
    "quick": ReproductionDesign(
        {
            "unclipped": RunSet(UNCLIPPED, {"chain-add": _seeds(1, 6)}, 10, ONE_EPOCH, scored=2),
            "equal": RunSet(EQUAL, {"chain-add": _seeds(1, 2)}, 6, ONE_EPOCH),
        },
        shared_warmup=True,
    ),
    "paper": ReproductionDesign(
        {
            "unclipped": RunSet(
                UNCLIPPED,
                {"chain-add": _seeds(41, 10), "chain-add-64": _seeds(41, 16), "products": _seeds(41, 32)},
                20,
                ONE_EPOCH,
                scored=4,
            ),
            "equal": RunSet(
                EQUAL,
                {task: _seeds(41, 8) for task in TASKS},
                12,
                ONE_EPOCH,
            ),
            "stress": RunSet(STRESS, {"chain-add": _seeds(41, 8)}, 12, MANY_UPDATES),
        }
    ),
}


class PlannedRun(NamedTuple):
    """A run of a reproduction: its task, the name of its set of runs, its arm, its seed, and its training process."""

    task: str
    runs: str
    arm: str
    seed: int
    job: Job


def planned(design: ReproductionDesign, task: str, out: Path, threads: int) -> Iterator[PlannedRun]:
    """Yield the runs of a design on one task, each with ``threads`` CPU threads; run folders go to ``out/runs``.

    In a set all arms with one seed come before any with the next: a reproduction that is stopped has whole seeds."""
    for name, runs in design.sets.items():
        for number, seed in enumerate(runs.seeds.get(task, ())):
            for arm, own in runs.arms.items():
                options: dict[str, Any] = {
                    "output": out / "runs" / f"{arm}-{name}-seed{seed}",
                    "seed": seed,
                    "warmup.seed": 0 if design.shared_warmup else WARMUP_SEEDS * seed,
                    "rollouts": runs.rollouts,
                    "threads": threads,
                    "rule.advantage": COMPARED_ADVANTAGE,
                }
                scored = SCORED if number < runs.scored else {}
                options |= {**TASKS[task], **runs.options, **scored, **own}
                words = tuple(word for key, value in options.items() for word in (f"--{key}", str(value)))
                yield PlannedRun(task, name, arm, seed, Job(options["output"], words, runs.rollouts))
