"""Logs that are rewritten as a defect would: what names it, and S that does not spread as its tokens do."""

import numpy as np
import pytest

from analysis.doctor.examine import examine
from tests.analysis.doctor.defects import AUDITED, Defect
from tests.analysis.doctor.healthy import SimulatedRun, write_simulated_run
from tests.analysis.doctor.log_changes import add, after, rewritten
from tests.analysis.doctor.made import laws
from tests.analysis.doctor.planted import Plan, write_run

REVERSED = Defect("A has the other sign", "estimator", lambda c, r, i: c | {"advantage": -c["advantage"]})
LAWS = (
    Defect("S before the update", "before_update", lambda c, r, i: add(c, 0.002 * c["length"])),
    Defect("S after it", "mean_weight", lambda c, r, i: add(c, 0.1 * after(c))),
    Defect("S is held", "spread_of_s", lambda c, r, i: c | {"log_ratio": np.clip(c["log_ratio"], -0.1, 0.1)}),
    Defect("float16", "values_of_s", lambda c, r, i: c | {"log_ratio": np.float64(np.float16(c["log_ratio"]))}),
    Defect("times_used is 0", "uses", lambda c, r, i: c | {"times_used": c["times_used"] * 0}),
    REVERSED,
    Defect("a step lacks", "log", lambda c, r, i: c | {"step": c["step"] + (i > 4)}),
    Defect("E grows", "mismatch", lambda c, r, i: c | {"engine_log_ratio": -0.01 * c["length"]}),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    metrics = write_run(folder / "metrics", Plan(rollouts=6), 5)
    return metrics, write_simulated_run(folder / "engine", SimulatedRun(engine=0.01), 9200)


@pytest.mark.parametrize("defect", AUDITED + LAWS, ids=lambda defect: defect.says)
def test_a_defect_is_named(tmp_path, sound, defect):
    base = sound[defect in AUDITED and not defect.rightly.startswith("mean_length")]
    assert not examine(base).fails("warning")
    issues = examine(rewritten(base, tmp_path / "spoilt", defect.change, 1)).issues
    assert defect.named_by(issues), [a.summary for a in issues]
    assert any("has the wrong sign" in issue.fix for issue in issues) == (defect is REVERSED)


@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (0.9, False), (0.3, True)])
def test_s_must_spread_as_its_tokens_do(factor, found):
    """Each response has one token that is e^s = 2 or 0 with equal chances, so S + k3 = e^s - 1 is 1 or -1: its square
    is 1, and the least value is (1 - e^-|s|)^2 = .25 for e^s = 2 and nearly 1 for e^s near 0, on average .625."""
    e = np.where(np.arange(4000) % 2, 2.0, 1e-9)
    s = np.log(e)
    k3 = factor * (e - 1) - factor * s  # S and S + k3 are both held to the share
    columns = {"length": np.full(4000, 9.0), "log_ratio": factor * s, "k3_sum": k3, "sum_sq_log_ratio": s * s}
    answer = laws(**columns)["spread_of_s"]
    assert answer.evidence[0].value == pytest.approx(factor**2 / 0.625, rel=1e-6)
    error = factor**2 * 0.6 * np.sqrt(4000) / 2500  # residuals of .6 and -.6, over a sum of the least values of 2500
    assert answer.evidence[0].low == pytest.approx(factor**2 / 0.625 - 2 * error, rel=1e-6)
    assert answer.found == found
