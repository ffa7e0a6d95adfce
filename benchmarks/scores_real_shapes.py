"""Measure what scores cost at the shapes of Qwen3-8B, as ratios between passes of one decoder layer with random weights
on the CPU.

    python benchmarks/scores_real_shapes.py [--dtypes bfloat16,float32] [--rows 4] [--columns 128] [--rounds 5]

Four passes over the same batch take turns: a training pass (forward, full backward with weight gradients); a pass whose
backward stops at the embeddings and computes no weight gradients; a score pass; and a training pass during which the
score hooks compute the scores too (a "live path"), so that no score pass is needed. Times are CPU seconds of one
thread; the ratio of two passes' times is taken in each round, and its median is reported. The vocabulary has only 256
entries, so that the decoder layer has 99 % of the parameters and decides the times.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from measuring import RESULTS, machine, seconds, take_turns, write_results
from scores import input_step
from torch import Tensor, nn
from transformers import PreTrainedModel

from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli, unknown_name
from fspo.config import Dtype
from fspo.gradlog import metric_names as metric
from fspo.models.load import DTYPES, build_random_model
from fspo.models.shapes import shape_of
from fspo.plan.measure import changed
from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.policy.scores import ScoreHooks, score

HOOKS_LIMIT, PASS_LIMIT = 0.03, 0.8
"""Goals, as shares of the cost of a training pass: the largest cost of the score hooks alone (`ScoreHooks`, which
compute the scores during a backward pass), and the largest cost of a whole score pass.
"""
LIVE_LIMIT = 0.05
"""Share of a rollout step's time that must be saved before code that takes scores from the training pass itself is
worth writing.
"""
PROMPT = 8


def one_layer(dtype: Dtype) -> PreTrainedModel:
    """Return a model with the shapes of Qwen3-8B, but one decoder layer, a vocabulary of 256 and random weights."""
    config = changed(shape_of("Qwen3-8B-Base"), 1)
    config.vocab_size = 256
    return build_random_model(config, dtype, seed=0).train()


def batch_of(rows: int, columns: int) -> dict[str, Tensor]:
    """Return a batch of sequences of random tokens, whose first ``PROMPT`` tokens are the prompt."""
    ids = np.random.default_rng(0).integers(1, 256, (rows, columns)).tolist()
    return make_batch([row[:PROMPT] for row in ids], [row[PROMPT:] for row in ids], 0)


def training_pass(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Run a forward pass to the sum of log-probs and a backward pass, with the gradients of the weights."""
    token_log_probs(model, batch)[0].sum().backward()


