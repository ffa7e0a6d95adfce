"""The integrity check of summary.json."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.options import Options
from analysis.rules.recompute import same_weight
from analysis.run import analyse_runs

FAST = Options(rules=("fspo",), draws=1)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_weights_below_what_a_float32_can_hold_are_sound(simulate: Callable[..., Path], sigma: float) -> None:
    """A run that collapsed: exp(S) is written as 0 where S < -103.97, and as a coarse number above it."""
    run = simulate("collapsed", sigma=sigma, drift=-3.0, width=0)
    summary = analyse_runs([run], FAST)[run]
    assert summary["integrity"]["weight_mismatch_share"] == 0
    assert summary["integrity"]["pass"] is not False
    assert not any("differs" in line for line in summary["warnings"])


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
    ("column", "value"),
    [
        ("multiplier", lambda x, t: x * 0 + 1),
        ("multiplier", lambda x, t: x * np.nan),
        ("times_used", lambda x, t: x * 0),
        ("updates_since_rollout", lambda x, t: x + 1),
        ("k3_sum", lambda x, t: 10 * x),
        ("hi", lambda x, t: 1.001 * x),
        ("sum_sq_log_ratio", lambda x, t: x * 0),
        ("weight", lambda x, t: np.where(t["updates_since_rollout"].to_numpy() == 0, 1.5, x)),
    ],
)
def test_a_rewritten_column_makes_a_log_unsound(simulate, column: str, value: Callable) -> None:
    run = simulate(width=0, rollouts=2)
    for file in (run / "gradlog").iterdir():
        table = pq.read_table(file)
        place = table.column_names.index(column)
        new = pa.array(value(table[column].to_numpy(), table), table.schema.field(column).type)
        pq.write_table(table.set_column(place, column, new).cast(table.schema), file)
    summary = analyse_runs([run], FAST)[run]
    assert summary["integrity"]["pass"] is False
    assert any(f"the logged {column} differs" in line for line in summary["warnings"])
