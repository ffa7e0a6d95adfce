"""The table of a trained sweep against numbers by hand: Student's t over seeds, a run's own interval for one."""

import math
from pathlib import Path

import pytest

from analysis.sweeps.trained import Entry, trained_sweep, write_trained_sweep
from analysis.tables.files import TABLES, write_tables
from fspo.base.errors import UserError
from tests.analysis.rows import table


def analysed(folder: Path, seed: int, band: float, rewards: list[float], lre: float = math.nan) -> Path:
    key = {"run": folder.name, "trained_rule": "fspo", "seed": seed}
    own = {**key, "source": "trained", "use": "first", "subset": "all", "measure": "band"}
    interval = {"ci_low": band - 0.1, "ci_high": band + 0.05}
    other = {"estimate": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    training = []
    for i, reward in enumerate(rewards):
        place = {**key, "rollout": i, "step": i, "phase": "eval"}
        training += [{**place, "name": "eval/reward", "value": reward}]
        training += [{**place, "name": "eval/reward_stderr", "value": 0.01 * (i + 1)}]
    cosine = {**key, "source": "trained", "use": "first", "control": False, "reference": "same_batch", "bin": -1}
    rows = {
        "acceptance": [
            {**own, "bin": -1, "estimate": band, **interval},
            {**own, "bin": 0, **other},
            {**own, "bin": -1, "source": "given", **other},
            {**own, "bin": -1, "use": "reused", **other},
        ],
        "trend": [{**own, "slope": -band / 10, "ci_low": -0.2, "ci_high": 0.1}],
        "lre": [{**own, "norm": "l2", "estimate": lre, "ci_low": lre, "ci_high": lre}, {**own, "norm": "inf", **other}],
        "cosine": [
            {**cosine, "weight": "sequence", "estimate": 0.9, "ci_low": 0.8, "ci_high": 0.95},
            {**cosine, "weight": "own", **other},
        ],
        "training": training,
    }
    write_tables(folder / "analysis", {name: table(row, rows.get(name, [])) for name, row in TABLES.items()}, {})
    return folder


def test_two_seeds_are_the_unit_and_one_seed_says_so(tmp_path):
    one = analysed(tmp_path / "a-seed0", 0, 0.8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.5, 0.7], lre=0.1)
    two = analysed(tmp_path / "a-seed1", 1, 0.9, [0.9])
    table = trained_sweep(
        [
            Entry("fspo", "dual", "2", "rule.dual=2.0", (one, two)),
            Entry("fspo", "base", "as calibrated", "", (one,)),
            Entry("fspo", "group", "half", "x=1", (), "too odd"),
        ]
    )
    both, alone, none = table.to_dict("records")
    t = 12.7062  # 97.5 % of Student's t with 1 degree of freedom
    for name, (x, y) in {"acceptance": (0.8, 0.9), "trend": (-0.08, -0.09), "reward": (0.6, 0.9)}.items():
        mean, half = (x + y) / 2, t * abs(x - y) / 2  # sd / sqrt 2 = |x - y| / 2
        assert both[name] == pytest.approx(mean)
        assert both[f"{name}_ci_low"] == pytest.approx(mean - half, rel=1e-4)
        assert both[f"{name}_ci_high"] == pytest.approx(mean + half, rel=1e-4)
    assert both["note"] == "not of all seeds: lre_2"
    assert both["runs"] == "a-seed0 a-seed1"
    assert (alone["acceptance"], alone["acceptance_ci_low"]) == pytest.approx((0.8, 0.7))
    assert (alone["cosine"], alone["cosine_ci_high"]) == (0.9, 0.95)
    # the last two of ten evaluations: rewards .5 and .7, standard errors .09 and .10
    assert alone["reward"] == pytest.approx(0.6)
    assert alone["reward_ci_high"] == pytest.approx(0.6 + 1.96 * 0.095, rel=1e-4)
    assert "one seed" in alone["note"]
    assert (none["note"], none["seeds"], none["changed"]) == ("too odd", 0, "x=1")
    assert math.isnan(none["reward"])


def test_what_lacks_data_is_named_and_a_run_without_tables_refused(tmp_path):
    run = analysed(tmp_path / "a-seed0", 0, 0.8, [])
    (row,) = trained_sweep([Entry("rloo", "base", "", "", (run,))]).to_dict("records")
    assert row["note"].endswith("too little data: reward, lre_2")
    with pytest.raises(UserError, match="has no finished analysis"):
        write_trained_sweep(tmp_path / "t.csv", [Entry("rloo", "base", "", "", (tmp_path,))])
    assert not (tmp_path / "t.csv").exists()
