"""Tests of studies/findings.py and studies/described.py."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from analysis.claims.estimands import Estimate, clipped_offline, first_epoch, slope
from analysis.log.loading import load_run
from fspo.repro.presets import PRESETS, planned
from fspo.repro.stages import DIVERGED
from fspo.rules import preset
from studies import described, findings
from tests.record.make_record import LOGS


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs of the preset paper that hold a small committed log: one without a clip, one with, one that diverged after
    a rollout, and one that goes on.
    """
    root = tmp_path_factory.mktemp("out") / "paper"
    rollouts = {("unclipped", "none"): 12, ("stress", "fspo"): 12, ("stress", "none"): 2, ("stress", "rloo"): 2}
    for run in planned(PRESETS["paper"], "chain-add", root / "chain-add", 1):
        length = rollouts.get((run.runs, run.arm))
        if length and run.seed == 41:
            shutil.copytree(LOGS / "fspo-kl", run.job.run)
            if length == 12:
                (run.job.run / "model").mkdir(exist_ok=True)
            elif run.arm == "none":
                (run.job.run / DIVERGED).write_text("11 updates were skipped\n")
            rewards = [{"rollout": i, "phase": "train", "reward": i / 10} for i in range(length)]
            (run.job.run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rewards))
    return root


@pytest.mark.usefixtures("no_pixels")
def test_finished_runs_are_added_once_and_claims_stay_open(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["findings", str(root), "--results", str(tmp_path)])
    assert findings.main() == 0
    assert "chain-add: 1 of 10 seeds" in capsys.readouterr().out
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")}
    shutil.rmtree(root / "chain-add" / "runs" / "none-unclipped-seed41" / "gradlog")  # its numbers are kept
    assert findings.main() == 0
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")} == files
    assert {path.stem for path in tmp_path.glob("*.pdf")} == set(findings.FIGURES)
    runs = root / "chain-add" / "runs"
    shutil.copytree(runs / "fspo-stress-seed41", runs / "fspo-stress-seed42")
    assert findings.main() == 0
    assert set(pd.read_csv(tmp_path / "rollouts.csv").query("rule == 'fspo'").seed) == {41, 42}
    shutil.rmtree(runs / "fspo-stress-seed42")
    estimates = pd.read_csv(tmp_path / "estimates.csv", keep_default_na=False)
    rewards = estimates.query("estimand == 'mean reward' and seed == 41").set_index("rule").value.astype(float)
    assert rewards.to_dict() == pytest.approx({"fspo": 0.55, "none": 0.1 / 12})
    rollouts, numbers, bins = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("rollouts", "numbers", "bins"))
    assert rollouts.query("rule == 'none' and runs == 'stress'").rollout.tolist() == list(range(1, 13))
    of_stress = set(numbers.query("runs == 'stress'").responses)
    assert of_stress == {"A != 0, first epoch", "A != 0, later epochs", "A < 0", "A > 0"}
    assert set(bins.runs) <= {"unclipped"}


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
    found = {(q, of, rule, setting): value for q, of, rule, setting, value in described.of_ranges(Few())}  # type: ignore[arg-type]
    rates = {rule: found["clip rate", "A != 0", rule, "default"] for rule in ("rloo", "gspo", "fspo")}
    assert rates == {"rloo": 2 / 8, "gspo": 4 / 8, "fspo": 2 / 8}
    assert found["clip rate", "A < 0", "rloo", "default"] == pytest.approx((1 + 0.5) / (4 + 1))
    assert found["clip rate", "A != 0", "fspo", "c 0.3"] == 0.0
    assert found["clip rate", "A != 0", "rloo", "dual clip"] == 2 / 8  # e^.5 lies below 3
    assert found["slope", "A != 0", "gspo", "default"] == pytest.approx(0, abs=1e-9)


