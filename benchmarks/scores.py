"""Measure what a score pass (which computes the scores for the gradient log) costs in CPU seconds and how exact its
sketches are, on the embedded model, a model of 0.4M parameters that this project makes itself.

    python benchmarks/scores.py [--model FOLDER] [--rows 128] [--rounds 9]

Times are CPU seconds of one thread, medians over rounds in which the measured passes take turns, so that a busy machine
changes them little.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import torch
from measuring import RESULTS, machine, seconds, take_turns, write_results
from torch import Tensor, nn

from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli
from fspo.config import ScoreConfig
from fspo.models.load import build_embedded_model, load_model
from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.policy.score_check import coverage
from fspo.policy.scores import score
from fspo.tasks.chain_add import build_tokenizer, warmup_stream

PROJECTIONS = (8, 16, 32)


def batch_of(rows: int, seed: int) -> dict[str, Tensor]:
    """Return a batch of prompts and worked answers of the task chain-add, padded on the right."""
    tokenizer = build_tokenizer()
    pairs = itertools.islice(warmup_stream(seed), rows)
    prompts, answers = zip(*pairs, strict=True)
    encoded = [[tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts] for texts in (prompts, answers)]
    return make_batch(*encoded, pad_token_id=cast(int, tokenizer.pad_token_id))


def train_step(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Run a forward pass to the sum of log-probs and a backward pass through the whole model, with the gradients of the
    weights. The cost of a score pass is compared with the cost of these two passes."""
    token_log_probs(model, batch)[0].sum().backward()
    model.zero_grad()


def input_step(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Run a forward pass to the sum of log-probs, and a backward pass from it that stops at the embeddings and computes
    no gradient of the weights. A score pass costs at least as much as these two passes."""
    roots: list[Tensor] = []

    def cut(_: nn.Module, __: tuple, output: Tensor) -> Tensor:
        roots.append(output.detach().requires_grad_())
        return roots[0]

    handle = model.get_input_embeddings().register_forward_hook(cut)  # type: ignore[operator]
    torch.autograd.grad(token_log_probs(model, batch)[0].sum(), roots)
    handle.remove()


def main() -> None:
    """Measure the cost of score passes and the errors of their sketches, print both tables and write them to a file."""
    parser = CommandParser(prog="python benchmarks/scores.py", description=__doc__ or "")
    parser.add_argument("--model", help="a saved model with chain-add's tokenizer; random weights if left out")
    parser.add_argument("--rows", type=int, default=128, help="responses in the batch")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds, of which the median counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(options.model, "float32") if options.model else build_embedded_model(0)
    batch = batch_of(options.rows, seed=1)
    configs = {k: ScoreConfig(projection=k) for k in PROJECTIONS}
    steps: dict[str, Callable[[], object]] = {
        "forward+backward": lambda: train_step(model, batch),
        "no weight gradients": lambda: input_step(model, batch),
    }
    steps |= {f"score k={k}": partial(score, model, batch, config=c) for k, c in configs.items()}
    timed = {name: partial(seconds, step) for name, step in steps.items()}
    times = {name: float(np.median(taken)) for name, taken in take_turns(timed, options.rounds).items()}
    width = batch["input_ids"].shape[1]
    print(f"{options.rows} rows x {width} columns, {int(batch['response_mask'].sum())} response tokens")
    for name, value in times.items():
        full, floor = times["forward+backward"], times["no weight gradients"]
        print(f"{name:20s} {value:7.3f} s  {value / full:5.2f} of forward+backward  {value / floor:5.2f} of the floor")
    results: dict[str, object] = {
        "rows": options.rows,
        "columns": width,
        "model": "embedded, warmed up" if options.model else "embedded, random weights",
        "of_forward_backward": {name: value / times["forward+backward"] for name, value in times.items()},
        "of_no_weight_gradients": {name: value / times["no weight gradients"] for name, value in times.items()},
        **machine("torch", "transformers", "fspo"),
    }
    few = {name: x[:64] for name, x in batch.items()}
    for k, config in configs.items():
        found = [coverage(model, few, config=config, rollout=r) for r in range(3)]
        ratio = np.concatenate([f.norm_ratio for f in found])
        results[f"k={k}"] = {
            "covered_share": float(np.min([f.share.min() for f in found])),
            "pair_cosine_rmse": float(np.mean([f.pair_cosine_rmse for f in found])),
            "cosine_of_a_15_percent_drop_rmse": float(np.mean([f.subset_cosine_rmse for f in found])),
        }
        print(
            f"k={k:<3d} width {config.width}: covered {np.min([f.share.min() for f in found]):.4f} of ||psi||^2, "
            f"pair cosine rmse {np.mean([f.pair_cosine_rmse for f in found]):.3f}, "
            f"cosine of a 15 % drop rmse {np.mean([f.subset_cosine_rmse for f in found]):.3f}, "
            f"norm ratio {ratio.mean():.3f} +- {ratio.std():.3f}"
        )
    write_results(results, RESULTS / "scores.json")


if __name__ == "__main__":
    run_cli(main)
