# pyright: reportMissingImports=false
"""verl's own training worker on a CPU, whose model is a table of logits, and rollouts for it.

Importing it skips the tests of a module where verl is not installed.
"""

import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from hydra import compose, initialize_config_module
from verl import DataProto
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine.base import BaseEngine, BaseEngineCtx, EngineRegistry
from verl.workers.engine.utils import postprocess_batch_func, prepare_micro_batches
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding

ACTOR = "actor_rollout_ref.actor."
ROOT = Path(__file__).parents[3]
OURS = (f"{ACTOR}policy_loss.loss_mode=fspo", f"{ACTOR}policy_loss._target_=fspo.integrations.verl.FSPOLossConfig")
SEQUENCE = f"{ACTOR}loss_agg_mode=seq-mean-token-mean"
VOCABULARY, PROMPT, WIDTH, GROUPS, EACH = 11, 3, 12, 8, 2
ROWS = GROUPS * EACH
OBSERVED = f"{ACTOR}policy_loss._target_=fspo.integrations.verl.ObservedLossConfig"


def actor(*overrides, info=None):
    """verl's actor configuration, from its own YAML files and command-line overrides."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"{ACTOR}ppo_micro_batch_size_per_gpu=8", *overrides])
    found = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    found.global_batch_info.update(info or {})
    return found


def parts(*pairs):
    return tuple(f"+{ACTOR}policy_loss.{pair}" for pair in pairs)


class CpuPlatform(PlatformCUDA):
    """verl knows no platform without a GPU."""

    device_name = "cpu"
    device_module = types.SimpleNamespace(max_memory_allocated=lambda: 0, max_memory_reserved=lambda: 0)

    def communication_backend_name(self):
        return "gloo"


@EngineRegistry.register(model_type="language_model", backend="table", device="cpu")
class TableEngine(BaseEngine):
    """An engine whose model is a table of logits of the next token by the present one; the rest is verl's."""

    is_param_offload_enabled = is_optimizer_offload_enabled = False
    rank, ranks = 0, 1

    def __init__(self, **_):
        self.table = torch.nn.Parameter(table())
        self.optimizer = torch.optim.SGD([self.table], lr=0.5)
        self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0)
        self.before = []  # the weights before each update

    def train_mode(self, **kwargs):
        return BaseEngineCtx(self, "train", **kwargs)

    def optimizer_zero_grad(self):
        self.optimizer.zero_grad()

    def optimizer_step(self):
        self.optimizer.step()
        return float(self.table.grad.norm())

    def lr_scheduler_step(self):
        self.lr_scheduler.step()
        return 0.5

    def save_checkpoint(self, *_):
        pass

    load_checkpoint = save_checkpoint

    def get_data_parallel_rank(self):
        return self.rank

    def get_data_parallel_size(self):
        return self.ranks

    def get_data_parallel_group(self):
        return None

    def is_mp_src_rank_with_outputs(self):
        return True

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        self.before.append(self.table.detach().clone())
        whole = int(data["response_mask"].sum())
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=whole, sp_size=1)
        outputs = []
        parts, indices = prepare_micro_batches(data)
        for part in parts:
            rows = [torch.cat([log_probs(self.table, ids)[1:], torch.zeros(1)]) for ids in part["input_ids"].unbind()]
            found = {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
            loss, metrics = loss_function(model_output=found, data=part, dp_group=None)
            loss.backward()
            outputs.append({"model_output": {}, "loss": loss.item(), "metrics": metrics})
        return postprocess_batch_func(outputs, indices, data)


def table():
    return torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))


def log_probs(logits, ids):
    """Log-probabilities (T,) of tokens (T,); 0 of the first."""
    rows = torch.log_softmax(logits, -1)[ids[:-1], ids[1:]]
    return torch.cat([torch.zeros(1), rows])


