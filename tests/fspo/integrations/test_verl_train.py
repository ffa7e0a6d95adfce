# pyright: reportMissingImports=false
"""verl's own training worker trains what the objective does, with bands that follow earlier updates, and resumes."""

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed; `make test-verl` fetches it and runs these tests")

from fspo.gradlog import read_log
from fspo.objective import objective
from fspo.rules import preset
from fspo.rules.online import OnlineRule
from tests.fspo.integrations.verl_worker import OURS, PROMPT, ROWS, SEQUENCE, log_probs, parts, table, trained

pytestmark = pytest.mark.usefixtures("verl_process", "unwatched")


AUTO = {"adapt": "range", "target": 0.8}


@pytest.mark.parametrize(("name", "changes"), [("fspo-kl", {}), ("fspo", {"drift": "tilted"}), ("fspo-adaptive", {})])
def test_a_band_that_remembers_trains_what_the_objective_does(tmp_path, name, changes):
    """Drift and range of each update from the updates before it, by `OnlineRule` and by hand on whole minibatches."""
    rule = preset(name, **changes).rule
    changes = changes | ({"drift_source": "lagged"} if rule.needs_stats else {})
    watch = parts(f"observe={tmp_path / 'run'}", f"rule={name}", *(f"{part}={x}" for part, x in changes.items()))
    engine, rollouts = trained(None, *OURS, SEQUENCE, *watch, epochs=2)
    log, online = read_log(tmp_path / "run"), OnlineRule(rule)
    weights = table().requires_grad_()
    column = log.column
    for number, (batch, _) in enumerate(rollouts):
        mask, old = batch.batch["response_mask"].bool(), batch.batch["old_log_probs"]
        m = 0.0  # centre per token
        for step in range(4 * number, 4 * number + 4):
            at = column("step") == step
            place = torch.from_numpy(column("response_id")[at] - number * ROWS)
            A = batch.batch["advantages"][place, 0].double()
            ids = torch.cat([batch.batch["prompts"], batch.batch["responses"]], 1)[place]
            new = torch.stack([log_probs(weights, row)[PROMPT:] for row in ids])
            out = objective(new, old[place], mask[place], A, online.rule, m=m)
            for part in ("lo", "hi", "drift", "side"):
                found = getattr(out.records, part).double().numpy()
                assert column(part)[at] == pytest.approx(found, rel=1e-4, abs=1e-6), (step, part)
            s = ((new - old[place]) * mask[place]).detach().double()
            n = mask[place].sum(1).double()
            if step > 4 * number:
                online.observe(s.sum(1).numpy(), n.numpy(), A.numpy(), m)
            by_hand = {"kl": -(s.exp() - 1 - s), "tilted": s * s / 2, "none": 0 * s}
            m = float(by_hand[rule.drift].sum() / n.sum())
            (gradient,) = torch.autograd.grad(out.loss, weights)
            with torch.no_grad():
                weights -= 0.5 * gradient
    torch.testing.assert_close(engine.table, weights.detach(), rtol=1e-5, atol=1e-6)
    varied = "drift" if rule.needs_stats else "hi"
    assert len(set(np.round(column(varied) / np.sqrt(column("length")), 9))) > 3
    assert {0, 1} <= set(column("side"))


def test_an_adaptive_band_goes_on_from_verls_checkpoint(tmp_path):
    """Its state lies beside verl's own files; a fresh actor that loads them has the range of the first."""
    config = (*OURS, SEQUENCE, *parts(*(f"{part}={x}" for part, x in AUTO.items())))
    engine, _ = trained(None, *config, epochs=2, save=tmp_path)
    assert (tmp_path / "fspo_rule.json").exists()
    learnt = engine.memory.online.rule
    assert learnt.range_hi != preset("fspo").rule.range_hi
    fresh, _ = trained(None, *config, rollouts=0, load=tmp_path)
    assert fresh.memory.online.rule == learnt
