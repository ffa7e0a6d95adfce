"""Plans: groups stay together, every row goes through once on any number of processes, within the token limit."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_updates import made_batch

from fspo.base.errors import UserError
from fspo.rollouts.batches import MICROBATCH_COST, RolloutBatch, plan_microbatches, plan_minibatches


def batch(groups: int, size: int, number: int = 0) -> RolloutBatch:
    responses = [np.arange(1 + i % 5) for i in range(groups * size)]
    return made_batch(responses, size, rollout=number, prompt_ids=100 + np.repeat(np.arange(groups), size))


def test_minibatches_keep_groups_and_take_each_row_once() -> None:
    rollout = batch(10, 4)
    parts = plan_minibatches(rollout, 3, seed=7)
    assert sorted(np.concatenate(parts)) == list(range(40))
    groups = [set(rollout.prompt_ids[part]) for part in parts]
    assert [len(g) for g in groups] == [4, 3, 3]
    assert len(set.union(*groups)) == 10


def test_minibatches_depend_on_seed_and_rollout_alone() -> None:
    first = plan_minibatches(batch(16, 2), 4, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(first, plan_minibatches(batch(16, 2), 4, seed=0), strict=True))
    for other in (plan_minibatches(batch(16, 2), 4, seed=1), plan_minibatches(batch(16, 2, number=1), 4, seed=0)):
        assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_too_few_groups_name_the_cure() -> None:
    with pytest.raises(UserError, match=r"2 usable prompts cannot fill 3 minibatches.*max_prompt_tokens"):
        plan_minibatches(batch(2, 4), 3, seed=0)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    tokens=st.integers(1, 2000),
    world=st.integers(1, 5),
    data=st.data(),
)
def test_microbatches_cover_every_row_once_within_the_limit(lengths, tokens, world, data) -> None:
    total = np.array(lengths)
    trains = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    plans = [plan_microbatches(np.arange(len(total)), total, trains, tokens, rank=r, world=world) for r in range(world)]
    assert len({tuple(m.trains for m in plan) for plan in plans}) == 1  # collectives meet
    real = [m for plan in plans for m in plan if not m.dummy]
    assert sorted(np.concatenate([m.rows for m in real])) == list(range(len(total)))
    for micro in real:
        assert set(trains[micro.rows]) == {micro.trains}
        assert len(micro.rows) == 1 or len(micro.rows) * total[micro.rows].max() <= tokens
    for kind in (True, False):
        at_once = [m for step in zip(*plans, strict=True) for m in step if m.trains == kind and not m.dummy]
        sizes = [len(m.rows) * total[m.rows].max() for m in at_once]
        assert sizes == sorted(sizes)  # so processes that wait for each other have similar work
    if len(total) >= world and (trains.all() or not trains.any()):
        assert not any(m.dummy for plan in plans for m in plan) or all(len(m.rows) == 1 for plan in plans for m in plan)


@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=8), tokens=st.integers(1, 1500))
def test_no_other_cut_of_the_sorted_rows_costs_less(lengths, tokens) -> None:
    total = np.array(lengths)
    plan = plan_microbatches(np.arange(len(total)), total, np.ones(len(total), bool), tokens)
    ordered = sorted(lengths)
    costs = []
    for count in range(len(ordered)):
        for cuts in combinations(range(1, len(ordered)), count):
            parts = [ordered[a:b] for a, b in zip((0, *cuts), (*cuts, len(ordered)), strict=True)]
            if all(len(part) == 1 or len(part) * part[-1] <= tokens for part in parts):
                costs.append(sum(len(part) * part[-1] + MICROBATCH_COST for part in parts))
    assert sum(len(m.rows) * total[m.rows].max() + MICROBATCH_COST for m in plan) == min(costs)


def test_several_processes_make_few_microbatches() -> None:
    """Sharded weights are gathered for each: twelve rows that fit one microbatch are one for each of two processes."""
    total = np.repeat([10, 100, 300], 4)
    alone = plan_microbatches(np.arange(12), total, np.ones(12, bool), 3600)
    assert [len(m.rows) for m in alone] == [4, 4, 4]
    shared = [plan_microbatches(np.arange(12), total, np.ones(12, bool), 3600, rank=r, world=2) for r in range(2)]
    assert [[len(m.rows) for m in plan] for plan in shared] == [[6], [6]]
