# pyright: reportMissingImports=false
"""The plugin inside the real verl: its registry, its configuration files and its loss functions."""

import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_rejection_mask,
)
from verl.utils.config import omega_conf_to_dataclass

import fspo.integrations.verl
from fspo.base.errors import UserError
from fspo.integrations.verl import FSPOLossConfig
from fspo.integrations.verl_rules import correction_of
from fspo.objective import ObjectiveConfig, objective
from fspo.objective.ratios import Mismatch
from fspo.rules import CORRECTIONS, CRITERIA, Rule, preset
from tests.fspo.integrations.verl_worker import ACTOR, OURS, ROOT, SEQUENCE, actor, parts

GLOBAL = {"dp_size": 2, "batch_num_tokens": 91, "global_batch_size": 24, "loss_scale_factor": 40}

pytestmark = pytest.mark.usefixtures("unwatched")


def batch(seed, spread, *, size=8, width=10):
    g = torch.Generator().manual_seed(seed)
    new = -torch.rand(size, width, generator=g) - 0.1
    old = new - spread * torch.randn(size, width, generator=g)
    lengths = torch.randint(1, width + 1, (size,), generator=g)
    mask = torch.arange(width) < lengths[:, None]
    mask[:, 1:] &= torch.rand(size, width - 1, generator=g) > 0.2
    advantages = torch.randn(size, generator=g)
    advantages[0] = 0.0
    return new.requires_grad_(), old, mask, advantages


def run(name, config, new, old, mask, advantages, weights=None):
    leaf = new.detach().clone().requires_grad_()
    loss, metrics = get_policy_loss_fn(name)(
        old_log_prob=old,
        log_prob=leaf,
        advantages=advantages[:, None] * mask,
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=weights,
    )
    loss.backward()
    return loss.item(), leaf.grad, metrics


def assert_same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5, abs=1e-7)
    assert theirs[1].abs().max() > 1e-4
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weighed", [None, "token", "sequence"])
@pytest.mark.parametrize(
    ("rule", "low", "high", "info"),
    [("gspo", 0.99, 99.0, GLOBAL), ("gspo", 0.05, 0.06, GLOBAL), ("grpo", 0.2, 0.2, None)],
)
def test_our_loss_is_verls_with_verls_rollout_weights_too(rule, low, high, info, weighed):
    new, old, mask, advantages = batch(7, 0.3 if rule == "gspo" else 1.2)
    sampler, weights = old - 0.5 * torch.randn(old.shape, generator=torch.Generator().manual_seed(1)), None
    if weighed is not None:
        proto, _, _ = compute_rollout_correction_and_rejection_mask(
            old, sampler, mask.long(), rollout_is=weighed, rollout_is_threshold="0.5_2.5"
        )
        weights = proto.batch["rollout_is_weights"]
        assert 0 < (weights[mask] == 0).double().mean() < 1
    dual = () if rule == "gspo" else (f"dual={math.log(3.0) / math.log(1 + high)}",)  # verl's clip_ratio_c
    own = parts(f"rule={rule}", f"range_lo={low}", f"range_hi={high}", *dual)
    ours = actor(*OURS, SEQUENCE, *own, info=info)
    theirs = actor(SEQUENCE, f"{ACTOR}clip_ratio_low={low}", f"{ACTOR}clip_ratio_high={high}", info=info)
    found = run("fspo", ours, new, old, mask, advantages, weights)
    name = {"gspo": "gspo", "grpo": "vanilla"}[rule]
    assert_same(found, run(name, theirs, new, old, mask, advantages, weights))
    assert (found[2]["actor/pg_clipfrac"] == 0) == (high == 99.0)
    assert (found[2]["actor/pg_clipfrac_lower"] > 0) == (rule == "grpo")


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("seed", range(5))
def test_our_criteria_reject_what_verls_own_function_rejects(name, seed):
    _, old, mask, advantages = batch(seed, 0.3, size=64)
    x = torch.where(mask, 0.3 * torch.randn(old.shape, generator=torch.Generator().manual_seed(seed)), 0.0)
    mismatch = Mismatch.of(old, old - x, mask, old)
    found = objective(old, old, mask, advantages, Rule("none"), mismatch=mismatch).records.to_numpy()
    of, rule = CRITERIA[name]
    value = found["behaviour_sum_sq"] / 2 if of == "k2_sum" else found[f"behaviour_{of}"]
    per = found["length"] if rule.shape == "linear" else 1
    threshold = float(np.median(value / per)) * 1.0001
    theirs, _ = compute_rollout_rejection_mask(x, mask, name, threshold)
    ours = replace(rule, range_hi=math.expm1(threshold)).apply(value, found["length"], np.ones(64))
    assert (ours.side == 0).tolist() == (theirs.sum(-1) > 0).tolist()
    assert 20 <= (ours.side == 0).sum() <= 44


