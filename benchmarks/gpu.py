"""Measure one update of a model of Qwen3-8B's shape with random weights on one GPU: tokens/s, memory, FLOP/s, and the
share of a rollout's time that the scores of the gradient log take.

    python benchmarks/gpu.py                    # 8 responses x 4,096 tokens, AdamW, bfloat16
    python benchmarks/gpu.py --tiny --out FILE  # the same code at a tiny shape, on a CPU

Old log-probs, the score pass, the update (forward, backward, optimizer step) and a short rollout are timed apart, each
the median of several rounds after a warm-up. The update's FLOP/s are divided by those of a large matrix product on the
same GPU. They are counted in two ways: `model` counts 6 FLOPs for each parameter and token, and those of attention;
`hardware` adds the FLOPs of recomputing activations.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from measuring import RESULTS, machine, peak_mib, write_results
from transformers import AutoModelForCausalLM, PretrainedConfig

from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli
from fspo.config import ObjectiveConfig, OptimConfig, SamplingConfig
from fspo.models.load import DTYPES, ready_for_training
from fspo.models.shapes import embedded_config, shape_of
from fspo.policy.scores import score
from fspo.rollouts.batches import RolloutBatch, plan_microbatches
from fspo.rules import preset
from fspo.sampling.sample import sample
from fspo.train.optimizers import make_optimizer
from fspo.train.updates import Updater

MINIBATCHES = 8
"""Number of updates in a rollout, as in the presets for Qwen3-8B. Scores are computed for the responses of one of these
updates only.
"""
AIMS = {"gradient_log_share": 0.02, "share_of_matmul_rate": 0.40}


def random_batch(responses: int, prompt: int, tokens: int, vocabulary: int) -> RolloutBatch:
    """Return a rollout of responses of random tokens, half of them with advantage 1 and half with -1."""
    draw = np.random.default_rng(0)
    return RolloutBatch(
        rollout=0,
        behaviour_version=0,
        prompts=[draw.integers(2, vocabulary, prompt) for _ in range(responses)],
        responses=[draw.integers(2, vocabulary, tokens) for _ in range(responses)],
        sampler_log_probs=[np.zeros(tokens)] * responses,
        truncated=np.zeros(responses, bool),
        rewards=np.zeros(responses),
        advantages=np.where(np.arange(responses) % 2, 1.0, -1.0),
        reward_status=np.full(responses, "ok"),
        prompt_ids=np.zeros(responses, np.int64),
        response_ids=np.arange(responses),
        info={},
    )


def update_flop(config: PretrainedConfig, parameters: int, rows: int, length: int, passes: int) -> float:
    """Return the number of floating-point operations of an update.

    A forward pass has 2 for each parameter and token, and those of the two matrix products of causal attention. The
    embedding is a look-up and is left out. ``passes`` is the cost of the update in forward passes: 1 for the forward
    pass, 2 for the backward pass, and 1 more if activations are recomputed.
    """
    used = parameters - (0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size)
    # causal attention needs only half of each of its two matrix products: a token attends to no later token
    attention = 2 * length * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return passes * rows * length * (2.0 * used + attention)


def median_seconds(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Return the median seconds that ``work`` takes, after one warm-up, until the device has done what it queued."""
    taken = []
    for _ in range(rounds + 1):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken[1:]))


def wait(device: torch.device) -> None:
    """Wait until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int, rounds: int) -> float:
    """Return how many FLOP/s the device reaches in a product of two square matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2.0 * size**3 / median_seconds(lambda: a @ b, device, rounds)


