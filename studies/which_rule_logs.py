"""Train short runs on a CPU whose gradient logs studies/which_rule.py compares: three tasks, two seeds, two step sizes.

Every run trains under fspo with one range. Finished runs are kept, and a run that was killed is resumed.

examples:
  python studies/which_rule_logs.py --output out/which_rule/logs
  python studies/which_rule.py --logs out/which_rule/logs/* --output out/which_rule
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fspo.base.errors import run_cli
from fspo.config import (
    BatchConfig,
    EvalConfig,
    LogConfig,
    ModelConfig,
    OptimConfig,
    RuleConfig,
    SamplingConfig,
    ScoreConfig,
    TrainConfig,
)
from fspo.models.load import build_embedded_model, load_tokenizer
from fspo.models.warmup import warm_up
from fspo.tasks import Example, Rewards
from fspo.train.trainer import Trainer

SEEDS = (0, 1)
STEP_SIZES = (1e-4, 4e-4)
ROLLOUTS = 10


class TextTask:
    """A task whose reward is a function of the response's text and of whether it ended.

    The model starts at random weights.
    """

    def __init__(self, name: str, reward: Callable[[str, bool], float]) -> None:
        self.name, self._reward = name, reward

    def size(self, split: str) -> int | None:
        """Return None: the task has as many examples as are asked for."""
        return None

    def example(self, split: str, index: int) -> Example:
        """Return the example with this index; it is the same at every call."""
        return Example(f"{split}-{index}", f"{index % 90 + 10}+", answer="", info={"number": index})

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return one reward for each response."""
        found = [self._reward(text, end) for text, end in zip(responses, finished, strict=True)]
        return Rewards(np.array(found, np.float64), ["ok"] * len(found))


def digits(text: str, finished: bool) -> float:
    """Return the share of digits in the text as its reward, which does not favour long or short texts."""
    return sum(c.isdigit() for c in text) / max(len(text), 1)


def brief(text: str, finished: bool) -> float:
    """Reward responses that end within 24 characters, so that long responses have negative advantages."""
    return float(finished and len(text) <= 24)


PLAIN = {"digits": digits, "brief": brief}
TASKS = ("chain-add", *PLAIN)


def train(folder: Path, task: str, seed: int, step_size: float) -> None:
    """Train one run: 10 rollouts of 256 responses with 4 updates each; scores are logged in all but a rollout's first
    update."""
    config = TrainConfig(
        output=str(folder),
        rollouts=ROLLOUTS,
        seed=seed,
        cpu=True,
        resume=True,
        threads=1,
        rule=RuleConfig(preset="fspo", range_lo=0.08, range_hi=0.08),
        batch=BatchConfig(prompts=32, responses=8, minibatches=4, epochs=1),
        sampling=SamplingConfig(max_new_tokens=200 if task == "chain-add" else 64),
        optim=OptimConfig(learning_rate=step_size, warmup_updates=0),
        log=LogConfig(scores=ScoreConfig(width=1024), score_minibatches=(1, 2, 3)),
        eval=EvalConfig(every=0),
    )
    if task in PLAIN:
        model, tokenizer = build_embedded_model(seed), load_tokenizer("embedded")
        Trainer(config, model=model, tokenizer=tokenizer, task=TextTask(task, PLAIN[task])).train()
    else:
        model = ModelConfig(name_or_path=str(warm_up(TrainConfig().warmup)))
        Trainer(replace(config, model=model)).train()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train those runs for studies/which_rule.py that the folder --output lacks, and go on with those that were
    stopped.
    """
    words = (__doc__ or "").strip()
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("out/which_rule/logs"), help="folder of the runs")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    options = parser.parse_args(arguments)
    runs = [(task, seed, size) for task in options.tasks for seed in options.seeds for size in STEP_SIZES]
    for task, seed, step_size in tqdm(runs, desc="logs", unit="run", disable=not sys.stderr.isatty()):
        train(options.output / f"{task}-step{step_size:g}-seed{seed}", task, seed, step_size)
    return 0


if __name__ == "__main__":
    run_cli(main)
