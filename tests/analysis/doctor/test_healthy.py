"""The simulated healthy runs: their gradient, their lengths, their list, and the law that they obey by construction."""

from dataclasses import replace

import numpy as np
import pytest

from fspo.gradlog import read_log
from tests.analysis.doctor.healthy import KINDS, TOKENS, SimulatedRun, draw, first_table, gradient, write_simulated_run


def test_the_gradient_is_that_of_the_log_probabilities():
    rng = np.random.default_rng(0)
    table = first_table(SimulatedRun(lengths=(4, 9)), rng)
    drawn = draw(table, rng.integers(0, KINDS, 12), 30, rng)
    each = rng.standard_normal(12)
    exact = gradient(drawn, table, each)
    for row, token in ((drawn.state[0], drawn.token[0]), (drawn.state[5], 3), (drawn.state[-1], 0)):
        up, down = table.copy(), table.copy()
        up[row, token] += 1e-6
        down[row, token] -= 1e-6
        rise = np.sum(each * (drawn.sums(drawn.logprobs(up)) - drawn.sums(drawn.logprobs(down)))) / 2e-6
        assert exact[row, token] == pytest.approx(rise, abs=1e-6)
    assert exact.shape == (KINDS * TOKENS, TOKENS)


def test_kinds_of_prompts_have_the_mean_lengths_of_the_world():
    rng = np.random.default_rng(1)
    table = first_table(SimulatedRun(lengths=(6, 96)), rng)
    for kind, mean in ((0, 6), (KINDS - 1, 96)):
        length = draw(table, np.full(4000, kind), 2000, rng).length
        assert length.mean() == pytest.approx(mean, rel=0.06)  # sd of a geometric length is its mean: .016 of error


@pytest.mark.parametrize(
    "plan", [SimulatedRun(), SimulatedRun(steps="heavy", engine=0.02), SimulatedRun(selected=True, group=4)]
)
def test_weights_to_the_sampler_have_mean_1_at_first_use(plan, tmp_path):
    """T5 and T13; selection of groups by their outcome moves the mean by less than .003 in these simulated runs."""
    weights = []
    for seed in range(6):
        log = read_log(write_simulated_run(tmp_path / str(seed), replace(plan, lengths=(4, 20), rollouts=6), seed))
        first = (log.column("times_used") == 0) & (log.column("updates_since_rollout") > 0)
        x = log.column("log_ratio") + (log.column("behaviour_log_ratio") if plan.engine else 0)
        weights.append(np.exp(x[first]).mean())
    error = np.std(weights) / np.sqrt(6)
    assert abs(np.mean(weights) - 1) < 4 * error + 0.002
    assert error < 0.02
