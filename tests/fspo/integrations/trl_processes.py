"""Run by torchrun (or alone) from test_trl_processes: a TRL run on known answers; weights and log to a folder.

Each generation is one batch of 16 known answers, used by three updates, so that the number of processes changes
nothing but who computes what.
"""

import os
import sys

import numpy as np
import torch
from trl_runs import made

from fspo.integrations.trl import FSPOConfig, FSPOTrainer

RESPONSES = 16


def answers(prompts, trainer):
    """Different answers to the same prompt, also where its group is spread over two processes."""
    ids = [trainer.processing_class(p)["input_ids"] for p in prompts]
    first = trainer.accelerator.process_index * len(prompts)
    found = []
    for i, prompt in enumerate(ids):
        draw = torch.Generator().manual_seed(1000 * sum(prompt) + first + i)
        found.append(torch.randint(3, 24, (1 + (first + i) % 8,), generator=draw).tolist())
    claimed = [[-3.0 - 0.2 * (token % 3) for token in answer] for answer in found]
    return {"prompt_ids": ids, "completion_ids": found, "logprobs": claimed}


def main(folder: str) -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = made(
        folder, FSPOTrainer, FSPOConfig, answers, logging_strategy="no", shuffle_dataset=False,
        per_device_train_batch_size=RESPONSES // processes // 2, num_generations=8, num_iterations=3,
        max_completion_length=8, max_steps=6, optim="sgd", rule="fspo-kl", drift_source="lagged", adapt="range",
        target=0.7, aggregation="token", range_lo=0.01, range_hi=0.01,
    )  # fmt: skip
    trainer.train()
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        np.save(f"{folder}/weights.npy", torch.cat([p.detach().flatten() for p in model.parameters()]).numpy())
    trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(sys.argv[1])
