"""Pairs of different prompts against double loops, exact policies and planted truths."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.log.rows import Rows, leave_one_out
from analysis.options import Options
from analysis.rules.evaluate import Case
from analysis.run import analyse, shared_bins
from analysis.scores.pair_gram import PairGram
from analysis.scores.products import jackknife_se
from analysis.scores.sketches import Fresh, ScoredWindow, ScoredWindows
from analysis.tables.columns import RunKey
from analysis.tables.population import ERRORS, PopulationRow, PopulationTable
from fspo.advantages import ESTIMATORS, advantages
from fspo.gradlog import GradLogWriter
from fspo.rules import Rule, preset
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense
from proofs_check.tools.policy import make_bandit, scores
from tests.analysis.rows import records

NO_RUN = RunKey("", "", float("nan"))


def rows_of(table):
    return records(PopulationRow, table.rows())


def data(seed=0, n=24, width=5, number=3, prompts=6):
    rng = np.random.default_rng(seed)
    cluster = rng.permutation(np.arange(n) % prompts)
    return rng.normal(size=(n, width)), rng.integers(0, number, n), cluster, rng.random((n, 2)), rng.random((n, 1))


def brute_between(vectors, cluster, a, b, at):
    pairs = [a[i] * b[j] * (vectors[i] @ vectors[j]) for i in at for j in at if cluster[i] != cluster[j]]
    return np.mean(pairs) if pairs else np.nan


def gram_of(vectors, bins, cluster, number):
    return PairGram(vectors, vectors, bins, bins, cluster, cluster, number, int(cluster.max()) + 1)


def test_between_is_the_mean_over_pairs_of_different_prompts():
    vectors, bins, cluster, left, right = data()
    total, without = gram_of(vectors, bins, cluster, 3).between(left, right)
    for k in range(4):
        at = np.flatnonzero(bins == k) if k < 3 else np.arange(24)
        for r in range(2):
            assert total[k, r] == pytest.approx(brute_between(vectors, cluster, left[:, r], right[:, 0], at))
            for c in range(6):
                rest = at[cluster[at] != c]
                expected = brute_between(vectors, cluster, left[:, r], right[:, 0], rest)
                assert without[c, k, r] == pytest.approx(expected, nan_ok=True)


def test_variance_is_unbiased_for_the_update_of_independent_prompts():
    """Prompts of 4 responses with a shared effect: tr Cov of the mean is (width)(tau^2 + sigma^2/4)/prompts."""
    rng, width, prompts = np.random.default_rng(1), 3, 5
    cluster = np.repeat(np.arange(prompts), 4)
    found = []
    for _ in range(4000):
        effect = np.repeat(rng.normal(size=(prompts, width)), 4, axis=0)
        vectors = 1.5 + effect + 2 * rng.normal(size=(20, width))
        gram = gram_of(vectors, np.zeros(20, int), cluster, 1)
        ones = np.ones((20, 1))
        found.append(gram.variance(ones, gram.between(ones, ones))[0][1, 0])
    truth = width * (1 + 4 / 4) / prompts
    assert abs(np.mean(found) - truth) < 4 * np.std(found) / np.sqrt(len(found))


def test_a_lone_prompt_has_no_pair():
    vectors, bins, _, left, right = data()
    gram = PairGram(vectors, vectors, bins, bins, np.zeros(24, int), np.zeros(24, int), 3, 1)
    assert np.isnan(gram.between(left, right)[0]).all()


def make_rows(n, S, A, length, prompt, reward, step=0):
    nan = np.full(n, np.nan)
    cluster = dense(prompt)
    return Rows(
        rollout=np.zeros(n, int),
        step=np.full(n, step),
        used=np.zeros(n, int),
        updates=np.ones(n, int),
        length=length.astype(float),
        S=S,
        A=A,
        cluster=cluster,
        prompt=prompt,
        reward=reward,
        leave_one_out=leave_one_out(reward, cluster, np.arange(n)),
        k3_sum=nan,
        k3=nan,
        sigma2=nan,
        k3_lagged=nan,
        sigma2_lagged=nan,
        lo=nan,
        hi=nan,
        drift=np.zeros(n),
        side=np.zeros(n, int),
        multiplier=np.ones(n),
        weight=np.exp(S),
        band_accept=np.ones(n, bool),
        response=np.arange(n),
        coordinate=length.astype(float),
        trend=np.log2(length),
    )


def policy_window(bandit, psi, rng, prompts, group, width):
    """One update's scored responses and an audit: real S and psi of a tabular policy, rewards of the response."""
    n = prompts * group
    prompt = np.repeat(np.arange(prompts), group)
    old = rng.choice(len(bandit.p_old), n, p=bandit.p_old / bandit.p_old.sum())
    new = rng.choice(len(bandit.p_new), n, p=bandit.p_new / bandit.p_new.sum())
    reward = bandit.advantages  # deterministic in the response: the group's baseline is what varies
    rows = make_rows(
        n,
        bandit.token_log_ratios.sum(1)[old],
        np.zeros(n),
        bandit.responses.lengths[old],
        prompt,
        reward[old],
    )
    A = rows.leave_one_out
    rows = Rows(**{**rows.__dict__, "A": A})
    keep = A != 0
    fresh_A = leave_one_out(reward[new], prompt, np.arange(n))
    fresh = Fresh(prompt, bandit.responses.lengths[new].astype(float), psi[new] * fresh_A[:, None])
    some = rows.take(np.flatnonzero(keep))
    vectors = psi[old][keep] * some.A[:, None]
    return ScoredWindow(0, "first", some, vectors, np.zeros(len(some), int), np.zeros(len(some), int), {0: fresh})


