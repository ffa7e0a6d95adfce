# pyright: reportMissingImports=false
"""The log of a watched verl run has the responses that verl rejected, in both layouts of verl's batches."""

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_to_nested

from fspo.gradlog import read_log
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


@pytest.mark.parametrize("layout", ["v0", "v1"])
def test_rejected_responses_are_logged_whole(tmp_path, layout):
    """By verl's own rejection: all tokens count in L and S, the factor is 0, and so is the A that verl's loss sees."""
    kept = []

    def make(number, version, correction, sampler):
        batch, lengths = drawn(number, version, None, sampler)
        plain = dict(batch.batch.items())
        batch, _ = compute_rollout_correction_and_add_to_batch(batch, correction)
        batch.batch["advantages"] = batch.batch["advantages"] * batch.batch["response_mask"]
        kept.append(batch.batch["response_mask"].any(1).numpy())
        return (nested(batch, plain) if layout == "v1" else batch), lengths

    correction = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9995_1.0006"}
    correction |= {"rollout_is": "token", "rollout_is_threshold": 2.0}
    _, rollouts = trained(tmp_path / "run", correction=correction, make=make)
    log, rows = read_log(tmp_path / "run"), ROWS - EACH * (layout == "v1")
    assert len(log) == 2 * rows  # no rows of padding
    for number, (_, lengths) in enumerate(rollouts):
        at = log.column("rollout") == number
        place = log.column("response_id")[at] - number * ROWS
        assert log.column("length")[at].tolist() == lengths.numpy()[place].tolist()
        rejected = ~kept[number][place]
        assert ((log.column("correction_weight")[at] == 0) == rejected).all()
        assert 0 < rejected.mean() < 1
        assert not log.column("advantage")[at][rejected].any()
    assert set(log.column("staleness_log_ratio")) == {0.0}
    assert set(log.column("behaviour_version")) == {0, 2}
    assert np.isfinite(log.column("reward")).all()
