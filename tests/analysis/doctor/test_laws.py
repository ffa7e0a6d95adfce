"""The laws: what breaks each, from which rollout on, and the same answers rollout by rollout as at once."""

import numpy as np
import pytest

from analysis.doctor.doctor import Doctor
from analysis.doctor.findings import Severity
from analysis.doctor.laws import Line
from analysis.doctor.planted import Plan, write_run
from analysis.stats.anytime import AnytimeMean
from fspo.gradlog import GradLogWriter, read_log
from studies.doctor_power import add, after, rewritten


def findings(run):
    doctor = Doctor.of(run, read_log(run, columns=["rollout"]).metadata)
    doctor.read()
    return {answer.id: answer for answer in doctor.findings().findings}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("healthy") / "run", Plan(rollouts=10), 3)


def test_a_mean_is_called_wrong_at_most_at_its_level_however_often_one_looks():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        mean = AnytimeMean(0.05)
        mean.add(rng.standard_normal(2000), np.arange(2000) // 50)
        wrong += mean.above is not None or mean.below is not None
    assert wrong <= 30  # 20 expected at most; P(more than 30) < .02


def test_a_mean_that_is_not_0_is_found_and_its_rollout_named():
    mean = AnytimeMean(0.001)
    mean.add(np.random.default_rng(1).standard_normal(4000) + 0.3, np.arange(4000) // 100)
    assert mean.below is None
    assert mean.above is not None
    assert mean.above < 10
    low, high = mean.interval()[1:]
    assert low < 0.3 < high


@pytest.mark.parametrize(
    ("name", "x"),
    [("a token less", -0.4), ("a token more", 0.4), ("another model", 0.0)],
)
def test_a_line_tells_a_token_from_a_temperature(name, x):
    rng = np.random.default_rng(2)
    L = rng.integers(10, 200, 2000).astype(float)
    noise = 0.01 * np.sqrt(L) * rng.standard_normal(2000)
    line = Line()
    line.add(noise + (x if x else 0.003 * L), L, np.zeros(2000, np.int64))
    assert line.systematic()
    assert name in line.cause("the old log-probs")
    a, b, a_error, b_error = line.fit()
    assert a == pytest.approx(x, abs=4 * a_error)
    assert b == pytest.approx(0 if x else 0.003, abs=4 * b_error)


def test_top_p_is_told_by_its_sign():
    L = np.linspace(10, 200, 500)
    line = Line()
    line.add(-0.004 * L, L, np.zeros(500, np.int64))
    assert "top-p" in line.cause("the sampler's log-probs")


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda c, r, i: add(c, 0.002 * c["length"]), "before_update"),
        (lambda c, r, i: add(c, 0.1 * after(c)), "mean_weight"),
        (lambda c, r, i: add(c, -0.3 * after(c)), "k1_k3"),
        (lambda c, r, i: c | {"times_used": c["times_used"] * 0}, "uses"),
        (lambda c, r, i: c | {"advantage": -c["advantage"]}, "estimator"),
        (lambda c, r, i: c | {"step": c["step"] + (i > 4)}, "log"),
        (lambda c, r, i: c | {"log_ratio": np.clip(c["log_ratio"], -0.1, 0.1)}, "values_of_s"),
        (lambda c, r, i: c | {"engine_log_ratio": -0.01 * c["length"]}, "sampler_law"),
    ],
)
def test_each_law_names_what_breaks_it(healthy, tmp_path, change, wanted):
    assert findings(healthy) == {}
    assert wanted in findings(rewritten(healthy, tmp_path / "run", change, 0))


def test_a_finding_names_its_first_rollout(healthy, tmp_path):
    def change(c, rng, rollout):
        return c | {"multiplier": c["multiplier"] * np.float32(0.5 if rollout >= 6 else 1)}

    assert findings(rewritten(healthy, tmp_path / "run", change, 0))["clip"].since == 6


