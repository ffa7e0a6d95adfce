"""Write a gradient log of a TRL run that keeps TRL's own loss. This takes one more line of code; from the log,
`fspo analyse` tells responses of which lengths a correction would clip.

    pip install '.[trl]'
    python examples/trl_observe.py out/watched 6   # the run folder, the number of updates
    fspo analyse out/watched --on behaviour

Here the embedded model samples in bfloat16 and trains in float32, in seconds on a CPU. If you sample with vLLM
(use_vllm=True), leave rollout_func out: TRL then passes vLLM's log-probabilities, and TRL's own correction is logged.
"""

import argparse
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from fspo.integrations.trl import observe
from fspo.models.load import build_embedded_model, load_tokenizer


def digits(completions: list[str], **_: object) -> list[float]:
    """Return the reward of each completion: the share of its characters that are digits."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


@torch.no_grad()
def sample_in_bfloat16(prompts: list[str], trainer: Any) -> dict[str, list]:
    """Sample a completion of each prompt with the trainer's weights rounded to bfloat16; return token ids and the
    completions' log-probabilities."""
    tokenizer, most = trainer.processing_class, trainer.max_completion_length
    engine: Any = build_embedded_model(0)
    engine.load_state_dict(trainer.accelerator.unwrap_model(trainer.model).state_dict())
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    drawn = engine.bfloat16().generate(
        **batch, do_sample=True, max_new_tokens=most, return_dict_in_generate=True, output_scores=True
    )
    answers = drawn.sequences[:, batch["input_ids"].shape[1] :]
    logprobs = torch.stack(drawn.scores, 1).float().log_softmax(-1).gather(2, answers[..., None])[..., 0]
    ends = (answers == tokenizer.eos_token_id).int()
    lengths = ((ends.cumsum(1) - ends) == 0).sum(1).tolist()
    return {
        "prompt_ids": ids,
        "completion_ids": [row[:n].tolist() for row, n in zip(answers, lengths, strict=True)],
        "logprobs": [row[:n].tolist() for row, n in zip(logprobs, lengths, strict=True)],
    }


def main(output: str, steps: int = 6) -> None:
    """Train ``steps`` updates and write the run folder ``output``."""
    args = GRPOConfig(
        output_dir=output,
        steps_per_generation=2,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=32,
        learning_rate=2e-4,
        max_steps=steps,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    Trainer = observe(GRPOTrainer)  # the only line that this script has besides plain TRL
    trainer = Trainer(
        model=build_embedded_model(0),
        reward_funcs=digits,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(8) for b in range(8)]),
        processing_class=load_tokenizer("embedded"),
        rollout_func=sample_in_bfloat16,
    )
    trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", default="out/watched", help="run folder to write")
    parser.add_argument("steps", nargs="?", type=int, default=6, help="number of updates")
    main(**vars(parser.parse_args()))
