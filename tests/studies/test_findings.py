"""Tests of studies/findings.py and studies/described.py."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from analysis.claims.estimands import Estimate
from fspo.base.errors import SKIPPED
from fspo.repro.presets import PRESETS, planned
from studies import findings
from studies.described import bin_rates, describe, of_ranges
from tests.record.make_record import LOGS


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs of the preset paper that hold a small committed log: one without a clip, one with, one that diverged after
    a rollout, and one that goes on.
    """
    root = tmp_path_factory.mktemp("out") / "paper"
    wanted = {("unclipped", "none", 41), ("stress", "fspo", 41), ("stress", "none", 41), ("stress", "rloo", 41)}
    for run in planned(PRESETS["paper"], "chain-add", root / "chain-add", 1):
        if (run.runs, run.arm, run.seed) in wanted:
            shutil.copytree(LOGS / "fspo-kl", run.job.run)
            length = 12
            if (run.runs, run.arm) in {("stress", "none"), ("stress", "rloo")}:
                length = 2
                last = f"error: 11 {SKIPPED}10; the last, update 7: ..." if run.arm == "none" else "rollout 2"
                (run.job.run / "train.log").write_text(f"begun\n{last}\n")
            else:
                (run.job.run / "model").mkdir(exist_ok=True)
            rewards = [{"rollout": i, "phase": "train", "reward": i / 10} for i in range(length)]
            (run.job.run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rewards))
    return root


def test_finished_runs_are_added_once_and_claims_stay_open(root, tmp_path, monkeypatch, capsys):
    arguments = ["findings", str(root), "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    assert findings.main() == 0
    assert "chain-add: 1 of 10 seeds" in capsys.readouterr().out
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")}
    shutil.rmtree(root / "chain-add" / "runs" / "none-unclipped-seed41" / "gradlog")  # its numbers are kept
    assert findings.main() == 0
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")} == files
    assert {path.stem for path in tmp_path.glob("*.pdf")} == set(findings.FIGURES)
    estimates = pd.read_csv(tmp_path / "estimates.csv", keep_default_na=False)
    rewards = estimates[estimates.estimand == "mean reward"].set_index("rule").value.astype(float)
    assert rewards.to_dict() == pytest.approx({"fspo": 0.55, "none": 0.1 / 12})


def test_without_runs_and_results_there_is_nothing_to_publish(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["findings", str(tmp_path), "--results", str(tmp_path / "none")])
    with pytest.raises(findings.UserError, match="no finished run"):
        findings.main()
    assert not (tmp_path / "none").exists()


def test_a_table_with_other_columns_is_refused(tmp_path):
    (tmp_path / "bins.csv").write_text("a,b\n1,2\n")
    with pytest.raises(findings.UserError, match="other columns"):
        findings.read(tmp_path)


def test_means_by_hand():
    """Slopes .1, .3, .5: mean .3, sd .2, half-width 4.303 x .2 / sqrt(3) = .497; the factor a doubling is e^.3."""
    rows = [Estimate("products", "unclipped", s, "slope", "rloo", 0.05, v) for s, v in enumerate((0.1, 0.3, 0.5))]
    found = findings.means("estimates", pd.DataFrame(rows)).set_index("estimand")
    assert found.loc["slope", ["seeds", "mean", "sd"]].tolist() == pytest.approx([3, 0.3, 0.2])
    assert found.loc["slope", ["ci_low", "ci_high"]].tolist() == pytest.approx([0.3 - 0.49683, 0.3 + 0.49683], abs=1e-4)
    assert found.loc["factor a doubling", ["mean", "ci_low"]].tolist() == pytest.approx(np.exp([0.3, -0.19683]), 1e-4)


class Few:
    """Eight responses: S beyond .1 in size for the four long ones."""

    length = np.array([10.0, 10, 10, 10, 40, 40, 40, 40])
    S = np.array([-0.05, 0.05, -0.05, 0.05, -0.5, 0.5, -0.5, 0.5])
    A = np.array([-1.0, 1, 1, -1, -1, 1, 1, -1])
    updates = np.ones(8, int)

    def __len__(self):
        return len(self.S)


def test_default_ranges_by_hand():
    """rloo clips S < log .8 where A < 0 and S > log 1.2 where A > 0: two of the long responses; fspo's edge at length
    40 is .03 sqrt(40) = .19: the same two. gspo's is .0003 x 40 = .012 below, .016 above, and at length 10 .003 and
    .004: four responses, those whose S has the sign of A.
    """
    found = {(q, of, rule, setting): value for q, of, rule, setting, value in of_ranges(Few())}  # type: ignore[arg-type]
    rates = {rule: found["clip rate", "A != 0", rule, "default"] for rule in ("rloo", "gspo", "fspo")}
    assert rates == {"rloo": 2 / 8, "gspo": 4 / 8, "fspo": 2 / 8}
    assert found["clip rate", "A < 0", "rloo", "default"] == pytest.approx((1 + 0.5) / (4 + 1))
    assert found["clip rate", "A != 0", "fspo", "c 0.3"] == 0.0
    assert found["clip rate", "A != 0", "rloo", "dual clip"] == 2 / 8  # e^.5 lies below 3
    assert found["slope", "A != 0", "gspo", "default"] == pytest.approx(0, abs=1e-9)


def test_descriptions_of_a_log():
    numbers, bins, rollouts = describe(LOGS / "fspo-kl", "chain-add", "equal", "fspo", 41, 7)
    by_epoch = {n.responses: n.value for n in numbers}
    assert not bins
    assert set(by_epoch) >= {"A != 0, first epoch", "A < 0", "A > 0"}
    assert all(0 <= n.value <= 1 for n in numbers)
    assert [r.rollout for r in rollouts] == [1, 2, 3, 4, 5, 6, 7]
    assert [r.reward for r in rollouts[5:]] == [0, 0]  # the run has 5 rollouts


def test_clip_rates_by_length_add_up():
    """Over its bins of length, each rule clips the share that its range is set to; 3 of 60 here."""
    rng = np.random.default_rng(0)
    rows = Few()
    rows.length, rows.A = np.repeat([10.0, 40], 30), np.resize([-1.0, 1], 60)
    rows.S, rows.updates = rng.normal(size=60) * np.sqrt(rows.length), np.ones(60, int)
    found = [row for row in bin_rates(rows) if row[0] == "fspo" and row[1:3] == (0.05, "both")]  # type: ignore[arg-type]
    assert [row[3:5] for row in found] == [(1, 16), (32, 64)]
    assert sum(row[6] * row[7] for row in found) == pytest.approx(3)
