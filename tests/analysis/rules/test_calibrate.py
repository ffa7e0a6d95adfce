"""Calibration of all rules on one shared run."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.rules.calibrate import calibrate_run
from fspo.base.errors import UserError
from fspo.rules import Rule
from tests.analysis.conftest import Plan, write_log


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,096 Gaussian rows of later epochs after an update, and as many before it, whose S is 0."""
    plan = Plan(rule=Rule("none"), rollouts=8, minibatches=1, sigma=0.05, drift=0.0, width=0)
    return write_log(tmp_path_factory.mktemp("shared") / "run", plan)


def test_ranges_give_the_clip_rate_of_the_normal_law_among_responses_that_have_an_advantage(shared: Path) -> None:
    found = calibrate_run(shared, ["rloo", "fspo", "none", "grpo"], 0.85)
    assert set(found) == {"rloo", "fspo"}  # the others have no range on whole sequences
    # S / sqrt(L) is N(0, 0.05^2); a response is clipped at one edge, by the sign of A, and 15 % lie beyond 1.0364 sd
    assert found["fspo"]["range_hi"] == pytest.approx(1.0364 * 0.05, rel=0.05)
    assert found["fspo"]["range_lo"] == pytest.approx(found["fspo"]["range_hi"])
    between = calibrate_run(shared, ["fspo"], 0.85013)["fspo"]  # a share that no number of rows is
    log = pd.read_parquet(shared / "gradlog").query("updates_since_rollout == 1 and advantage != 0")
    assert between["rows"] == len(log) < 4096
    outward = np.sign(log["advantage"]) * log["log_ratio"]
    assert between["realised"] == (outward <= between["range_hi"] * np.sqrt(log["length"])).mean()
    assert between["realised"] == pytest.approx(0.85013, abs=1 / len(log))


def test_only_the_first_epoch_counts_where_it_follows_an_update(tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", Plan(rule=Rule("none"), rollouts=2, width=0))
    log = pd.read_parquet(run / "gradlog").query("times_used == 0 and updates_since_rollout > 0 and advantage != 0")
    fit = calibrate_run(run, ["fspo"], 0.9)["fspo"]
    assert fit["rows"] == len(log)
    clipped = np.sign(log["advantage"]) * log["log_ratio"] > fit["range_hi"] * np.sqrt(log["length"])
    assert clipped.mean() == pytest.approx(0.1, abs=1 / len(log))


def test_the_printed_options_are_those_of_the_file(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shared.parent / "ranges.json"
    assert main(["calibrate", str(shared), "--rules", "[fspo,none]", "--output", str(out)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    fit = json.loads(out.read_text())["fspo"]
    words = first.split()
    assert words[:2] == ["--rule.preset", "fspo"]
    assert float(words[3]) == pytest.approx(fit["range_lo"], rel=1e-8)
    assert second == "--rule.preset none"


def test_corrections_are_calibrated_on_the_mismatch_of_any_run(tmp_path, capsys) -> None:
    run = write_log(tmp_path / "run", Plan(engine=0.04, rollouts=6, width=0))  # trained with fspo, which clips
    assert main(["calibrate", str(run), "--on", "engine", "--target", "0.85"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["mis", "geo-mask", "engine-sqrt"]
    assert all(line.startswith("--correction.preset") and "--correction.on engine" in line for line in lines)
    # (E + KL L) / sqrt(L) is N(0, 0.04^2), and 85 % lie within 1.4395 sd
    assert float(lines[2].split()[-1]) == pytest.approx(1.4395 * 0.04, rel=0.05)
    log = pd.read_parquet(run / "gradlog").query("times_used == 0")
    low, high = (float(lines[0].split()[at]) for at in (5, 7))
    inside = (log["engine_log_ratio"] >= np.log1p(-low)) & (log["engine_log_ratio"] <= np.log1p(high))
    assert inside.mean() == pytest.approx(0.85, abs=1e-3)


def test_a_correction_on_tokens_is_said_to_have_no_range(tmp_path, capsys) -> None:
    run = write_log(tmp_path / "run", Plan(engine=0.04, rollouts=2, width=0))
    assert main(["calibrate", str(run), "--on", "engine", "--rules", "[tis]"]) == 0
    written = capsys.readouterr()
    assert written.out == "--correction.preset tis --correction.on engine\n"
    lines = written.err.splitlines()
    assert lines[0] == "tis: acts on tokens, so it has no range to calibrate on responses"
    assert lines[-1].startswith("next: fspo train")


def test_rounding_is_no_mismatch_to_calibrate_on(tmp_path) -> None:
    run = write_log(tmp_path / "run", Plan(engine=1e-6, rollouts=2, width=0))
    with pytest.raises(UserError, match=r"E is 1e-06 nats per root token, which is rounding.* no correction"):
        main(["calibrate", str(run), "--on", "engine"])
