"""FSDP2 over two gloo processes trains the embedded model to the weights of one process, and resumes on any number.

accelerate shards on accelerators alone: `tiny_run.shard` sets its state by hand, and all that follows is its own path.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import torch
from safetensors.torch import load_file

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.models.load import build_embedded_model
from fspo.train import checkpoint
from fspo.train.checkpoint import list_checkpoints

pytestmark = pytest.mark.slow
# Five prompts on two processes, one evaluation prompt (a process without any), a drift pass and score passes,
# in most minibatches groups without advantage, whose passes are the last before the update.
ARGUMENTS = [
    *("--rule.preset", "fspo-kl", "--batch.prompts", "5", "--batch.tokens", "120", "--batch.epochs", "1"),
    *("--eval.every", "1", "--eval.prompts", "1", "--checkpoint_every", "1"),
    *("--optim.learning_rate", "2e-4", "--batch.minibatches", "2", "--seed", "8", "--batch.staleness", "1"),
]
KL = ["--rule.kl_coef", "0.1"]  # with a reference, sharded too
GENERATE = ["--sampling.engine", "generate"]  # what "auto" takes for large models; it draws the same responses
HALF, WHOLE, RESUME = ["--rollouts", "1"], ["--rollouts", "2"], ["--rollouts", "2", "--resume", "true"]


def one(run: Path, *arguments: str) -> None:
    tiny_run.trainer(run, *ARGUMENTS, *arguments, net=build_embedded_model()).train()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs named by the processes of their two halves."""
    found = tmp_path_factory.mktemp("fsdp")
    one(found / "1-1", *WHOLE)
    one(found / "1-2", *HALF)
    one(found / "kl-1", *HALF, *KL)
    runs = [
        ("2", WHOLE),
        ("2-1", HALF),
        ("2-2", HALF),
        ("2-2", RESUME),
        ("1-2", RESUME),
        ("kl-2", HALF + KL + GENERATE),
    ]
    done = tiny_run.in_children(
        [(found / name, [*ARGUMENTS, *arguments]) for name, arguments in runs], processes=2, sharded=True
    )
    assert done == [0, 0], tiny_run.child_log(found / "2") + tiny_run.child_log(found / "2", 1)
    one(found / "2-1", *RESUME)
    return found


@pytest.mark.parametrize(("name", "alone"), [("2", "1-1"), ("1-2", "1-1"), ("2-1", "1-1"), ("kl-2", "kl-1")])
def test_sharded_training_gives_the_weights_of_one_process(folder: Path, name: str, alone: str) -> None:
    want, found = (load_file(folder / run / "model" / "model.safetensors") for run in (alone, name))
    start = build_embedded_model().state_dict()
    assert want.keys() == found.keys() == start.keys()
    for key, value in want.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5, err_msg=key)
        assert (found[key] - value).norm() <= 1e-3 * (value - start[key]).norm(), key  # of the way that it has moved
    ours, theirs = (tiny_run.metrics(folder / run) for run in (name, alone))
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for line, other in zip(ours, theirs, strict=True):
        for key, value in other.items():
            near = pytest.approx(value, rel=1e-3, abs=1e-4) if isinstance(value, float) else value
            assert line[key] == near, key
    rows, others = (
        read_log(folder / run, phases=None).table.to_pandas().sort_values(["phase", "step", "response_id"])
        for run in (name, alone)
    )
    for column in ("phase", "step", "response_id", "length", "reward", "side", "score_status"):
        assert rows[column].tolist() == others[column].tolist(), column
    updates = others[others.phase == "train"].groupby("step").advantage
    assert any(0 < (advantages == 0).mean() < 1 for _, advantages in updates)
    for column in ("log_ratio", "staleness_log_ratio", "score_norm", "advantage"):
        np.testing.assert_allclose(rows[column], others[column], rtol=1e-3, atol=1e-4, err_msg=column)


def test_sharded_run_resumes_bit_by_bit(folder: Path) -> None:
    run, whole = folder / "2-2", folder / "2"
    assert tiny_run.metrics(run) == tiny_run.metrics(whole)
    assert read_log(run, phases=None).table.equals(read_log(whole, phases=None).table)
    same_files(list_checkpoints(run)[-1], list_checkpoints(whole)[-1])