def live_pass(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Run a training pass with the score hooks attached, which compute the scores during its backward pass.

    Taking scores in real training costs at least as much as this pass: the advantages must also be kept out of the
    gradients that the hooks see, and the responses that the rule cuts still need a score pass, because their training
    gradient is 0.
    """
    with ScoreHooks(model) as hooks:
        total = token_log_probs(model, batch, scores=hooks)[0].sum()
        # Besides the weights, differentiate with respect to the embeddings' outputs, down to which the score hooks need
        # the backward pass.
        roots = [root for root, *_ in hooks._roots]
        torch.autograd.backward(total, inputs=[*roots, *(p for p in model.parameters() if p.requires_grad)])


PASSES: dict[str, Callable[[nn.Module, dict[str, Tensor]], object]] = {
    "training": training_pass,
    "no_weight_gradients": input_step,
    "score": score,
    "training_with_hooks": live_pass,
}


def measure(dtype: Dtype, rows: int, columns: int, rounds: int) -> dict[str, object]:
    """Time the passes of ``PASSES`` in turn; return the median CPU seconds of each and the ratios between them."""
    model, batch = one_layer(dtype), batch_of(rows, columns)

    def timed(step: Callable[[nn.Module, dict[str, Tensor]], object]) -> float:
        model.zero_grad(set_to_none=True)
        return seconds(lambda: step(model, batch))

    taken = take_turns({name: partial(timed, step) for name, step in PASSES.items()}, rounds, dtype)
    train, floor, scored, live = (np.array(values) for values in taken.values())
    layer = sum(p.numel() for p in model.model.layers.parameters())
    return {
        "rows": rows,
        "columns": columns,
        "layer_parameters": layer,
        "cpu_s": {name: float(np.median(values)) for name, values in taken.items()},
        "score_pass_of_training_pass": spread(scored / train),
        "hooks_of_training_pass": spread((scored - floor) / train),
        "hooks_of_pass_without_weight_gradients": spread((scored - floor) / floor),
        "live_path_saves_of_score_pass": spread(1 - (live - train) / scored),
    }


def spread(values: np.ndarray) -> dict[str, float]:
    """Return the median and the quartiles of a ratio, of which ``values`` has one for each round."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(middle), "lower_quartile": float(low), "upper_quartile": float(high)}


def live_path(ratio: float, saved: float, minibatches: int = 4, epochs: int = 2) -> dict[str, object]:
    """Estimate which share of a rollout step's time is saved if the training pass takes the scores, so that no score
    pass is needed.

    A rollout step is a rollout with its updates. ``ratio`` is the cost of a score pass over that of a training pass,
    ``saved`` the share of a score pass's cost that is saved. For the embedded model the score pass's share of a step
    was measured (`trl_rollout_step.json`). For the 8B shapes, with M minibatches a rollout, the cost of a step is
    counted in training passes over one minibatch: M/3 for old log-probs, M x epochs for updates, and ``ratio`` for one
    score pass. One estimate leaves sampling out; another counts sampling as 25 % of a step without its score pass.
    """
    shares: dict[str, float] = {}
    measured = RESULTS / "trl_rollout_step.json"
    if measured.exists():
        side = json.loads(measured.read_text())["cases"]["embedded"]["sides"]["fspo"]
        shares["embedded model, measured"] = side["parts"][metric.TIME + "scores"] / side["wall_s"]
    passes = minibatches / 3 + minibatches * epochs
    shares["8B shapes, without sampling"] = ratio / (passes + ratio)
    sampling = 0.25
    shares[f"8B shapes, sampling {sampling:.0%} of the rest"] = ratio / (passes / (1 - sampling) + ratio)
    saves = {name: share * saved for name, share in shares.items()}
    return {
        "score_pass_share_of_a_step": shares,
        "saves_at_most": saves,
        "worth_building_from": LIVE_LIMIT,
        "not_counted": "a score pass over the cut responses, whose training gradient is 0, and keeping rows unweighted",
    }


def main() -> None:
    """Measure what scores cost at the shapes of Qwen3-8B, print the ratios and write them to a file."""
    parser = CommandParser(prog="python benchmarks/scores_real_shapes.py", description=__doc__ or "")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="comma-separated")
    parser.add_argument("--rows", type=int, default=4, help="responses in the batch")
    parser.add_argument("--columns", type=int, default=128, help="tokens of each, its prompt included")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, of which the median counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtypes = options.dtypes.split(",")
    for name in dtypes:
        if name not in DTYPES:
            raise unknown_name("dtype", name, tuple(DTYPES))
    found = {name: measure(name, options.rows, options.columns, options.rounds) for name in dtypes}
    for name, result in found.items():
        print(f"{name}, {options.rows} rows x {options.columns} columns")
        for key, value in result.items():
            if isinstance(value, dict) and "median" in value:
                low, high = value["lower_quartile"], value["upper_quartile"]
                print(f"  {key:42s} {value['median']:7.4f}  (quartiles {low:.4f} to {high:.4f})")
    first = next(iter(found.values()))
    ratio, saved = (first[k]["median"] for k in ("score_pass_of_training_pass", "live_path_saves_of_score_pass"))  # type: ignore[index]
    live = live_path(ratio, saved)
    for name, share in live["saves_at_most"].items():  # type: ignore[union-attr]
        print(f"a live path saves at most {share:.3f} of a step ({name})")
    results = {
        "wanted": {"hooks_of_training_pass": HOOKS_LIMIT, "score_pass_of_training_pass": PASS_LIMIT},
        "layer": "Qwen3-8B: hidden 4096, intermediate 12288, 32 and 8 heads of 128",
        "shapes": found,
        "live_path": live,
        "rounds": options.rounds,
        "threads": 1,
        **machine("torch", "transformers", "fspo"),
    }
    write_results(results, RESULTS / "scores_real_shapes.json")


if __name__ == "__main__":
    run_cli(main)
