"""What the doctor says of the engine ratio E: its cause, its severity, truncated sampling."""

import numpy as np
import pytest

from analysis.doctor.findings import Severity
from analysis.doctor.mismatch import Mismatch
from fspo.rules import correction
from tests.analysis.doctor.made import rows_of


def engine(E, L, k3, left=1.0, **options):
    """Return the findings about E, by id; ``left`` is the factor that a correction left of each response."""
    mismatch = Mismatch(**options)
    rows = rows_of(
        len(E), length=L, engine_log_ratio=E, engine_k3_sum=k3, behaviour_log_ratio=E, correction_weight=left + 0 * E
    )
    mismatch.add(rows, np.ones(len(E), bool))
    return {answer.id: answer for answer in mismatch.answers() if answer.found}


@pytest.mark.parametrize(("spread", "wanted"), [(0.0, True), (0.2, False)])
def test_truncated_sampling_is_called_so_at_a_level(spread, wanted):
    """E is -.002 for each token; or it has noise beside, so that E + k3 is above 0 in more than a response of twenty.
    A response tells 1.05 at most, so 60 of them do not reach odds of 1000 and 600 do."""
    rng = np.random.default_rng(1)
    for n in (60, 600):
        L = rng.integers(16, 64, n) * 1.0
        E = -0.002 * L * (1 + 10 * spread * rng.standard_normal(n))
        assert ("sampler_law" in engine(E, L, 2e-6 * L)) == (wanted and n == 600)


def test_a_cause_of_the_engine_ratio_is_named_only_where_a_law_is_broken():
    rng, n = np.random.default_rng(9), 8000
    L = rng.integers(16, 64, n) * 1.0
    noise = 0.15 * np.sqrt(L) * rng.standard_normal(n) - 0.15**2 / 2 * L
    k3 = 0.15**2 / 2 * L
    found = engine(noise, L, k3)
    assert "differ by noise" in found["engine"].summary
    assert found["engine"].severity == Severity.WARNING  # nothing bounds it
    assert "sampler_law" not in found
    kept = engine(noise, L, k3, correction=correction("tis"))
    assert "differ by noise" in kept["engine"].summary
    assert kept["engine"].severity == Severity.INFO
    less = engine(noise, L, k3, correction=correction("tis"), left=0.4)  # a correction that leaves less than half
    assert less["engine"].severity == Severity.WARNING
    assert "another temperature" in engine(noise + 0.02 * L, L, k3)["engine"].summary
    assert "a token less" in engine(noise / 5 - 0.4, L, k3 / 25, same=True)["engine"].summary
    assert "top-p" in engine(-0.02 * L * rng.uniform(0.5, 1.5, n), L, 0 * L)["sampler_law"].summary
