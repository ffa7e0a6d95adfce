"""The laws: what breaks each, from which rollout on, and the same answers rollout by rollout as at once."""

import json

import numpy as np
import pytest
from scipy.stats import t as student

from analysis.doctor.examine import Doctor, examine
from analysis.doctor.first_epoch import LEVEL, TESTS
from analysis.doctor.issues import Severity
from analysis.stats.anytime import AnytimeMean, stakes
from fspo.gradlog import GradLogWriter, read_log
from tests.analysis.doctor.log_changes import add, after, kept, rewritten, zeroed
from tests.analysis.doctor.made import issues, laws
from tests.analysis.doctor.planted import Plan, write_run
from tests.analysis.log.test_copies import counted_twice


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("healthy") / "run", Plan(rollouts=10), 3)


def heavy(degrees, scale, spike):
    """Log-ratios of a token and their chances: a spike, and a t law held at +-12. The mean of e^s is 1 exactly."""
    s = np.clip(scale * student.ppf((np.arange(20000) + 0.5) / 20000, degrees), -12, 12)
    s, chance = np.append(s, 0.0), np.append(np.full(len(s), (1 - spike) / len(s)), spike)
    return s - np.log(chance @ np.exp(s)), chance


def test_all_tests_share_the_level(monkeypatch, healthy):
    """Each test of a mean is made once, at an equal part of the level."""
    levels = []
    made = AnytimeMean.__init__

    def counted(self, level, *rest, **options):
        levels.append(level)
        made(self, level, *rest, **options)

    monkeypatch.setattr(AnytimeMean, "__init__", counted)
    issues(healthy)
    assert len(levels) == TESTS
    assert sum(levels) == pytest.approx(LEVEL)


@pytest.mark.parametrize(("degrees", "scale", "spike"), [(3, 0.1, 0.7), (3, 0.3, 0.7), (1.5, 0.2, 0.8), (2, 0.3, 0.5)])
def test_lawful_heavy_tails_break_no_law(degrees, scale, spike):
    values, chance = heavy(degrees, scale, spike)
    rng, n, alarms = np.random.default_rng(4), 4000, 0
    for _ in range(50):
        s = rng.choice(values, n, p=chance)
        L = rng.integers(16, 512, n).astype(float)
        answers = laws(length=L, log_ratio=s, k3_sum=np.expm1(s) - s)
        assert answers["mean_weight"].status != "not checked"
        alarms += any(answer.found for answer in answers.values())
    assert alarms <= 1  # 2 %


