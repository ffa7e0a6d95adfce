"""Metrics are sums divided once; live LRE against numbers worked by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from hypothesis import given
from hypothesis import strategies as st

from fspo.advantages import GroupStats
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rollouts.metric_sums import Counts, add_rollout
from fspo.train.metrics import add_update_rows, finished

EDGES = (1, 4, 8)


def rows(**columns: list[float]) -> dict[str, np.ndarray]:
    n = len(columns["length"])
    found = {"log_ratio": np.zeros(n), "band_accept": np.ones(n, bool), "capped": np.zeros(n, bool)}
    found |= {name: np.zeros(n, int) for name in ("clipped_low", "clipped_high", "clipped_dual")}
    found |= {name: np.array(values) for name, values in columns.items()}
    return found | {"count": (found["advantage"] != 0).astype(int)}


def example() -> dict[str, np.ndarray]:
    """Five rows in two bins; one has A = 0 and lies out of band."""
    return rows(
        length=[2, 3, 5, 6, 7],
        log_ratio=[0.1, -0.3, 0.0, 0.5, -0.2],
        band_accept=[True, False, True, False, False],
        clipped_low=[0, 1, 0, 0, 0],
        clipped_high=[0, 0, 0, 1, 0],
        clipped_dual=[0, 0, 1, 0, 0],
        advantage=[1.0, -1.0, 2.0, 1.0, 0.0],
    )


def test_numbers_by_hand() -> None:
    counts = Counts()
    add_update_rows(counts, example(), EDGES, moved=True)
    values = finished(counts, EDGES)
    assert values["clip_ratio/low_mean"] == 1 / 4  # among A != 0
    assert values["clip_ratio/high_mean"] == 1 / 4
    assert values["clip_ratio/region_mean"] == 3 / 4
    assert values["clip_ratio/out_of_band"] == 3 / 5  # among all
    assert values["seq_log_ratio/mean"] == pytest.approx(0.1 / 5)
    assert values["seq_log_ratio/std"] == pytest.approx(np.std([0.1, -0.3, 0.0, 0.5, -0.2]))
    assert values["seq_log_ratio/drift"] == pytest.approx(0.1 / 23)
    assert values["length_bin/0/out_of_band"] == 1 / 2
    assert values["length_bin/1/out_of_band"] == 2 / 3
    assert values["length_bin/0/clip_low"] == 1 / 2
    assert values["length_bin/1/clip_high"] == 1 / 2
    assert values["length_bin/0/count"] == 2
    assert (values["length_bin/1/length_lo"], values["length_bin/1/length_hi"]) == (4, 8)
    assert not any(name.startswith("length_bin/2") for name in values)
    # band: p = (2/5, 3/5), a = (1/2, 1/3), mean 2/5, r = (1/4, -1/6)
    assert values["lre_band/inf"] == pytest.approx(1 / 4)
    assert values["lre_band/l1"] == pytest.approx(2 / 5 / 4 + 3 / 5 / 6)
    assert values["lre_band/l2"] == pytest.approx(math.sqrt(2 / 5 / 16 + 3 / 5 / 36))
    # update, A != 0: p = (1/2, 1/2), a = (1/2, 0), as the dual cut counts too, r = (1, -1)
    assert values["lre_update/l1"] == values["lre_update/l2"] == pytest.approx(1)
    first = Counts()  # before the first update S = 0
    add_update_rows(first, example(), EDGES, moved=False)
    assert set(finished(first, EDGES)) == {f"clip_ratio/{side}_mean" for side in ("low", "high", "region")}


@given(st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_values_do_not_depend_on_the_partition(part_of: list[int]) -> None:
    """TRL 6380, verl 4711: a mean of microbatches' means is another number where their sizes differ."""
    whole, merged = Counts(), Counts()
    add_update_rows(whole, example(), EDGES, moved=True)
    for part in set(part_of):
        chosen = np.array(part_of) == part
        one = Counts()
        add_update_rows(one, {name: column[chosen] for name, column in example().items()}, EDGES, moved=True)
        merged.merge(json.loads(json.dumps(one.pairs())))  # as it goes between processes
    assert finished(merged, EDGES) == pytest.approx(finished(whole, EDGES), rel=1e-12)


def test_rewards_by_group() -> None:
    from tests.fspo.rollouts.test_batches import batch

    rollout = batch(3, 2)
    rollout.rewards = np.array([0.0, 1.0, 1.0, 1.0, 0.0, 0.5])
    rollout.reward_status = np.array(["timeout", "ok", "ok", "error", "timeout", "ok"])
    rollout.truncated = np.array([True, False, False, False, False, False])
    counts = Counts()
    add_rollout(counts, rollout, GroupStats(num_groups=3, num_zero_std_groups=1))
    values = counts.values()
    assert values["reward"] == pytest.approx(3.5 / 6)
    assert values["reward_std"] == pytest.approx((np.std([0, 1], ddof=1) + 0 + np.std([0, 0.5], ddof=1)) / 3)
    assert values["frac_reward_zero_std"] == pytest.approx(1 / 3)
    assert values["verifier/timeout"] == pytest.approx(2 / 6)
    assert values["verifier/error"] == pytest.approx(1 / 6)
    assert values["completions/clipped_ratio"] == pytest.approx(1 / 6)
    assert values["completions/mean_length"] == pytest.approx(rollout.lengths.mean())


def test_metrics_file_cuts_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.write({"rollout": 0, "phase": "eval", "x": 1})
    for rollout in range(4):
        file.write({"rollout": rollout, "phase": "train", "x": math.nan if rollout else 0.5})
        if rollout % 2:
            file.write({"rollout": rollout + 1, "phase": "eval"})
    with file.path.open("a") as handle:
        handle.write('{"rollout": 1, "pha')
        handle.write('\n{"note": "by hand"}\n{"rollout": null, "phase": "train"}\n')
    file.keep_before(2)
    *kept, note, unnumbered = (json.loads(line) for line in file.path.read_text().splitlines())
    assert [note, unnumbered] == [{"note": "by hand"}, {"rollout": None, "phase": "train"}]  # of none that is repeated
    assert [(row["phase"], row["rollout"]) for row in kept] == [("eval", 0), ("train", 0), ("train", 1), ("eval", 2)]
    assert kept[2]["x"] is None  # NaN is no JSON
    file.keep_before(0)
    assert len(file.path.read_text().splitlines()) == 2  # the evaluation before training is repeated as well


def test_tensorboard_gets_the_metrics_under_the_run_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install -e '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny_run.trainer(tmp_path / "run", "--trackers=[tensorboard]", "--eval.every=1").train()
    (events,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    assert events == tmp_path / "run" / "tensorboard"
    assert {"reward", "eval/reward", "clip_ratio/region_mean"} <= set(
        EventAccumulator(str(events)).Reload().Tags()["scalars"]
    )