def test_numbers_of_an_analysis_stand_under_their_rule_and_clip_rate():
    """A table of each kind with one row that each number comes from, and one that none may come from."""
    law = {"use": "first", "subset": "nonzero", "slope_2H": 1.2, "drift_per_token": -0.1}
    law |= {"weight_95": 0.9, "weight_85": 0.6, "of_shares_95": 0.2, "of_shares_85": 0.3}
    rule = {"use": "first", "subset": "nonzero", "rule": "gspo", "outside": "drop", "source": "matched"}
    lemma = rule | {"updates": 1, "e_len": 0.3, "e_in": 0.4, "guaranteed": True, "slack": 0.1}
    tables = {
        "scaling": [law | {"sign": "negative"}, law | {"sign": "positive", "use": "reused"}],
        "lre": [
            rule | {"target": t, "measure": "update", "norm": "l2", "estimate": e} for t, e in ((0.95, 1), (0.85, 2))
        ],
        "cosine": [rule | {"target": 0.95, "bin": b, "estimate": e} for b, e in ((-1, 0.7), (0, 0.8))],
        "population": [rule | {"target": 0.85, "bin": -1, "quantity": "mse_direction", "estimate": 1.5}],
        "lemma": [lemma | {"target": 0.95}, lemma | {"target": 0.95, "e_len": 0.0, "guaranteed": False, "slack": 0.2}],
    }
    tables["cosine"] += [rule | {"target": 0.95, "outside": "cap", "bin": -1, "estimate": 0.6}]
    tables["lre"] += [rule | {"source": "given", "target": np.nan, "measure": "update", "norm": "inf", "estimate": 3}]
    found = described.of_tables({name: pd.DataFrame(rows) for name, rows in tables.items()})
    assert {(q, of, rule, s): v for q, of, rule, s, v in found} == pytest.approx({
        ("exponent of the spread", "A < 0", "", ""): 0.6,
        ("drift per token", "A < 0", "", ""): -0.1,
        ("weight in the fair exponent", "A < 0", "", "5%"): 0.9,
        ("weight in the fair exponent", "A < 0", "", "15%"): 0.6,
        ("part of shares", "A < 0", "", "5%"): 0.2,
        ("part of shares", "A < 0", "", "15%"): 0.3,
        ("LRE_2", "A != 0", "gspo", "5%"): 1,
        ("LRE_2", "A != 0", "gspo", "15%"): 2,
        ("LRE_inf", "A != 0", "gspo", "default"): 3,
        ("cosine", "A != 0", "gspo", "5%"): 0.7,
        ("cosine", "A != 0", "gspo, cap", "5%"): 0.6,
        ("mse_direction", "A != 0", "gspo", "15%"): 1.5,
        ("share of the loss due to length", "A != 0", "gspo", "5%"): 0.09 / (0.09 + 2 * 0.16),
        ("scored updates", "A != 0", "gspo", "5%"): 2,
        ("updates whose cosine is bounded above 0", "A != 0", "gspo", "5%"): 0.5,
        ("least slack of the bound", "A != 0", "gspo", "5%"): 0.1,
    })  # fmt: skip


def test_both_edges_clip_when_all_responses_count():
    """Of 40 responses in two updates a band set to 5 % leaves the one of each update out that lies farthest, for its
    width of sqrt(L), whatever its advantage.
    """
    rows = Few()
    rows.length, rows.A, rows.updates = np.resize([10.0, 40], 40), np.zeros(40), np.repeat([1, 2], 20)
    rows.S = np.linspace(-1, 1, 40) * np.sqrt(rows.length) / 10
    assert np.flatnonzero(clipped_offline(preset("fspo").rule, rows, 0.05, "band")).tolist() == [0, 39]  # type: ignore
    slopes = {(of, rule, s): v for q, of, rule, s, v in described.of_lengths(Clipped(), Clipped()) if q == "slope"}  # type: ignore
    assert slopes["all", "rloo", "15%"] > slopes["all", "fspo", "15%"] > slopes["all", "gspo", "15%"]


def test_a_run_that_clips_is_counted_by_epoch_and_sign():
    rows = Few()
    rows.used, rows.side = np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.array([-1, 0, 0, 0, -1, 1, 0, -1])
    rows.take = lambda which: rows  # type: ignore[method-assign]
    found = {of: value for _, of, _, _, value in described.of_trained(rows)}  # type: ignore[arg-type]
    assert found == pytest.approx({
        "A != 0, first epoch": 1 / 4, "A != 0, later epochs": 3 / 4, "A < 0": 3.5 / 5, "A > 0": 1.5 / 5
    })  # fmt: skip


