"""The law at each position of a response, on logged token log-ratios."""

import numpy as np
import pytest

from analysis.doctor.doctor import Doctor
from fspo.gradlog import GradLogWriter


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        (None, ""),
        ("shifted", "E[e^s] of a token after its prefix is"),
        ("missing", "have another number of tokens than the length"),
        ("replaced", "do not add up to S"),
    ],
)
def test_token_log_ratios_obey_the_law_at_each_position(tmp_path, defect, said):
    """Tokens of chance 1/2 or so under old and new weights; new less old of the token before is a shift by one."""
    rng, writer, n = np.random.default_rng(3), GradLogWriter(tmp_path), 200
    for rollout in range(4):
        lists, L = [], rng.integers(8, 60, n)
        for size in L:
            p = rng.uniform(0.2, 0.8, size)
            later = p + 0.05 * rng.choice([-1, 1], size)
            old, new = (np.log(np.where(drawn, q, 1 - q)) for drawn in [rng.random(size) < p] for q in (p, later))
            lists.append(new - (np.append(old[0], old[:-1]) if defect == "shifted" else old))
        S = [x.sum() for x in lists]
        logged = [
            x[:-1] if defect == "missing" else np.append(x[:-1], 0.5) if defect == "replaced" else x for x in lists
        ]
        rows = {"rollout": rollout, "step": 2 * rollout + 1, "updates_since_rollout": 1, "times_used": 0}
        rows |= {"prompt_id": np.arange(n) // 4, "response_id": rollout * n + np.arange(n), "length": L}
        rows |= {"log_ratio": S, "advantage": rng.standard_normal(n), "token_log_ratio": logged}
        writer.append(rows)
        writer.flush(rollout)
    doctor = Doctor.of(tmp_path, {})
    doctor.read()
    answer = doctor.tokens.answer()
    assert answer.found == (defect is not None)
    assert said in answer.summary
    if defect == "shifted":
        assert "from position 2 on" in answer.summary
        assert answer.since == 0
    if defect is None:
        assert doctor.tokens.rows == 800
        assert answer.evidence[0].name == "mean of e^s from position 1 on (expected: 1)"
        assert answer.evidence[0].value == pytest.approx(1, abs=0.02)