def test_inner_products_are_unbiased_on_an_exact_policy():
    """Means over many batches: <g_clip, g>, ||g||^2 and <g_clip, fresh g> against enumeration of all responses."""
    rng = np.random.default_rng(3)
    bandit = make_bandit(rng, vocabulary=2, max_length=3, step=0.2)
    psi = scores(bandit.new, bandit.responses)
    prompts, group = 6, 4
    rule = Rule("sqrt", 0.1, 0.1)
    table = PopulationTable(NO_RUN, Bins((1, 10)), [Case(rule, "x", "given")])
    found = {"population": [], "fresh": []}
    for _ in range(3000):
        table._pools.clear()
        table.add(policy_window(bandit, psi, rng, prompts, group, psi.shape[1]))
        for name, values in found.items():
            parts = table._pools[name].parts
            values.append([parts[p].total[0][1, 0] for p in ("inner", "left", "right")])  # column 0: unclipped
    # by enumeration: a response's expected advantage is its reward minus the mean reward of the old policy
    p, S = bandit.p_old / bandit.p_old.sum(), bandit.token_log_ratios.sum(1)
    reward = bandit.advantages
    w = np.exp(S)
    true_g = (p * w * (reward - p @ reward)) @ psi
    new_p = bandit.p_new / bandit.p_new.sum()
    fresh_g = (new_p * (reward - new_p @ reward)) @ psi
    # both baselines estimate one gradient
    assert np.allclose(true_g, fresh_g)
    for name, values in found.items():
        values = np.array(values)
        errors = 4 * values.std(axis=0) / np.sqrt(len(values))
        assert np.all(errors < true_g @ true_g / 4), name  # else the check would say nothing
        # old with old, old with fresh, fresh with fresh: the unclipped update's every product is ||g||^2
        assert np.all(np.abs(values.mean(axis=0) - true_g @ true_g) < errors), name


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_fresh_reference_has_leave_one_out_advantages_whatever_estimator_trained(estimator):
    bandit = make_bandit(np.random.default_rng(4), vocabulary=2, max_length=3, step=0.2)
    psi = scores(bandit.new, bandit.responses)
    window = policy_window(bandit, psi, np.random.default_rng(5), 6, 4, psi.shape[1])
    A = advantages(window.rows.reward, window.rows.prompt, estimator)[0]
    vectors = window.vectors * (A / window.rows.A)[:, None]
    other = replace(window, rows=replace(window.rows, A=A), vectors=vectors)
    tables = [PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("sqrt", 0.05, 0.1), "x", "given")]) for _ in range(2)]
    for table, one in zip(tables, (window, other), strict=True):
        table.add(one)
    for name in ("inner", "left", "right"):
        one, two = (table._pools["fresh"].parts[name].total[0] for table in tables)
        assert np.allclose(one, two)
    one, two = (table._pools["population"].parts["right"].total[0] for table in tables)
    assert np.allclose(one, two) == (estimator == "rloo")


