# pyright: reportMissingImports=false
"""Watching verl's own training worker, with its minibatches, losses, corrections and rejections."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_to_nested

from analysis.doctor.examine import examine
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.integrations.verl_observe import watch_actors
from fspo.integrations.verl_rules import clip_of, correction_of
from fspo.rules import Rule
from tests.fspo.integrations.verl_worker import (
    ACTOR,
    EACH,
    GROUPS,
    OBSERVED,
    PROMPT,
    ROOT,
    ROWS,
    WIDTH,
    actor,
    drawn,
    log_probs,
    rollout,
    table,
    trained,
)

pytestmark = pytest.mark.usefixtures("verl_process", "unwatched")


@pytest.mark.parametrize("mode", ["vanilla", "gpg"])
def test_the_weights_are_the_same_with_and_without(tmp_path, mode):
    option = f"{ACTOR}policy_loss.loss_mode={mode}"
    alone, _ = trained(None, option)
    watched, _ = trained(tmp_path / "run", option)
    assert torch.equal(alone.table, watched.table)
    assert not torch.equal(alone.table, table())
    log = read_log(tmp_path / "run")
    assert len(log) == 2 * ROWS
    assert set(log.column("rule")) == {f"verl-{mode}"}
    assert ("rule" in log.metadata) == ("lo" in log) == (mode == "vanilla")  # no rule of ours does what gpg does


def test_every_column_by_hand(tmp_path):
    engine, rollouts = trained(tmp_path / "run", epochs=2)
    log = read_log(tmp_path / "run")
    assert len(log) == 2 * 2 * ROWS
    assert sorted(set(log.column("step"))) == list(range(8))  # two minibatches, twice, of each of two rollouts
    assert log.column("updates_since_rollout").tolist() == [i // 8 % 4 for i in range(64)]
    assert log.column("times_used").tolist() == [i // ROWS % 2 for i in range(64)]
    for i in range(len(log)):
        number, response = log.column("rollout")[i], log.column("response_id")[i]
        batch, lengths = rollouts[number]
        place = response - number * ROWS
        length = int(lengths[place])
        ids = torch.cat([batch.batch["prompts"], batch.batch["responses"]], 1)[place, : PROMPT + length]
        new = log_probs(engine.before[log.column("step")[i]], ids)[PROMPT:].double()
        old = batch.batch["old_log_probs"][place, :length].double()
        engine_t = old - batch.batch["rollout_log_probs"][place, :length].double()
        s = new - old
        values = {
            "length": length,
            "log_ratio": float(s.sum()),
            "sum_sq_log_ratio": float((s * s).sum()),
            "behaviour_log_ratio": float(engine_t.sum()),
            "behaviour_sum_sq": float((engine_t**2).sum()),
            "total_sum_sq": float(((s + engine_t) ** 2).sum()),
            "engine_log_ratio": float(engine_t.sum()),  # the versions are equal
            "staleness_log_ratio": 0.0,
            "behaviour_version": number * 4,
            "advantage": float(batch.batch["advantages"][place, 0]),
            "reward": 0.5,
            "truncated": length == WIDTH,
            "correction_weight": 1.0,
        }
        for name, value in values.items():
            assert log.column(name)[i] == pytest.approx(value, abs=2e-6), name
    assert np.abs(log.column("log_ratio")).max() > 0.1
    groups = [set(log.column("prompt_id")[log.column("response_id") // EACH == g]) for g in range(ROWS)]
    assert all(len(group) == 1 for group in groups)
    assert len(set.union(*groups)) == 2 * GROUPS
    rule = clip_of(actor())
    assert log.rule == rule
    assert rule is not None
    assert (rule.shape, rule.range_lo, rule.range_hi, rule.on) == ("token", 0.2, 0.2, "update")
    assert rule.dual == pytest.approx(math.log(3) / math.log(1.2))  # verl's clip_ratio_c
    assert "correction" not in log.metadata
    assert set(log.column("rule")) == {"verl-vanilla"}


def test_the_doctor_finds_nothing_in_a_healthy_run(tmp_path):
    trained(tmp_path / "run", rollouts=12, epochs=2, make=drawn)
    diagnosis = examine(tmp_path / "run")
    assert diagnosis.issues == []
    clear = {answer.id for answer in diagnosis.answers if answer.status == "clear"}
    assert {"mean_weight", "before_update", "mismatch", "estimator", "sums", "uses"} <= clear
    trained(tmp_path / "unlawful", rollouts=12, epochs=2)  # its tokens and advantages are made up
    assert "estimator" in {answer.id for answer in examine(tmp_path / "unlawful").issues}


@pytest.mark.parametrize(
    ("correction", "rule"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": 1.1}, "token"),
        ({"rollout_is": "sequence", "rollout_is_threshold": "0.8_1.3"}, "fixed"),
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.95_1.05"}, "linear"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": 0.02}, "token"),
    ],
)
def test_the_factor_of_verls_correction_is_logged_and_named_as_a_rule(tmp_path, correction, rule):
    """The factor that verl's own code left on each response is the one that the rule in the header gives."""
    _, rollouts = trained(tmp_path / "run", correction=correction, rollouts=1)
    log = read_log(tmp_path / "run")
    named = Rule(**log.metadata["correction"])
    assert (named.shape, named.on) == (rule, "behaviour")
    assert named == correction_of(correction)
    (_, lengths), order = rollouts[0], np.argsort(log.column("response_id"))
    assert log.column("length")[order].tolist() == lengths.tolist()  # of masked responses and tokens too
    factors = []
    for place, length in enumerate(lengths.tolist()):
        # the rollout before verl's correction: the same seed, the same tokens
        plain, _ = rollout(0, table())
        tokens = (plain.batch["old_log_probs"] - plain.batch["rollout_log_probs"])[place, :length].double().numpy()
        S, n = (tokens, np.ones(length)) if rule == "token" else (np.array([tokens.sum()]), np.array([float(length)]))
        factors.append(named.apply(S, n, np.ones_like(S)).clipped_weight.mean())
    assert log.column("correction_weight")[order] == pytest.approx(factors, rel=1e-5)
    assert 0 < np.mean(np.array(factors) != 1) <= 1
    assert len(set(np.round(factors, 6))) > 1


