"""Corrections of the sampler's mismatch: value and gradient by hand, and with every kind of clip rule."""

import math

import numpy as np
import pytest
import torch
from objective_run import RULES, SEQUENCE, STATS, run

from fspo.base.errors import UserError
from fspo.objective import Mismatch, ratio_stats
from fspo.rules import CORRECTIONS, Rule, correction, preset

E = math.exp
NONE = Rule("none")


def mismatch(e, d=0.0, mask=True):
    """The mismatch whose e_t are ``e`` (B, T) and whose d_t are ``d``; the old log-probs are -1.3 as in `run`."""
    e = torch.tensor(e, dtype=torch.float64)
    old = torch.full_like(e, -1.3)
    version = old - d
    return Mismatch.of(old, version - e, torch.as_tensor(mask).expand(e.shape), version)


# Four tokens with s_t = .05 and no band: w = e^.2, A = 2. correction, e_t -> factors f_t. By hand:
HAND = [
    ("tis", [0.1, 0.8, -1.0, 0.0], [E(0.1), 2.0, E(-1.0), 1.0]),  # min(e^{e_t}, 2), log 2 = .693
    ("mis", [0.27] * 4, [E(1.08)] * 4),  # log 3 = 1.0986
    ("mis", [0.28] * 4, [0.0] * 4),
    ("mis", [-0.28] * 4, [0.0] * 4),
    ("geo-mask", [0.0039, 0.0, 0.0, 0.0], [1.0] * 4),  # 4 log 1.001 = .003998
    ("geo-mask", [0.0041, 0.0, 0.0, 0.0], [0.0] * 4),
    ("geo-mask", [-0.0041, 0.0, 0.0, 0.0], [0.0] * 4),  # 4 log .999 = -.004002
    ("icepop", [1.65, -0.7, 0.3, 0.0], [0.0, 0.0, E(0.3), 1.0]),  # log 5 = 1.609, log .5 = -.693
    # half-width .1 sqrt 4 = .2 around 4 * -.01: [-.24, .16]
    ("engine-sqrt", [0.17, 0.0, 0.0, 0.0], [0.0] * 4),
    ("engine-sqrt", [-0.23, 0.0, 0.0, 0.0], [E(-0.23)] * 4),
    ("engine-sqrt", [-0.25, 0.0, 0.0, 0.0], [0.0] * 4),
]


@pytest.mark.parametrize("A", [2.0, -2.0])
@pytest.mark.parametrize(("name", "e", "f"), HAND)
def test_factors_by_hand(name, e, f, A):
    """The sign of A plays no part: the factor says how the response was drawn, not what it is worth."""
    rule = CORRECTIONS[name]
    how = {"mismatch": mismatch([e]), "correction": rule, "correction_m": rule.centre(STATS)}
    J, grad, r = run(NONE, [[0.05] * 4], [A], **how)
    assert pytest.approx(A * E(0.2) * np.mean(f), rel=1e-12) == J
    np.testing.assert_allclose(grad, [A * E(0.2) * np.array(f)], rtol=1e-12, atol=0)  # atol 0: a cut factor is 0
    assert float(r.correction_weight) == pytest.approx(np.mean(f), rel=1e-12)
    token = rule.level == "token"
    cut = [x in (0.0, 2.0) for x in f]
    assert (int(r.correction_cut), int(r.correction_count)) == ((sum(cut), 4) if token else (int(all(cut)), 1))
    assert int(r.correction_side) == (0 if token or not all(cut) else int(np.sign(sum(e))))
    assert float(r.weight) == pytest.approx(E(0.2))  # the clip rule's columns do not hold the factor


def test_records_of_the_mismatch_by_hand():
    e, d, s = [[0.1, -0.3]], 0.02, [[0.05, 0.05]]
    _, _, r = run(NONE, s, [1.0], mismatch=mismatch(e, d), correction=CORRECTIONS["mis"])
    b, x = [0.12, -0.28], [0.17, -0.23]  # d + e, s + d + e

    def k3(values):
        return sum(E(v) - 1 - v for v in values)

    expected = (
        {"engine_log_ratio": -0.2, "engine_sum_sq": 0.1, "engine_k3_sum": k3(e[0])}
        | {"staleness_log_ratio": 0.04, "behaviour_log_ratio": -0.16, "behaviour_sum_sq": 0.0144 + 0.0784}
        | {"behaviour_k3_sum": k3(b), "behaviour_k2_max": 0.28**2 / 2}
        | {"behaviour_k3_max": E(-0.28) - 1 + 0.28, "total_sum_sq": 0.0289 + 0.0529, "total_k3_sum": k3(x)}
        | {"missing": 0, "correction_lo": math.log(1 / 3), "correction_hi": math.log(3)}
        | {"correction_drift": 0.0, "correction_weight": E(-0.16)}
    )
    for name, value in expected.items():
        assert float(getattr(r, name)) == pytest.approx(value, rel=1e-12), name
    stats = [ratio_stats(vars(r), on) for on in ("update", "engine", "behaviour")]
    assert [found.sum_sq for found in stats] == pytest.approx([0.005, 0.1, 0.0928])