def test_population_cosine_is_not_flattered_and_its_interval_covers():
    """Mostly noise: the same-batch cosine is far above the population's, the pair estimate is not."""
    rng = np.random.default_rng(5)
    width, prompts, group, updates = 10, 64, 2, 10
    n = prompts * group
    kept, cut = np.zeros(width), np.zeros(width)
    kept[:2], cut[:2] = (1.0, 0.25), (0.0, 1.0)

    def one_run():
        table = PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("fixed", 0.2, 0.2), "x", "given")])
        flattered = []
        for u in range(updates):
            S = np.where(rng.random(n) < 0.3, 1.0, 0.0)  # cut where A > 0
            A = np.ones(n)
            vectors = np.where(S[:, None] > 0, cut, kept) + 1.5 * rng.normal(size=(n, width))
            prompt = np.repeat(np.arange(prompts), group)
            rows = make_rows(n, S, A, np.ones(n), prompt, A, step=u)
            window = ScoredWindow(u, "first", rows, vectors, np.zeros(n, int), np.zeros(n, int))
            table.add(window)
            w, c = np.exp(S), np.where(S > 0, 0.0, 1.0)
            a, b = c @ vectors, w @ vectors
            flattered.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        row = next(
            r
            for r in rows_of(table)
            if r["rule"] == "x" and r["quantity"] == "cosine" and r["reference"] == "population" and r["bin"] == -1
        )
        return row, np.mean(flattered)

    clip = 0.7 * kept
    true = clip + 0.3 * np.e * cut
    truth = clip @ true / np.linalg.norm(clip) / np.linalg.norm(true)
    found = [one_run() for _ in range(120)]
    rows = [row for row, _ in found]
    hits = np.mean([r["ci_low"] <= truth <= r["ci_high"] for r in rows])
    assert hits > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 120)
    estimates = np.array([r["estimate"] for r in rows])
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / np.sqrt(120) + 0.002
    assert abs(np.mean([same for _, same in found]) - truth) > 0.05  # the control: same batch is biased here


KEPT = np.array([1.0, 0.25, 0, 0])
OFTEN = np.array([0.1, 0.5])  # a prompt's own share of cut responses, either with probability 1/2
PROMPTS, GROUP, UPDATES = 24, 2, 6


