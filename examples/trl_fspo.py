"""FSPO inside TRL: TRL's GRPOTrainer with the clip rule, a real run of seconds on a CPU.

    pip install '.[trl]'
    python examples/trl_fspo.py out/trl 8   # the run folder, the number of updates
    fspo analyse out/trl

The embedded model, with random weights, is rewarded for digits. For a run of your own put your model, data and reward
function here. The responses of one generation are divided among 4 updates. In the first of these S is 0, so only the
later ones clip."""

import argparse

from datasets import Dataset

from fspo.integrations.trl import FSPOConfig, FSPOTrainer
from fspo.models.load import build_embedded_model, load_tokenizer


def digits(completions: list[str], **_: object) -> list[float]:
    """Return the reward of each completion: the share of its characters that are digits."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def main(output: str, steps: int = 8) -> None:
    """Train for ``steps`` updates and write the run folder ``output``."""
    args = FSPOConfig(
        output_dir=output,
        rule="fspo",
        range_lo=0.01,
        range_hi=0.01,
        score_every=1,
        steps_per_generation=4,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=32,
        learning_rate=2e-4,
        max_steps=steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = FSPOTrainer(
        model=build_embedded_model(0),
        reward_funcs=digits,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(8) for b in range(8)]),
        processing_class=load_tokenizer("embedded"),
    )
    trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", default="out/trl", help="run folder to write")
    parser.add_argument("steps", nargs="?", type=int, default=8, help="number of updates")
    main(**vars(parser.parse_args()))
