"""The gradient of an update against an independent computation; S = 0 before the first one; drift; log rows."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch
from tiny_updates import gradients, log_probs, move, rollout

from fspo.gradlog import read_log
from fspo.models.load import LoraOptions, ready_for_training
from fspo.rollouts.batches import RolloutBatch


@pytest.mark.parametrize(("dtype", "checkpointing"), [(torch.float32, True), (torch.bfloat16, False)])
def test_log_ratio_is_exactly_zero_at_first(tmp_path: Path, dtype: torch.dtype, checkpointing: bool) -> None:
    net = tiny_run.model(dtype=dtype, layers=2)
    if checkpointing:
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trainer = tiny_run.trainer(tmp_path / "run", net=net)
    batch = rollout(trainer)
    assert len(set(batch.total_lengths)) > 4  # padding there is
    shards = trainer.shards(batch, np.arange(len(batch)))
    assert len(shards) > 1
    records = [record.rows for record in trainer.updater.accumulate(shards, None)]
    for name in ("log_ratio", "sum_sq_log_ratio", "k3_sum"):
        assert not np.concatenate([record[name] for record in records]).any()
    move(net)
    again = [record.rows for record in trainer.updater.accumulate(shards, None)]
    assert np.concatenate([record["log_ratio"] for record in again]).all()


def test_first_update_takes_no_second_pass_over_responses_without_gradient(tmp_path: Path) -> None:
    trainer = tiny_run.trainer(tmp_path / "run", "--batch.tokens", "60")
    batch = rollout(trainer)
    batch.advantages[::2] = 0.0
    shards = trainer.shards(batch, np.arange(len(batch)))
    passes: list[int] = []
    handle = trainer.raw.register_forward_hook(lambda *_: passes.append(1))
    twice, once = (trainer.updater.accumulate(shards, None, first=first) for first in (False, True))
    handle.remove()
    training = sum(shard.micro.trains for shard in shards)
    assert 0 < training < len(shards)
    assert len(passes) == len(shards) + training
    for one, other in zip(twice, once, strict=True):
        for name, values in one.rows.items():
            np.testing.assert_array_equal(values, other.rows[name])


def plain_loss(
    model: Any, before: Any, batch: RolloutBatch, preset: str, kl: float = 0.0, reference: Any = None
) -> torch.Tensor:
    """The loss of the whole batch, one response at a time, in the form in which each rule's paper writes it."""
    counts, references = [], []
    for prompt, response in zip(batch.prompts, batch.responses, strict=True):
        new = log_probs(model, prompt, response)
        with torch.no_grad():
            old = log_probs(before, prompt, response)
            known = log_probs(reference or before, prompt, response)
        counts.append(new - old)
        references.append(known - new)
    tokens = torch.cat([s.detach() for s in counts])
    k3 = float((tokens.exp() - 1 - tokens).mean())
    terms = []
    for s, A in zip(counts, batch.advantages, strict=True):
        L = len(s)
        if preset == "grpo":
            w = s.exp()
            terms.append(torch.minimum(w * A, w.clamp(0.8, 1.2) * A).mean())
            continue
        S = s.sum()
        if preset == "gspo":
            w, low, high = (S / L).exp(), 1 - 3e-4, 1 + 4e-4
        elif preset == "rloo":
            w, low, high = S.exp(), 0.8, 1.2
        else:
            centre = -L * k3 if preset == "fspo-kl" else 0.0
            w = S.exp()
            low, high = math.exp(centre - 0.03 * math.sqrt(L)), math.exp(centre + 0.03 * math.sqrt(L))
        terms.append(torch.minimum(w * A, w.clamp(low, high) * A))
    loss = -torch.stack(terms).mean()
    if kl:
        loss = loss + kl * torch.stack([(d.exp() - 1 - d).sum() for d in references]).mean()
    return loss