@dataclass(frozen=True)
class Made:
    """Gradients of kept and cut responses, spread of the prompts and of single responses."""

    cut: tuple[float, ...] = (0.4, 1.0, 0, 0)
    effect: float = 0.3
    noise: float = 0.5

    def truth(self):
        """T12 by hand: moments of a prompt's mean of M w A psi and of w A psi."""
        width, e, q, cut = len(KEPT), np.e, OFTEN.mean(), np.array(self.cut)
        shared = width * self.effect**2
        own = shared + width * self.noise**2
        clip, true = (1 - q) * KEPT, (1 - q) * KEPT + q * e * cut

        def spread(square, pair, mean):
            return (square / GROUP + pair * (GROUP - 1) / GROUP - mean @ mean) / PROMPTS

        kept_square, cut_square = (1 - q) * (KEPT @ KEPT + own), q * e**2 * (cut @ cut + own)
        means = [(1 - s) * KEPT + s * e * cut for s in OFTEN]
        pairs = np.mean([m @ m + shared * ((1 - s) + s * e) ** 2 for m, s in zip(means, OFTEN, strict=True)])
        clipped = spread(kept_square, np.mean((1 - OFTEN) ** 2) * (KEPT @ KEPT + shared), clip)
        unclipped = spread(kept_square + cut_square, pairs, true)
        bias, variance = float(np.sum((clip / (1 - q) - true) ** 2)), clipped / (1 - q) ** 2
        found = {"bias2_direction": bias, "variance_direction": variance, "mse_direction": bias + variance}
        return {name: value / unclipped for name, value in found.items()}

    def windows(self, rng):
        n = PROMPTS * GROUP
        prompt = np.repeat(np.arange(PROMPTS), GROUP)
        for u in range(UPDATES):
            S = (rng.random(n) < rng.choice(OFTEN, PROMPTS)[prompt]).astype(float)
            vectors = np.where(S[:, None] > 0, np.array(self.cut), KEPT) + self.noise * rng.normal(size=(n, len(KEPT)))
            vectors += self.effect * rng.normal(size=(PROMPTS, len(KEPT)))[prompt]
            rows = make_rows(n, S, np.ones(n), np.ones(n), prompt, np.ones(n), step=u)
            rows = replace(rows, rollout=np.full(n, u))
            yield ScoredWindow(u, "first", rows, vectors, np.zeros(n, int), np.zeros(n, int))


def direction_rows(windows):
    table = PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("fixed", 0.2, 0.2), "x", "given")])
    for window in windows:
        table.add(window)
    found = [r for r in rows_of(table) if r["rule"] == "x" and r["reference"] == "population" and r["bin"] == -1]
    return {r["quantity"]: (r["estimate"], r["ci_low"], r["ci_high"]) for r in found if "direction" in r["quantity"]}


def fixed_scale(accepted, whole, cluster):
    scale = whole.sum(0) / accepted.sum(0)
    return scale, np.broadcast_to(scale, (int(cluster.max()) + 1, len(scale)))


@pytest.mark.parametrize(
    ("made", "quantity", "wrong"),
    [(Made(), "variance_direction", (1.2, 2)), (Made((0.1, 0.37, 0, 0), 0.2, 0.2), "mse_direction", (0, 0.9))],
)
def test_errors_of_the_direction_have_intervals_of_the_right_width(monkeypatch, made, quantity, wrong):
    rng, runs = np.random.default_rng(11), 100
    drawn = [list(made.windows(rng)) for _ in range(runs)]

    def study():
        found = [direction_rows(windows) for windows in drawn]
        for name, value in made.truth().items():
            estimate, low, high = np.array([f[name] for f in found]).T
            # half-width of the interval over that of the estimates' true spread
            width = np.mean(high - low) / 2 / (1.98 * estimate.std())
            yield name, np.mean((low <= value) & (value <= high)), width, estimate - value

    for name, held, width, error in study():
        assert held > 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs), name
        assert 0.85 < width < 1.2, name
        assert abs(error.mean()) < 3 * error.std() / np.sqrt(runs), name
    # the control: with a_bar held fixed, intervals are too long or too short
    monkeypatch.setattr("analysis.tables.population._scale", fixed_scale)
    low, high = wrong
    assert low < next(width for name, _, width, _ in study() if name == quantity) < high


def test_a_prompt_split_over_updates_is_one_prompt():
    """Two updates share their prompts and, here, their values: twice the same says no more than once."""
    rng = np.random.default_rng(2)
    replicates, update = rng.normal(size=10), np.repeat([0, 1], 10)
    once = jackknife_se(replicates, np.zeros(10, int))
    twice = np.concatenate([replicates, replicates])
    assert jackknife_se(twice, update, np.tile(np.arange(10), 2)) == pytest.approx(2 * once)
    assert jackknife_se(twice, update) == pytest.approx(np.sqrt(2) * once)


