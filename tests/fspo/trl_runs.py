"""Tiny real runs of TRL's trainers, with an engine that stands for vLLM: what the tests of observe share."""

import math
from contextlib import contextmanager

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from fspo.models.load import build_embedded_model, load_tokenizer

FIRST, LAST = 1, 23
"""The token ids that `Engine` draws, each with the same probability; the lowest is the end token."""
ROWS, UPDATES, MAX_LENGTH = 8, 8, 12


class Engine:
    """Stands for TRL's vLLM, which needs a GPU: draws every token uniformly and says so."""

    def __init__(self, **_):
        self.syncs = 0

    def sync_weights(self):
        self.syncs += 1

    def generate(self, prompts, images, num_generations, profiler):
        drawn = torch.randint(FIRST, LAST + 1, (len(prompts), MAX_LENGTH)).tolist()
        answers = [row[: row.index(FIRST) + 1] if FIRST in row else row for row in drawn]
        return prompts, answers, [[[-math.log(LAST - FIRST + 1)]] * len(a) for a in answers], None


class Users(GRPOTrainer):
    """A user's own subclass: keeps what TRL's loss saw, as numpy arrays, one dict for each microbatch."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        self.new = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return self.new

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        mask, old = inputs["completion_mask"].bool(), inputs["old_per_token_logps"].double()
        ids, ratio = inputs["completion_ids"], inputs["importance_sampling_ratio"].expand(mask.shape)
        seen = {
            "step": torch.full_like(mask.sum(1), self.state.global_step),
            "length": mask.sum(1),
            "log_ratio": ((self.new[0].detach().double() - old) * mask).sum(1),
            "engine_log_ratio": (old * mask).sum(1) + mask.sum(1) * math.log(LAST - FIRST + 1),
            "advantage": inputs["advantages"],
            "correction_weight": torch.where(mask, ratio, 0.0).sum(1) / mask.sum(1),
            "reward": (((ids >= 3) & (ids <= 12)) * mask).sum(1).float(),
            "truncated": ids.gather(1, mask.sum(1)[:, None] - 1)[:, 0] != FIRST,
            "entropy": (self.new[1] * mask).sum(1) / mask.sum(1),
        }
        self.kept = [*getattr(self, "kept", []), {name: x.detach().numpy() for name, x in seen.items()}]
        return loss


def digits(completion_ids, **_):
    return [float(sum(3 <= token <= 12 for token in ids)) for ids in completion_ids]


def made(folder, kind, config, rollout_func=None, **options):
    """A trainer of the embedded model; each update has two microbatches. Options win over those here."""
    usual = {"report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True}
    usual |= {"save_strategy": "no", "dataloader_pin_memory": False, "gradient_accumulation_steps": 2}
    args = config(output_dir=str(folder), **usual | {"learning_rate": 1e-3, "num_generations": 4} | options)
    model = build_embedded_model(0)
    if not args.disable_dropout:
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.1
    return kind(
        model=model,
        reward_funcs=digits,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": f"{i}+"} for i in range(10, 42)]),
        processing_class=load_tokenizer("embedded"),
        **{"rollout_func": rollout_func} if rollout_func else {},
    )


def train(folder, kind, config=GRPOConfig, **options):
    """Train a run of `UPDATES` updates in two rollouts: two updates of two microbatches, used twice."""
    usual = {"logging_steps": 1, "per_device_train_batch_size": ROWS, "max_completion_length": MAX_LENGTH}
    usual |= {"scale_rewards": "none", "max_steps": UPDATES, "steps_per_generation": 4, "num_iterations": 2}
    trainer = made(folder, kind, config, **usual | options)
    trainer.train()
    return trainer


@contextmanager
def engine():
    """Let TRL's option use_vllm find `Engine` in the place of vLLM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Engine, raising=False)
        yield {"use_vllm": True, "vllm_mode": "colocate"}