def by_hand(rule, e, mask, m):
    """Factors f_t (B, T) in scalars; 0 outside the mask."""
    found = np.zeros(e.shape)
    for i, t in zip(*np.nonzero(mask), strict=True):
        here = mask[i] if rule.level == "sequence" else np.arange(len(e[i])) == t
        S, n = e[i][here].sum(), here.sum()
        below, above = rule.half_widths(np.float64(n))
        weight = E({"sequence": S, "geometric": S / n, "none": 0.0}[rule.weight])
        inside = m * n - below <= S <= m * n + above
        found[i, t] = weight if inside else 0.0 if rule.outside == "mask" else min(weight, E(m * n + above))
    return found


CORRECT = CORRECTIONS | {"geometric": correction("mis", weight="geometric")}


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize("clip", ["fspo", "gspo", "grpo"])
def test_a_factor_multiplies_what_the_clip_leaves(clip, name):
    rng = np.random.default_rng(3)
    mask = rng.random((30, 7)) < 0.8
    mask[:, 0] = True
    rule, corrected = RULES[clip], CORRECT[name]
    spread = {"geo-mask": 4e-3, "engine-sqrt": 0.1}.get(name, 0.6)
    e = np.where(mask, rng.normal(0, spread, mask.shape), np.nan)
    s, A = rng.normal(0, 0.05, mask.shape), rng.choice([-1.0, 0.7], 30)
    m = corrected.centre(STATS)
    f = by_hand(corrected, np.nan_to_num(e), mask, m)
    assert (f[mask] == 0).any() or corrected.outside == "cap"
    J, grad, _ = run(rule, s, A, SEQUENCE, mask)
    found = mismatch(e, mask=mask)
    J2, grad2, r = run(rule, s, A, SEQUENCE, mask, mismatch=found, correction=corrected, correction_m=m)
    np.testing.assert_allclose(grad2, f * grad, rtol=1e-10, atol=0)
    np.testing.assert_allclose(r.to_numpy()["correction_weight"], f.sum(1) / mask.sum(1), rtol=1e-10)
    assert J2 != J
    given = torch.as_tensor(np.where(mask, f, np.nan))
    J3, grad3, _ = run(rule, s, A, SEQUENCE, mask, factor=given)
    np.testing.assert_allclose([J3, *grad3.ravel()], [J2, *grad2.ravel()], rtol=1e-10, atol=1e-15)


def test_a_token_without_a_log_prob_of_the_sampler_is_counted_and_not_corrected():
    old = torch.full((2, 3), -1.3, dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    sampler = old - torch.tensor([[math.nan, 0.1, math.inf], [0.2, 0.1, math.nan]])
    found = Mismatch.of(old, sampler, mask, old - 0.5)
    assert found.missing.tolist() == [2, 0]
    torch.testing.assert_close(found.engine, torch.tensor([[0.0, -0.4, 0.0], [-0.3, -0.4, 0.0]]).double())
    torch.testing.assert_close(found.behaviour, torch.tensor([[0.5, 0.1, 0.5], [0.2, 0.1, 0.0]]).double())
    unknown = Mismatch.of(old, sampler, mask)
    assert unknown.engine is None
    torch.testing.assert_close(unknown.behaviour, torch.tensor([[0.0, 0.1, 0.0], [0.2, 0.1, 0.0]]).double())
    J, grad, r = run(NONE, np.zeros((2, 3)), [1.0, 1.0], None, mask, mismatch=unknown, correction=CORRECTIONS["tis"])
    assert math.isfinite(J)
    np.testing.assert_allclose(grad, np.array([[1.0, E(0.1), 1.0], [E(0.2), E(0.1), 0.0]]) / 2)
    assert r.missing.tolist() == [2, 0]


MIS, ENGINE, ONE_TOKEN = CORRECTIONS["mis"], CORRECTIONS["engine-sqrt"], mismatch([[0.1]])


@pytest.mark.parametrize(
    ("rule", "options", "word"),
    [
        (NONE, {"correction": MIS}, "mismatch=Mismatch"),
        (NONE, {"correction": ENGINE, "mismatch": ONE_TOKEN}, r"m=rule\.centre"),
        (NONE, {"correction": MIS, "mismatch": mismatch([[0.1, 0.2]])}, "mismatch"),
        (NONE, {"correction": ENGINE, "mismatch": ONE_TOKEN._replace(engine=None)}, "version"),
        (preset("fspo", on="engine").rule, {}, "use update, or make"),
        (NONE, {"factor": torch.ones(1, 2)}, "factor.*pass"),
        (NONE, {"factor": torch.ones(1), "correction": MIS, "mismatch": ONE_TOKEN}, "would both weigh a response"),
    ],
)
def test_what_cannot_go_together_is_refused_with_the_cure(rule, options, word):
    with pytest.raises(UserError, match=word):
        run(rule, [[0.1]], [1.0], **options)
