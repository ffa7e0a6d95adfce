# pyright: reportMissingImports=false
"""The log of a watched verl run has the advantages that verl made before it rejected responses."""

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_to_nested

from fspo.gradlog import read_log
from fspo.integrations.verl_batch import before_rejection
from tests.fspo.integrations.verl_worker import EACH, PROMPT, ROWS, WIDTH, drawn, trained

pytestmark = pytest.mark.usefixtures("verl_process", "unwatched")


def nested(batch, plain):
    """The same rollout as verl's default trainer hands it over (`AgentLoopWorkerTQ`, `PPOTrainer._compute_advantage`),
    with a last group of verl's padding, which has no token."""
    fields = []
    for i in range(ROWS):
        n = int(plain["response_mask"][i].sum())
        row = {name: plain[name][i, :n] for name in ("responses", "response_mask", "rollout_log_probs")}
        row |= {"prompts": plain["prompts"][i], "input_ids": plain["input_ids"][i, : PROMPT + n]}
        row |= {"position_ids": plain["position_ids"][i, : PROMPT + n], "rm_scores": plain["token_level_scores"][i, :n]}
        row |= {"loss_mask": row["response_mask"], "uid": batch.non_tensor_batch["uid"][i]}
        version = int(batch.non_tensor_batch["min_global_steps"][i])
        fields.append(row | {"extra_fields": {"min_global_steps": version, "max_global_steps": version}})
    fields[-EACH:] = [construct_minimal_padding_template(fields[0], {}, 0)[0] | {"uid": "pad"} for _ in range(EACH)]
    data = tu.list_of_dict_to_tensordict(fields)
    like = data["response_mask"]
    made = ["old_log_probs", "advantages", "response_mask"]
    made += [name for name in ("rollout_is_weights",) if name in batch.batch]
    for name in made:
        data[name] = response_to_nested(batch.batch[name], like)
    data["response_mask"] = response_to_nested(
        torch.cat([batch.batch["response_mask"][:-EACH], torch.zeros(EACH, WIDTH, dtype=torch.int64)]), like
    )
    tu.assign_non_tensor(data, temperature=1.0)
    return data


ESTIMATORS = [("grpo", True), ("grpo", False), ("rloo", True)]


def advantaged(layout, estimator):
    """Make rollouts whose advantages verl's own code makes, after its own rejection; `whole` gets those without it."""
    whole = []

    def make(number, version, correction, sampler):
        found = []
        for rejection in (None, correction):
            batch, lengths = drawn(number, version, None, sampler)
            batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
            plain = dict(batch.batch.items())
            if rejection is not None:
                batch, _ = compute_rollout_correction_and_add_to_batch(batch, rejection)
            batch = compute_advantage(batch, estimator[0], norm_adv_by_std_in_grpo=estimator[1])
            found.append(batch)
        whole.append((found[0].batch["advantages"][:, 0], found[1].batch["response_mask"].any(1)))
        return (nested(found[1], plain) if layout == "v1" else found[1]), lengths

    return make, whole


@pytest.mark.parametrize("layout", ["v0", "v1"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_advantages_of_rejected_responses_are_made_anew(tmp_path, layout, estimator):
    """By verl's own estimators and rejection: the log's A is the one that verl gives without the rejection."""
    make, whole = advantaged(layout, estimator)
    correction = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9995_1.0006"}
    trained(tmp_path / "run", correction=correction, make=make)
    log, rows = read_log(tmp_path / "run"), ROWS - EACH * (layout == "v1")
    assert len(log) == 2 * rows  # no rows of padding
    for number, (A, kept) in enumerate(whole):
        at = log.column("rollout") == number
        place = log.column("response_id")[at] - number * ROWS
        assert log.column("advantage")[at] == pytest.approx(A.numpy()[place], rel=1e-4, abs=1e-5)
        rejected = ~kept.numpy()[place]
        assert (log.column("user.advantage_remade")[at].astype(bool) == rejected).all()
        assert ((log.column("correction_weight")[at] == 0) == rejected).all()
        assert 0 < rejected.mean() < 1
        assert np.abs(A.numpy()[place][rejected]).max() > 0.1
    assert (log.column("length") > 0).all()
    assert set(log.column("staleness_log_ratio")) == {0.0}
    assert set(log.column("behaviour_version")) == {0, 2}
    assert np.isfinite(log.column("reward")).all()


def test_a_group_on_two_ranks_is_looked_at_together(tmp_path, monkeypatch):
    make, whole = advantaged("v0", ESTIMATORS[0])
    correction = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9995_1.0006"}
    parts = {}

    def half(rank):
        def made(*args):
            batch, lengths = make(*args)
            take = np.arange(rank, ROWS, 2)  # one response of each group
            return batch.select_idxs(take), lengths[take]

        return made

    def told(engine, value):
        parts[engine.rank] = value
        return list(parts.values())

    monkeypatch.setattr("fspo.integrations.verl_observe.gathered", told)
    for run in ("first", "second"):  # in the second run each rank hears what the other said in the first
        for rank in (0, 1):
            trained(tmp_path / run, correction=correction, rollouts=1, make=half(rank), rank=rank, ranks=2)
    log, (A, kept) = read_log(tmp_path / "second"), whole[0]
    first = log.column("response_id") < ROWS // 2
    place = 2 * (log.column("response_id") % (ROWS // 2)) + ~first
    assert log.column("advantage") == pytest.approx(A.numpy()[place], rel=1e-4, abs=1e-5)
    assert (log.column("user.advantage_remade").astype(bool) == ~kept.numpy()[place]).all()


def test_advantages_that_no_estimator_gives_stay():
    """A made by hand: no rewards, rewards of other advantages, a group rejected whole that estimators differ in."""
    A, prompt = np.array([1.0, -1.0, 0.0, 2.0]), ["a", "a", "b", "b"]
    rejected = np.array([False, False, True, False])
    for reward in (None, np.array([1.0, 0.0, 1.0, 0.5])):
        made, remade = before_rejection(A, rejected, reward, prompt)
        assert made is A
        assert not remade.any()
    whole = np.array([False, False, True, True])
    assert not before_rejection(np.zeros(4), whole, np.array([1.0, 1.0, 0.0, 1.0]), prompt)[1].any()
    half = np.array([0.5, -0.5, 0.0, -0.25])  # the reward less its group's mean
    made, remade = before_rejection(half, rejected, np.array([1.0, 0.0, 0.5, 0.0]), prompt)
    assert made.tolist() == [0.5, -0.5, 0.25, -0.25]
    assert remade.tolist() == [False, False, True, False]