@pytest.mark.parametrize(
    ("preset", "kl"), [("rloo", 0.0), ("gspo", 0.0), ("fspo", 0.0), ("fspo-kl", 0.0), ("grpo", 0.0), ("fspo", 0.1)]
)
def test_gradient_equals_autograd_on_the_whole_minibatch(tmp_path: Path, preset: str, kl: float) -> None:
    """With a KL term the policy has left the reference before the rollout."""
    net = tiny_run.model(dtype=torch.float64)
    reference = copy.deepcopy(net)
    options = ["--rule.preset", preset, "--rule.kl_coef", str(kl)]
    if preset == "grpo":  # its token mean leaves little to tell apart with small counts
        options += ["--rule.advantage", "dr_grpo"]
    trainer = tiny_run.trainer(tmp_path / "run", *options, net=net)
    if kl:
        move(net, 0.02, seed=2)
    batch = rollout(trainer)
    assert kl or (batch.advantages == 0).any()  # groups that move nothing, but count in the mean
    before = copy.deepcopy(net)
    found, shards = {}, {}
    for tokens in (60, 300, 100_000):
        object.__setattr__(trainer.config.batch, "tokens", tokens)
        shards[tokens] = trainer.shards(batch, np.arange(len(batch)))
    move(net, 0.01)
    for tokens, parts in shards.items():
        stats = trainer.updater.drift_stats(parts) if preset == "fspo-kl" else None
        net.zero_grad()
        records = trainer.updater.accumulate(parts, stats)
        found[tokens] = gradients(net)
    assert len(shards[60]) > len(shards[300]) >= len(shards[100_000])
    np.testing.assert_array_equal(trainer.updater.global_rows(records[::-1])[1], batch.lengths)  # in the rows' order
    side = np.concatenate([r.rows["clipped_low"] + r.rows["clipped_high"] for r in records])
    count = np.concatenate([r.rows["count"] for r in records])
    assert 0 < side.sum() < count.sum()  # some cut, some kept
    net.zero_grad()
    plain_loss(net, before, batch, preset, kl, reference).backward()
    expected = gradients(net)
    for value in found.values():
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("source", ["two_pass", "lagged"])
def test_drift_of_each_update_is_logged(tmp_path: Path, source: str) -> None:
    trainer = tiny_run.trainer(tmp_path / "run", "--rule.preset", "fspo-kl", "--rule.drift_source", source)
    trainer.train()
    table = read_log(tmp_path / "run").table.to_pandas()
    assert set(table.drift_source) == {source}
    steps = table.groupby("step")
    k3 = -steps.k3_sum.sum() / steps.length.sum()  # m = -k3 per token, over the global minibatch
    drift = steps.drift.first()
    assert (steps.drift.nunique() == 1).all()
    if source == "two_pass":
        np.testing.assert_allclose(drift, k3, rtol=1e-6, atol=1e-12)
    else:  # the update before; before the first update of a rollout every S is 0
        expected = np.where(steps.updates_since_rollout.first() == 0, 0.0, k3.shift(fill_value=0.0))
        np.testing.assert_allclose(drift, expected, rtol=1e-6, atol=1e-12)
    assert (drift < 0).sum() >= 4
    root = np.sqrt(table.length)
    np.testing.assert_allclose(table.lo, table.drift * table.length - 0.03 * root, rtol=1e-9)
    assert tiny_run.metrics(tmp_path / "run", "train")[0]["drift_per_token"] < 0


@pytest.mark.parametrize("options", [{"gradient_checkpointing": True}, {"lora": LoraOptions(rank=4)}])
def test_gradient_does_not_depend_on_microbatches_with(tmp_path: Path, options: dict[str, Any]) -> None:
    net = ready_for_training(tiny_run.model(dtype=torch.float64, layers=2), "it", **options).double()
    trainer = tiny_run.trainer(tmp_path / "run", "--batch.tokens", "60", net=net)
    batch = rollout(trainer)
    cut = trainer.shards(batch, np.arange(len(batch)))
    object.__setattr__(trainer.config.batch, "tokens", 100_000)
    together = trainer.shards(batch, np.arange(len(batch)))
    assert len(cut) > 4 > len(together)
    move(net, 0.01)
    found = []
    for shards in (cut, together):
        net.zero_grad()
        trainer.updater.accumulate(shards, None)
        found.append(gradients(net))
    assert found[0].abs().max() > 0
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9 * float(found[1].abs().max()))
