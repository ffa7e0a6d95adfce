"""Metrics are sums divided once; live LRE and cosines against numbers worked by hand."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from hypothesis import given
from hypothesis import strategies as st

from fspo.advantages import GroupStats
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rollouts.counts import Counts, add_rollout, length_bins
from fspo.train.launch import init_trackers, make_accelerator
from fspo.train.live_cosine import live_lemma, strata_sums
from fspo.train.metrics import add_update_rows, finished

EDGES = (1, 4, 8)


def rows(**columns: list[float]) -> dict[str, np.ndarray]:
    n = len(columns["length"])
    default = {
        "log_ratio": np.zeros(n),
        "band_accept": np.ones(n, bool),
        "capped": np.zeros(n, bool),
        "advantage": np.ones(n),
    }
    default |= {name: np.zeros(n, int) for name in ("cut_low", "cut_high", "cut_dual")}
    found = default | {name: np.array(values) for name, values in columns.items()}
    found.setdefault("count", (found["advantage"] != 0).astype(int))
    return found


def example() -> dict[str, np.ndarray]:
    """Five rows in two bins; one has A = 0 and lies out of band."""
    return rows(
        length=[2, 3, 5, 6, 7],
        log_ratio=[0.1, -0.3, 0.0, 0.5, -0.2],
        band_accept=[True, False, True, False, False],
        cut_low=[0, 1, 0, 0, 0],
        cut_high=[0, 0, 0, 1, 0],
        advantage=[1.0, -1.0, 2.0, 1.0, 0.0],
    )


def test_numbers_by_hand() -> None:
    counts = Counts()
    add_update_rows(counts, example(), EDGES, moved=True)
    values = finished(counts, EDGES)
    assert values["clip_ratio/low_mean"] == 1 / 4  # among A != 0
    assert values["clip_ratio/high_mean"] == 1 / 4
    assert values["clip_ratio/region_mean"] == 2 / 4
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
    # update, A != 0: both bins keep 1 of 2
    assert values["lre_update/inf"] == pytest.approx(0)


def test_dual_cuts_count_in_the_region() -> None:
    counts = Counts()
    add_update_rows(counts, rows(length=[2, 2, 2], cut_dual=[1, 0, 0], cut_low=[0, 1, 0]), EDGES, moved=True)
    values = finished(counts, EDGES)
    assert values["clip_ratio/region_mean"] == 2 / 3
    assert values["clip_ratio/low_mean"] == 1 / 3


def test_update_acceptance_counts_what_is_not_cut() -> None:
    """Bin 0 keeps 1 of 2, bin 1 keeps 1 of 1; the dual cut counts, and A = 0 does not."""
    counts = Counts()
    found = rows(length=[2, 2, 5, 6], cut_dual=[1, 0, 0, 0], advantage=[-1.0, 1.0, 1.0, 0.0])
    add_update_rows(counts, found, EDGES, moved=True)
    # p = (2/3, 1/3), a = (1/2, 1), mean 2/3, r = (-1/4, 1/2)
    assert finished(counts, EDGES)["lre_update/l1"] == pytest.approx(2 / 3 / 4 + 1 / 3 / 2)


def test_before_the_first_update_only_clip_ratios_are_taken() -> None:
    counts = Counts()
    add_update_rows(counts, example(), EDGES, moved=False)
    assert set(finished(counts, EDGES)) == {f"clip_ratio/{side}_mean" for side in ("low", "high", "region")}


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


def test_ratio_without_a_count_is_left_out() -> None:
    counts = Counts()
    counts.add("nothing", 0.0, 0.0)
    counts.add("half", 1.0, 2.0)
    assert counts.values() == {"half": 0.5}
    assert counts.get("half") == 0.5
    assert math.isnan(counts.get("nothing"))
    assert math.isnan(counts.get("unknown"))


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


def test_length_bins_are_half_open_and_the_last_is_open() -> None:
    masks = length_bins(np.array([1, 3, 4, 7, 8, 10_000]), EDGES)
    assert [mask.tolist() for mask in masks] == [[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]


def test_live_lemma_by_hand() -> None:
    """Two strata, orthogonal scores; one of two equal responses of the second stratum is dropped."""
    psi = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    columns = {
        "length": np.array([2, 2, 5, 5]),
        "weight": np.array([1.0, 1.0, 1.0, 1.0]),
        "clipped_weight": np.array([1.0, 1.0, 1.0, 0.0]),
        "multiplier": np.array([1.0, 1.0, 1.0, 0.0]),
        "advantage": np.array([1.0, 1.0, 1.0, 1.0]),
    }
    lemma, values = live_lemma(strata_sums(columns, psi, EDGES), drop=True)
    # g = (1, 2)/2, clipped = (1, 1)/2
    assert values["grad_cosine/global"] == pytest.approx((1 + 2) / math.sqrt(5 * 2))
    # a = (1, 1/2), mean 3/4, r = (1/3, -1/3); delta = 0. kappa = (1 + 2)/2/|g| with |g| = sqrt(5)/2, and
    # g_l - g = +-(1/2, -1): its norm is |g|, so kappa_c = kappa_c2 = 1.
    assert values["grad_cosine/rho"] == pytest.approx(1 / 3)
    assert values["grad_cosine/bound"] == pytest.approx(math.sqrt(1 - 1 / 9))
    assert values["length_bin/0/grad_cosine"] == pytest.approx(1)
    assert values["length_bin/1/grad_cosine"] == pytest.approx(1)
    assert lemma is not None
    assert lemma.eta == pytest.approx(0, abs=1e-12)


def test_responses_without_an_advantage_are_no_part_of_the_live_lemma() -> None:
    """With a KL term they are scored too. In the first stratum they are accepted, and would raise its acceptance."""
    columns = {
        "length": np.array([2, 2, 5]),
        "weight": np.ones(3),
        "clipped_weight": np.array([0.0, 1.0, 1.0]),
        "multiplier": np.array([0.0, 1.0, 1.0]),
        "advantage": np.array([1.0, -1.0, 1.0]),
    }
    psi = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]])
    more = {name: np.append(values, [values[1]] * 3) for name, values in columns.items()}
    more["advantage"][3:] = 0.0
    expected = strata_sums(columns, psi, EDGES)
    found = strata_sums(more, np.vstack([psi, *[psi[1:2]] * 3]), EDGES)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_live_lemma_for_truncation_uses_the_weight_acceptance() -> None:
    psi = np.array([[1.0], [1.0], [1.0]])
    columns = {
        "length": np.array([2, 2, 5]),
        "weight": np.array([4.0, 1.0, 1.0]),
        "clipped_weight": np.array([2.0, 1.0, 1.0]),
        "multiplier": np.array([0.5, 1.0, 1.0]),
        "advantage": np.ones(3),
    }
    lemma, _ = live_lemma(strata_sums(columns, psi, EDGES), drop=False)
    assert lemma is not None
    b = np.array([3 / 5, 1.0])  # E[M w] / E[w], where E[M] would be (3/4, 1)
    assert lemma.lre.inf == pytest.approx(np.max(np.abs(b / (2 / 3 * b[0] + b[1] / 3) - 1)))
    assert lemma.eta == pytest.approx(0, abs=1e-12)


def test_live_lemma_without_rows_or_gradient_is_silent() -> None:
    empty = {"length": np.array([], int), **{n: np.array([]) for n in ("weight", "clipped_weight", "multiplier")}}
    assert live_lemma(strata_sums(empty | {"advantage": np.array([])}, np.zeros((0, 2)), EDGES), drop=True) == (
        None,
        {},
    )
    one = {"length": np.array([3]), **{n: np.ones(1) for n in ("weight", "clipped_weight", "multiplier")}}
    assert live_lemma(strata_sums(one | {"advantage": np.ones(1)}, np.zeros((1, 2)), EDGES), drop=True) == (None, {})


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
    kept = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert kept[4:] == [{"note": "by hand"}, {"rollout": None, "phase": "train"}]  # of no rollout that is repeated
    kept = kept[:4]
    assert [(row["phase"], row["rollout"]) for row in kept] == [("eval", 0), ("train", 0), ("train", 1), ("eval", 2)]
    assert kept[2]["x"] is None  # NaN is no JSON
    file.keep_before(0)
    assert len(file.path.read_text().splitlines()) == 2  # the evaluation before training is repeated as well


def test_tensorboard_shows_the_bins_of_lengths_beside_each_other(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install -e '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar import layout_pb2

    words = ("--trackers=[tensorboard]", "--batch.responses=12", "--optim.learning_rate=1e-3", "--eval.every=1")
    tiny_run.trainer(tmp_path / "run", *words).train()
    (events,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    assert events == tmp_path / "run" / "tensorboard"
    read = EventAccumulator(str(events)).Reload()
    content = read.Tensors("custom_scalars__config__")[-1].tensor_proto.string_val[0]
    (category,) = layout_pb2.Layout.FromString(content).category
    written = read.Tags()["scalars"]
    for chart in category.chart:
        shown = [tag for tag in written if any(re.search(pattern, tag) for pattern in chart.multiline.tag)]
        assert shown, chart.title
        assert all("length_bin/" in tag for tag in shown)
    assert len(category.chart) == 5


def test_a_run_of_an_older_version_keeps_its_tensorboard_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install -e '.[tensorboard]'")
    config = tiny_run.config(tmp_path, "--trackers=[tensorboard]")
    (tmp_path / "fspo").mkdir()
    accelerator = make_accelerator(config)
    init_trackers(accelerator, config, step=3)
    accelerator.end_training()
    assert {path.parent for path in tmp_path.rglob("events.out.tfevents.*")} == {tmp_path / "fspo"}
