"""Value and gradient of every rule: by hand, by finite differences."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from objective_run import RULES, SEQUENCE, STATS, run

from fspo.base.errors import UserError
from fspo.objective import ObjectiveConfig, aggregate, kl_terms, objective, ratio_stats
from fspo.rules import DriftStats, preset

E = math.exp


# One response of L = 4 equal tokens. name, changes, S, A -> J, dJ/ds_t (the same for each token). By hand; what "drop"
# does is compared with PPO's minimum below:
HAND = [
    # rloo: [log .8, log 1.2] = [-.2231, .1823]; clipped above for A > 0: J = 1.2 A, no gradient
    ("rloo", {}, 0.4, 2.0, 2.4, 0.0),
    # dual clip 3: edge 3 log 1.2 = .5470, where the weight is 1.2^3 = 1.728
    ("rloo", {"dual": 3.0, "outside": "truncate"}, 0.6, -1.0, -1.728, -1.728),
    # gspo: S/L against log 1.0004 = .00039992; the gradient of exp(S/4) by s_t is exp(S/4)/4
    ("gspo", {"outside": "truncate"}, 0.004, 1.0, 1.0004, 1.0004 / 4),
    # truncate: value and gradient at the edge on the active side; cap: at most exp(.06) whatever the sign
    ("truncate", {}, -0.10, -1.0, -0.9417645336, -0.9417645336),
    ("truncate", {}, 0.10, -1.0, -1.1051709181, -1.1051709181),
    ("cap", {}, 0.10, -1.0, -1.0618365465, -1.0618365465),
    ("cap", {}, -0.10, -1.0, -0.9048374180, -0.9048374180),
    # mask: no gradient on either side, whatever the sign
    ("fspo", {"outside": "mask"}, 0.10, -1.0, -1.0618365465, 0.0),
    ("fspo", {"outside": "mask"}, -0.10, 1.0, 0.9417645336, 0.0),
]


@pytest.mark.parametrize(("name", "changes", "S", "A", "value", "slope"), HAND)
def test_sequence_rules_by_hand(name, changes, S, A, value, slope):
    J, grad, _ = run(replace(RULES[name], **changes), [[S / 4] * 4], [A], stats=STATS)
    assert pytest.approx(value, rel=1e-9) == J
    np.testing.assert_allclose(grad, [[slope] * 4], rtol=1e-9, atol=0)  # atol 0: a dropped gradient is exactly 0


def test_token_rule_by_hand():
    s = [[0.1, 0.3, -0.3, -0.1]]  # band [-.2231, .1823]
    for A, clipped in ((1.0, (1, 0)), (-1.0, (0, 1))):  # one token is clipped, of .3 or of -.3
        _, _, records = run(preset("grpo").rule, s, [A], SEQUENCE)
        assert (int(records.clipped_high), int(records.clipped_low)) == clipped
        assert (int(records.count), bool(records.band_accept), float(records.multiplier)) == (4, False, 0.75)
    for outside, sign in (("truncate", 1.0), ("cap", -1.0)):  # held at 1.2: value and gradient
        J, grad, _ = run(preset("grpo", outside=outside).rule, [[0.1, 0.3]], [sign], SEQUENCE)
        assert pytest.approx(sign * (E(0.1) + 1.2) / 2) == J
        np.testing.assert_allclose(grad, [[sign * E(0.1) / 2, sign * 1.2 / 2]], rtol=1e-12)


def ppo(rule, s, mask, A, stats):
    """mean_i of PPO's min (and dual max), written without the package's clip: the function that `drop` descends."""
    n, centre = mask.sum(1).astype(float), 0.0
    if rule.shape == "token":
        S, scale, A, lo, hi = s, 1.0, A[:, None], math.log1p(-rule.range_lo), math.log1p(rule.range_hi)
    else:
        S, scale = (s * mask).sum(1), n if rule.weight == "geometric" else 1.0
        lo, hi = rule.band(n, rule.centre(stats))
        centre = rule.centre(stats) * n
    j = np.minimum(np.exp(S / scale) * A, np.exp(np.clip(S, lo, hi) / scale) * A)
    if rule.dual is not None and rule.shape != "none":
        j = np.where(A < 0, np.maximum(j, np.exp((centre + rule.dual * (hi - centre)) / scale) * A), j)
    return float(np.mean((j * mask).sum(1) / n if rule.shape == "token" else j))


DROPPED = [name for name, rule in RULES.items() if rule.outside == "drop"]


@pytest.mark.parametrize("dual", [None, 2.0])
@pytest.mark.parametrize("name", DROPPED)
def test_drop_is_the_gradient_of_ppos_minimum(name, dual):
    rng = np.random.default_rng(7)
    B, T = 40, 9
    mask = rng.random((B, T)) < 0.7
    mask[:, 0] = True
    spread = {"gspo": 1e-3, "rloo": 0.2, "grpo": 0.4, "power": 0.1}.get(name, 0.05)
    s, A = rng.normal(0, spread, (B, T)), rng.choice([-1.3, -0.4, 0.0, 0.9], B)
    stats = DriftStats(2e-3, 4e-3, 1.0)
    rule = replace(RULES[name], dual=dual)
    J, grad, records = run(rule, s, A, SEQUENCE, mask, stats=stats)
    assert pytest.approx(ppo(rule, s, mask, A, stats), rel=1e-12) == J
    if name != "none":
        cuts = int(records.clipped_low.sum() + records.clipped_high.sum() + records.clipped_dual.sum())
        assert 0 < cuts < int(records.count.sum())  # both branches are in play
        assert (int(records.clipped_dual.sum()) > 0) == (dual is not None)
    step = 1e-7 if name == "gspo" else 1e-6
    for i, t in [(i, t) for i in range(B) for t in range(0, T, 3)]:
        up, down = s.copy(), s.copy()
        up[i, t] += step
        down[i, t] -= step
        slope = (ppo(rule, up, mask, A, stats) - ppo(rule, down, mask, A, stats)) / (2 * step)
        assert slope == pytest.approx(grad[i, t], rel=1e-5, abs=1e-8)


# ---- aggregation, KL, records


def test_aggregations_by_hand():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    tokens, rows = torch.tensor([[1.0, 2.0, 6.0], [5.0, 99.0, math.nan]]), torch.tensor([3.0, 5.0])
    by_name = {"response": (7.0, 4.0), "sequence": (4.0, 4.0), "token": (3.5, 3.5), "constant": (1.4, 1.4)}
    # tokens: (9+5)/2, (3+5)/2, 14/4, 14/(2*5); rows: (3+5)/2 twice, (3*3+5)/4, 14/10
    for name, (from_tokens, from_rows) in by_name.items():
        # "".join: a new string, as a configuration file gives one
        config = ObjectiveConfig("".join(name), constant_length=5 if name == "constant" else None)
        assert float(aggregate(tokens, mask, config)) == pytest.approx(from_tokens)
        assert float(aggregate(rows, mask, config)) == pytest.approx(from_rows)


def test_kl_to_reference_by_hand():
    # x = ref - new = .2, -.3: k3 = exp(x) - 1 - x; d k3 / d new = 1 - exp(x)
    new = torch.tensor([[-1.0, -2.0, math.nan]], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([[-0.8, -2.3, 0.0]], dtype=torch.float64)
    mask, A = torch.tensor([[True, True, False]]), torch.zeros(1)
    config = ObjectiveConfig("sequence", kl_coef=0.5)
    out = objective(new, new.detach(), mask, A, preset("fspo").rule, config, ref=ref)
    k3 = [E(0.2) - 1.2, E(-0.3) - 0.7]
    assert out.loss.item() == pytest.approx(0.5 * sum(k3) / 2)
    (grad,) = torch.autograd.grad(out.loss, new)
    np.testing.assert_allclose(grad, [[0.25 * (1 - E(0.2)), 0.25 * (1 - E(-0.3)), 0.0]], rtol=1e-12)
    assert float(out.records.kl) == pytest.approx(sum(k3))


def test_kl_is_finite_far_from_the_reference():
    new = torch.tensor([[-1e4, -1.0]], requires_grad=True)
    kl = kl_terms(new, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    kl.sum().backward()
    assert torch.isfinite(kl).all()
    assert new.grad[0, 0].item() == pytest.approx(1 - E(20), rel=1e-6)  # the exponent is capped, the gradient kept


def test_records_by_hand():
    s = [[0.1, -0.3, 7.0], [0.02, 0.02, 0.02]]
    mask = [[True, True, False], [True, True, True]]
    _, _, r = run(RULES["truncate"], s, [-1.0, 0.0], None, mask)
    # row 0: S = -.2 < -.03 sqrt 2 and A < 0; row 1: S = .06 > .03 sqrt 3 = .05196, but A = 0
    assert r.length.tolist() == [2, 3]
    np.testing.assert_allclose(r.log_ratio, [-0.2, 0.06])
    np.testing.assert_allclose(r.sum_sq_log_ratio, [0.10, 0.0012])
    np.testing.assert_allclose(r.k3_sum, [E(0.1) - 1.1 + E(-0.3) - 0.7, 3 * (E(0.02) - 1.02)])
    np.testing.assert_allclose(r.hi, [0.03 * math.sqrt(2), 0.03 * math.sqrt(3)])
    np.testing.assert_allclose(r.lo, [-0.03 * math.sqrt(2), -0.03 * math.sqrt(3)])
    np.testing.assert_allclose(r.weight, [E(-0.2), E(0.06)])
    np.testing.assert_allclose(r.multiplier, [E(0.2 - 0.03 * math.sqrt(2)), 1.0])
    assert r.side.tolist() == [-1, 0]
    assert r.band_accept.tolist() == [False, False]
    assert (r.clipped_low.tolist(), r.clipped_high.tolist(), r.count.tolist()) == ([1, 0], [0, 0], [1, 0])
    stats = ratio_stats(vars(r))
    assert (stats.num_tokens, stats.sum_sq) == (5.0, pytest.approx(0.1012))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: ObjectiveConfig("respons"), "'response'"),  # type: ignore[arg-type]
        (lambda: ObjectiveConfig("constant"), "constant_length"),
        (lambda: ObjectiveConfig("constant", constant_length=0), "constant_length is 0: use 1 or more"),
        (lambda: ObjectiveConfig(kl_coef=-1.0), "kl_coef"),
        (lambda: run(preset("fspo").rule, [[0.1]], [1.0], ObjectiveConfig(kl_coef=0.1)), "ref"),
        (lambda: run(preset("fspo").rule, [[0.1]], [1.0, 2.0]), "advantages"),
        (lambda: run(preset("fspo").rule, [[0.1]], [1.0], None, [[True, True]]), "mask"),
        (lambda: run(preset("fspo-kl").rule, [[0.1]], [1.0]), r"m=rule\.centre"),
    ],
)
def test_bad_input_is_refused_with_the_cure(call, word):
    with pytest.raises(UserError, match=word):
        call()