def test_a_growing_log_gets_the_answers_of_the_whole(healthy, tmp_path):
    run = rewritten(healthy, tmp_path / "run", lambda c, r, i: add(c, 0.1 * after(c)), 0)
    files = sorted((run / "gradlog").iterdir())
    waiting = [file.rename(tmp_path / file.name) for file in files[2:]]
    doctor = Doctor.of(run, read_log(run, columns=["rollout"]).metadata)
    for file in waiting:
        doctor.read()
        file.rename(run / "gradlog" / file.name)
    doctor.read(complete=False)
    assert doctor.kept.seen == len(files) - 1
    doctor.read()
    grown, whole = doctor.findings(), {a.id: a for a in findings(run).values()}
    assert {a.id: a.since for a in grown.findings} == {name: a.since for name, a in whole.items()}
    assert grown.rows == len(read_log(run, columns=["rollout"]))


def test_a_rank_counted_twice_is_found(healthy, tmp_path):
    run = rewritten(healthy, tmp_path / "run", lambda c, r, i: c, 0)
    log = read_log(run)
    writer = GradLogWriter(run, rank=1, metadata=log.metadata)
    for rollout in range(10):
        part = log.where(log.column("rollout") == rollout)
        rows = {name: part.column(name) for name in part.table.column_names if name in part}
        rows |= {"response_id": rows["response_id"] + 10**6, "prompt_id": rows["prompt_id"] + 10**6}
        writer.append(rows)
        writer.flush(rollout)
    assert "counted_twice" in findings(run)


def write(run, rollouts=10, n=400, **columns):
    """Rollouts of rows in groups of 5 after one update; a function of (rng, place in the group) makes a column."""
    writer, rng = GradLogWriter(run), np.random.default_rng(5)
    place = np.arange(n) % 5
    for rollout in range(rollouts):
        made = {name: x(rng, place) if callable(x) else x for name, x in columns.items()}
        rows = {
            "rollout": rollout,
            "step": 2 * rollout + 1,
            "updates_since_rollout": 1,
            "times_used": 0,
            "prompt_id": np.arange(n) // 5,
            "response_id": rollout * n + np.arange(n),
            "length": rng.integers(40, 120, n),
            "log_ratio": 0.05 * rng.standard_normal(n),
            "advantage": np.where(place > 0, 0.5, -2.0),  # above 0 in 80 %
        }
        writer.append(rows | made)
        writer.flush(rollout)
    return run


@pytest.mark.parametrize("sign", [1, -1])
def test_the_direction_is_that_of_s_less_what_all_responses_drift(tmp_path, sign):
    def s(rng, place):
        return sign * (np.where(place > 0, -0.02, -0.03) + 0.01 * rng.standard_normal(len(place)))

    found = findings(write(tmp_path / "run", times_used=1, log_ratio=s))
    assert ("direction" in found) == (sign < 0)
    if sign < 0:
        assert found["direction"].severity == Severity.WARNING


@pytest.mark.parametrize("stale", [True, False])
def test_stale_rows_without_their_ratio_are_left_out_of_the_laws(tmp_path, stale):
    def s(rng, place):
        return 0.05 + 0.05 * rng.standard_normal(len(place))

    found = findings(write(tmp_path / "run", log_ratio=s, policy_version=9, behaviour_version=5 if stale else 8))
    assert not stale or not {"mean_weight", "drift_sign", "k1_k3", "weight_by_length"} & found.keys()
    assert stale or {"mean_weight", "drift_sign"} <= found.keys()


def test_responses_of_one_length_are_no_pile(tmp_path):
    assert "length_pile" not in findings(write(tmp_path / "fixed", length=60, truncated=False))

    def limited(rng, place):
        return np.minimum(rng.integers(40, 120, len(place)), 100)

    assert "length_pile" in findings(write(tmp_path / "limited", length=limited, truncated=False))


@pytest.mark.parametrize("prompts", [1, 40])
def test_equal_texts_of_one_prompt_do_not_hold_s(tmp_path, prompts):
    def s(rng, place):
        x = 0.05 * rng.standard_normal(len(place))
        return np.where((np.arange(len(x)) < 5 * prompts) & (place > 0), 0.5, x)

    assert ("values_of_s" in findings(write(tmp_path / "run", 1, log_ratio=s))) == (prompts > 1)