def peak_bytes(device: torch.device) -> int:
    """Return the largest memory so far, bytes: of torch's tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(peak_mib() * 2**20)


def measure(options: Any) -> dict[str, Any]:
    """Time old log-probs, score pass, update and a short rollout; return their seconds, tokens/s, FLOP/s and memory."""
    accelerator = Accelerator(cpu=options.tiny)
    device = accelerator.device
    config = embedded_config() if options.tiny else shape_of("Qwen3-8B-Base")
    if options.prompt + options.tokens > config.max_position_embeddings:
        raise UserError(f"the model has {config.max_position_embeddings} positions: lower --tokens")
    dtype = DTYPES["float32" if options.tiny else "bfloat16"]
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model = ready_for_training(model, "the model", gradient_checkpointing=True).train()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = make_optimizer(model.parameters(), OptimConfig(learning_rate=1e-6))
    rule = preset("fspo", range_lo=0.03, range_hi=0.03).rule
    updater = Updater(accelerator, model, rule, ObjectiveConfig(), 1.0, pad_token_id=0, entropy=False)
    batch = random_batch(options.responses, options.prompt, options.tokens, config.vocab_size)
    rows = np.arange(options.responses)
    plan = plan_microbatches(rows, batch.total_lengths, np.ones(len(rows), bool), options.microbatch)
    shards = [updater.shard(batch, micro) for micro in plan]

    def update() -> None:
        updater.accumulate(shards, None)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def old_log_probs() -> None:
        for micro in plan:
            updater.shard(batch, micro)

    def scores() -> None:
        for shard in shards:
            score(model, shard.batch)

    def rollout() -> None:
        prompts = [p.tolist() for p in batch.prompts]
        settings = SamplingConfig(max_new_tokens=options.new_tokens, engine="fast")
        # With an end-of-sequence id outside the vocabulary no response ends early: all rounds have the same work.
        sample(
            model, prompts, rows, seed=0, rollout=0, config=settings, eos_token_id=config.vocab_size + 1, pad_token_id=0
        )

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    rounds = options.rounds
    taken = {"update": median_seconds(update, device, rounds)}
    memory = {"update": peak_bytes(device)}
    taken["old_log_probs"] = median_seconds(old_log_probs, device, rounds)
    taken["score_pass"] = median_seconds(scores, device, rounds)
    taken["rollout"] = median_seconds(rollout, device, rounds)
    memory["all"] = peak_bytes(device)
    rate = matmul_rate(device, dtype, options.matmul, 20)
    length = options.prompt + options.tokens
    flop = {name: update_flop(config, parameters, len(rows), length, n) for name, n in (("model", 3), ("hardware", 4))}
    step = MINIBATCHES * (taken["old_log_probs"] + taken["update"]) + taken["score_pass"]
    return {
        "parameters": parameters,
        "microbatches": len(plan),
        "seconds": taken,
        "tokens_per_second": {
            "update": len(rows) * length / taken["update"],
            "rollout": len(rows) * options.new_tokens / taken["rollout"],
        },
        "peak_bytes": memory,
        "gradient_log_share": taken["score_pass"] / step,
        "flop_of_update": flop,
        "matmul_flops": rate,
        "share_of_matmul_rate": {name: value / taken["update"] / rate for name, value in flop.items()},
    }


def main(args: list[str] | None = None) -> int:
    """Time an update at the shape of Qwen3-8B, print the numbers and write them to a file."""
    parser = CommandParser(prog="python benchmarks/gpu.py", description=__doc__ or "")
    parser.add_argument("--tiny", action="store_true", help="the embedded model on the CPU, with few tokens")
    parser.add_argument("--responses", type=int, default=8, help="responses of the update")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of each response")
    parser.add_argument("--new_tokens", type=int, default=64, help="tokens of each response of the rollout")
    parser.add_argument("--microbatch", type=int, default=8448, help="padded tokens of a microbatch")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, of which the median counts")
    parser.add_argument("--matmul", type=int, default=8192, help="size of the matrices of the card's rate")
    parser.add_argument("--out", default=str(RESULTS / "gpu.json"), help="results file")
    words = list(sys.argv[1:] if args is None else args)
    options = parser.parse_args(words)
    for name in ("responses", "prompt", "tokens", "new_tokens", "microbatch", "rounds", "matmul"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}: use 1 or more")
    if options.tiny:
        options.prompt, options.tokens = min(options.prompt, 8), min(options.tokens, 48)
        options.new_tokens, options.matmul = min(options.new_tokens, 8), min(options.matmul, 256)
        options.microbatch = min(options.microbatch, 128)
    elif not torch.cuda.is_available():
        raise UserError("Qwen3-8B's shape needs a GPU: add --tiny to run the same code on a CPU")
    found = measure(options)
    wanted = {k: v for k, v in vars(options).items() if k != "out"}
    result = {"command": " ".join(["benchmarks/gpu.py", *words]), "tiny": options.tiny, "aims": AIMS}
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    described = {"gpu": gpu, "cuda": torch.version.cuda, **machine("torch", "transformers", "accelerate", "fspo")}
    result |= {"options": wanted, **found, "machine": described}
    print(json.dumps(found, indent=1))
    write_results(result, Path(options.out))
    return 0


if __name__ == "__main__":
    run_cli(main)