def test_an_update_of_which_nothing_is_left_has_no_direction():
    n = 24
    rng = np.random.default_rng(0)
    table = PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("fixed", 0.2, 0.2), "x", "given")])
    for u, cut in enumerate((0.2, 1.1)):
        S = (rng.random(n) < cut).astype(float)
        rows = make_rows(n, S, np.ones(n), np.ones(n), np.arange(n) // 2, np.ones(n), step=u)
        vectors = 1 + 0.1 * rng.normal(size=(n, 3))
        table.add(ScoredWindow(u, "first", rows, vectors, np.zeros(n, int), np.zeros(n, int)))
    found = {r["quantity"]: r for r in rows_of(table) if r["rule"] == "x" and r["reference"] == "population"}
    assert np.isnan(found["mse_direction"]["estimate"])
    assert "nothing is accepted in 1 of 2 updates" in found["mse_direction"]["reason"]
    assert np.isfinite(found["mse"]["estimate"])


def test_the_sketch_is_in_the_interval_of_the_bias():
    windows = list(Made().windows(np.random.default_rng(3)))
    half = {}
    for width in (50.0, np.inf):
        table = PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("fixed", 0.2, 0.2), "x", "given")], width)
        for window in windows:
            table.add(window)
        row = next(r for r in rows_of(table) if (r["rule"], r["quantity"], r["bin"]) == ("x", "bias2", -1))
        half[width] = (row["ci_high"] - row["estimate"], row["estimate"])
    quantile = sps.t.ppf(0.975, UPDATES * PROMPTS - UPDATES)
    expected = np.hypot(half[np.inf][0] / quantile, half[np.inf][1] * np.sqrt(2 / 50 / UPDATES))
    assert half[50.0][0] == pytest.approx(quantile * expected)


def test_too_little_data_is_said_and_not_a_number(fspo_run):
    run = load_run(fspo_run)
    bins = shared_bins([run], Options(bins=2))
    rng = np.random.default_rng(0)
    table = PopulationTable(RunKey.of(run), bins, [])
    n = 16
    rows = make_rows(n, np.zeros(n), np.ones(n), np.full(n, 20.0), np.arange(n) // 2, np.ones(n))
    table.add(ScoredWindow(0, "first", rows, rng.normal(size=(n, 50)), np.zeros(n, int), np.zeros(n, int)))
    cosine = [r for r in rows_of(table) if r["quantity"] == "cosine" and r["bin"] == -1]
    assert cosine
    assert all(np.isnan(r["estimate"]) and "squared norm" in r["reason"] for r in cosine)


def test_unclipped_update_is_the_yardstick(fspo_run):
    run = load_run(fspo_run)
    bins = shared_bins([run], Options(bins=4))
    table = PopulationTable(RunKey.of(run), bins, [Case(Rule("sqrt", 0.05, 0.05), "x", "given")])
    for window in ScoredWindows(run, bins, 5):
        table.add(window)
    rows = {(r["rule"], r["quantity"], r["bin"]): r for r in rows_of(table) if r["reference"] == "population"}
    assert rows["none", "mse", -1]["estimate"] == pytest.approx(1.0)
    assert rows["none", "bias2", -1]["estimate"] == pytest.approx(0.0, abs=1e-9)
    for quantity in ERRORS:
        row = rows["x", quantity, -1]
        assert row["ci_low"] <= row["estimate"] <= row["ci_high"]
    assert rows["x", "mse", -1]["estimate"] == pytest.approx(
        rows["x", "bias2", -1]["estimate"] + rows["x", "variance", -1]["estimate"]
    )


def test_leave_one_out_counts_a_repeated_response_once():
    reward = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    cluster, response = np.array([0, 0, 0, 0, 1]), np.array([7, 8, 9, 7, 3])
    found = leave_one_out(reward, cluster, response)
    assert found[:4] == pytest.approx([1 - 0.5, 0 - 1.0, 1 - 0.5, 1 - 0.5])
    assert np.isnan(found[4])


def split_prompts(window, which):
    """The window's leave-one-out advantages gone for the prompts ``which``, and the window without their rows."""
    rows = window.rows
    gone = np.isin(rows.prompt, which)
    holed = replace(window, rows=replace(rows, leave_one_out=np.where(gone, np.nan, rows.leave_one_out)))
    kept = np.flatnonzero(~gone)
    vectors, bins, update = (x[kept] for x in (window.vectors, window.bins, window.update))
    less = ScoredWindow(0, "first", rows.take(kept), vectors, bins, update, window.fresh)
    return holed, less, int(gone.sum())


def test_prompts_without_an_advantage_are_left_out_of_the_fresh_reference_alone():
    rng = np.random.default_rng(4)
    bandit = make_bandit(rng, vocabulary=2, max_length=3, step=0.2)
    window = policy_window(bandit, scores(bandit.new, bandit.responses), rng, 8, 4, 0)
    holed, less, gone = split_prompts(window, [1, 5])
    assert gone > 0
    tables = []
    for one in (holed, less):
        tables.append(PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("sqrt", 0.1, 0.1), "x", "given")]))
        tables[-1].add(one)
    assert tables[0].left_out == {"fresh_rows_without_advantage": gone}
    assert not +tables[1].left_out
    for name, part in tables[1]._pools["fresh"].parts.items():
        found = tables[0]._pools["fresh"].parts[name]
        np.testing.assert_allclose(found.total[0], part.total[0])
    assert tables[0]._pools["population"].rows[0][-1] == len(window.rows)  # the others use every row


