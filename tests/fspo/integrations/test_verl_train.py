# pyright: reportMissingImports=false
"""verl's own training worker trains with our corrections, and with bands that follow earlier updates.

The weights are compared with those that verl's own corrections train, losses and factors with those of our objective.
"""

import types

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import left_right_2_no_padding

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.integrations.verl_batch import weigh
from fspo.objective import Mismatch, objective
from fspo.rules import CORRECTIONS, Rule, correction, preset
from fspo.rules.online import OnlineRule
from tests.fspo.integrations.verl_worker import OURS, PROMPT, ROWS, SEQUENCE, log_probs, parts, rollout, table, trained

pytestmark = pytest.mark.usefixtures("verl_process", "unwatched")


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


@pytest.mark.parametrize(
    "name",
    ["fspo-kl", "fspo-gaussian", "fspo-tilted", "fspo-signed", "fspo-auto", "fspo-adaptive", "fspo-conformal"],
)
def test_a_band_that_remembers_trains_what_the_objective_does(tmp_path, name):
    """Drift and range of each update from the updates before it, by `OnlineRule` and by hand on whole minibatches."""
    drifts = preset(name).rule.needs_stats
    watch = parts(f"observe={tmp_path / 'run'}", f"rule={name}", *(["drift_source=lagged"] if drifts else []))
    engine, rollouts = trained(None, *OURS, SEQUENCE, *watch, epochs=2)
    log, online = read_log(tmp_path / "run"), OnlineRule(preset(name).rule)
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
            by_hand = {"fspo-kl": -(s.exp() - 1 - s), "fspo-gaussian": -s * s / 2, "fspo-tilted": s * s / 2}
            if name in by_hand:
                drift = dict.fromkeys(drift, float(by_hand[name].sum() / n.sum()))
            elif name == "fspo-signed":
                drift = {sign: float(s[A.sign() == sign].sum() / n[A.sign() == sign].sum()) for sign in drift}
            (gradient,) = torch.autograd.grad(out.loss, weights)
            with torch.no_grad():
                weights -= 0.5 * gradient
    torch.testing.assert_close(engine.table, weights.detach(), rtol=1e-5, atol=1e-6)
    varied = "drift" if drifts else "hi"
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
    """A rollout with small ratios to the sampler: the sqrt band keeps some responses and cuts others on both sides."""
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