def test_a_mean_is_called_wrong_at_most_at_its_level_however_often_one_looks():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        mean = AnytimeMean(0.05, 1.0, 60.0)
        mean.add(np.expm1(rng.standard_normal(500) - 0.5), np.arange(500) // 25)
        wrong += mean.above is not None or mean.below is not None
    assert wrong <= 30  # 20 expected at most; P(more than 30) < .02


def test_a_mean_that_is_not_0_is_found_on_the_sides_that_are_tested_and_its_rollout_named():
    x = np.expm1(np.random.default_rng(1).standard_normal(4000) - 0.5)
    upper, lower, silent = AnytimeMean(0.001, 1.0, 60.0), AnytimeMean(0.001, 2.0, 60.0), AnytimeMean(0.001, 2.0)
    for mean, shift in ((upper, 0.3), (lower, -0.5), (silent, -0.5)):
        mean.add(x + shift, np.arange(4000) // 100)
    assert [test.above is None for test in (upper, lower, silent)] == [False, True, True]
    assert [test.below is None for test in (upper, lower, silent)] == [True, False, True]
    assert (upper.above or 0) < 10
    low, high = upper.interval()[1:]
    assert low < 0.3 < high


def test_the_interval_of_a_mean_is_robbins_normal_mixture():
    """The terms 1 and 2 have the squares' sum 5 = rho: sqrt(10 (2 ln 20 + ln 10 - ln 5)) / 2 = 4.0879737."""
    mean = AnytimeMean(0.05)
    mean.add(np.array([1.0, 2.0]), np.array([0, 0]))
    assert mean.interval() == pytest.approx((1.5, 1.5 - 4.0879737, 1.5 + 4.0879737))


def test_the_rollout_that_is_named_does_not_depend_on_the_order_of_the_rows():
    mean = AnytimeMean(0.05)
    mean.add(np.full(100, 2.0), np.repeat([1, 0], 50))
    assert mean.above == 0


def test_stakes_are_products_of_one_plus_bet_times_term():
    x = np.array([0.5, -0.25, 3.0, -1.0, 2.0, 0.1, 0.2, 0.3, 0.4])
    b = np.array([0.5, 0.125])
    assert stakes(x, b) == pytest.approx([np.log(np.prod(1 + bet * x)) for bet in b])
    assert stakes(x, np.ones(1)) == -np.inf  # the term -1 takes all of it
    assert stakes(np.array([-3.0, -3.0]), np.ones(1)) == -np.inf  # and nothing comes back


def test_an_issue_names_its_first_rollout(healthy, tmp_path):
    def change(c, rng, rollout):
        wrong = {"multiplier": 6, "weight": 8}  # each from a rollout on
        return c | {name: c[name] * np.float32(0.5 if rollout >= first else 1) for name, first in wrong.items()}

    assert issues(rewritten(healthy, tmp_path / "run", change, 0))["clip"].since == 6


def test_an_issue_of_a_growing_log_is_made_once_and_its_rollout_stays(healthy, tmp_path):
    def change(c, rng, rollout):
        c = add(c, 0.1 * after(c)) if rollout >= 2 else c
        return c | {"multiplier": c["multiplier"] * np.float32(0.5 if rollout >= 4 else 1)}

    run = rewritten(healthy, tmp_path / "run", change, 0)
    files = sorted((run / "gradlog").iterdir())
    waiting = [file.rename(tmp_path / file.name) for file in files]
    doctor, since = Doctor.of(run, {"rule": Plan().rule.to_dict()}), {}
    for number, file in enumerate(waiting):
        file.rename(files[number])
        doctor.read()
        doctor.read()  # nothing new: nothing counts twice
        assert len(doctor.kept.rollouts) == number + 1
        found = [(a.id, a.since) for a in doctor.diagnosis().issues]
        assert len(dict(found)) == len(found)
        assert since.items() <= dict(found).items()
        since = dict(found)
    assert since["clip"] == 4
    assert 2 <= since["mean_weight"] <= 4
    whole = examine(run)
    assert since == {a.id: a.since for a in whole.issues}
    assert doctor.diagnosis().rows == whole.rows


def test_a_rank_logged_twice_is_found(healthy, tmp_path):
    run = rewritten(healthy, tmp_path / "run", lambda c, r, i: c, 0)
    counted_twice(run, 10, 10**6)
    assert "overlapping responses (9 times): parts are missing or stand twice" in issues(run)["log"].summary


def write(run, rollouts=10, n=400, **columns):
    """Rollouts of rows in groups of 5 after one update; a function of (rng, place in the group) makes a column."""
    writer, rng = GradLogWriter(run), np.random.default_rng(5)
    place = np.arange(n) % 5
    for rollout in range(rollouts):
        made = {name: x(rng, place) if callable(x) else x for name, x in columns.items()}
        rows = {"rollout": rollout, "step": 2 * rollout + 1, "updates_since_rollout": 1, "times_used": 0}
        rows |= {"prompt_id": np.arange(n) // 5, "response_id": rollout * n + np.arange(n)}
        rows |= {"length": rng.integers(40, 120, n), "log_ratio": 0.05 * rng.standard_normal(n)}
        rows |= {"advantage": np.where(place > 0, 0.5, -2.0)}  # above 0 in 80 %
        writer.append(rows | made)
        writer.flush(rollout)
    return run


@pytest.mark.parametrize("stale", [True, False])
def test_stale_rows_without_their_ratio_are_left_out_of_the_laws(tmp_path, stale):
    def s(rng, place):
        return 0.05 + 0.05 * rng.standard_normal(len(place))

    found = issues(write(tmp_path / "run", log_ratio=s, policy_version=9, behaviour_version=5 if stale else 8))
    assert not stale or "mean_weight" not in found
    assert stale or found["mean_weight"].severity == Severity.CRITICAL
    assert stale or "E[S] is above 0" in found["mean_weight"].summary


@pytest.mark.parametrize(("others", "first"), [(0.0, 26), (0.2, 26), (0.2, 0)])
def test_one_response_that_carries_the_mean_weight_is_named(others, first):
    """One token is 26 nats off in one of 400 responses, and S of the others is sound or too large."""
    S = 0.1 * np.random.default_rng(2).standard_normal(400) - 0.005 + others
    S[250] += first
    answers = laws(length=np.full(400, 40.0), log_ratio=S, k3_sum=np.expm1(S) - S)
    found = {name: answer for name, answer in answers.items() if answer.found}
    assert ("1 of 400 responses carry 9" in found["mean_weight"].summary) == (others == 0)
    assert (found["mean_weight"].severity == Severity.WARNING) == (others == 0)
    assert others or found.keys() == {"mean_weight"}


@pytest.mark.parametrize(
    ("limit", "marked", "least", "found"),
    [
        (None, None, 40, Severity.INFO),  # a pile at 100 may be what the answers are
        (200, None, 40, Severity.INFO),
        (100, None, 40, Severity.WARNING),
        (90, None, 40, Severity.WARNING),  # longer than the limit
        (None, 100, 40, Severity.WARNING),
        (None, 200, 40, None),
        (100, None, 100, None),  # all have one length
    ],
)
def test_a_pile_of_lengths_is_a_truncation_only_at_the_token_limit(tmp_path, limit, marked, least, found):
    """A fifth of the responses have 100 tokens, the most; the configuration or a few marks may show the limit."""

    def length(rng, place):
        made = np.minimum(rng.integers(least, 120, len(place)), 100)
        made[:2] = marked or max(least, 50)
        return made

    marks = {"truncated": lambda rng, place: np.arange(len(place)) < 2} if marked else {}
    run = write(tmp_path, length=length, **marks)
    if limit:
        (run / "config.yaml").write_text(f"sampling: {{max_new_tokens: {limit}}}\n")
    answer = issues(run).get("length_pile")
    assert (answer and answer.severity) == found
    if found:
        L = read_log(run).column("length")
        several = np.sum(L > 90 if limit == 90 else L == 100) - 20 * bool(marked)
        what = "90" if limit == 90 else "exactly 100" if found == Severity.INFO else "100"
        assert answer.summary.startswith(f"{several} responses have {what} tokens")


@pytest.mark.parametrize("stopped", [9, 7])
def test_a_short_last_rollout_is_a_run_that_was_stopped(healthy, tmp_path, stopped):
    """Half of the updates lack in the last rollout, which is healthy, or in an earlier one."""
    short = rewritten(healthy, tmp_path, lambda c, r, i: kept(c, (i != stopped) | (c["updates_since_rollout"] < 4)), 0)
    assert ("log" in issues(short)) == (stopped == 7)


def before(S, k3, L, E=np.nan, **options):
    """Return the answer about S before the first update; E is the engine ratio, NaN if it is not logged."""
    rows = {"updates_since_rollout": 0 * L, "length": L, "log_ratio": S, "k3_sum": k3, "engine_log_ratio": E + 0 * L}
    return laws(**rows, **options)["before_update"]


@pytest.mark.parametrize("engine", ["logged", "unknown"])
def test_rounding_before_an_update_is_judged_by_what_the_log_says_of_the_sampler(engine):
    """Sampler, old and new log-probs have independent noise of .03: E[S + k3] is -L .03^2, which E alone explains."""
    rng, n, sigma = np.random.default_rng(4), 20000, 0.03
    L = rng.integers(200, 2000, n).astype(float)
    sampler, old, new = (sigma * rng.standard_normal(n) * np.sqrt(L) for _ in range(3))
    S, k3 = new - old - 2 * sigma**2 * L, sigma**2 * L  # tokens s = n - o have mean -2 sigma^2 under the sampler's law
    E = old - sampler - sigma**2 * L if engine == "logged" else np.nan
    assert not before(S, k3, L, E).found
    assert before(S, k3, L, 0 * L).found  # the old log-probs drew
    far = before(S + 0.01 * L, k3, L, E)
    assert far.found
    assert far.severity == (Severity.CRITICAL if engine == "logged" else Severity.WARNING)
    assert ("the log has no E, so it does not say" in far.summary) == (engine == "unknown")
    assert ("another temperature" in far.summary) == (engine == "logged")


@pytest.mark.parametrize(("first", "rate"), [(6, 1e-5), (6, 0.0), (0, 1e-5)])
def test_rollouts_in_which_nothing_moves_are_named(healthy, tmp_path, first, rate):
    """From rollout 6 on S stays 0, or in the first three, as in a warm-up; the metrics may say that the rate is 0."""

    def change(c, rng, rollout):
        return zeroed(c, np.full(len(c["length"]), first <= rollout < (10 if first else 3)))

    run = rewritten(healthy, tmp_path, change, 0)
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"phase": "train", "rollout": i, "learning_rate": rate}) + "\n" for i in range(10))
    )
    found = issues(run)
    assert ("s_zero" in found) == (first == 6 and rate > 0)
    assert "s_zero" not in found or (found["s_zero"].since, found["s_zero"].severity) == (6, Severity.CRITICAL)