def test_an_audited_update_without_pairs_is_counted():
    rng = np.random.default_rng(4)
    bandit = make_bandit(rng, vocabulary=2, max_length=3, step=0.2)
    window = policy_window(bandit, scores(bandit.new, bandit.responses), rng, 4, 4, 0)
    holed, _, gone = split_prompts(window, np.unique(window.rows.prompt)[1:])
    table = PopulationTable(NO_RUN, Bins((1, 10)), [])
    table.add(holed)
    assert table.left_out == {"fresh_rows_without_advantage": gone, "fresh_updates_left_out": 1}
    assert "fresh" not in table._pools


def test_what_audits_lose_is_a_warning(simulate):
    """12 audited responses: one prompt's lone response, two without a reward (one prompt), one broken score."""
    path = simulate(rollouts=1, width=8)
    rng = np.random.default_rng(0)
    prompt = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 4])
    n = len(prompt)
    reward = np.array([1, 0, 1, 0, 1, 0, 0, 0, 1, np.nan, 1, 1])
    unit = rng.standard_normal((n, 8))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    unit[4] *= 2
    writer = GradLogWriter(path, width=8, rank=1, metadata={"rule": preset("fspo").rule.to_dict(), "seed": 0})
    audit = {
        "rollout": 0,
        "step": 3,
        "updates_since_rollout": 0,
        "times_used": 0,
        "phase": "audit",
        "prompt_id": prompt,
        "response_id": 10_000 + np.arange(n),
        "length": np.full(n, 20),
        "log_ratio": np.zeros(n),
        "reward": reward,
        "advantage": np.ones(n),
        "score_status": "ok",
        "score_norm": np.ones(n),
        "score_unit": unit,
    }
    writer.append(audit)
    writer.flush(0)
    run = load_run(path)
    options = Options(bins=2, draws=2, rules=("fspo",), targets=(0.9,))
    _, summary = analyse(run, shared_bins([run], options), options)
    scored = summary["counts"]["scored"]
    # prompts 2 and 4 have one response each; prompt 3 has a reward missing, which leaves its other one no baseline
    assert scored["audit_rows_without_advantage"] == 4
    assert scored["audit_rows_without_score"] == 1
    assert scored["fresh_updates_left_out"] == scored["fresh_rows_without_advantage"] == 0
    lines = [line for line in summary["warnings"] if "of audits left out" in line]
    assert [line.split()[0] for line in lines] == ["1", "4"]
