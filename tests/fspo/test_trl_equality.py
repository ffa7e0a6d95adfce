"""Our loss and gradient against TRL's own code (a real GRPOTrainer, its `_compute_loss`) on random inputs.

The whole path is compared: forward pass, log-probabilities, ratios, clipping, aggregation, parameter gradients.
"""

import math

import pytest
from trl_batch import assert_same, our_loss, rows, trl_loss

from fspo.rules import Rule, preset


def compare(tmp_path, seed, rule, aggregation, spread, *, with_holes=False, kl_coef=0.0, **options):
    data = rows(seed)
    holes = data[4] if with_holes else None
    out, ours, old, ref = our_loss(data, rule, aggregation, spread, holes=holes, kl_coef=kl_coef)
    loss, theirs, metrics = trl_loss(tmp_path, data, old, holes=holes, ref=ref, **options)
    assert out.loss.item() == pytest.approx(loss, rel=1e-5, abs=1e-7)
    assert_same(ours, theirs)
    return out.records, metrics


@pytest.mark.parametrize("with_holes", [False, True])
def test_gspo_is_trls_sequence_level(tmp_path, with_holes):
    # a spread at which some responses are cut and others kept
    records, metrics = compare(
        tmp_path, 0, preset("gspo").rule, "response", 2e-3, with_holes=with_holes,
        importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4,
    )  # fmt: skip
    low, high, size = int(records.clipped_low.sum()), int(records.clipped_high.sum()), len(records.count)
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
        int((records.clipped_low + records.clipped_high).sum()) / tokens, rel=1e-5
    )


def test_dual_clip_is_trls_delta(tmp_path):
    # TRL holds the ratio at delta where A < 0; ours is d * log(1 + eps) = log(delta)
    rule = Rule("token", 0.2, 0.2, dual=math.log(1.5) / math.log(1.2))
    records, _ = compare(tmp_path, 6, rule, "sequence", 0.4, importance_sampling_level="token", epsilon=0.2, delta=1.5)
    assert int(records.clipped_dual.sum()) > 0


@pytest.mark.parametrize(("level", "name"), [("token", "grpo"), ("sequence", "gspo")])
def test_kl_to_the_reference_is_trls(tmp_path, level, name):
    rule = preset(name).rule
    compare(
        tmp_path, 7, rule, "sequence", 1e-3 if name == "gspo" else 0.3, kl_coef=0.7, beta=0.7,
        importance_sampling_level=level, epsilon=rule.range_lo, epsilon_high=rule.range_hi,
    )  # fmt: skip
