"""One batch through TRL's own loss code and through ours: what the comparisons with TRL share."""

from dataclasses import replace

import torch
from trl import GRPOConfig, GRPOTrainer
from trl_runs import MAX_LENGTH, made

from fspo.models.load import build_embedded_model
from fspo.objective import ObjectiveConfig, objective
from fspo.policy.logprobs import make_batch, token_log_probs


def assert_same(ours, theirs, scale=1.0):
    """Gradients in float32 from two orders of summation: an entry is a sum whose parts are as large as the tensor's
    largest entry, so it is exact to some eps of that one."""
    assert max(float(g.abs().max()) for g in theirs.values()) > 1e-6
    for name, gradient in theirs.items():
        rounding = 32 * torch.finfo(torch.float32).eps * float(gradient.abs().max())
        close = {"rtol": 2e-4, "atol": max(2e-7, rounding)}
        torch.testing.assert_close(ours[name] * scale, gradient, **close, msg=lambda m, n=name: f"{n}: {m}")


def rows(seed, size=8):
    g = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 24, (4,), generator=g).tolist() for _ in range(size)]
    lengths = torch.randint(1, MAX_LENGTH + 1, (size,), generator=g).tolist()
    responses = [torch.randint(3, 24, (n,), generator=g).tolist() for n in lengths]
    advantages = torch.randn(size, generator=g)
    advantages[0] = 0.0
    noise = torch.randn(size, MAX_LENGTH, generator=g)
    holes = torch.rand(size, MAX_LENGTH, generator=g) < 0.25
    holes[:, 0] = False
    return prompts, responses, advantages, noise, holes


def make_trainer(tmp_path, size, kind=(GRPOTrainer, GRPOConfig), beta=0.0, **options):
    """A freshly made trainer of TRL's, or of a class of ours that extends it, with its model in training mode."""
    if kind[1] is GRPOConfig:
        options = {"loss_type": "grpo", **options}
    usual = {"disable_dropout": True, "gradient_accumulation_steps": 1, "max_completion_length": MAX_LENGTH}
    usual |= {"per_device_train_batch_size": size, "num_generations": size, "scale_rewards": "none"}
    usual |= {"use_bias_correction_kl": False}  # ours is the plain k3, without the ratio
    trainer = made(tmp_path, *kind, **usual, **options)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.beta = beta  # set late: the constructor would load a reference model by name
    if hasattr(trainer, "objective_config"):
        trainer.objective_config = replace(trainer.objective_config, kl_coef=beta)
    return trainer


def trl_inputs(data, old, *, holes=None, ref=None):
    """The batch as TRL's `_compute_loss` takes it; without ``old`` TRL takes the new log-probabilities."""
    prompts, responses, advantages, _, _ = data
    size = len(prompts)
    width = max(map(len, responses))
    padded = [r + [0] * (width - len(r)) for r in responses]
    completion_mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in responses])
    inputs = {
        "prompt_ids": torch.tensor(prompts),
        "prompt_mask": torch.ones(size, 4, dtype=torch.int64),
        "completion_ids": torch.tensor(padded),
        "completion_mask": completion_mask,
        "advantages": advantages,
    }
    if old is not None:
        inputs["old_per_token_logps"] = old[:, 4:]
    if holes is not None:
        inputs["tool_mask"] = (~holes[:, :width]).long()
    if ref is not None:
        inputs["ref_per_token_logps"] = ref[:, 4:]
    return inputs


def trl_loss(tmp_path, data, old, *, holes=None, ref=None, **options):
    """Loss, gradients and clip metrics of a freshly made trainer (see `make_trainer`)."""
    trainer = make_trainer(tmp_path, len(data[0]), **options)
    inputs = trl_inputs(data, old, holes=holes, ref=ref)
    inputs["num_items_in_batch"] = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).sum()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    return loss.item(), {name: p.grad for name, p in trainer.model.named_parameters()}, metrics


def our_loss(data, rule, aggregation, spread, *, holes=None, kl_coef=0.0):
    """Loss, gradients, records, and the old and reference log-probs that TRL gets as well."""
    prompts, responses, advantages, noise, _ = data
    model = build_embedded_model(0)
    batch = make_batch(prompts, responses, pad_token_id=0)
    new, _ = token_log_probs(model, batch)
    width = max(map(len, responses))
    shift = torch.cat([torch.zeros(len(prompts), 4), noise[:, :width]], 1)
    old = new.detach() - spread * shift
    ref = new.detach() + 0.3 * shift.roll(1, 0) if kl_coef else None
    mask = batch["response_mask"]
    if holes is not None:
        mask = mask & ~torch.cat([torch.zeros(len(prompts), 4, dtype=torch.bool), holes[:, :width]], 1)
    constant = MAX_LENGTH if aggregation == "constant" else None
    config = ObjectiveConfig(aggregation, constant_length=constant, kl_coef=kl_coef)
    out = objective(new, old, mask, advantages, rule, config, ref=ref)
    out.loss.backward()
    return out, {name: p.grad for name, p in model.named_parameters()}, old, ref
