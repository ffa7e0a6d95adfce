"""Pairs of different prompts against double loops, exact policies and planted truths."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats as sps

from analysis.log.loading import load_run
from analysis.log.rows import Rows
from analysis.options import Options
from analysis.rules.evaluate import Case
from analysis.run import shared_bins
from analysis.scores.products import UpdateGram
from analysis.scores.sketches import ScoredWindow, ScoredWindows
from analysis.tables.columns import RunKey
from analysis.tables.population import ERRORS, PopulationRow, PopulationTable
from fspo.rules import Rule
from fspo.stats.bins import Bins
from fspo.stats.clusters import dense
from tests.analysis.rows import held, records

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
    return UpdateGram(vectors @ vectors.T, bins, cluster, number)


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
    gram = UpdateGram(vectors @ vectors.T, bins, np.zeros(24, int), 3)
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
        k3_sum=nan,
        k2_sum=nan,
        k2_max=nan,
        k3_max=nan,
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
            window = ScoredWindow(u, "first", rows, held(vectors), np.zeros(n, int), np.zeros(n, int))
            table.add(window)
            w, c = np.exp(S), np.where(S > 0, 0.0, 1.0)
            a, b = c @ vectors, w @ vectors
            flattered.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        row = next(r for r in rows_of(table) if r["rule"] == "x" and r["quantity"] == "cosine" and r["bin"] == -1)
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
        """T11 by hand: moments of a prompt's mean of M w A psi and of w A psi."""
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
            yield ScoredWindow(u, "first", rows, held(vectors), np.zeros(n, int), np.zeros(n, int))


def direction_rows(windows):
    table = PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("fixed", 0.2, 0.2), "x", "given")])
    for window in windows:
        table.add(window)
    found = [r for r in rows_of(table) if r["rule"] == "x" and r["bin"] == -1]
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

    for name, share, width, error in study():
        assert share > 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs), name
        assert 0.85 < width < 1.2, name
        assert abs(error.mean()) < 3 * error.std() / np.sqrt(runs), name
    # the control: with a_bar held fixed, intervals are too long or too short
    monkeypatch.setattr("analysis.tables.population._scale", fixed_scale)
    low, high = wrong
    assert low < next(width for name, _, width, _ in study() if name == quantity) < high


def test_an_update_of_which_nothing_is_left_has_no_direction():
    n = 24
    rng = np.random.default_rng(0)
    table = PopulationTable(NO_RUN, Bins((1, 10)), [Case(Rule("fixed", 0.2, 0.2), "x", "given")])
    for u, cut in enumerate((0.2, 1.1)):
        S = (rng.random(n) < cut).astype(float)
        rows = make_rows(n, S, np.ones(n), np.ones(n), np.arange(n) // 2, np.ones(n), step=u)
        vectors = 1 + 0.1 * rng.normal(size=(n, 3))
        table.add(ScoredWindow(u, "first", rows, held(vectors), np.zeros(n, int), np.zeros(n, int)))
    found = {r["quantity"]: r for r in rows_of(table) if r["rule"] == "x"}
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
    table.add(ScoredWindow(0, "first", rows, held(rng.normal(size=(n, 50))), np.zeros(n, int), np.zeros(n, int)))
    cosine = [r for r in rows_of(table) if r["quantity"] == "cosine" and r["bin"] == -1]
    assert cosine
    assert all(np.isnan(r["estimate"]) and "squared norm" in r["reason"] for r in cosine)


def test_unclipped_update_is_the_yardstick(fspo_run):
    run = load_run(fspo_run)
    bins = shared_bins([run], Options(bins=4))
    table = PopulationTable(RunKey.of(run), bins, [Case(Rule("sqrt", 0.05, 0.05), "x", "given")])
    for window in ScoredWindows(run, bins, 5):
        table.add(window)
    rows = {(r["rule"], r["quantity"], r["bin"]): r for r in rows_of(table)}
    assert rows["none", "mse", -1]["estimate"] == pytest.approx(1.0)
    assert rows["none", "bias2", -1]["estimate"] == pytest.approx(0.0, abs=1e-9)
    for quantity in ERRORS:
        row = rows["x", quantity, -1]
        assert row["ci_low"] <= row["estimate"] <= row["ci_high"]
    assert rows["x", "mse", -1]["estimate"] == pytest.approx(
        rows["x", "bias2", -1]["estimate"] + rows["x", "variance", -1]["estimate"]
    )
