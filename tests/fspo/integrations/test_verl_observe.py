# pyright: reportMissingImports=false
"""Watching verl's own training worker, with its minibatches, losses and corrections; its model is a table of logits."""

import math
import os
import types
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl import DataProto
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine.base import BaseEngine, BaseEngineCtx, EngineRegistry
from verl.workers.engine.utils import postprocess_batch_func, prepare_micro_batches
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, response_to_nested

from analysis.__main__ import main
from analysis.doctor.examine import examine
from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.integrations.verl_batch import before_rejection, weigh
from fspo.integrations.verl_observe import watch_actors
from fspo.integrations.verl_rules import clip_of, correction_of
from fspo.objective import Mismatch, objective
from fspo.rules import CORRECTIONS, Rule, correction, preset
from fspo.rules.online import OnlineRule
from tests.fspo.integrations.test_verl import ACTOR, OURS, ROOT, SEQUENCE, actor, parts

VOCABULARY, PROMPT, WIDTH, GROUPS, EACH = 11, 3, 12, 8, 2
ROWS = GROUPS * EACH
OBSERVED = f"{ACTOR}policy_loss._target_=fspo.integrations.verl.ObservedLossConfig"


class CpuPlatform(PlatformCUDA):
    """verl knows no platform without a GPU."""

    device_name = "cpu"
    device_module = types.SimpleNamespace(max_memory_allocated=lambda: 0, max_memory_reserved=lambda: 0)

    def communication_backend_name(self):
        return "gloo"


@EngineRegistry.register(model_type="language_model", backend="table", device="cpu")
class TableEngine(BaseEngine):
    """An engine whose model is a table of logits of the next token by the present one; the rest is verl's."""

    is_param_offload_enabled = is_optimizer_offload_enabled = False
    rank, ranks, source = 0, 1, True

    def __init__(self, **_):
        self.table = torch.nn.Parameter(table())
        self.optimizer = torch.optim.SGD([self.table], lr=0.5)
        self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0)
        self.before = []  # the weights before each update

    def train_mode(self, **kwargs):
        return BaseEngineCtx(self, "train", **kwargs)

    def optimizer_zero_grad(self):
        self.optimizer.zero_grad()

    def optimizer_step(self):
        self.optimizer.step()
        return float(self.table.grad.norm())

    def lr_scheduler_step(self):
        self.lr_scheduler.step()
        return 0.5

    def save_checkpoint(self, *_):
        pass

    load_checkpoint = save_checkpoint

    def get_data_parallel_rank(self):
        return self.rank

    def get_data_parallel_size(self):
        return self.ranks

    def get_data_parallel_group(self):
        return None

    def is_mp_src_rank_with_outputs(self):
        return self.source

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        self.before.append(self.table.detach().clone())
        whole = int(data["response_mask"].sum())
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=whole, sp_size=1)
        outputs = []
        parts, indices = prepare_micro_batches(data)
        for part in parts:
            rows = [torch.cat([log_probs(self.table, ids)[1:], torch.zeros(1)]) for ids in part["input_ids"].unbind()]
            found = {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
            loss, metrics = loss_function(model_output=found, data=part, dp_group=None)
            loss.backward()
            outputs.append({"model_output": {}, "loss": loss.item(), "metrics": metrics})
        return postprocess_batch_func(outputs, indices, data)


def table():
    return torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))


def log_probs(logits, ids):
    """Log-probabilities (T,) of tokens (T,); 0 of the first."""
    rows = torch.log_softmax(logits, -1)[ids[:-1], ids[1:]]
    return torch.cat([torch.zeros(1), rows])


@pytest.fixture(scope="module", autouse=True)
def cpu(tmp_path_factory):
    """verl's worker in this process: its platform, its process group, its environment."""
    names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    earlier, platform = dict(os.environ), platform_manager._current_platform
    os.environ.update(names)
    platform_manager._current_platform = CpuPlatform()
    store = f"file://{tmp_path_factory.mktemp('gloo') / 'store'}"  # a port may be taken by another run of the tests
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    platform_manager._current_platform = platform
    os.environ.clear()
    os.environ.update(earlier)


