"""The numbers that judge claims, by hand and against statsmodels."""

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm

from analysis.claims import estimands
from analysis.log.loading import load_run
from fspo.base.errors import UserError
from fspo.rules import Rule, preset
from tests.analysis.conftest import Plan, write_log


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("claims") / "none", Plan(rule=Rule("none"), rollouts=4, width=0, seed=3))


def test_slope_is_that_of_a_poisson_regression():
    rng = np.random.default_rng(0)
    length = np.round(np.exp(rng.uniform(1, 6, 3000)))
    clipped = rng.random(3000) < 0.02 * length**0.4
    design = sm.add_constant(np.log2(length))
    fitted = sm.GLM(clipped.astype(float), design, family=sm.families.Poisson()).fit()
    assert estimands.slope(clipped, length) == pytest.approx(fitted.params[1], abs=1e-6)


def test_slope_without_a_fit():
    length = np.array([2.0, 4.0, 8.0, 16.0])
    assert estimands.slope(np.zeros(4, bool), length) == estimands.slope(np.ones(4, bool), length) == 0.0
    assert estimands.slope(length == 16, length) == estimands.STEEPEST
    assert estimands.slope(length == 2, length) == -estimands.STEEPEST
    assert estimands.slope(length > 2, np.full(4, 8.0)) == 0.0


def test_a_range_clips_the_wanted_share_after_each_number_of_updates(run):
    rows = estimands.first_epoch(load_run(run).rows)
    assert set(rows.updates) == {1, 2, 3}
    assert np.all(rows.A != 0)
    for name in ("rloo", "gspo", "fspo"):
        clipped = estimands.clipped_offline(preset(name).rule, rows, 0.1)
        for position in (1, 2, 3):
            at = rows.updates == position
            assert np.sum(clipped[at]) == pytest.approx(0.1 * np.sum(at), abs=0.51)
        assert np.all((rows.S * rows.A)[clipped] > 0)  # only on the active side


def test_signs_by_hand():
    """Of 4 responses with A < 0 two are clipped, of 9 with A > 0 none: (2.5 / 5, 0.5 / 10)."""
    A = np.array([-1.0] * 4 + [1.0] * 9)
    assert estimands.rates_by_sign(np.arange(13) < 2, A) == (0.5, 0.05)


def test_the_slopes_of_a_log_whose_band_is_fair(run):
    """S | L is N(mu L, sigma^2 L): sqrt clips every length alike, fixed the long ones, linear the short ones."""
    measured = estimands.measure(run, "chain-add", "unclipped", "none", 3, 4)
    found = {(e.estimand, e.rule, e.clip_rate): e.value for e in measured}
    assert found["slope", "rloo", 0.05] > 0.3
    assert found["slope", "gspo", 0.05] < -0.3
    assert abs(found["slope", "fspo", 0.15]) < 0.15
    rows = estimands.first_epoch(load_run(run).rows)
    below, above = estimands.rates_by_sign(estimands.clipped_offline(preset("fspo").rule, rows, 0.05), rows.A)
    assert found["sign gap", "fspo", 0.05] == pytest.approx(below - 5 * above)
    assert found["log sign ratio", "fspo", 0.05] == pytest.approx(np.log(below / above))


def test_a_learnt_band_judges_each_update_by_earlier_ones_alone(run):
    rows = estimands.first_epoch(load_run(run).rows)
    rule = replace(preset("fspo-adaptive").rule, target=0.9, target_rate="update")
    clipped = estimands.clipped_by_learnt(rule, rows)
    steps = np.unique(rows.step)
    assert not clipped[rows.step == steps[0]].any()
    assert 0.03 < clipped[rows.step > steps[3]].mean() < 0.3
    last = rows.step == steps[-1]
    later = replace(rows, S=np.where(last, 0.0, rows.S))
    assert np.array_equal(estimands.clipped_by_learnt(rule, later)[~last], clipped[~last])
    assert not estimands.clipped_by_learnt(rule, later)[last].any()


def test_rewards_by_hand(tmp_path):
    lines = [f'{{"phase": "train", "rollout": {i}, "reward": {r}}}' for i, r in enumerate([0, 0.2, 0.4, 0.6, 0.8])]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"phase": "eval", "reward": 9.0}']) + "\n")
    found = {e.estimand: e.value for e in estimands.measure(tmp_path, "products", "equal", "fspo", 41, 5)}
    assert found == {"mean reward": pytest.approx(0.4), "final reward": 0.8}
    stopped = {e.estimand: e.value for e in estimands.measure(tmp_path, "products", "stress", "none", 41, 10)}
    assert stopped == {"mean reward": pytest.approx(0.2), "final reward": 0.0}  # diverged after half of its rollouts


def test_estimates_of_several_files(tmp_path):
    one, two, other = tmp_path / "1.csv", tmp_path / "2.csv", tmp_path / "3.csv"
    head = "task,runs,seed,estimand,rule,clip_rate,value\n"
    one.write_text(head + "chain-add,unclipped,41,slope,rloo,0.05,0.4\nchain-add,equal,41,mean reward,rloo,,0.5\n")
    two.write_text(head + "chain-add,unclipped,42,slope,rloo,0.05,0.3\n")
    other.write_text("a,b\n1,2\n")
    found = estimands.read_estimates([one, two])
    assert found.value.tolist() == [0.4, 0.5, 0.3]
    assert estimands.holds(found, "chain-add", "unclipped", "none", 42)  # rules are applied to it offline
    assert estimands.holds(found, "chain-add", "equal", "rloo", 41)
    assert not estimands.holds(found, "chain-add", "equal", "fspo", 41)
    assert not estimands.holds(found, "chain-add", "equal", "rloo", 42)
    assert not estimands.holds(found, "products", "unclipped", "none", 41)
    assert estimands.read_estimates([]).empty
    planned = {("chain-add", "unclipped", 41), ("chain-add", "equal", 42)}
    assert estimands.read_estimates([one, two], planned).value.tolist() == [0.4]
    for files, words in (
        ([one, one], r"hold the same run \(chain-add, unclipped, rloo, seed 41\)"),
        ([other], "other columns"),
        ([tmp_path / "none.csv"], "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            estimands.read_estimates(files)