def test_the_documented_options_of_verl_are_our_corrections():
    text = re.findall(r"^    ([a-z-]+: \{.*\})$", fspo.integrations.verl.__doc__ or "", re.MULTILINE)
    options = OmegaConf.create("\n".join(text))
    assert {*options, "engine-sqrt"} == set(CORRECTIONS)
    for name, verls in options.items():
        ours, theirs = vars(CORRECTIONS[str(name)]), vars(correction_of(verls))
        ranges = ("range_lo", "range_hi")
        assert [theirs[part] for part in ranges] == pytest.approx([ours[part] for part in ranges], rel=1e-6), name
        assert all(theirs[part] == ours[part] for part in set(ours) - {"name", *ranges}), name
        FSPOLossConfig(rollout_correction=verls)


@pytest.mark.parametrize(("name", "outside"), [("fspo", "truncate"), ("rloo", "drop")])
def test_with_a_rule_on_the_loss_is_ours(name, outside):
    new, old, mask, advantages = batch(3, 0.3 if name == "rloo" else 0.1)
    config = actor(*OURS, SEQUENCE, *parts(f"rule={name}", f"outside={outside}"))
    loss, gradient, metrics = run("fspo", config, new, old, mask, advantages)
    out = objective(new, old, mask, advantages, preset(name, outside=outside).rule, ObjectiveConfig("response"))
    out.loss.backward()
    assert_same((loss, gradient), (out.loss.item(), new.grad))
    assert 0 < metrics["actor/pg_clipfrac"] < 1
    assert metrics["actor/fspo_band_acceptance"] == pytest.approx(float(out.records.band_accept.double().mean()))


def test_the_example_configuration_is_one_that_verl_takes():
    with initialize_config_dir(str(ROOT / "examples"), version_base=None):
        config = compose("verl_fspo")
    found = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert isinstance(found.policy_loss, FSPOLossConfig)
    assert found.policy_loss.clip_rule() == preset("fspo").rule
    loss, _, _ = run(found.policy_loss.loss_mode, found, *(data := batch(9, 0.1)))
    assert loss == pytest.approx(objective(*data, preset("fspo").rule).loss.item(), rel=1e-5)
    assert config.data.train_batch_size // found.ppo_mini_batch_size > 1  # or S would be 0 throughout


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ((), "loss_agg_mode='token-mean' weighs whole responses.*set it to 'seq-mean-token-mean'"),
        ((SEQUENCE, f"{ACTOR}clip_ratio_high=0.28"), "clip_ratio_high=0.28.*set policy_loss.range_hi"),
        ((SEQUENCE, f"{ACTOR}clip_ratio_c=10.0"), "clip_ratio_c=10.0.*set policy_loss.dual"),
    ],
)
def test_settings_that_undo_the_rule_are_refused(overrides, line):
    with pytest.raises(UserError, match=line) as caught:
        run("fspo", actor(*OURS, *overrides), *batch(6, 0.1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"loss_mode": "vanilla"}, "loss_mode is 'vanilla'.*set it to 'fspo'"),
        ({"rule": "fspo-kl"}, r"set policy_loss\.drift_source=lagged"),
        ({"rule": "fsop"}, "did you mean 'fspo'"),
        ({"range_lo": 0.0}, "range_lo is 0.0: use a number above 0"),
        ({"rollout_correction": {"bypass_mode": True}}, "bypass_mode=True takes the sampler's log-probs"),
        ({"rollout_correction": {"rollout_rs": "seq_sum_k1,token_k2"}}, "drops tokens of a response"),
        ({"correction": {"preset": "tis"}}, r"policy_loss\.correction is gone: set algorithm\.rollout_correction"),
    ],
)
def test_rules_that_cannot_work_are_refused(options, line):
    with pytest.raises(UserError, match=line):
        FSPOLossConfig(**options)


def test_a_band_that_remembers_and_whose_actor_is_not_ours_is_refused():
    with pytest.raises(UserError, match=r"policy_loss\.rule 'fspo-adaptive' has not reached the loss"):
        run("fspo", actor(*OURS, SEQUENCE, *parts("rule=fspo-adaptive")), *batch(7, 0.1))


def test_advantages_of_tokens_are_refused():
    new, old, mask, _ = batch(8, 0.1)
    with pytest.raises(UserError, match=r"set algorithm\.adv_estimator"):
        get_policy_loss_fn("fspo")(old, new, torch.randn(mask.shape), mask, "seq-mean-token-mean", actor(*OURS))


def test_verl_finds_the_plugin_by_its_entry_point(tmp_path):
    """The project installed as users install it; nothing but `import verl` is said."""
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(ROOT / "fspo", source / "fspo")  # a copy: building leaves folders behind
    for name in ("pyproject.toml", "README.md", "LICENSE", "paper_repro.py"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(source)],
        check=True,
        capture_output=True,
    )
    code = "import verl.trainer.ppo.core_algos as c; print(c.get_policy_loss_fn('fspo').__code__.co_filename)"
    path = os.pathsep.join([str(target), *(p for p in sys.path if p and Path(p) != ROOT)])
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=target, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert found.stdout.split()[-1:] == [str(target / "fspo" / "integrations" / "verl.py")], found.stderr[-2000:]
