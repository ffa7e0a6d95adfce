"""Corrections in the trainer: gradient by an independent computation, columns and metrics of a run, skipped updates."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch
from tiny_updates import gradients, log_probs, move, rollout

from fspo.gradlog import read_log
from fspo.rollouts.metric_sums import Counts
from fspo.rules import Rule
from fspo.train import skipped_updates

WIDE = ("--correction.preset", "engine-sqrt", "--correction.range_lo", "0.3", "--correction.range_hi", "0.3")
EPOCHS = ("--rollouts", "1", "--batch.prompts", "8", "--sampling.precision", "bfloat16", "--rule.range_lo", "5")
CASES = {"tis": ("--correction.preset", "tis"), "mis": ("--correction.preset", "mis"), "engine-sqrt": WIDE}


def disturb(batch: Any) -> None:
    """Give every token a sampler's log-probability that is off by noise of .4 nats."""
    noise = np.random.default_rng(2)
    batch.sampler_log_probs = [x + noise.normal(0, 0.4, len(x)) for x in batch.sampler_log_probs]


def factors(name: str, E: np.ndarray, k3: float) -> np.ndarray:
    """f_t of one response in scalars."""
    L, S = len(E), E.sum()
    if name == "tis":
        return np.minimum(np.exp(E), 2.0)
    if name == "mis":
        return np.full(L, math.exp(S) if 1 / 3 <= math.exp(S) <= 3 else 0.0)
    return np.full(L, math.exp(S) if abs(S + k3 * L) <= 0.3 * math.sqrt(L) else 0.0)


@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_autograd_on_the_whole_minibatch(tmp_path: Path, name: str) -> None:
    net = tiny_run.model(dtype=torch.float64)
    trainer = tiny_run.trainer(
        tmp_path / "run", "--rule.preset", "none", "--batch.tokens", "100", *CASES[name], net=net
    )
    batch = rollout(trainer)
    disturb(batch)
    pairs = list(zip(batch.prompts, batch.responses, strict=True))
    old = [log_probs(net, *pair).detach() for pair in pairs]
    shards = trainer.shards(batch, np.arange(len(batch)))
    assert len(shards) > 2
    move(net, 0.01)
    net.zero_grad()
    records = trainer.updater.accumulate(shards, None)
    found = gradients(net)

    e = [one.numpy() - sampler for one, sampler in zip(old, batch.sampler_log_probs, strict=True)]
    every = np.concatenate(e)
    k3 = float(np.mean(np.exp(every) - 1 - every))
    f = [factors(name, x, k3) for x in e]
    total = [(log_probs(net, *pair) - one).detach().numpy() + x for pair, one, x in zip(pairs, old, e, strict=True)]
    for ratio, tokens in (("engine", e), ("behaviour", e), ("total", total)):
        for record in records:
            mine = [tokens[i] for i in record.shard.micro.rows]
            squares, k3s = ([sum(of(x)) for x in mine] for of in (np.square, lambda x: np.exp(x) - 1 - x))
            np.testing.assert_allclose(record.rows[f"{ratio}_sum_sq"], squares, rtol=1e-6)
            np.testing.assert_allclose(record.rows[f"{ratio}_k3_sum"], k3s, rtol=1e-6)
    net.zero_grad()
    terms = []
    for i, pair in enumerate(pairs):
        s = log_probs(net, *pair) - old[i]
        terms.append(s.detach().sum().exp() * batch.advantages[i] * (torch.as_tensor(f[i]) * s).sum())
    (-torch.stack(terms).mean()).backward()
    expected = gradients(net)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()))
    rows = np.concatenate([record.shard.micro.rows for record in records])
    weight = np.concatenate([record.rows["correction_weight"] for record in records])
    live = batch.advantages[rows] != 0
    np.testing.assert_allclose(weight[live], [f[i].mean() for i in rows[live]], rtol=1e-6)
    cut = np.concatenate([record.rows["correction_cut"] for record in records]).sum()
    assert 0 < cut < np.concatenate([record.rows["correction_count"] for record in records]).sum()