class Clipped(Few):
    """4,000 responses of 8 to 256 tokens, S normal with a spread that grows with sqrt(L)."""

    length = np.resize([8.0, 16, 32, 64, 128, 256], 4000)
    S = np.random.default_rng(3).normal(size=4000) * np.sqrt(length)
    A = np.resize([1.0, 1, -1], 4000)
    updates, rollout, cluster = np.ones(4000, int), np.zeros(4000, int), np.arange(4000) // 4

    def take(self, which):
        some = Few()
        for name in ("length", "S", "A", "updates", "rollout", "cluster"):
            setattr(some, name, getattr(self, name)[which])
        return some


def test_clip_rates_by_length_add_up():
    """Over its bins of length, each rule clips the share that its range is set to; 3 of 60 here."""
    rng = np.random.default_rng(0)
    rows = Few()
    rows.length, rows.A = np.repeat([10.0, 16], 30), np.resize([-1.0, 1], 60)
    rows.S, rows.updates = rng.normal(size=60) * np.sqrt(rows.length), np.ones(60, int)
    found = [row for row in described.bin_rates(rows) if row[0] == "fspo" and row[1:3] == (0.05, "both")]  # type: ignore[arg-type]
    assert [row[3:5] for row in found] == [(1, 16), (16, 32)]  # the edge belongs to the bin above
    assert sum(row[6] * row[7] for row in found) == pytest.approx(3)


def test_losses_between_strata_by_hand():
    """Three of four are kept, a = .75: M / a - 1 is 1/3 or -1. Of length 0 one of two is kept, of length 1 both."""
    found = described.lost(np.array([True, False, True, True]), {"length": np.array([0, 0, 1, 1])})
    assert found["all"] == pytest.approx([1 / 3, -1, 1 / 3, 1 / 3])
    assert found["length"] == pytest.approx([-1 / 3, -1 / 3, 1 / 3, 1 / 3])


def test_strata_and_centres_of_a_log():
    run = load_run(LOGS / "fspo-kl")
    rows = first_epoch(run.rows)
    shares = {(of, rule, rate): x for of, _, rule, rate, x in described.of_strata(run, rows)}
    assert {of.rpartition(" of ")[2] for of, _, _ in shares} == {"length", "sign", "length and sign"}
    some = {(of, rate): x for of, _, _, rate, x in described.of_centres(rows, rows)}
    for rate in (0.05, 0.15):
        plain = slope(clipped_offline(preset("fspo").rule, rows, rate), rows.length)
        assert some["slope, centre 0", f"{rate:.0%}"] == plain


def test_differences_are_paired_by_seed():
    """rloo less fspo: .2 and .4 in rewards over the seeds 1 and 2, mean .3 with half-width 12.706 x .1; gspo has
    no seed in common with another rule."""
    rewards = {("fspo", 1): 0.5, ("fspo", 2): 0.1, ("rloo", 1): 0.7, ("rloo", 2): 0.5, ("gspo", 3): 0.9}
    rollouts = pd.DataFrame(
        [("chain-add", "equal", seed, rule, 1, x, 0.05) for (rule, seed), x in rewards.items()],
        columns=["task", "runs", "seed", "rule", "rollout", "reward", "clip_rate"],
    )
    slopes = [("slope", "default", 0.2), ("slope", "dual clip", 0.3)]
    slopes += [("slope, centre 0", "5%", 0.1), ("slope, centre drift kl", "5%", -0.4)]
    numbers = pd.DataFrame(
        [("chain-add", "unclipped", s, q, "A != 0", "rloo", at, x * s) for s in (1, 2) for q, at, x in slopes],
        columns=["task", "runs", "seed", "quantity", "responses", "rule", "setting", "value"],
    )
    empty = pd.DataFrame(columns=Estimate._fields)
    row, centre, dual = findings.differences(
        {"rollouts": rollouts, "estimates": empty, "numbers": numbers}
    ).itertuples()
    assert (row.rule, row.less, row.seeds) == ("rloo", "fspo", 2)
    assert (row.mean, row.ci_low) == pytest.approx((0.3, 0.3 - 12.7062 * 0.1), abs=1e-4)
    assert (centre.rule, centre.less, centre.clip_rate) == ("centre drift kl", "centre 0", 0.05)
    assert centre.mean == pytest.approx(-0.75)  # -.5 and -1
    assert (dual.rule, dual.less, dual.mean) == ("rloo, dual clip", "rloo", pytest.approx(0.15))