@pytest.fixture(autouse=True)
def unwatched():
    yield
    ActorRolloutRefWorker.actor_worker_cls = TrainingWorker


def rollout(seed, version, correction=None, sampler=True, longest=WIDTH):
    """A rollout as verl's trainer hands it to its actor, after its own correction; lengths from 1 to ``longest``."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (ROWS,), generator=g)
    ids = torch.randint(0, VOCABULARY, (ROWS, PROMPT + WIDTH), generator=g)
    ids[:, :PROMPT] = ids[::EACH, :PROMPT].repeat_interleave(EACH, 0)
    mask = torch.arange(WIDTH) < lengths[:, None]
    old = torch.stack([log_probs(version, row)[PROMPT:] for row in ids]) * mask
    advantage = torch.randn(ROWS, generator=g)
    tensors = {
        "input_ids": ids * torch.cat([torch.ones(ROWS, PROMPT, dtype=torch.bool), mask], 1),
        "prompts": ids[:, :PROMPT],
        "responses": ids[:, PROMPT:] * mask,
        "attention_mask": torch.cat([torch.ones(ROWS, PROMPT, dtype=torch.bool), mask], 1).long(),
        "position_ids": torch.arange(PROMPT + WIDTH).expand(ROWS, -1).contiguous(),
        "response_mask": mask.long(),
        "old_log_probs": old,
        "advantages": advantage[:, None] * mask,
        "token_level_scores": torch.nn.functional.one_hot(lengths - 1, WIDTH).float() * 0.5,
    }
    if sampler:
        tensors["rollout_log_probs"] = (old - 0.2 * torch.randn(ROWS, WIDTH, generator=g) * mask).clamp(max=0.0)
    uid = np.repeat([f"{seed}-{i}" for i in range(GROUPS)], EACH).astype(object)
    batch = DataProto.from_dict(tensors, non_tensors={"uid": uid}, meta_info={"temperature": 1.0, "multi_turn": False})
    for name in ("min_global_steps", "max_global_steps"):
        batch.non_tensor_batch[name] = np.array([seed] * ROWS, dtype=object)
    if correction is not None:
        batch, _ = compute_rollout_correction_and_add_to_batch(batch, correction)
    return batch, lengths


def drawn(seed, version, correction, sampler):
    """A sound rollout: tokens from the table with a little noise, as a sampler of lower precision draws them; rewards
    of the tokens; GRPO's advantages."""
    batch, lengths = rollout(seed, version, correction, sampler, WIDTH - 1)
    g = torch.Generator().manual_seed(seed + 1000)
    law = version + 0.005 * torch.randn(VOCABULARY, VOCABULARY, generator=g)
    ids = torch.cat([batch.batch["prompts"], batch.batch["responses"]], 1)
    for t in range(PROMPT, PROMPT + WIDTH):
        ids[:, t] = torch.multinomial(law[ids[:, t - 1]].softmax(-1), 1, generator=g)[:, 0]
    mask = batch.batch["response_mask"]
    score = ((ids[:, PROMPT:] > VOCABULARY // 2) * mask).sum(1) / mask.sum(1)
    groups = score.view(GROUPS, EACH)
    advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    for name, weights in (("old_log_probs", version), ("rollout_log_probs", law)):
        batch.batch[name] = torch.stack([log_probs(weights, row)[PROMPT:] for row in ids]) * mask
    batch.batch["responses"] = ids[:, PROMPT:] * mask
    batch.batch["input_ids"] = ids * batch.batch["attention_mask"]
    batch.batch["advantages"] = advantage * mask
    batch.batch["token_level_scores"] = torch.nn.functional.one_hot(lengths - 1, WIDTH) * score[:, None]
    return batch, lengths


def trained(
    folder, *overrides, correction=None, rollouts=2, epochs=1, sampler=True, first=0, make=rollout, save=None,
    load=None, **engine
):  # fmt: skip
    """Train verl's worker on rollouts; return its engine and the rollouts."""
    options = [] if folder is None else [OBSERVED, f"+{ACTOR}policy_loss.observe={folder}"]
    if folder is not None and correction is not None:
        options += [f"+{ACTOR}policy_loss.rollout_correction.{name}={value}" for name, value in correction.items()]
    config = actor(*options, *overrides)  # makes the configuration, and with it the watch
    place = types.SimpleNamespace(
        strategy="table", use_remove_padding=False, use_fused_kernels=False, forward_only=False, use_dynamic_bsz=False,
        max_token_len_per_gpu=None, micro_batch_size_per_gpu=4,
    )  # fmt: skip
    model = type("Model", (dict,), {})()
    worker = ActorRolloutRefWorker.actor_worker_cls(
        TrainingWorkerConfig(model_type="language_model", model_config=model, engine_config=place)
    )
    vars(worker.engine).update(engine)
    for _ in range(first):
        worker.engine.lr_scheduler.step()
    worker.set_loss_fn(partial(ppo_loss, config=config))
    worker.engine.memory = getattr(config.policy_loss, "memory", None)
    if load is not None:
        worker.load_checkpoint(str(load))
    seen = []
    for number in range(first, first + rollouts):
        batch, lengths = make(number, worker.engine.table.detach().clone(), correction, sampler)
        seen.append((batch, lengths))
        data = left_right_2_no_padding(batch.to_tensordict()) if isinstance(batch, DataProto) else batch
        tu.assign_non_tensor(
            data, calculate_entropy=False, global_batch_size=ROWS // 2, mini_batch_size=ROWS // 2 * worker.engine.ranks,
            epochs=epochs, seed=1, dataloader_kwargs={"shuffle": True}, compute_loss=True,
        )  # fmt: skip
        worker.train_mini_batch(data)
    if save is not None:
        worker.save_checkpoint(str(save))
    return worker.engine, seen


@pytest.mark.parametrize("mode", ["vanilla", "gspo", "cispo", "gpg"])
def test_the_weights_are_the_same_with_and_without(tmp_path, mode):
    mode = f"{ACTOR}policy_loss.loss_mode={mode}"
    alone, _ = trained(None, mode)
    watched, _ = trained(tmp_path / "run", mode)
    assert torch.equal(alone.table, watched.table)
    assert not torch.equal(alone.table, table())
    assert len(read_log(tmp_path / "run")) == 2 * ROWS


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
    assert diagnosis.findings == []
    clear = {answer.id for answer in diagnosis.answers if answer.status == "clear"}
    assert {"mean_weight", "k1_k3", "before_update", "sampler_law", "engine", "estimator", "sums", "uses"} <= clear
    trained(tmp_path / "unlawful", rollouts=12, epochs=2)  # its tokens and advantages are made up
    assert {"estimator", "k1_k3"} & {answer.id for answer in examine(tmp_path / "unlawful").findings}


@pytest.mark.parametrize(
    ("correction", "rule"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": 1.1}, "token"),
        ({"rollout_is": "sequence", "rollout_is_threshold": "0.8_1.3"}, "fixed"),
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.95_1.05"}, "linear"),
        ({"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.7_1.2"}, "fixed"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_1.2"}, "token"),
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


def test_one_process_of_a_model_parallel_group_writes(tmp_path):
    trained(tmp_path / "run", rollouts=1, source=False)
    assert not (tmp_path / "run").exists()


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


def test_losses_without_a_rule_of_ours_have_none_in_the_header(tmp_path):
    trained(tmp_path / "run", f"{ACTOR}policy_loss.loss_mode=gpg", rollouts=1)
    log = read_log(tmp_path / "run")
    assert "rule" not in log.metadata
    assert "lo" not in log
    assert set(log.column("rule")) == {"verl-gpg"}


def test_two_commands_give_the_table_by_length(tmp_path):
    trained(tmp_path / "run", *parts("observe_tokens=true"), rollouts=6)
    assert main([str(tmp_path / "run"), "--on", "behaviour", "--rules", "[product,sqrt]", "--bins", "2"]) == 0
    (folder,) = (tmp_path / "run").glob("analysis*")
    table = pd.read_csv(folder / "acceptance.csv")
    assert set(table["rule"]) >= {"product", "sqrt"}
    assert table["bin_lo"].nunique() == 2
    positions = pd.read_csv(folder / "positions.csv")  # where the tokens stand in the response
    assert positions["count"].max() > 6 * ROWS


def test_the_table_has_a_row_of_verls_own_rejection(tmp_path, capsys):
    """verl gives a response that it rejects the advantage 0; the printed shares count it all the same."""
    correction = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.95_1.05"}
    trained(tmp_path / "run", rollouts=6, correction=correction)
    log = read_log(tmp_path / "run")
    rejected = log.column("correction_weight") == 0
    assert not log.column("advantage")[rejected].any()
    assert main([str(tmp_path / "run"), "--on", "behaviour"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "verl-rs-seq_mean_k1, the run's own" in line)
    assert float(row.split()[-1]) == pytest.approx(1 - rejected.mean(), abs=0.006)


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


def test_token_log_ratios_are_logged_if_wanted(tmp_path):
    trained(tmp_path / "run", *parts("observe_tokens=true"))
    log = read_log(tmp_path / "run").table.to_pandas()
    for column, total in (("token_log_ratio", "log_ratio"), ("token_behaviour_log_ratio", "behaviour_log_ratio")):
        assert log[column].map(len).tolist() == log.length.tolist()
        assert log[column].map(lambda x: x.astype(float).sum()).to_numpy() == pytest.approx(log[total], abs=1e-5)
    assert log.token_log_ratio.map(lambda x: np.abs(x).max()).max() > 0.01
    trained(tmp_path / "without", rollouts=1)
    assert "token_log_ratio" not in read_log(tmp_path / "without")


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


def test_our_own_loss_is_watched_too(tmp_path):
    sequence = f"{ACTOR}loss_agg_mode=seq-mean-token-mean"
    ours = (f"{ACTOR}policy_loss.loss_mode=fspo", sequence)
    watched = f"{ACTOR}policy_loss._target_=fspo.integrations.verl.FSPOLossConfig"
    config = actor(*ours, watched, f"+{ACTOR}policy_loss.observe={tmp_path}")
    assert clip_of(config) == preset("fspo").rule
    assert ActorRolloutRefWorker.actor_worker_cls.run == str(tmp_path)


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize(
    ("ours", "verls"),
    [
        (("preset=tis", "range_hi=0.1"), {"rollout_is": "token", "rollout_is_threshold": 1.1}),
        (("preset=icepop", "range_lo=0.2", "range_hi=0.3"), {"rollout_is": "token", "rollout_is_threshold": "0.8_1.3"}),
        (("preset=mis", "range_lo=0.3"), {"rollout_is": "sequence", "rollout_is_threshold": "0.7_3.0"}),
        (
            ("preset=geo-mask", "range_lo=0.05", "range_hi=0.05"),
            {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": f"{1 / 1.05}_{1 / 0.95}"},
        ),
    ],
)
def test_our_correction_trains_what_verls_does(tmp_path, ours, verls, observed):
    """Ours, computed beside the loss, and verl's, computed by its trainer before the loss, give the same weights."""
    loss = (*OURS, SEQUENCE)
    watch = parts(f"observe={tmp_path / 'run'}") if observed else ()
    own, _ = trained(None, *loss, *watch, *parts(*(f"correction.{part}" for part in ours)))
    ActorRolloutRefWorker.actor_worker_cls = TrainingWorker
    theirs, _ = trained(None, *loss, correction=verls)
    plain, _ = trained(None, *loss)
    torch.testing.assert_close(own.table, theirs.table, rtol=1e-5, atol=1e-6)
    assert (theirs.table - plain.table).abs().max() > 1e-3
    if observed:
        log = read_log(tmp_path / "run")
        assert Rule(**log.metadata["correction"]).name == ours[0].split("=")[1]
        assert len(set(np.round(log.column("correction_weight"), 6))) > 1


@pytest.mark.parametrize("changes", [{}, {"drift": "signed", "on": "behaviour"}], ids=["kl", "signed"])
def test_engine_sqrt_trains_what_the_objective_does(tmp_path, changes):
    """Loss and gradient of each update by `fspo.objective` on whole minibatches; the centre is that of the rollout."""
    ours = parts("correction.preset=engine-sqrt", *(f"correction.{name}={value}" for name, value in changes.items()))
    watch = parts(f"observe={tmp_path / 'run'}")
    engine, rollouts = trained(None, *OURS, SEQUENCE, *ours, *watch, make=few_rejected)
    ActorRolloutRefWorker.actor_worker_cls = TrainingWorker
    plain, _ = trained(None, *OURS, SEQUENCE, make=few_rejected)
    log, chosen, clip = read_log(tmp_path / "run"), correction("engine-sqrt", **changes), preset("fspo").rule
    weights = table().requires_grad_()
    for number, (batch, _) in enumerate(rollouts):
        mask, old = batch.batch["response_mask"].bool(), batch.batch["old_log_probs"]
        A = batch.batch["advantages"][:, 0]
        mismatch = Mismatch.of(old, batch.batch["rollout_log_probs"], mask, old)
        e = mismatch.behaviour
        signed = [e[A > 0].sum() / mask[A > 0].sum(), e[A < 0].sum() / mask[A < 0].sum()]
        kl = (e.exp() - 1 - e).sum() / mask.sum()
        m = torch.where(A > 0, *signed) if changes else -kl.expand(ROWS)
        for step in (2 * number, 2 * number + 1):
            torch.testing.assert_close(engine.before[step], weights.detach(), rtol=1e-5, atol=1e-6)
            at = log.column("step") == step
            place = torch.from_numpy(log.column("response_id")[at] - number * ROWS)
            ids = torch.cat([batch.batch["prompts"], batch.batch["responses"]], 1)[place]
            new = torch.stack([log_probs(weights, row)[PROMPT:] for row in ids])
            part = Mismatch(mismatch.behaviour[place], mismatch.engine[place], mismatch.missing[place])
            out = objective(
                new, old[place], mask[place], A[place], clip, mismatch=part, correction=chosen, correction_m=m[place]
            )
            for name in ("lo", "hi", "drift", "side", "weight"):
                found = getattr(out.records, f"correction_{name}").double().numpy()
                assert log.column(f"correction_{name}")[at] == pytest.approx(found, rel=1e-5, abs=1e-6), name
            (gradient,) = torch.autograd.grad(out.loss, weights)
            with torch.no_grad():
                weights -= 0.5 * gradient
    torch.testing.assert_close(engine.table, weights.detach(), rtol=1e-5, atol=1e-6)
    sides = set(log.column("correction_side"))
    assert {-1, 0, 1} <= sides
    assert (engine.table - plain.table).abs().max() > 1e-3


def test_the_centre_is_made_of_the_responses_of_all_ranks(monkeypatch):
    batch, _ = rollout(0, table())
    parts = {}

    def told(engine, value):
        parts[engine.rank] = value
        return list(parts.values())

    monkeypatch.setattr("fspo.integrations.verl_batch.gathered", told)

    def centres(rows, rank):
        data = left_right_2_no_padding(batch.select_idxs(rows).to_tensordict())
        return weigh(data, CORRECTIONS["engine-sqrt"], types.SimpleNamespace(rank=rank), 0)

    whole = centres(np.arange(ROWS), 0)[0]
    halves = [centres(np.arange(rank, ROWS, 2), rank)[0] for rank in (0, 1, 0)]
    torch.testing.assert_close(torch.stack(halves[1:]), whole.expand(2), rtol=1e-6, atol=0.0)
    assert halves[0] != pytest.approx(float(whole), rel=1e-3)  # rank 0 alone


REMEMBER = [
    ("fspo-kl", "drift_source=lagged"), ("fspo-signed", "drift_source=lagged"), ("fspo-auto",), ("fspo-conformal",),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), [(name, rest) for name, *rest in REMEMBER], ids=[r[0] for r in REMEMBER])
def test_a_band_that_remembers_trains_what_the_objective_does(tmp_path, name, changes):
    """Drift and range of each update from the updates before it, by `OnlineRule` and by hand on whole minibatches."""
    watch = parts(f"observe={tmp_path / 'run'}", f"rule={name}", *changes)
    engine, rollouts = trained(None, *OURS, SEQUENCE, *watch, epochs=2)
    log, online = read_log(tmp_path / "run"), OnlineRule(preset(name, **dict(c.split("=") for c in changes)).rule)
    weights = table().requires_grad_()
    column = log.column
    for number, (batch, _) in enumerate(rollouts):
        online.end_rollout()
        mask, old = batch.batch["response_mask"].bool(), batch.batch["old_log_probs"]
        drift = {1: 0.0, -1: 0.0}  # centre per token by the sign of A
        for step in range(4 * number, 4 * number + 4):
            at = column("step") == step
            place = torch.from_numpy(column("response_id")[at] - number * ROWS)
            A = batch.batch["advantages"][place, 0].double()
            ids = torch.cat([batch.batch["prompts"], batch.batch["responses"]], 1)[place]
            new = torch.stack([log_probs(weights, row)[PROMPT:] for row in ids])
            m = torch.tensor([drift[int(x)] for x in A.sign()], dtype=torch.float64)
            out = objective(new, old[place], mask[place], A, online.rule, m=m)
            for part in ("lo", "hi", "drift", "side"):
                found = getattr(out.records, part).double().numpy()
                assert column(part)[at] == pytest.approx(found, rel=1e-4, abs=1e-6), (step, part)
            s = ((new - old[place]) * mask[place]).detach().double()
            n = mask[place].sum(1).double()
            if step > 4 * number:
                online.observe(*(x.numpy() for x in (s.sum(1), n, A, m)))
            if name == "fspo-kl":
                drift = dict.fromkeys(drift, -float((s.exp() - 1 - s).sum() / n.sum()))
            elif name == "fspo-signed":
                drift = {sign: float(s[A.sign() == sign].sum() / n[A.sign() == sign].sum()) for sign in drift}
            (gradient,) = torch.autograd.grad(out.loss, weights)
            with torch.no_grad():
                weights -= 0.5 * gradient
    torch.testing.assert_close(engine.table, weights.detach(), rtol=1e-5, atol=1e-6)
    varied = "drift" if "lagged" in str(changes) else "hi"
    assert len(set(np.round(column(varied) / np.sqrt(column("length")), 9))) > 3
    assert {0, 1} <= set(column("side"))


def test_an_adaptive_band_goes_on_from_verls_checkpoint(tmp_path):
    """Its state lies beside verl's own files; a fresh actor that loads them has the range of the first."""
    config = (*OURS, SEQUENCE, *parts("rule=fspo-auto"))
    engine, _ = trained(None, *config, epochs=2, save=tmp_path)
    assert (tmp_path / "fspo_rule.json").exists()
    learnt = engine.memory.online.rule
    assert learnt.range_hi != preset("fspo-auto").rule.range_hi
    fresh, _ = trained(None, *config, rollouts=0, load=tmp_path)
    assert fresh.memory.online.rule == learnt


def few_rejected(*args):
    """A rollout whose sampler is so near that the sqrt band keeps some responses and cuts some on both sides."""
    batch, lengths = rollout(*args)
    old = batch.batch["old_log_probs"]
    batch.batch["rollout_log_probs"] = (old + 0.5 * (batch.batch["rollout_log_probs"] - old)).clamp(max=0.0)
    return batch, lengths


def test_engine_sqrt_refuses_responses_of_other_weights(tmp_path):
    """The second rollout was sampled by the weights of the first: E is unknown, D + E is not."""

    def stale(number, *rest):
        batch, lengths = rollout(number, *rest)
        for name in ("min_global_steps", "max_global_steps"):
            batch.non_tensor_batch[name] = np.array([0] * ROWS, dtype=object)
        return batch, lengths

    ours = (*OURS, SEQUENCE, *parts("correction.preset=engine-sqrt"))
    with pytest.raises(UserError, match=rf"{ROWS} responses were sampled by earlier.*correction\.on=behaviour"):
        trained(None, *ours, make=stale)
    trained(None, *ours, *parts("correction.on=behaviour"), make=stale)


def test_our_correction_without_what_it_needs_is_refused():
    tis = (*OURS, SEQUENCE, *parts("correction.preset=tis"))
    with pytest.raises(UserError, match=r"set actor_rollout_ref\.rollout\.calculate_log_probs=true"):
        trained(None, *tis, sampler=False)
    with pytest.raises(UserError, match="both weigh"):
        trained(None, *tis, correction={"rollout_is": "token", "rollout_is_threshold": 2.0})
