"""Our loss and gradient against TRL's own code (a real GRPOTrainer, its `_compute_loss`) on random inputs.

The whole path is compared: forward pass, log-probabilities, ratios, clipping, aggregation, parameter gradients.
"""

from dataclasses import replace

import pytest
from trl import GRPOConfig
from trl_batch import assert_same, our_loss, rows, trl_loss

from fspo.integrations.trl_rules import clip_of
from fspo.rules import preset

GSPO = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
CASES = {  # TRL's options, our aggregation, a spread at which some responses (or tokens) are cut and others kept
    "gspo": (GSPO, "response", 2e-3),
    "gspo-kl": (GSPO | {"beta": 0.7}, "sequence", 2e-3),
    "grpo": ({"epsilon": 0.2}, "sequence", 0.3),
    "grpo-kl": ({"epsilon": 0.2, "beta": 0.7}, "sequence", 0.3),
    "bnpo": ({"loss_type": "bnpo", "epsilon": 0.1, "epsilon_high": 0.2}, "token", 0.3),
    "dr_grpo": ({"loss_type": "dr_grpo", "epsilon": 0.2}, "constant", 0.3),
    "dual": ({"epsilon": 0.1, "epsilon_high": 0.2, "delta": 1.3}, "sequence", 0.3),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.1}, "token", 0.3),
}


@pytest.mark.parametrize("with_holes", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_trls_own_clip_as_a_rule_gives_trls_loss_and_gradient(tmp_path, name, with_holes):
    options, aggregation, spread = CASES[name]
    options, data = {"loss_type": "grpo"} | options, rows(7)
    holes, kl_coef = data[4] if with_holes else None, options.get("beta", 0.0)
    rule = clip_of(GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **options))
    ours = preset("gspo" if name.startswith("gspo") else "grpo").rule
    free = {part: getattr(ours, part) for part in ("range_lo", "range_hi", "dual", "outside", "name")}
    assert replace(rule, **free) == ours
    out, gradients, old, ref = our_loss(data, rule, aggregation, spread, holes=holes, kl_coef=kl_coef)
    loss, theirs, metrics = trl_loss(tmp_path, data, old, holes=holes, ref=ref, **options)
    assert_same(gradients, theirs)
    records = out.records
    low, high, dual = (int(x.sum()) for x in (records.clipped_low, records.clipped_high, records.clipped_dual))
    assert 0 < low + high < int(records.count.sum())
    assert (dual > 0) == (name == "dual")
    if name != "cispo":  # its loss has the gradient alone in common with ours
        assert out.loss.item() == pytest.approx(loss, rel=1e-5, abs=1e-7)
        # TRL counts rows with A = 0 in the denominator
        size = len(records.count) if name.startswith("gspo") else int(records.length.sum())
        assert metrics["clip_ratio/low_mean"] == pytest.approx(low / size, rel=1e-5)
        assert metrics["clip_ratio/high_mean"] == pytest.approx(high / size, rel=1e-5)
