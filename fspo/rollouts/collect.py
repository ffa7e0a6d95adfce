"""Collect a rollout: sample responses, decode and verify them, share them between processes, give advantages."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fspo.advantages import Estimator, GroupStats, advantages
from fspo.base.errors import UserError
from fspo.base.files import write_text
from fspo.config import SamplingConfig, TaskConfig
from fspo.distributed.layout import layout_of
from fspo.gradlog.run_folder import ROLLOUTS
from fspo.models.load import eos_token_ids
from fspo.rollouts.batches import RolloutBatch
from fspo.sampling.sample import sample
from fspo.tasks import Example, Task, encode_prompt

Stream = Literal["train", "eval"]
_STREAMS: dict[Stream, int] = {"train": 0, "eval": 1}


@dataclass
class Prompts:
    """P prompts as token ids, each with its example, from which a verifier judges responses, and its number (``ids``,
    (P,)). ``too_long`` counts prompts that were left out."""

    examples: list[Example]
    tokens: list[list[int]]
    ids: np.ndarray  # (P,) the prompts' numbers, unique over the run
    too_long: int = 0


@dataclass
class Collector:
    """Samples and judges responses: process ``rank`` of ``world`` samples a part, and all processes get all responses.
    ``sampling`` says how they are sampled, ``chat_template`` whether prompts get the tokenizer's template (None: if
    there is one).

    Longer prompts than ``max_prompt_tokens`` are left out, and counted. ``seconds``: wall time of "sample", "verify".
    """

    task: Task
    tokenizer: PreTrainedTokenizerBase
    sampling: SamplingConfig
    seed: int
    rank: int = 0
    world: int = 1
    chat_template: bool | None = None
    max_prompt_tokens: int = TaskConfig.max_prompt_tokens
    seconds: dict[str, float] = field(default_factory=dict)

    def prompts(
        self, split: Literal["train", "eval"], indices: np.ndarray, ids: np.ndarray, *, none_fits: bool = False
    ) -> Prompts:
        """Encode a split's examples at ``indices`` as token ids, without those that are too long; ``ids`` (as many) are
        the numbers by which the run knows these prompts.

        Raises UserError if every prompt is too long and ``none_fits`` is False."""
        found = Prompts([], [], ids)
        keep = []
        for position, index in enumerate(indices):
            example = self.task.example(split, int(index))
            tokens = encode_prompt(self.tokenizer, example.prompt, self.chat_template)
            if len(tokens) > self.max_prompt_tokens:
                found.too_long += 1
                continue
            keep.append(position)
            found.examples.append(example)
            found.tokens.append(tokens)
        if not keep and not none_fits:
            raise UserError(f"every prompt exceeds task.max_prompt_tokens={self.max_prompt_tokens}: raise it")
        found.ids = ids[keep]
        return found

    def collect(
        self,
        model: PreTrainedModel,
        prompts: Prompts,
        responses: int,
        *,
        stream: Stream,
        rollout: int,
        step: int,
        sampling: SamplingConfig | None = None,
    ) -> RolloutBatch:
        """Sample ``responses`` responses to each prompt and verify them; their advantages stay 0. ``step`` is the
        version of the weights in ``model``: the number of updates that made them.

        The random numbers of sampling depend on nothing but the seed, the stream ("train" or "eval"), the rollout, the
        number that identifies the response in the run, and the token's position."""
        began = time.perf_counter()
        count = len(prompts.examples)
        mine = np.array_split(np.arange(count), self.world)[self.rank]
        rows = np.repeat(mine, responses)
        keys = (prompts.ids[mine, None] * responses + np.arange(responses)).ravel()
        stream_seed = int(np.random.SeedSequence([self.seed, _STREAMS[stream]]).generate_state(1)[0])
        with layout_of(model).gathered():
            sampled = len(rows) and sample(
                model,
                [prompts.tokens[i] for i in rows],
                keys,
                seed=stream_seed,
                rollout=rollout,
                config=sampling or self.sampling,
                eos_token_id=eos_token_ids(model, self.tokenizer),
                pad_token_id=int(self.tokenizer.pad_token_id),  # type: ignore[arg-type]
            )
        parts: list[dict[str, Any]] = []
        if sampled:
            self._add_seconds("sample", began)
            began = time.perf_counter()
            texts = self.tokenizer.batch_decode([t.tolist() for t in sampled.tokens], skip_special_tokens=True)
            examples = [prompts.examples[i] for i in rows]
            rewards = self.task.score(examples, texts, (~sampled.truncated).tolist())
            self._add_seconds("verify", began)
            parts = [
                {
                    "row": int(i),
                    "response_id": int(key),
                    "tokens": sampled.tokens[j],
                    "log_probs": np.asarray(sampled.logprobs[j]),
                    "truncated": bool(sampled.truncated[j]),
                    "reward": float(rewards.values[j]),
                    "status": rewards.status[j],
                }
                for j, (i, key) in enumerate(zip(rows, keys, strict=True))
            ]
        everything = gather_object(parts) if self.world > 1 else parts
        return self._batch(prompts, everything, rollout, step)

    def _batch(self, prompts: Prompts, parts: list[dict[str, Any]], rollout: int, step: int) -> RolloutBatch:
        rows = [p["row"] for p in parts]
        names = list(dict.fromkeys(name for example in prompts.examples for name in example.info))
        return RolloutBatch(
            rollout=rollout,
            behaviour_version=step,
            prompts=[np.asarray(prompts.tokens[i], np.int64) for i in rows],
            responses=[p["tokens"] for p in parts],
            sampler_log_probs=[p["log_probs"] for p in parts],
            truncated=np.array([p["truncated"] for p in parts]),
            rewards=np.array([p["reward"] for p in parts]),
            advantages=np.zeros(len(parts)),
            reward_status=np.array([p["status"] for p in parts]),
            prompt_ids=prompts.ids[rows],
            response_ids=np.array([p["response_id"] for p in parts]),
            info={name: np.array([prompts.examples[i].info.get(name) for i in rows], object) for name in names},
        )

    def _add_seconds(self, name: str, began: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def give_advantages(batch: RolloutBatch, estimator: Estimator, drop: Sequence[str] = ()) -> GroupStats:
    """Compute the advantages of a batch by the estimator that is named, and store them in it; return the number of
    groups, and of those with equal rewards.

    A response whose verification failed has reward 0. ``drop`` names kinds of responses ("truncated") that get
    advantage 0, hence no gradient; they stay in the batch and in the log."""
    batch.advantages, stats = advantages(batch.rewards, batch.prompt_ids, estimator)
    if "truncated" in drop:
        batch.advantages[batch.truncated] = 0.0
    return stats


def write_samples(run: Path, batch: RolloutBatch, tokenizer: PreTrainedTokenizerBase, count: int) -> None:
    """Write ``count`` responses, spread evenly over the rollout, as text to a file such as
    ``rollouts/rollout-00000012.jsonl``."""
    if not count:
        return
    path = run / ROLLOUTS / f"rollout-{batch.rollout:08d}.jsonl"
    lines = [
        {
            "rollout": batch.rollout,
            "prompt_id": int(batch.prompt_ids[i]),
            "response_id": int(batch.response_ids[i]),
            "prompt": tokenizer.decode(batch.prompts[i].tolist(), skip_special_tokens=True),
            "response": tokenizer.decode(batch.responses[i].tolist(), skip_special_tokens=True),
            "length": len(batch.responses[i]),
            "truncated": bool(batch.truncated[i]),
            "reward": float(batch.rewards[i]),
            "reward_status": str(batch.reward_status[i]),
            "advantage": float(batch.advantages[i]),
        }
        for i in np.unique(np.linspace(0, len(batch) - 1, min(count, len(batch))).astype(int))
    ]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
