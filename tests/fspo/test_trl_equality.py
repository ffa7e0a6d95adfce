"""Our loss and gradient against TRL's own code (a real GRPOTrainer, its `_compute_loss`) on random inputs.

The whole path is compared: forward pass, log-probabilities, ratios, clipping, aggregation, parameter gradients.
"""

import math

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from fspo.logprobs import make_batch, token_log_probs
from fspo.models import build_embedded_model, load_tokenizer
from fspo.objective import ObjectiveConfig, objective
from fspo.rules import Rule, preset

MAX_LENGTH = 12
TOLERANCE = {"rtol": 2e-4, "atol": 2e-7}  # float32, two orders of summation


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


def trl_loss(tmp_path, data, old, *, holes=None, ref=None, beta=0.0, **options):
    """Loss, gradients and clip metrics of a freshly made GRPOTrainer."""
    prompts, responses, advantages, _, _ = data
    size = len(prompts)
    args = GRPOConfig(
        output_dir=str(tmp_path),
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        per_device_train_batch_size=size,
        num_generations=size,
        max_completion_length=MAX_LENGTH,
        scale_rewards="none",
        use_bias_correction_kl=False,  # ours is the plain k3, not reweighted by the ratio
        **{"loss_type": "grpo", **options},
    )
    trainer = GRPOTrainer(
        model=build_embedded_model(3),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "1"}]),
        processing_class=load_tokenizer("embedded"),
    )
    model = trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.beta = beta  # set late: the constructor would load a reference model by name
    width = max(map(len, responses))
    padded = [r + [0] * (width - len(r)) for r in responses]
    completion_mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in responses])
    inputs = {
        "prompt_ids": torch.tensor(prompts),
        "prompt_mask": torch.ones(size, 4, dtype=torch.int64),
        "completion_ids": torch.tensor(padded),
        "completion_mask": completion_mask,
        "advantages": advantages,
        "old_per_token_logps": old[:, 4:],
    }
    if holes is not None:
        inputs["tool_mask"] = (~holes[:, :width]).long()
    if ref is not None:
        inputs["ref_per_token_logps"] = ref[:, 4:]
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}, metrics


def our_loss(data, rule, aggregation, spread, *, holes=None, kl_coef=0.0):
    """Loss, gradients, records, and the old and reference log-probs that TRL gets as well."""
    prompts, responses, advantages, noise, _ = data
    model = build_embedded_model(3)
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


def compare(tmp_path, seed, rule, aggregation, spread, *, with_holes=False, kl_coef=0.0, **options):
    data = rows(seed)
    holes = data[4] if with_holes else None
    out, ours, old, ref = our_loss(data, rule, aggregation, spread, holes=holes, kl_coef=kl_coef)
    loss, theirs, metrics = trl_loss(tmp_path, data, old, holes=holes, ref=ref, **options)
    assert out.loss.item() == pytest.approx(loss, rel=1e-5, abs=1e-7)
    assert max(float(g.abs().max()) for g in theirs.values()) > 1e-6
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")
    return out.records, metrics


@pytest.mark.parametrize("with_holes", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_gspo_is_trls_sequence_level(tmp_path, seed, with_holes):
    # a spread at which some responses are cut and others kept
    records, metrics = compare(
        tmp_path, seed, preset("gspo").rule, "response", 2e-3, with_holes=with_holes,
        importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4,
    )  # fmt: skip
    low, high, size = int(records.cut_low.sum()), int(records.cut_high.sum()), len(records.count)
    assert 0 < low + high < size
    assert metrics["clip_ratio/low_mean"] == pytest.approx(low / size)  # TRL counts A = 0 rows in the denominator
    assert metrics["clip_ratio/high_mean"] == pytest.approx(high / size)


@pytest.mark.parametrize("with_holes", [False, True])
@pytest.mark.parametrize(
    ("aggregation", "loss_type"), [("sequence", "grpo"), ("token", "bnpo"), ("constant", "dr_grpo")]
)
def test_grpo_is_trls_token_level(tmp_path, aggregation, loss_type, with_holes):
    records, metrics = compare(
        tmp_path, 5, preset("grpo").rule, aggregation, 0.3, with_holes=with_holes,
        importance_sampling_level="token", epsilon=0.2, epsilon_high=0.2, loss_type=loss_type,
    )  # fmt: skip
    tokens = int(records.length.sum())
    assert metrics["clip_ratio/region_mean"] == pytest.approx(
        int((records.cut_low + records.cut_high).sum()) / tokens, rel=1e-5
    )


def test_dual_clip_is_trls_delta(tmp_path):
    # TRL holds the ratio at delta where A < 0; ours is d * log(1 + eps) = log(delta)
    rule = Rule("token", 0.2, 0.2, dual=math.log(1.5) / math.log(1.2))
    records, _ = compare(tmp_path, 6, rule, "sequence", 0.4, importance_sampling_level="token", epsilon=0.2, delta=1.5)
    assert int(records.cut_dual.sum()) > 0


@pytest.mark.parametrize(("level", "name"), [("token", "grpo"), ("sequence", "gspo")])
def test_kl_to_the_reference_is_trls(tmp_path, level, name):
    rule = preset(name).rule
    compare(
        tmp_path, 7, rule, "sequence", 1e-3 if name == "gspo" else 0.3, kl_coef=0.7, beta=0.7,
        importance_sampling_level=level, epsilon=rule.range_lo, epsilon_high=rule.range_hi,
    )  # fmt: skip


def test_the_comparison_can_fail(tmp_path):
    with pytest.raises(AssertionError):
        compare(
            tmp_path, 0, preset("gspo", range_lo=3e-3, range_hi=4e-3).rule, "response", 2e-3,
            importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4,
        )  # fmt: skip
