"""Whole small runs: presets, adapters, bfloat16, big vocabularies, metrics, verifier failures."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch

from fspo.base.errors import UserError
from fspo.gradlog import metric_names as metric
from fspo.gradlog import read_log
from fspo.models.load import LoraOptions, _add_lora
from fspo.rules import PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains(tmp_path: Path, preset: str) -> None:
    net = tiny_run.model()
    before = [p.detach().clone() for p in net.parameters()]
    options = ["--rule.preset", preset, "--rollouts", "1", "--batch.prompts", "8", "--optim.learning_rate", "2e-3"]
    trainer = tiny_run.trainer(tmp_path / "run", *options, net=net)
    values = trainer.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(torch.isfinite(p).all() for p in net.parameters())
    assert np.isfinite([v for v in values.values() if v is not None]).all()
    log = read_log(tmp_path / "run")
    assert log.rule == PRESETS[preset].rule
    assert "correction" not in log.metadata
    assert "correction_weight" not in log
    if preset == "none":
        assert values["clip_ratio/region_mean"] == 0
    else:
        assert 0 < values["clip_ratio/region_mean"] < 1


def test_a_run_writes_the_metrics_that_are_declared(tmp_path: Path) -> None:
    options = ["--rule.drift=gaussian", "--rule.adapt=range", "--rule.target=0.8", "--rule.dual=2.0"]
    options += ["--rule.kl_coef=0.01", "--correction.preset=mis", "--batch.drop=[truncated]"]
    options += ["--batch.prompts=8", "--batch.staleness=1", "--eval.every=2"]
    tiny_run.trainer(tmp_path / "run", *options, "--optim.learning_rate", "2e-3").train()
    rows = tiny_run.metrics(tmp_path / "run")
    assert [(r["phase"], r["rollout"], r["step"]) for r in rows] == [
        ("eval", 0, 0), ("train", 0, 4), ("train", 1, 8), ("eval", 2, 8)
    ]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    written = {re.sub(r"bin/\d+/", f"bin/{metric.BIN}/", name) for line in lines for name in line}
    declared = [re.sub("[A-Z]{2,}$", r"\\w+", name) for name in metric.METRICS]
    of = {name: [pattern for pattern in declared if re.fullmatch(pattern, name)] for name in written}
    assert {name for name, patterns in of.items() if len(patterns) != 1} == {"rollout", "step", "phase"}
    assert {patterns[0] for patterns in of.values() if patterns} == set(declared)
    assert rows[1]["kl"] > 0
    assert rows[1]["learning_rate"] == pytest.approx(2e-3 * (0.5 + 1 + 1 + 1) / 4)
    assert lines[1]["step_time"] > 0
    assert {"time/sample", "time/update", "time/scores"} <= lines[1].keys()


def test_metrics_agree_with_the_log(tmp_path: Path) -> None:
    """With whole scores, of the last minibatch of the first pass; the live LRE by hand."""
    net, whole = tiny_run.model(), ("--log.scores.width", "null", "--log.scores.projection", "null")
    values = tiny_run.trainer(tmp_path / "run", "--rollouts", "1", "--batch.prompts", "8", *whole, net=net).train()
    log = read_log(tmp_path / "run")
    index, psi = log.scores()
    assert psi.shape[1] == sum(p.numel() for p in net.parameters())
    rows = log.table.drop_columns("score_unit").to_pandas()
    scored = rows.iloc[index]
    assert ((scored.updates_since_rollout == 1) & (scored.times_used == 0) & (scored.advantage != 0)).all()
    live, moved = rows[rows.advantage != 0], rows[rows.updates_since_rollout > 0]
    first = rows[rows.times_used == 0]
    assert values["clip_ratio/region_mean"] == pytest.approx((live.side != 0).mean())
    assert values["clip_ratio/out_of_band"] == pytest.approx(1 - moved.band_accept.mean())
    assert values["seq_log_ratio/std"] == pytest.approx(moved.log_ratio.std(ddof=0))
    assert values["reward"] == pytest.approx(first.reward.mean())
    assert values["entropy"] == pytest.approx(np.average(first.entropy, weights=first.length), rel=1e-6)
    assert values["completions/mean_length"] == pytest.approx(first.length.mean())
    for i, (low, high) in enumerate([(1, 8), (8, 16), (16, 99)]):
        here = moved[(moved.length >= low) & (moved.length < high)]
        assert values[f"length_bin/{i}/out_of_band"] == pytest.approx(1 - here.band_accept.mean())
    moved = moved[moved.advantage != 0].assign(bin=lambda here: np.digitize(here.length, [8, 16]))
    shares, accepted = moved.groupby("bin").size() / len(moved), moved.groupby("bin").multiplier.mean()
    relative = accepted / (shares @ accepted) - 1
    assert values["lre_update/inf"] == pytest.approx(relative.abs().max())
    assert values["lre_update/l2"] == pytest.approx(math.sqrt(shares @ relative**2))


def test_training_learns(tmp_path: Path) -> None:
    options = ["--rollouts", "12", "--batch.prompts", "16", "--rule.outside", "truncate", "--log.score_every", "0"]
    tiny_run.trainer(tmp_path / "run", *options).train()
    rewards = [row["reward"] for row in tiny_run.metrics(tmp_path / "run", "train")]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.25
    assert "score_unit" not in read_log(tmp_path / "run").table.column_names


def adapters() -> Any:
    return _add_lora(tiny_run.model(), LoraOptions(rank=2))


def test_lora_trains_adapters_alone_and_resumes(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    nets, options = {}, ["--rollouts", "4", "--checkpoint_every", "2"]
    for name, parts in (("whole", [options]), ("parts", [["--rollouts", "2"], [*options, "--resume", "true"]])):
        for arguments in parts:
            nets[name] = adapters()
            tiny_run.trainer(tmp_path / name, *arguments, net=nets[name]).train()
    base = dict(tiny_run.model().named_parameters())
    moved = 0
    for name, p in nets["whole"].named_parameters():
        assert torch.equal(p, dict(nets["parts"].named_parameters())[name])
        if p.requires_grad:
            assert "lora_" in name
            moved += bool(p.any()) and "lora_B" in name  # B starts at 0
        else:
            assert torch.equal(p, base[name.removeprefix("base_model.model.").replace(".base_layer", "")])
    assert moved == 7
    assert tiny_run.metrics(tmp_path / "whole") == tiny_run.metrics(tmp_path / "parts")
    saved = load_file(sorted((tmp_path / "whole" / "checkpoints").iterdir())[-1] / "model.safetensors")
    assert all("lora_" in name for name in saved)
    assert (tmp_path / "whole" / "model" / "adapter_model.safetensors").is_file()


def test_task_columns_of_mixed_type_do_not_stop_a_run(tmp_path: Path) -> None:
    class Mixed(tiny_run.Digits):
        def example(self, split: str, index: int) -> Any:
            found = super().example(split, index)
            odd = {"number": "seven", "more": 2**70} if index % 2 else {"number": index, "more": 1}
            found.info.clear()
            found.info.update(odd | ({"late": 1.5} if index > 2 else {}))
            return found

    tiny_run.trainer(tmp_path / "run", "--rollouts", "1", task=Mixed()).train()
    table = read_log(tmp_path / "run").table
    numbers = table["user.number"].to_pylist()
    assert set(numbers) == {None, 0, 2}
    assert set(table["user.more"].to_pylist()) == {None, 1}
    assert "user.late" not in table.column_names  # the schema is that of the first example


def test_gradient_that_is_not_finite_is_skipped_and_counted(tmp_path: Path) -> None:
    net = tiny_run.model()
    trainer = tiny_run.trainer(tmp_path / "run", "--optim.max_skipped_updates", "2", net=net)
    before = [p.detach().clone() for p in net.parameters()]
    net.model.norm.weight.register_hook(lambda g: g * math.nan)
    with pytest.raises(UserError, match=r"3 updates were skipped, .*=2; .*: the gradient is not finite. Lower"):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
