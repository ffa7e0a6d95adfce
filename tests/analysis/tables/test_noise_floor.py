"""The noise floor's table against planted noise."""

import shutil

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.log.notes import Notes
from analysis.tables.noise_floor import NoiseRow, noise_table
from fspo.gradlog import GradLogWriter
from fspo.rules import preset
from fspo.stats.bins import Bins
from tests.analysis.rows import records


@pytest.fixture
def run(fspo_run, tmp_path):
    """A copy of a run to which a measurement can be added."""
    return shutil.copytree(fspo_run, tmp_path / "run")


def plant(run, sigma, drift=-0.001, n=4000):
    rng = np.random.default_rng(0)
    header = {"rule": preset("fspo").rule.to_dict(), "sources": {"low": "low precision"}}
    writer = GradLogWriter(run / "noise", metadata=header, user_columns={"source": "string"})
    length = rng.integers(2, 300, n)
    S = sigma * np.sqrt(length) * rng.standard_normal(n) + drift * length
    writer.append(
        {"rollout": 0, "step": 0, "updates_since_rollout": 0, "phase": "noise"}
        | {"prompt_id": np.arange(n) % 500, "response_id": np.arange(n), "length": length, "log_ratio": S}
        | {"advantage": 1.0, "band_accept": np.abs(S) < 0.3, "user.source": ["low"] * n}
    )
    writer.flush(0)
    return length, S


def test_floor_by_bin_is_the_planted_one(run):
    bins = Bins((2, 100, 300))
    assert noise_table(load_run(run), bins) == ([], Notes())
    length, S = plant(run, 0.02)
    rows, notes = noise_table(load_run(run), bins)
    table = records(NoiseRow, rows)
    assert [row["bin"] for row in table] == [-1, 0, 1]
    assert {row["meaning"] for row in table} == {"low precision"}
    for row, inside in zip(table, (length > 0, length < 100, length >= 100), strict=True):
        assert row["count"] == inside.sum()
        assert row["out_of_band"] == pytest.approx(np.mean(np.abs(S[inside]) >= 0.3))
        assert row["mean_square_per_token"] == pytest.approx(np.sum(S[inside] ** 2) / np.sum(length[inside]))
        assert row["out_of_band_ci_low"] <= row["out_of_band"] <= row["out_of_band_ci_high"]
    (line,) = notes.warnings
    assert "low precision" in line


@pytest.mark.parametrize(("share", "warned"), [(0.09, False), (0.11, True)])
def test_noise_of_a_tenth_of_the_runs_mean_square_is_warned_of(run, share, warned):
    first = load_run(run).rows.use("first")
    sigma = np.sqrt(share * np.sum(first.S**2) / np.sum(first.length))
    length, S = plant(run, sigma, drift=0.0, n=40_000)
    assert np.sum(S**2) / np.sum(length) == pytest.approx(sigma**2, rel=0.05)
    assert bool(noise_table(load_run(run), Bins((2, 300)))[1].warnings) == warned


def test_a_broken_measurement_is_named(run):
    plant(run, 0.02)
    (file,) = (run / "noise" / "gradlog").iterdir()
    file.write_bytes(b"cut")
    rows, notes = noise_table(load_run(run), Bins((2, 300)))
    assert rows == []
    (line,) = notes.damage
    assert line.startswith("noise floor: no readable file")
