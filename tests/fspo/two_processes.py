"""Run alone and in two processes by test_distributed: updates on recorded responses, gradients and log to a folder.

``main(FOLDER, NAME, *ARGUMENTS)`` writes ``NAME.npy`` and leaves the log in ``FOLDER/NAME``.
"""

import faulthandler
import os
from pathlib import Path
from typing import Any

import numpy as np
import tiny_run
import torch
from accelerate.state import AcceleratorState
from tiny_updates import made_batch, move

from fspo.config import TrainConfig
from fspo.rollouts.batches import RolloutBatch, plan_minibatches
from fspo.rollouts.metric_sums import Counts
from fspo.train.launch import make_accelerator


def recorded(groups: int = 6, size: int = 4) -> RolloutBatch:
    """Responses and rewards from a fixed generator; one without advantage, so that a process has a dummy."""
    draw = np.random.default_rng(5)
    n = groups * size
    advantages = draw.standard_normal(n)
    advantages[:1] = 0.0
    prompts = [draw.integers(2, 24, 4 + i // size) for i in range(n)]
    responses = [draw.integers(2, 24, draw.integers(1, 20)) for _ in range(n)]
    log_probs = [draw.normal(-2, 0.5, len(r)) for r in responses]
    return made_batch(responses, size, prompts=prompts, sampler_log_probs=log_probs, advantages=advantages)


def main(folder: Path, name: str, *arguments: str) -> None:
    net = tiny_run.model(dtype=torch.float64, layers=2)
    trainer: Any = tiny_run.trainer(folder / name, "--log.score_minibatches", "[1,2]", *arguments, net=net)
    move(net)  # the policy has left its reference
    batch, counts, gradients = recorded(), Counts(), []
    minibatches = [trainer.shards(batch, rows) for rows in plan_minibatches(batch, 2, 0)]

    def keep(*_: Any) -> torch.Tensor:
        gradients.append(torch.cat([p.grad.flatten().double() for p in net.parameters()]).numpy().copy())
        return torch.tensor(1.0)

    trainer.accelerator.clip_grad_norm_ = keep
    for since in range(4):
        trainer.update(batch, minibatches[since % 2], counts, since=since, epoch=since // 2)
    trainer.log.flush(0)
    values = trainer.reporter.divide(counts)
    if trainer.is_main:
        np.save(folder / f"{name}.npy", np.stack(gradients))
        trainer.reporter.metrics.write({"rollout": 0, "phase": "train", **values})
    trainer.accelerator.wait_for_everyone()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def ends(ports: list[str]) -> None:
    """Begin and end a group on each port, with a model that DDP has prepared."""
    faulthandler.dump_traceback_later(150, exit=True)
    for port in ports:
        os.environ["MASTER_PORT"] = port
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = make_accelerator(TrainConfig(cpu=True))
        model = accelerator.prepare(torch.nn.Linear(8, 8))
        model(torch.randn(2, 8)).sum().backward()
        accelerator.wait_for_everyone()
        accelerator.end_training()
        del model, accelerator