def rollout(seed, version, correction=None, sampler=True, longest=WIDTH):
    """A rollout as verl's trainer hands it to its actor, after its own correction; lengths from 1 to ``longest``."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (ROWS,), generator=g)
    ids = torch.randint(0, VOCABULARY, (ROWS, PROMPT + WIDTH), generator=g)
    ids[:, :PROMPT] = ids[::EACH, :PROMPT].repeat_interleave(EACH, 0)
    mask = torch.arange(WIDTH) < lengths[:, None]
    old = torch.stack([log_probs(version, row)[PROMPT:] for row in ids]) * mask
    advantage = torch.randn(ROWS, generator=g)
    tensors = {
        "input_ids": ids * torch.cat([torch.ones(ROWS, PROMPT, dtype=torch.bool), mask], 1),
        "prompts": ids[:, :PROMPT],
        "responses": ids[:, PROMPT:] * mask,
        "attention_mask": torch.cat([torch.ones(ROWS, PROMPT, dtype=torch.bool), mask], 1).long(),
        "position_ids": torch.arange(PROMPT + WIDTH).expand(ROWS, -1).contiguous(),
        "response_mask": mask.long(),
        "old_log_probs": old,
        "advantages": advantage[:, None] * mask,
        "token_level_scores": torch.nn.functional.one_hot(lengths - 1, WIDTH).float() * 0.5,
    }
    if sampler:
        tensors["rollout_log_probs"] = (old - 0.2 * torch.randn(ROWS, WIDTH, generator=g) * mask).clamp(max=0.0)
    uid = np.repeat([f"{seed}-{i}" for i in range(GROUPS)], EACH).astype(object)
    batch = DataProto.from_dict(tensors, non_tensors={"uid": uid}, meta_info={"temperature": 1.0, "multi_turn": False})
    for name in ("min_global_steps", "max_global_steps"):
        batch.non_tensor_batch[name] = np.array([seed] * ROWS, dtype=object)
    if correction is not None:
        batch, _ = compute_rollout_correction_and_add_to_batch(batch, correction)
    return batch, lengths


def drawn(seed, version, correction, sampler):
    """A sound rollout: tokens from the table with a little noise, as a sampler of lower precision draws them; rewards
    of the tokens; GRPO's advantages."""
    batch, lengths = rollout(seed, version, correction, sampler, WIDTH - 1)
    g = torch.Generator().manual_seed(seed + 1000)
    law = version + 0.005 * torch.randn(VOCABULARY, VOCABULARY, generator=g)
    ids = torch.cat([batch.batch["prompts"], batch.batch["responses"]], 1)
    for t in range(PROMPT, PROMPT + WIDTH):
        ids[:, t] = torch.multinomial(law[ids[:, t - 1]].softmax(-1), 1, generator=g)[:, 0]
    mask = batch.batch["response_mask"]
    score = ((ids[:, PROMPT:] > VOCABULARY // 2) * mask).sum(1) / mask.sum(1)
    groups = score.view(GROUPS, EACH)
    advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    for name, weights in (("old_log_probs", version), ("rollout_log_probs", law)):
        batch.batch[name] = torch.stack([log_probs(weights, row)[PROMPT:] for row in ids]) * mask
    batch.batch["responses"] = ids[:, PROMPT:] * mask
    batch.batch["input_ids"] = ids * batch.batch["attention_mask"]
    batch.batch["advantages"] = advantage * mask
    batch.batch["token_level_scores"] = torch.nn.functional.one_hot(lengths - 1, WIDTH) * score[:, None]
    return batch, lengths


def trained(
    folder, *overrides, correction=None, rollouts=2, epochs=1, sampler=True, first=0, make=rollout, save=None,
    load=None, **engine
):  # fmt: skip
    """Train verl's worker on rollouts; return its engine and the rollouts."""
    options = [] if folder is None else [OBSERVED, f"+{ACTOR}policy_loss.observe={folder}"]
    if folder is not None and correction is not None:
        options += [f"+{ACTOR}policy_loss.rollout_correction.{name}={value}" for name, value in correction.items()]
    config = actor(*options, *overrides)  # makes the configuration, and with it the watch
    place = types.SimpleNamespace(
        strategy="table", use_remove_padding=False, use_fused_kernels=False, forward_only=False, use_dynamic_bsz=False,
        max_token_len_per_gpu=None, micro_batch_size_per_gpu=4,
    )  # fmt: skip
    model = type("Model", (dict,), {})()
    worker = ActorRolloutRefWorker.actor_worker_cls(
        TrainingWorkerConfig(model_type="language_model", model_config=model, engine_config=place)
    )
    vars(worker.engine).update(engine)
    for _ in range(first):
        worker.engine.lr_scheduler.step()
    worker.set_loss_fn(partial(ppo_loss, config=config))
    worker.engine.memory = getattr(config.policy_loss, "memory", None)
    if load is not None:
        worker.load_checkpoint(str(load))
    seen = []
    for number in range(first, first + rollouts):
        batch, lengths = make(number, worker.engine.table.detach().clone(), correction, sampler)
        seen.append((batch, lengths))
        data = left_right_2_no_padding(batch.to_tensordict()) if isinstance(batch, DataProto) else batch
        tu.assign_non_tensor(
            data, calculate_entropy=False, global_batch_size=ROWS // 2, mini_batch_size=ROWS // 2 * worker.engine.ranks,
            epochs=epochs, seed=1, dataloader_kwargs={"shuffle": True}, compute_loss=True,
        )  # fmt: skip
        worker.train_mini_batch(data)
    if save is not None:
        worker.save_checkpoint(str(save))
    return worker.engine, seen
