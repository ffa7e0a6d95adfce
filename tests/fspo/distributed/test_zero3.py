"""DeepSpeed ZeRO-3 over two gloo processes trains the embedded model to one process's weights, and resumes anywhere.

accelerate hands models to DeepSpeed on accelerators alone: `tiny_run.zero3` sets its state by hand, and all that
follows is its own path and DeepSpeed's. Skipped where DeepSpeed is missing: it is not among the tests' packages.
"""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_run
from safetensors.torch import load_file

from fspo.base.errors import UserError
from fspo.config import OptimConfig
from fspo.distributed import zero3
from fspo.gradlog import read_log
from fspo.train.checkpoint import list_checkpoints
from tests.fspo.distributed import test_fsdp

# One prompt less than processes to evaluate, groups without advantage, a drift pass, audits, score passes.
ARGUMENTS = test_fsdp.ARGUMENTS
KL, HALF, WHOLE, RESUME = test_fsdp.KL, test_fsdp.HALF, test_fsdp.WHOLE, test_fsdp.RESUME
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs named by the processes of their two halves."""
    found = tmp_path_factory.mktemp("zero3")
    for name, arguments in (("1-1", WHOLE), ("1-2", HALF), ("kl-1", HALF + KL)):
        test_fsdp.one(found / name, *arguments)
    runs = [("2", WHOLE), ("2-1", HALF), ("2-2", HALF), ("2-2", RESUME), ("1-2", RESUME), ("kl-2", HALF + KL)]
    done = tiny_run.in_children(
        [(found / name, [*ARGUMENTS, *arguments]) for name, arguments in runs],
        processes=2,
        sharded="zero3",
        environment={"DS_ACCELERATOR": "cpu"},
    )
    assert done == [0, 0], tiny_run.child_log(found / "2") + tiny_run.child_log(found / "2", 1)
    test_fsdp.one(found / "2-1", *RESUME)
    return found


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize(("name", "alone"), [("2", "1-1"), ("1-2", "1-1"), ("2-1", "1-1"), ("kl-2", "kl-1")])
def test_zero3_gives_the_weights_of_one_process(folder: Path, name: str, alone: str) -> None:
    test_fsdp.test_sharded_training_gives_the_weights_of_one_process(folder, name, alone)


@pytest.mark.slow
@needs_deepspeed
def test_resumes_bit_by_bit(folder: Path) -> None:
    test_fsdp.test_sharded_run_resumes_bit_by_bit(folder)


@pytest.mark.slow
@needs_deepspeed
def test_checkpoints_hold_the_tensors_of_an_unsharded_run(folder: Path) -> None:
    test_fsdp.test_checkpoints_of_both_kinds_hold_the_same_tensors(folder)
    want, found = (load_file(list_checkpoints(folder / run)[-1] / "optimizer.safetensors") for run in ("1-1", "2"))
    for name, value in want.items():
        assert (found[name] - value).norm() <= 1e-3 * value.norm(), name


@pytest.mark.slow
@needs_deepspeed
def test_an_update_with_a_broken_loss_is_skipped_on_both_processes(tmp_path: Path) -> None:
    """The second loss of one process is NaN: its update leaves no trace, the others train."""
    run = tmp_path / "run"
    done = tiny_run.in_children(
        [(run, [*ARGUMENTS, *HALF, "--eval.every", "0"])],
        processes=2,
        sharded="zero3",
        kill=("nan", 2),
        environment={"DS_ACCELERATOR": "cpu"},
    )
    assert done == [0, 0], tiny_run.child_log(run)
    (line,) = tiny_run.metrics(run)
    assert line["skipped_updates"] == pytest.approx(0.5)
    weights = load_file(run / "model" / "model.safetensors")
    assert all(np.isfinite(value).all() for value in weights.values())
    moments = load_file(list_checkpoints(run)[-1] / "optimizer.safetensors")
    assert {float(value) for name, value in moments.items() if name.startswith("step.")} == {1.0}
    assert len(read_log(run).table)


@pytest.mark.parametrize(
    ("zero", "precision", "optim", "said"),
    [
        ({"stage": 2}, "no", "adamw", "set zero_stage to 3"),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, "no", "adamw", "set both offload devices to none"),
        ({"stage": 3}, "fp16", "adamw", "set mixed_precision to bf16 or no"),
        ({"stage": 3}, "bf16", "adamw8bit", "set it to adamw, or use FSDP2"),
    ],
)
def test_what_deepspeed_cannot_do_here_is_refused(zero: dict, precision: str, optim: str, said: str) -> None:
    plugin = SimpleNamespace(deepspeed_config={"zero_optimization": zero})
    asked = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin), mixed_precision=precision, num_processes=2)
    with pytest.raises(UserError, match=said):
        zero3.configure(asked, OptimConfig(name=optim))