def test_columns_and_metrics_of_a_run(tmp_path: Path) -> None:
    """Two epochs whose sampler computes in bfloat16."""
    narrow = [word.replace("0.3", "0.004") for word in WIDE]
    trainer = tiny_run.trainer(tmp_path / "run", *EPOCHS, *narrow)
    shards, less = trainer.shards, {}  # each response's old less sampler's log-probs by token

    def watched(batch: Any, rows: np.ndarray) -> Any:
        found = shards(batch, rows)
        for shard in found:
            for i, old, mask in zip(shard.micro.rows, shard.old, shard.mask, strict=True):
                less[int(batch.response_ids[i])] = old[mask].double().numpy() - batch.sampler_log_probs[i]
        return found

    trainer.shards = watched
    trainer.train()
    log = read_log(tmp_path / "run")
    rule = Rule(**log.metadata["correction"])
    assert (rule.name, rule.on, rule.range_hi) == ("engine-sqrt", "engine", 0.004)
    rows = log.table.to_pandas()
    assert set(rows.times_used) == {0, 1}
    assert (rows.staleness_log_ratio == 0).all()
    assert rows.engine_log_ratio.abs().median() > 1e-3
    for _, update in rows.groupby("step"):  # the centre is of the update's own minibatch, in each epoch
        m = -update.engine_k3_sum.sum() / update.length.sum()
        np.testing.assert_allclose(update.correction_drift, m, rtol=1e-9)
        E, L, A = (update[name].to_numpy(float) for name in ("engine_log_ratio", "length", "advantage"))
        applied = rule.apply(E, L, A, m)
        np.testing.assert_allclose(update.correction_lo, applied.lo, rtol=1e-9)
        np.testing.assert_allclose(update.correction_hi, applied.hi, rtol=1e-9)
        np.testing.assert_array_equal(update.correction_side, applied.side)
        np.testing.assert_allclose(update.correction_weight, applied.clipped_weight, rtol=1e-6)
    live = rows[rows.advantage != 0]
    assert 0 < (rows.correction_side != 0).sum() < len(live)
    tokens = [less[i] for i in rows.response_id]
    assert [len(x) for x in tokens] == rows.length.tolist()
    for name in ("engine", "behaviour"):
        np.testing.assert_allclose(rows[f"{name}_log_ratio"], [x.sum() for x in tokens], atol=1e-5)
        np.testing.assert_allclose(rows[f"{name}_sum_sq"], [(x**2).sum() for x in tokens], rtol=1e-4)
        np.testing.assert_allclose(rows[f"{name}_k3_sum"], [(np.expm1(x) - x).sum() for x in tokens], rtol=1e-3)
    values = tiny_run.metrics(tmp_path / "run", "train")[0]
    assert values["correction/cut"] == pytest.approx((live.correction_side != 0).mean())
    assert values["correction/mean_weight"] == pytest.approx(live.correction_weight.mean(), rel=1e-6)
    size = np.abs(np.concatenate([*less.values()])).mean()
    for name in ("engine", "sampling"):
        assert values[f"sampling/{name}_logp_difference/mean"] == pytest.approx(size, rel=1e-5)
    assert values["sampling/missing_logp"] == 0


def test_missing_log_probs_are_counted(tmp_path: Path) -> None:
    trainer = tiny_run.trainer(tmp_path / "run", *CASES["tis"])
    batch, counts = rollout(trainer), Counts()
    before = sum(len(x) for x in batch.sampler_log_probs)
    for values in batch.sampler_log_probs[::2]:
        values[0] = math.nan
    shards = trainer.shards(batch, np.arange(len(batch)))
    trainer.update(batch, shards, counts, since=0, epoch=0)
    assert counts.values()["sampling/missing_logp"] == pytest.approx(8 / before)
    assert counts.values()["skipped_updates"] == 0
    assert math.isfinite(counts.values()["sampling/sampling_logp_difference/mean"])


def test_a_factor_without_bound_is_an_update_to_skip(tmp_path: Path) -> None:
    trainer = tiny_run.trainer(tmp_path / "run")
    trainer.updater.correction = Rule("none", on="engine")
    batch = rollout(trainer)
    shards = trainer.shards(batch, np.arange(len(batch)))
    assert skipped_updates.find(trainer.accelerator, trainer.updater.accumulate(shards, None)) is None
    live = int(np.flatnonzero(batch.advantages)[0])
    batch.sampler_log_probs[live] = batch.sampler_log_probs[live] - 21.0
    shards = trainer.shards(batch, np.arange(len(batch)))
    assert skipped_updates.find(trainer.accelerator, trainer.updater.accumulate(shards, None)) == "weight"


def test_one_token_without_bound_among_many_is_an_update_to_skip(tmp_path: Path) -> None:
    """Under a rule on tokens the logged weight is a mean over the response's tokens, which hides a single token."""
    trainer = tiny_run.trainer(tmp_path / "run", "--rule.preset", "grpo")
    batch = rollout(trainer)
    batch.advantages[:] = -1.0  # a token above the band is clipped only where A > 0
    shards = trainer.shards(batch, np.arange(len(batch)))
    assert skipped_updates.find(trainer.accelerator, trainer.updater.accumulate(shards, None)) is None
    longest = shards[-1]
    assert longest.mask[0].sum() > 4
    old = longest.old.clone()
    old[0, int(longest.mask[0].nonzero()[0])] -= 21.0
    shards[-1] = replace(longest, old=old)
    assert skipped_updates.find(trainer.accelerator, trainer.updater.accumulate(shards, None)) == "weight"