@pytest.mark.parametrize(
    ("D", "known", "columns", "said"),
    [
        (0.0, 100, {}, "D is 0 in every response that, by version, older weights sampled, though updates move S"),
        (0.0, 100, {"log_ratio": np.zeros(400)}, ""),
        (0.1, 100, {}, ""),
        (0.5, 99, {}, "nothing corrects their ratio (rms of D 0.5 nats)"),
        (0.5, 30, {}, "their D is not known: the rms of their D + E is 0.7 nats"),  # 30 % do not tell D
        (0.5, 0, {}, "their D is not known: the rms of their D + E is 0.7 nats"),
        (0.5, 0, {"log_ratio": np.zeros(400)}, "S is 0 in every row, yet 100% of the responses were sampled by older"),
        (0.5, 0, {"behaviour_version": 12}, "responses were sampled by weights 4 newer than the policy's"),
    ],
)
def test_older_weights_have_a_staleness(tmp_path, D, known, columns, said):
    columns = {"policy_version": 9, "behaviour_version": 7, "behaviour_log_ratio": 0.7} | columns
    some = np.where(np.arange(400) % 100 < known, D, np.nan)
    found = issues(write(tmp_path, 2, staleness_log_ratio=some, **columns)).get("staleness")
    assert (said in found.summary) if said else found is None


@pytest.mark.parametrize(("noise", "found"), [(1e-4, False), (5e-3, True)])
def test_small_s_before_an_update_is_seen_where_the_noise_floor_is_known(noise, found):
    rng, n = np.random.default_rng(6), 2000
    L = rng.integers(20, 200, n).astype(float)
    S = noise * np.sqrt(L) * rng.standard_normal(n)
    assert not before(S, noise**2 / 2 * L, L).found
    answer = before(S, noise**2 / 2 * L, L, float32=True)
    assert answer.found == found
    assert not found or (answer.severity == Severity.CRITICAL and "dropout" in answer.summary)