def test_ranks_write_files_of_their_own(tmp_path):
    for rank in (0, 1):
        trained(tmp_path / "run", rollouts=1, rank=rank, ranks=2)
    names = sorted(path.name for path in (tmp_path / "run" / "gradlog").iterdir())
    assert names == ["rollout-00000000-rank-0000.parquet", "rollout-00000000-rank-0001.parquet"]
    log = read_log(tmp_path / "run")
    assert sorted(log.column("response_id")) == list(range(2 * ROWS))


def test_a_resumed_run_writes_its_repeated_rollouts_anew(tmp_path):
    trained(tmp_path / "run", rollouts=3)
    trained(tmp_path / "run", rollouts=1, first=1)
    log = read_log(tmp_path / "run")
    assert sorted(set(log.column("rollout"))) == [0, 1]
    assert sorted(set(log.column("step"))) == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"another run's gradient log: set policy_loss\.observe"):
        trained(tmp_path / "run", rollouts=1)


def test_stale_and_unknown_versions_leave_the_engine_unknown(tmp_path):
    trained(tmp_path / "run", rollouts=1, first=3)  # rollout() numbers the weights by the rollout: equal
    assert read_log(tmp_path / "run").column("staleness_log_ratio").tolist() == [0.0] * ROWS

    def stale(number, *rest):  # the weights of the first rollout sampled the second one too
        batch, lengths = rollout(number, *rest)
        batch.non_tensor_batch["min_global_steps"] = np.array([0] * ROWS, dtype=object)
        return batch, lengths

    trained(tmp_path / "stale", make=stale)
    log = read_log(tmp_path / "stale")
    known = np.isfinite(log.column("engine_log_ratio"))
    assert (known == (log.column("rollout") == 0)).all()
    assert np.isfinite(log.column("behaviour_log_ratio")).all()
    trained(tmp_path / "none", rollouts=1, sampler=False)
    log = read_log(tmp_path / "none")
    assert "behaviour_log_ratio" not in log
    assert np.isfinite(log.column("log_ratio")).all()


def test_a_batch_that_cannot_be_logged_ends_the_log_and_not_the_run(tmp_path, caplog, monkeypatch):
    def torn(*_):
        raise KeyError("old_log_probs")

    monkeypatch.setattr("fspo.integrations.verl_observe.mean_factor", torn)
    alone, _ = trained(None)
    watched, _ = trained(tmp_path / "run")
    assert torch.equal(alone.table, watched.table)
    assert "no further rows of rollout 0 are logged: KeyError" in caplog.text
    monkeypatch.setattr("fspo.integrations.verl_observe.versions", torn)
    watched, _ = trained(tmp_path / "other")
    assert torch.equal(alone.table, watched.table)
    assert "rollout 1 is not logged: KeyError" in caplog.text


def test_in_bypass_mode_the_log_claims_no_mismatch(tmp_path):
    """verl's old log-probs are the sampler's there, so S is the total, and neither D nor E is known."""
    trained(
        tmp_path / "run", f"{ACTOR}policy_loss.loss_mode=bypass_mode", rollouts=1, correction={"bypass_mode": "true"}
    )
    log = read_log(tmp_path / "run")
    assert len(log) == ROWS
    assert "behaviour_log_ratio" not in log
    assert "engine_log_ratio" not in log
    assert log.metadata.keys().isdisjoint({"rule", "correction"})
    assert set(log.column("rule")) == {"verl-bypass_mode"}


def test_watching_twice_is_watching_once(tmp_path):
    for name in ("a", "b"):
        watch_actors(str(tmp_path / name))
    bases = ActorRolloutRefWorker.actor_worker_cls.__mro__[1:3]
    assert [c.__name__ for c in bases] == ["_ObservedWorker", "TrainingWorker"]
    assert ActorRolloutRefWorker.actor_worker_cls.run == str(tmp_path / "b")


def test_the_example_configuration_is_one_that_verl_takes(tmp_path):
    with initialize_config_dir(str(ROOT / "examples"), version_base=None):
        config = compose("verl_observe", overrides=[f"{ACTOR}policy_loss.observe={tmp_path}"])
    OmegaConf.resolve(config)
    found = omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss
    assert (found.loss_mode, found.observe) == ("vanilla", str(tmp_path))
    assert correction_of(found.rollout_correction) == Rule(
        "token", 1.0, 1.0, outside="cap", on="behaviour", name="verl-is-token"
    )
    assert ActorRolloutRefWorker.actor_worker_cls.run == str(tmp_path)
    assert actor(OBSERVED).policy_loss.observe is None


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
