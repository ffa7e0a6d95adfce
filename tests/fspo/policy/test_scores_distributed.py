"""Two gloo processes, DDP and FSDP2, give for each response the score that one process gives for the whole batch.

A response's score depends on that response alone, so each process scores its own rows and nothing is averaged. FSDP2
gathers the same weights; what is left is the order of summation in products of other shapes: float32's rounding.
"""

from pathlib import Path

import numpy as np
import pytest
import score_processes
import tiny_run
import torch
from score_models import batch_of, build
from score_processes import CASES, ROWS

from fspo.policy.logprobs import token_log_probs
from fspo.policy.scores import score
from tests.fspo.distributed.test_distributed import pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("scores")
    assert pair(score_processes.main, found, MASTER_PORT=str(tiny_run.free_ports(1)[0])) == [0, 0]
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_two_processes_give_the_scores_of_one(folder: Path, name: str) -> None:
    model, batch = build(CASES[name][0]), batch_of(ROWS)
    one = score(model, batch, rollout=3)
    parts = [np.load(folder / f"{name}-{rank}.npz") for rank in range(2)]
    norm, unit = (np.concatenate([part[key] for part in parts]) for key in ("norm", "unit"))
    assert one.status == ["ok"] * ROWS
    np.testing.assert_allclose(norm, one.norm, rtol=1e-4)
    # Units are stored in float16, 2^-11 of an entry; near a boundary the neighbour is taken.
    np.testing.assert_allclose(unit.astype(float), one.unit.astype(float), rtol=2**-9, atol=2e-6)
    assert (one.unit != 0).mean() > 0.5
    assert parts[0]["uncovered"].tolist() == parts[1]["uncovered"].tolist() == sorted(one.uncovered) == []
    # Control: another draw, or another's row, is far away.
    other = score(model, batch, rollout=4)
    assert np.abs(unit.astype(float) - other.unit).max() > 0.01
    assert np.abs(unit.astype(float) - np.roll(one.unit, 1, axis=0)).max() > 0.01
    # Training goes on after the score pass: gradients of all log-probs, averaged over the two processes.
    (token_log_probs(model.eval(), batch, 0.8)[0].sum() / 2).backward()
    want = torch.stack([torch.linalg.vector_norm(p.grad) for p in model.parameters() if p.grad is not None])
    for part in parts:
        np.testing.assert_allclose(part["gradient"], want.numpy(), rtol=1e-4)
