"""T8 on gradient logs: written here and read back, and a user's run through the command line."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fspo.base.errors import UserError
from fspo.gradlog import GradLogWriter
from fspo.rules import Rule, preset
from proofs_check import __main__ as cli
from proofs_check.checks.t08_split import log_checks, of_log, permuted, turned, written
from proofs_check.frame import Verdict, exit_status
from proofs_check.run import run_checks
from proofs_check.tools.log_rows import ScoredUpdate, binned, direct, read_updates, sample_updates, write_update


def made(run: Path, rollouts: int = 2) -> list[ScoredUpdate]:
    """A run folder with one update of the tabular policy in each rollout, all of one rule."""
    updates = [sample_updates(np.random.default_rng(i))[1] for i in range(rollouts)]
    rule = updates[0].rule
    updates = [replace(update, rule=rule) for update in updates]
    for i, update in enumerate(updates):
        write_update(run, i, update, exact=False)
    return updates


def test_by_hand():
    # band +-1 on S at n = 1: the second row (S = 2, A > 0) is cut; M w A psi = e^0 * 1 * (1, 0), 0
    update = ScoredUpdate(Rule("sqrt", 1.0, 1.0), 0.0, np.array([0.0, 2.0]), np.ones(2), np.ones(2), np.eye(2))
    p, a, g, clipped = binned(update, np.array([1.0, 1.0]))
    assert (p.tolist(), a.tolist()) == ([1.0], [0.5])
    np.testing.assert_allclose(g, [[0.5, math.exp(2) / 2]])
    np.testing.assert_allclose(clipped, [[0.5, 0.0]])
    true, true_clipped, size = direct(update)
    np.testing.assert_allclose(true, g[0])
    np.testing.assert_allclose(true_clipped, [0.5, 0.0])
    assert size == pytest.approx((1 + math.exp(2)) / 2)
    assert of_log(update, update, update.n)(0.0) < 1e-15
    assert of_log(update, update, update.n)(1e-6) > 1e-8


def test_what_is_read_is_what_was_written(tmp_path):
    for exact, tolerance in ((False, 2e-3), (True, 1e-6)):
        source = sample_updates(np.random.default_rng(1))[0]
        run = tmp_path / str(exact)
        write_update(run, 3, source, exact)
        ((step, read),) = read_updates(run)
        assert step == 3
        assert read.rule == source.rule
        np.testing.assert_array_equal(read.S, source.S)
        np.testing.assert_array_equal(read.A, source.A)
        np.testing.assert_allclose(read.psi, source.psi, atol=tolerance)


def test_identity_and_its_near_misses():
    def margin(x=0.0, **changes):
        return written(np.random.default_rng(4), **changes)(x).margin

    assert margin() > 0
    assert margin(1e-6) < 0
    assert margin(tamper=permuted) < -5
    assert margin(tamper=turned) < -5
    assert margin(inner=False) < -5


def test_a_nan_in_the_log_is_not_a_pass():
    def spoil(update, rng):
        psi = update.psi.copy()
        psi[0] = np.nan
        return replace(update, psi=psi)

    with pytest.raises(UserError, match="finite"):
        written(np.random.default_rng(4), tamper=spoil)(0.0)


def test_a_users_run_passes_and_its_near_misses_fail(tmp_path):
    made(tmp_path / "mine")
    rows = run_checks(log_checks(tmp_path / "mine"), seed=1, jobs=2)
    assert [row.statement for row in rows] == ["T8", "T7"]
    assert all(row.verdict is Verdict.PASS and row.sound for row in rows), rows
    assert "2 updates" in rows[0].note


def test_rows_that_were_trained_on_or_have_no_score_are_left_out(tmp_path):
    (update,) = made(tmp_path, rollouts=1)
    ((_, before),) = read_updates(tmp_path)
    writer = GradLogWriter(tmp_path, width=update.psi.shape[1], metadata={"rule": update.rule.to_dict()})
    count = 5
    common = {"rollout": 1, "step": 1, "prompt_id": np.arange(count), "response_id": np.arange(count)}
    rows = {"length": np.full(count, 3), "log_ratio": np.full(count, 0.5), "advantage": np.ones(count)}
    psi = {"score_status": ["ok", "not_taken", "ok", "ok", "ok"], "score_norm": np.ones(count)}
    unit = {"score_unit": np.ones((count, update.psi.shape[1])), "times_used": [1, 0, 0, 1, 0]}
    rows["advantage"][4] = 0.0
    writer.append(common | rows | psi | unit | {"phase": "train", "drift": 0.0})
    writer.flush(1)
    found = dict(read_updates(tmp_path))
    assert found[0].S.size == before.S.size
    assert found[1].S.size == 1  # row 2 alone: first use, scored, A != 0


@pytest.mark.parametrize("what", ["no scores", "nothing clipped", "token rule"])
def test_what_cannot_be_checked_is_said_in_one_line(tmp_path, capsys, what):
    rule = {"no scores": preset("fspo"), "nothing clipped": preset("none"), "token rule": preset("grpo")}[what].rule
    width = 0 if what == "no scores" else 4
    writer = GradLogWriter(tmp_path / "mine", width=width, metadata={"rule": rule.to_dict()})
    rows = {"rollout": 0, "step": 0, "prompt_id": [0, 1], "response_id": [0, 1], "length": [4, 9], "times_used": 0}
    rows |= {"log_ratio": [0.5, -0.5], "advantage": [1.0, -1.0], "drift": 0.0}
    if width:
        rows |= {"score_status": "ok", "score_norm": 1.0, "score_unit": np.eye(2, 4)}
    writer.append(rows)
    writer.flush(0)
    arguments = ["--only", "T7,T8", "--method", "finite identity", "--log", str(tmp_path / "mine")]
    assert cli.main([*arguments, "--out", str(tmp_path / "out"), "--jobs", "1", "--no-progress"]) == 0
    lines = capsys.readouterr().out.splitlines()
    reasons = [line for line in lines if line.startswith("not run")]
    word = {"no scores": "without psi", "nothing clipped": "0 = 0", "token rule": "token rule"}[what]
    assert len(reasons) == 2
    assert all(word in line for line in reasons)
    rows = run_checks(log_checks(tmp_path / "mine"))
    assert exit_status(rows) == 1  # nothing ran
    assert all(row.verdict is Verdict.NOT_RUN for row in rows)


def test_no_log_and_no_rule_are_one_line(tmp_path):
    with pytest.raises(UserError, match="no gradient log"):
        cli.main(["--log", str(tmp_path), "--list"])
    writer = GradLogWriter(tmp_path)
    one = {"length": [1], "log_ratio": [0.0], "advantage": [1.0]}
    writer.append({"rollout": 0, "step": 0, "prompt_id": [0], "response_id": [0], **one})
    writer.flush(0)
    with pytest.raises(UserError, match="names no rule"):
        cli.main(["--log", str(tmp_path), "--list"])


def test_a_torn_log_is_told_and_is_no_success(tmp_path, capsys):
    made(tmp_path / "mine")
    files = sorted((tmp_path / "mine" / "gradlog").glob("*.parquet"))
    arguments = ["--only", "T8", "--method", "finite identity", "--log", str(tmp_path / "mine"), "--jobs", "1"]
    arguments += ["--out", str(tmp_path / "out"), "--no-progress"]
    assert cli.main(arguments) == 0
    assert "left out" not in capsys.readouterr().out
    files[-1].write_bytes(files[-1].read_bytes()[:-100])
    assert cli.main(arguments) == 1
    assert f"because it cannot be read: {files[-1].name}" in capsys.readouterr().out
