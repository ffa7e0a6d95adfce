"""The integrity check of summary.json."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.options import Options
from analysis.rules.recompute import same_weight
from analysis.run import analyse_runs
from fspo.rules import Rule, correction
from tests.analysis.conftest import rewrite


def summary(run: Path, on: str = "update") -> dict:
    return analyse_runs([run], Options(rules=() if on == "engine" else ("fspo",), draws=1, on=on))[run]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("sigma", [0.3, 4.0])
def test_weights_below_what_a_float32_can_hold_are_sound(simulate: Callable[..., Path], sigma: float) -> None:
    """A run that collapsed: exp(S) is written as 0 where S < -103.97, and as a coarse number above it."""
    found = summary(simulate("collapsed", sigma=sigma, drift=-3.0, width=0))
    assert found["integrity"]["weight_mismatch_share"] == 0
    assert found["integrity"]["pass"] is not False
    assert not any("differs" in line for line in found["warnings"])


def test_a_weight_is_compared_in_log_space() -> None:
    log_ratio = np.array([0.0, -50.0, -50.0, -50.0, -95.0, -103.9, -110.0, -110.0, 3.0])
    weight = np.exp(log_ratio)
    logged = weight.astype(np.float32).astype(np.float64)
    assert same_weight(logged, weight).all()
    logged[1] *= 1.001  # off by 1e-3 in log space, though only by 2e-25
    logged[2], logged[7] = 0.0, 1e-30
    logged[8] = np.nan
    assert same_weight(logged, weight).tolist() == [True, False, False, True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("changed", "value", "named"),
    [
        ("side", lambda x, _: -x, "side"),
        ("multiplier", lambda x, _: x * np.nan, "multiplier"),
        ("weight", lambda x, table: np.where(table["updates_since_rollout"].to_numpy() == 0, 1.5, x), "weight"),
        # S in bits: T7, T8 and, with every S inside the band, the sides know nothing of it; the weights do
        ("log_ratio", lambda x, _: x / np.log(2), "weight"),
    ],
)
def test_a_rewritten_column_makes_a_log_unsound(simulate, changed: str, value: Callable, named: str) -> None:
    rule = {"rule": Rule("sqrt", 10.0, 10.0, name="wide")} if changed == "log_ratio" else {}
    run = simulate(width=0, rollouts=2, **rule)
    assert summary(run)["integrity"]["pass"] is not False
    rewrite(run, **{changed: value})
    found = summary(run)
    assert found["integrity"]["pass"] is False
    assert any(f"the logged {named} differs" in line for line in found["warnings"])
    if changed == "log_ratio":
        assert found["integrity"]["side_mismatch_share"] == 0
    assert main([str(run), "--rules", "[fspo]", "--targets", "[0.9]", "--draws", "2"]) == 1


def test_a_wrong_correction_is_seen_and_a_rejected_response_whose_advantage_verl_zeroed_is_not(simulate) -> None:
    plan = {"engine": 0.05, "rollouts": 1, "width": 0}
    run = simulate(correction=correction("mis", on="engine", range_hi=0.1), **plan)
    sound = summary(run, "engine")["integrity"]
    assert sound["correction_weight_mismatch_share"] == sound["correction_side_mismatch_share"] == 0.0
    rewrite(run, advantage=lambda A, table: np.where(table["correction_weight"].to_numpy() == 0, 0, A))
    assert summary(run, "engine")["integrity"]["correction_weight_mismatch_share"] == 0.0
    rewrite(run, correction_weight=lambda x, _: 2 * x)
    assert summary(run, "engine")["integrity"]["pass"] is False
