"""verl's criteria on a log: which responses each rejects, worked by hand, and at which lengths."""

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.rules.evaluate import criterion_cases, evaluate
from analysis.run import analyse_runs
from analysis.tables.files import read_tables
from fspo.rules import CRITERIA
from tests.analysis.importing.made import imported

# D + E of the tokens of five responses, and what each criterion makes of them: x^2/2, and e^x - 1 - x.
BY_HAND = {
    "seq_sum_k2": [0.5, 0.18, 0.16, 0.125, 0.02],
    "seq_mean_k2": [0.125, 0.18, 0.08, 0.125, 0.02],
    "seq_max_k2": [0.125, 0.18, 0.08, 0.125, 0.02],
    "seq_sum_k3": [0.4260272, 0.2221188, 0.1622390, 0.1487213, 0.0187308],
    "seq_mean_k3": [0.1065068, 0.2221188, 0.0811195, 0.1487213, 0.0187308],
    "seq_max_k3": [0.1065307, 0.2221188, 0.0918247, 0.1487213, 0.0187308],
}
X = [[-0.5, -0.5, -0.5, -0.5], [0.6], [0.4, -0.4], [0.5], [-0.2]]


def table(x):
    sampler = [[-2.0 - 0.001 * i - 1e-6 * t for t in range(len(row))] for i, row in enumerate(x)]
    return {
        "step": [0] * len(x),
        "prompt": [str(i // 2) for i in range(len(x))],
        "advantages": [1.0 if i % 2 else -1.0 for i in range(len(x))],
        "old_log_probs": [[s + v for s, v in zip(*pair, strict=True)] for pair in zip(sampler, x, strict=True)],
        "rollout_log_probs": sampler,
    }


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_rejects_the_responses_that_it_puts_highest(tmp_path, name):
    imported(tmp_path, table(X))
    rows = load_run(tmp_path / "run", on="behaviour").rows
    values = np.array(BY_HAND[name])[rows.response - 1]
    for share, kept in ((0.2, 1), (0.4, 2), (0.6, 3), (0.8, 4)):
        case = next(case for case in criterion_cases((share,), "behaviour") if case.name == name)
        found = evaluate(case, rows, np.zeros(len(rows), int), "band")
        # Equal values (two means of .125) are kept or rejected together.
        bound = np.sort(values)[kept - 1]
        assert found.in_band.tolist() == (values <= bound + 1e-6).tolist(), share
        assert (found.side == 1).tolist() == (~found.in_band).tolist()
        assert found.clipped_weight.tolist() == found.in_band.astype(float).tolist()


def test_a_sum_and_a_largest_token_reject_long_responses_and_a_mean_short_ones(tmp_path):
    """Noise alone, token by token: the rates by length are those of a mask that numpy makes of the tokens."""
    rng = np.random.default_rng(1)
    x = [0.1 * rng.normal(size=n) for n in rng.integers(4, 200, 1200)]
    imported(tmp_path, table([list(row) for row in x]))
    analyse_runs([tmp_path / "run"], Options(on="behaviour", bins=4, targets=(0.85,)))
    tables = read_tables([tmp_path / "run"], on="behaviour")
    which = "source == 'matched' and measure == 'band' and subset == 'all'"
    bins, trend = tables["acceptance"].query(which), tables["trend"].query(which).set_index("rule")
    long = np.array([len(row) for row in x])
    last = long >= bins[bins["bin"] == 3]["bin_lo"].iloc[0]
    for name in CRITERIA:
        _, how, k = name.split("_")
        value = np.array([getattr(v, how)() for v in (row**2 / 2 if k == "k2" else np.expm1(row) - row for row in x)])
        mask = value > np.sort(value)[int(0.85 * len(x)) - 1]
        kept = bins[bins["rule"] == name].set_index("bin")["estimate"]
        assert (kept[-1], kept[3]) == pytest.approx((1 - mask.mean(), 1 - mask[last].mean()), abs=1e-9)
        assert (kept[3] > kept[0]) == (how == "mean")
        assert trend.loc[name, "ci_low"] > 0 if how == "mean" else trend.loc[name, "ci_high"] < 0


def test_the_largest_token_of_the_engine_is_that_of_the_mismatch_where_D_is_0(tmp_path):
    versions = {"policy_version": [0] * 5, "behaviour_version": [0] * 5}
    imported(tmp_path, table(X) | versions)
    engine, both = (load_run(tmp_path / "run", on=on).rows for on in ("engine", "behaviour"))
    assert both.k2_max == pytest.approx(np.array(BY_HAND["seq_max_k2"])[both.response - 1])
    assert engine.k2_max.tolist() == both.k2_max.tolist()
    assert engine.k3_max.tolist() == both.k3_max.tolist()


def test_a_log_without_the_largest_token_says_so(tmp_path):
    sums = {"old_log_probs": [sum(row) - 2 for row in X * 8], "rollout_log_probs": [-2.0] * 40}
    imported(tmp_path, table(X * 8) | sums | {"length": [len(row) for row in X * 8]})
    analyse_runs([tmp_path / "run"], Options(on="behaviour", bins=1))
    rows = read_tables([tmp_path / "run"], on="behaviour")["acceptance"].query("rule == 'seq_max_k3' and bin == -1")
    assert rows["estimate"].isna().all()
    assert rows["reason"].str.contains("behaviour_k3_max").all()