def same_files(one: Path, other: Path) -> None:
    """Both folders hold the same files: the same bits of each tensor, the same bytes of other files.

    (safetensors writes the entries of a file's metadata in any order.)
    """

    def content(path: Path) -> Any:
        if path.suffix != ".safetensors":
            return path.read_bytes()
        return {name: (value.dtype, value.numpy().tobytes()) for name, value in load_file(path).items()}

    ours, theirs = ({p.relative_to(top): content(p) for p in top.rglob("*") if p.is_file()} for top in (one, other))
    assert ours == theirs


def test_each_process_writes_its_rows(folder: Path) -> None:
    """Each file of shards has half of the rows; joined by row they are the tensors of one process's checkpoint."""
    plain, sharded = (list_checkpoints(folder / run)[-1] for run in ("1-1", "2"))
    for name in ("model", "optimizer", "past-00000002"):
        want = load_file(plain / f"{name}.safetensors")
        halves = [load_file(file) for file in sorted((sharded / name).iterdir())]
        assert len(halves) == 2
        assert halves[0].keys() | halves[1].keys() == want.keys()
        for key, value in want.items():
            if value.ndim:
                parts = [half[key] for half in halves]
                assert [len(part) for part in parts] == [len(value) // 2, len(value) // 2]
                np.testing.assert_allclose(torch.cat(parts), value, rtol=1e-2, atol=1e-5, err_msg=key)
    assert any(key.startswith("exp_avg_sq.") for key in load_file(plain / "optimizer.safetensors"))


def test_a_lost_shard_is_named(folder: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(list_checkpoints(folder / "2")[-1], tmp_path / "step-00000004"))
    sorted((damaged / "past-00000002").iterdir())[-1].unlink()
    net = build_embedded_model()
    with pytest.raises(UserError, match=r"is damaged \(past-00000002 has 1 of 2 files\): remove it to go on"):
        checkpoint.load(damaged, net, torch.optim.AdamW(net.parameters()))


@pytest.mark.parametrize(
    ("point", "count", "whole"), [("shards", 2, 0), ("shards", 3, 0), ("shards", 5, 1), ("before-rename", 2, 1)]
)
def test_a_kill_while_shards_are_written(folder: Path, tmp_path: Path, point: str, count: int, whole: int) -> None:
    """Of each checkpoint a process writes three files: weights, moments, past weights; ``whole`` are complete."""
    run = tmp_path / "run"
    arguments = [*ARGUMENTS, *RESUME]
    victim = 1 if point == "shards" else 0  # the first process renames
    done = tiny_run.in_children([(run, arguments)], processes=2, sharded=True, kill=(point, count), rank_to_kill=victim)
    assert done[victim] == -9, tiny_run.child_log(run, victim)
    assert len(list_checkpoints(run)) == whole
    assert tiny_run.in_children([(run, arguments)], processes=2, sharded=True) == [0, 0], tiny_run.child_log(run)
    same_files(list_checkpoints(run)[-1], list_checkpoints(folder / "2")[-1])
    same_files(run / "model", folder / "2" / "model")
    assert not list(run.rglob(".part*"))


def test_a_full_disk_of_one_process_stops_all(tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = [(run, [*ARGUMENTS, *HALF])]
    done = tiny_run.in_children(asked, processes=2, sharded=True, kill=("full-shards", 1), rank_to_kill=1)
    assert done == [2, 2]
    for rank in (0, 1):
        assert "cannot write" in tiny_run.child_log(run, rank)
    assert not list_checkpoints(run)


def test_sharded_weights_sample_a_version_behind(folder: Path) -> None:
    rows = read_log(folder / "2", phases=None).table.to_pandas()
    stale = rows[(rows.phase == "train") & (rows.rollout == 1)]
    assert (stale.behaviour_version == 0).all()
    assert stale.engine_log_ratio.abs().max() < 1e-4 < 1e-2 < stale.staleness_log_ratio.abs().max()


def test_sharding_that_accelerate_would_drop_is_refused(tmp_path: Path) -> None:
    """Two real processes in which FSDP is asked for by the environment, as a launcher does."""
    run = tmp_path / "run"
    environment = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    assert tiny_run.in_children([(run, ARGUMENTS)], processes=2, environment=environment) == [2, 2]
    assert "accelerate would run MULTI_CPU instead" in tiny_run.child_log(run)
    assert not run.exists()


def test_a_copy_of_sharded_weights_is_refused(tmp_path: Path) -> None:
    run, arguments = tmp_path / "run", [*ARGUMENTS, "--sampling.precision", "int8"]
    assert tiny_run.in_children([(run, arguments)], processes=2, sharded=True) == [2, 2]
    assert "set it to same" in tiny_run.child_log(run, 1)
