"""FSPO with this repository's trainer and a task of your own: a real run of seconds on a CPU.

    python examples/own_trainer.py out/own 3   # the run folder, the number of rollouts
    fspo analyse out/own

Tasks that come with the repository need no code: ``fspo train --output out/own --rule.preset fspo``."""

import argparse
from collections.abc import Sequence

import numpy as np

from fspo.config import BatchConfig, EvalConfig, OptimConfig, RuleConfig, SamplingConfig, TrainConfig
from fspo.models.load import build_embedded_model, load_tokenizer
from fspo.tasks import Example, Rewards
from fspo.train.trainer import Trainer


class Digits:
    """A task whose reward is the share of digits in a response."""

    name = "digits"

    def size(self, split: str) -> int | None:
        """Return None: the task has as many examples as are asked for."""
        return None

    def example(self, split: str, index: int) -> Example:
        """Return the example with this index; it is the same at every call."""
        return Example(f"{split}-{index}", f"{index % 90 + 10}+", answer="", info={"number": index})

    def score(self, examples: Sequence[Example], responses: Sequence[str], finished: Sequence[bool]) -> Rewards:
        """Return one reward for each response: the share of its characters that are digits."""
        shares = [sum(c.isdigit() for c in text) / max(len(text), 1) for text in responses]
        return Rewards(np.array(shares), ["ok"] * len(shares))


def main(output: str, rollouts: int = 3) -> None:
    """Train ``rollouts`` rollouts of 64 responses, 4 updates each, and write the run folder ``output``."""
    config = TrainConfig(
        output=output,
        rollouts=rollouts,
        cpu=True,
        threads=1,
        rule=RuleConfig(preset="fspo", range_lo=0.01, range_hi=0.01),
        batch=BatchConfig(prompts=8, responses=8, minibatches=4, epochs=1),
        sampling=SamplingConfig(max_new_tokens=32),
        optim=OptimConfig(learning_rate=2e-4, warmup_updates=0),
        eval=EvalConfig(every=0),
    )
    # To train a model of your own, pass it and its tokenizer here. If you leave both out, Trainer loads the model that
    # the option model.name_or_path names.
    model, tokenizer = build_embedded_model(0), load_tokenizer("embedded")
    Trainer(config, model=model, tokenizer=tokenizer, task=Digits()).train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", default="out/own", help="run folder to write")
    parser.add_argument("rollouts", nargs="?", type=int, default=3, help="number of rollouts")
    main(**vars(parser.parse_args()))
