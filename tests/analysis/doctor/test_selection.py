"""Groups that were selected by their rewards: whether they are seen, and which rows the laws are tested on."""

import numpy as np
import pytest

from analysis.doctor.first_epoch import FirstEpoch, by_rewards
from tests.analysis.doctor.healthy import SimulatedRun, write_simulated_run
from tests.analysis.doctor.log_changes import kept, rewritten
from tests.analysis.doctor.made import issues, rows_of


@pytest.mark.parametrize("selected", [True, False])
def test_a_selection_by_outcome_is_seen_and_breaks_no_law(selected):
    """Responses become likelier by their own reward; groups with equal rewards may be dropped."""
    rng, groups, size = np.random.default_rng(7), 4000, 8
    p = np.repeat(rng.choice([0.1, 0.2], groups), size)
    reward = (rng.random(groups * size) < p) * 1.0
    later = p + 0.5 * p * (1 - p)
    S = np.log(np.where(reward > 0, later / p, (1 - later) / (1 - p)))  # E[e^S] = 1 exactly
    L = rng.integers(16, 512, len(S)) * 1.0
    rows = rows_of(len(S), length=L, log_ratio=S, k3_sum=np.expm1(S) - S, reward=reward)
    if selected:
        solved = np.repeat(reward.reshape(-1, size).sum(1), size)
        rows = rows.take((solved > 0) & (solved < size)).copy()
    fair, told = by_rewards(rows)
    assert told == selected
    assert fair.sum() > 8_000

    def broken(which):
        return [name for name, answer in FirstEpoch(rows, which).answers().items() if answer.found]

    assert broken(fair) == []
    assert ("mean_weight" in broken(np.ones(len(rows), bool))) == selected


def test_laws_hold_for_responses_whose_mates_differ_in_their_rewards():
    reward = np.array([0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, np.nan, 1, 0, 1.0])
    prompt = np.r_[np.arange(14) // 4, 5, 5]
    fair, _ = by_rewards(rows_of(16, rollout=0 * prompt, prompt_id=prompt, reward=reward))
    # 0001: the single 1 decided; 1100: nobody; 1111: all; a group of 1 known reward and of 2: nothing can be told
    assert fair.tolist() == [True, True, True, False] + [True] * 4 + [False] * 4 + [True] * 4


@pytest.mark.parametrize("selected", [True, False])
def test_a_short_rollout_is_no_gap_where_groups_are_selected(tmp_path, selected):
    """DAPO draws until it has enough groups with different rewards, or gives up."""
    plan = SimulatedRun(selected=selected, rollouts=12, lengths=(6, 40), group=4)
    run = write_simulated_run(tmp_path / "sound", plan, 5)
    short = rewritten(run, tmp_path / "short", lambda c, r, i: kept(c, (c["prompt_id"] != 3) | (i != 7)), 0)
    assert ("log" in issues(short)) != selected
