"""Measure how the cost of a rollout grows with length, vocabulary, group size and number of score passes (which compute
the scores for the gradient log).

    python benchmarks/growth.py [--rounds 5]

A small model with random weights (4 layers of Qwen3's form, hidden size 256) runs on one CPU thread. Four passes over
the same responses are timed: sampling, the pass for old log-probs, the training pass of an update, and a score pass.
One of the sizes (length, vocabulary, group size) is varied, the others stay; the passes at all sizes take turns. A
slope is the power of the size with which CPU seconds grow, fitted over the larger half of the sizes. The cost of K
score passes follows: if a rollout is divided into U updates and a score pass covers the responses of one of them, the
K passes cost K / U of a score pass over all responses of the rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from measuring import RESULTS, machine, seconds, take_turns, write_results
from scores_real_shapes import training_pass
from transformers import Qwen3ForCausalLM

from fspo.base.command_line import CommandParser
from fspo.base.errors import run_cli
from fspo.config import SamplingConfig
from fspo.models.shapes import small_qwen3
from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.policy.scores import score
from fspo.sampling.sample import sample

PROMPT = 8
BASE = {"length": 64, "vocabulary": 8192, "responses": 4}
VARIED = {
    "length": (32, 64, 128, 256, 512),
    "vocabulary": (2048, 8192, 32_768, 131_072),
    "responses": (2, 4, 8, 16, 32),
}
"""Sizes that are varied one at a time: tokens of a response, entries of the vocabulary, and responses to the one prompt
(the group).
"""


def build(vocabulary: int) -> Qwen3ForCausalLM:
    """Return the small Qwen3 model with a vocabulary of the given size and random weights."""
    config = small_qwen3(256, vocab_size=vocabulary, num_hidden_layers=4, tie_word_embeddings=True)
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def passes(length: int, vocabulary: int, responses: int) -> dict[str, Callable[[], object]]:
    """Return four functions by name, each of which runs one pass of a rollout at the given sizes: sampling, old
    log-probs, training or scores.
    """
    model = build(vocabulary)
    ids = np.random.default_rng(0).integers(1, vocabulary, (responses, PROMPT + length)).tolist()
    batch = make_batch([ids[0][:PROMPT]] * responses, [row[PROMPT:] for row in ids], 0)

    settings = SamplingConfig(max_new_tokens=length, batch_size=responses)

    def old() -> None:
        with torch.no_grad():
            token_log_probs(model, batch)

    def update() -> None:
        model.zero_grad(set_to_none=True)
        training_pass(model, batch)

    def sampling() -> None:
        keys = np.arange(responses, dtype=np.uint64)
        no_end = vocabulary  # end-of-sequence id outside the vocabulary: no response ends early, all have full length
        sample(
            model,
            [ids[0][:PROMPT]] * responses,
            keys,
            seed=0,
            rollout=0,
            config=settings,
            eos_token_id=no_end,
            pad_token_id=0,
        )

    def scored() -> None:
        model.zero_grad(set_to_none=True)
        score(model, batch)

    return {"sampling": sampling, "old log-probs": old, "update": update, "score pass": scored}


def main() -> None:
    """Time sampling, old log-probs, update and score pass at several lengths, vocabularies and group sizes.

    Write their CPU seconds and slopes; a slope is the power of the size with which the seconds of a pass grow.
    """
    parser = CommandParser(prog="python benchmarks/growth.py", description=__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, of which the median counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for name, sizes in VARIED.items():
        steps = {
            f"{size} {kind}": partial(seconds, run)
            for size in sizes
            for kind, run in passes(**(BASE | {name: size})).items()
        }
        taken = {step: float(np.median(values)) for step, values in take_turns(steps, options.rounds, name).items()}
        kinds = list(dict.fromkeys(step.split(" ", 1)[1] for step in taken))
        cpu = {kind: [taken[f"{size} {kind}"] for size in sizes] for kind in kinds}
        half = len(sizes) // 2
        slopes = {k: float(np.polyfit(np.log(sizes[half:]), np.log(v[half:]), 1)[0]) for k, v in cpu.items()}
        found[name] = {"sizes": list(sizes), "cpu_seconds": cpu, "slopes": slopes}
        print(name, {kind: round(slope, 2) for kind, slope in slopes.items()})
    results = {"base": BASE, "prompt": PROMPT, "rounds": options.rounds, "varied": found}
    write_results(results | machine("torch", "transformers", "fspo"), RESULTS / "growth.json")


if __name__ == "__main__":
    run_cli(main)
