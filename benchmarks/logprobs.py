"""Measure ways of computing log-probs at a vocabulary of 151,936: speed, peak memory and error of this project's code,
TRL's code and log_softmax.

    python benchmarks/logprobs.py [--tokens 256,1024] [--hidden 256] [--dtypes float32,bfloat16] [--rounds 3]

Every way computes log-probs of given tokens from the same hidden states and output weight (forward), and then the
gradients of hidden states and weight (backward). Times are CPU seconds of one thread. The ways take turns; the ratio of
two ways' times is taken in each round, and its median over rounds is reported. Peak memory is the largest memory of
PyTorch's allocator, as its profiler reports it, less what was allocated before. Errors are differences from log-probs
computed in float64, for tokens drawn from the model's distribution. `torch.nn.functional.linear_cross_entropy` is timed
only with --torch, because it is ten times slower on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from measuring import RESULTS, machine, take_turns, write_results
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli, unknown_name
from fspo.policy.linear_logprobs import linear_log_probs

VOCABULARY = 151_936
DTYPES = ("float32", "bfloat16")
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs with this project's code, which holds only a part (tile) of the logits at a time."""
    return linear_log_probs(hidden, weight, None, targets)[0]


def rounded(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs with this project's code from logits rounded to the type of the weights."""
    return linear_log_probs(hidden, weight, None, targets, rounded=True)[0]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs from all logits at once, in float32."""
    log_p = torch.nn.functional.linear(hidden, weight).float().log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0]


def trl_selective(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs with TRL's selective_log_softmax on all logits."""
    from trl.trainer.utils import selective_log_softmax

    return selective_log_softmax(torch.nn.functional.linear(hidden, weight), targets)


def trl_chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs with TRL's chunked kernel, which holds only a part (tile) of the logits at a time.

    This is the kernel's torch version, which TRL uses where Triton is missing.
    """
    from trl.kernels import ChunkedLogProbFunction

    return ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, 8192, None, 1.0, ())[0]  # type: ignore[index]


def torch_chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probs with torch's linear_cross_entropy, which takes the tokens in chunks."""
    options = torch.nn.LinearCrossEntropyOptions()  # type: ignore[attr-defined]
    loss = torch.nn.functional.linear_cross_entropy  # type: ignore[attr-defined]
    return -loss(hidden, weight, targets, reduction="none", options=options)


WAYS: dict[str, Way] = {
    "ours": ours,
    "ours_rounded": rounded,
    "log_softmax": plain,
    "trl_selective_log_softmax": trl_selective,
    "trl_chunked": trl_chunked,
}


def peak_bytes(step: Callable[[], object]) -> int:
    """Return how many bytes of tensors are, at the peak, allocated by PyTorch on top of those before ``step`` runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    live = most = 0
    for event in watched.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()  # type: ignore[attr-defined]
            most = max(most, live)
    return most


def measure(dtype: str, tokens: int, features: int, rounds: int, ways: dict[str, Way]) -> dict[str, object]:
    """Time each way of computing log-probs at one number of tokens and one dtype; return the seconds, peak bytes and
    errors of each way, and its time and memory over those of this project's code."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, features, generator=draw).to(getattr(torch, dtype)).requires_grad_()
    weight = (3 / features**0.5 * torch.randn(VOCABULARY, features, generator=draw)).to(hidden.dtype).requires_grad_()
    slope = torch.randn(tokens, generator=draw)
    targets, expected = torch.empty(tokens, dtype=torch.int64), torch.empty(tokens, dtype=torch.float64)
    with torch.no_grad():
        for rows in torch.arange(tokens).split(64):
            log_p = (hidden[rows].double() @ weight.double().T).log_softmax(-1)
            targets[rows] = torch.multinomial(log_p.exp(), 1, generator=draw)[:, 0]
            expected[rows] = log_p.gather(1, targets[rows, None])[:, 0]

    def step(way: Way) -> tuple[float, float]:
        hidden.grad = weight.grad = None
        start = time.thread_time()
        values = way(hidden, weight, targets)
        middle = time.thread_time()
        (values * slope).sum().backward()
        return middle - start, time.thread_time() - middle

    taken = take_turns({name: partial(step, way) for name, way in ways.items()}, rounds, f"{dtype}, {tokens} tokens")
    seconds = {name: np.array(values) for name, values in taken.items()}
    peaks = {}
    for name, way in ways.items():
        # free the gradients first, so that they do not count in the measured memory
        hidden.grad = weight.grad = None
        peaks[name] = peak_bytes(lambda way=way: step(way))
    with torch.no_grad():
        errors = {name: (way(hidden, weight, targets).double() - expected).abs() for name, way in ways.items()}
    own = seconds["ours"]
    return {
        "dtype": dtype,
        "tokens": tokens,
        "hidden": features,
        "whole_float32_logits_bytes": 4 * tokens * VOCABULARY,
        "weight_gradient_bytes": weight.numel() * weight.element_size(),
        "ways": {
            name: {
                "forward_cpu_s": float(np.median(seconds[name][:, 0])),
                "backward_cpu_s": float(np.median(seconds[name][:, 1])),
                "time_over_ours": float(np.median(seconds[name].sum(1) / own.sum(1))),
                "forward_time_over_ours": float(np.median(seconds[name][:, 0] / own[:, 0])),
                "peak_bytes": peaks[name],
                "peak_over_ours": peaks[name] / peaks["ours"],
                "largest_error": float(errors[name].max()),
                "largest_error_over_max_1_log_prob": float((errors[name] / expected.abs().clamp(min=1)).max()),
            }
            for name in ways
        },
    }


def main() -> None:
    """Compare the ways of computing log-probs, print the table and write it to results/logprobs.json."""
    parser = CommandParser(prog="python benchmarks/logprobs.py", description=__doc__ or "")
    parser.add_argument("--tokens", default="256,1024", help="comma-separated")
    parser.add_argument("--hidden", type=int, default=256, help="features of a hidden state")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, of which the median counts")
    parser.add_argument("--torch", action="store_true", help="also torch's linear_cross_entropy (torch 2.13 on)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.dtypes.split(","):
        if name not in DTYPES:
            raise unknown_name("dtype", name, DTYPES)
    ways = WAYS | ({"torch_linear_cross_entropy": torch_chunked} if options.torch else {})
    found = [
        measure(dtype, int(tokens), options.hidden, options.rounds, ways)
        for dtype in options.dtypes.split(",")
        for tokens in options.tokens.split(",")
    ]
    for shape in found:
        print(f"{shape['dtype']}, {shape['tokens']} tokens, hidden {shape['hidden']}")
        for name, row in shape["ways"].items():  # type: ignore[union-attr]
            print(
                f"  {name:27s} {row['forward_cpu_s']:6.2f} + {row['backward_cpu_s']:6.2f} s"
                f"  x{row['time_over_ours']:5.2f}"
                f"  peak {row['peak_bytes'] / 2**20:7.0f} MiB  x{row['peak_over_ours']:5.2f}"
                f"  error {row['largest_error']:.1e}"
            )
    results = {
        "vocabulary": VOCABULARY,
        "shapes": found,
        "rounds": options.rounds,
        "threads": 1,
        **machine("torch", "trl", "fspo"),
    }
    write_results(results, RESULTS / "logprobs.json")


if __name__ == "__main__":
    run_cli(main)
