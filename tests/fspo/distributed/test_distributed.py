"""Two gloo processes give on recorded responses what one gives.

Each process sees microbatches of its own. With loss_i the term of response i and N the global number of responses,
process r holds W * sum_{i in r} loss_i / N, where W is the number of processes; DDP averages over W, which leaves
sum_i loss_i / N, the gradient of one process. What is left is the order of summation.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
import two_processes

from fspo.gradlog import read_log


def pair(target: Any, *arguments: Any, **environment: str) -> list[int]:
    """Run a function in the two processes of a group; their exit codes."""
    started = [tiny_run.forked(target, *arguments, rank=rank, processes=2, **environment) for rank in range(2)]
    for process in started:
        process.join()
    return [process.exitcode for process in started]


OPTIONS = [
    *("--rule.preset", "fspo-kl", "--rule.adapt", "range", "--rule.target", "0.7", "--batch.tokens", "100"),
    *("--rule.kl_coef", "0.1"),
    *("--correction.preset", "engine-sqrt", "--correction.weight", "geometric"),
    *("--correction.range_lo", "2", "--correction.range_hi", "2"),
    *("--optim.learning_rate", "3e-4", "--optim.warmup_updates", "0"),
]


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """In float64, so that the order of a sum leaves nothing to see."""
    folder, names, tolerance = tmp_path, ("one", "two"), 1e-9
    two_processes.main(folder, "one", *OPTIONS)
    port = str(tiny_run.free_ports(1)[0])
    assert pair(two_processes.main, folder, "two", *OPTIONS, "--processes", "2", MASTER_PORT=port) == [0, 0]
    one, two = (np.load(folder / f"{name}.npy") for name in names)
    for a, b in zip(one, two, strict=True):  # four updates, the last three at S != 0
        assert np.linalg.norm(a) > 0
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(a)
    assert len(list((folder / "two" / "gradlog").iterdir())) == 2
    rows = [read_log(folder / name).table.to_pandas().sort_values(["step", "response_id"]) for name in names]
    assert len(rows[0]) == len(rows[1]) == 2 * 24
    exact = ["step", "times_used", "prompt_id", "response_id", "length", "side", "band_accept", "score_status"]
    for name in exact:
        assert rows[0][name].tolist() == rows[1][name].tolist(), name
    assert (rows[0].side != 0).any()
    # the range is learnt from the rows of both processes, from the first update with S != 0 on
    ranges = ((rows[0].hi - rows[0].lo) / rows[0].length ** 0.5).groupby(rows[0].step).mean().to_numpy()
    assert np.unique(ranges.round(9)).size == 3
    assert 0 < (rows[0].correction_side != 0).sum() < 48
    for name in ("correction_drift", "correction_lo", "correction_weight"):  # the centre is of both processes' rows
        np.testing.assert_allclose(rows[0][name], rows[1][name], rtol=1e-6, err_msg=name)
    close = ["log_ratio", "sum_sq_log_ratio", "k3_sum", "lo", "hi", "drift", "multiplier", "weight", "entropy"]
    for name in [*close, "advantage", "score_norm", "engine_log_ratio", "total_k3_sum"]:
        np.testing.assert_allclose(rows[0][name], rows[1][name], rtol=tolerance, atol=1e-9, err_msg=name)
    for one_unit, two_unit in zip(rows[0].score_unit, rows[1].score_unit, strict=True):
        assert (one_unit is None) == (two_unit is None)
        if one_unit is not None:
            np.testing.assert_allclose(one_unit, two_unit, atol=2e-3)  # stored in float16
    ours, theirs = (tiny_run.metrics(folder / name)[0] for name in names)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if name not in ("phase", "num_tokens"):
            assert theirs[name] == pytest.approx(value, rel=1e-8, abs=1e-9), name


@pytest.mark.parametrize("launched", [False, True])
def test_wrong_number_of_processes_is_refused(tmp_path: Path, launched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if launched:  # what torchrun sets; accelerate finds one process only
        monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 processes were asked for and 1 run.*torchrun --nproc_per_node 2"):
        tiny_run.trainer(tmp_path / "run", *([] if launched else ["--processes", "2"]))
    assert not (tmp_path / "run").exists()


def test_processes_end() -> None:
    """With DDP's reducer as the group's last owner one of the two hangs, on a busy machine within a few ends."""
    assert pair(two_processes.ends, [str(port) for port in tiny_run.free_ports(10)]) == [0, 0]
