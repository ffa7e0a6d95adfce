"""Power before any run: against simulation with the judge itself, and against another library's formula."""

import numpy as np
import pytest
from scipy import stats as sps

from analysis.claims.catalogue import ATOMS
from analysis.claims.evidence import ALPHA, Measured, number, p_values, verdict_of
from analysis.claims.power import LENGTH_SPREAD, PlannedRuns, chance, error_of, headline_power, power_of, power_table
from fspo.stats.bins import DEFAULT_BINS

ATOM = {atom.id: atom for atom in ATOMS}
DESIGN = PlannedRuns(logs=4, seeds=5, rollouts=20, responses=7680, held_out=256)


@pytest.mark.parametrize("df", [4, 7])
@pytest.mark.parametrize("truth", [0.0, 0.5, 2.0])
def test_a_one_sided_chance_is_that_of_the_noncentral_t(truth, df):
    expected = sps.nct.sf(sps.t.isf(ALPHA, df), df, truth / 0.5)
    assert chance(truth, 0.5, df, "above", 0.0) == pytest.approx(expected, abs=2e-4)
    assert chance(-truth, 0.5, df, "below", 0.0) == pytest.approx(expected, abs=2e-4)


def simulated(name, truth, runs=3000):
    """Shares of supported and refuted, as the judge gives them, with the design's error in each number."""
    atom, rng = ATOM[name], np.random.default_rng(0)
    row = power_of(atom, DESIGN)
    n, df = row["numbers"], 4 if atom.arm == "published" else np.inf
    found = []
    for x in rng.normal(truth, row["error"], (runs, n)):
        error = row["error"] * (np.sqrt(rng.chisquare(df) / df) if np.isfinite(df) else 1.0)
        numbers = [number("", Measured(float(v), error, error, df), atom.relation, atom.margin) for v in x]
        found.append(verdict_of(*p_values(numbers)))
    return found.count("supported") / runs, found.count("refuted") / runs


@pytest.mark.parametrize("name", ["85-fspo-flat", "95-fspo-flat", "own-reward-rloo", "own-fspo-flat"])
def test_the_chance_of_support_if_nothing_differs(name):
    assert simulated(name, 0.0)[0] == pytest.approx(power_of(ATOM[name], DESIGN)["supported if equal"], abs=0.03)


@pytest.mark.parametrize(("name", "which"), [("85-rloo-falls", 0), ("own-reward-gspo", 0), ("own-fspo-flat", 1)])
def test_what_is_seen_is_seen_with_80_percent(name, which):
    assert simulated(name, power_of(ATOM[name], DESIGN)["seen with 80 %"])[which] == pytest.approx(0.8, abs=0.03)


def test_more_responses_see_less_and_a_single_seed_nothing():
    more = PlannedRuns(logs=4, seeds=5, rollouts=80, responses=4 * 7680, held_out=256)
    for name in ("85-rloo-falls", "85-lre-rloo", "95-worst-rloo"):
        few, many = (power_of(ATOM[name], d)["seen with 80 %"] for d in (DESIGN, more))
        assert many == pytest.approx(few / 2, rel=1e-6)
    one = PlannedRuns(logs=4, seeds=1, rollouts=20, responses=7680, held_out=256)
    table = power_table(one).set_index("atom")
    assert table.loc["own-reward-rloo", "supported if equal"] == 0
    assert len(table) == len(ATOMS)


def test_every_quantity_has_a_standard_error():
    known = {atom.quantity: error_of(atom, DESIGN) for atom in ATOMS}
    assert [name for name, error in known.items() if not error > 0] == ["rollouts missed"]  # a count without an error


def test_errors_of_a_log_are_those_of_drawn_responses():
    """Trends and relative deviations of bins, of logs whose responses are accepted with one probability."""
    rng, logs, a = np.random.default_rng(0), 2000, ATOM["85-fspo-flat"].target
    kept = rng.random((logs, DESIGN.responses)) < a
    length = rng.normal(0, LENGTH_SPREAD, DESIGN.responses)
    slopes = kept @ (length - length.mean()) / length.var() / DESIGN.responses
    assert error_of(ATOM["85-fspo-flat"], DESIGN) == pytest.approx(slopes.std(), rel=0.05)
    bins = kept[:, : DESIGN.responses // DEFAULT_BINS * DEFAULT_BINS].reshape(logs, DEFAULT_BINS, -1).mean(2)
    atom = next(x for x in ATOMS if x.quantity == "LRE_inf" and x.target == a)
    assert error_of(atom, DESIGN) == pytest.approx((bins / a - 1).std(), rel=0.05)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        # of the constants above the functions of analysis/claims/power.py: 7,680 responses, 5 seeds, 256 prompts
        ("own-fspo-flat", (0.8 * 0.2 / 7680 / 1.4**2 + 0.005**2) ** 0.5 / 5**0.5),
        ("85-trend-rloo", 2**0.5 * (0.85 * 0.15 / 7680) ** 0.5 / 1.4),
        ("85-lre-rloo", 4 * 0.05 * 2 * (0.15 / 0.85 / 7680) ** 0.5),
        ("own-lre-rloo", 4 * 0.05 * (2 * 0.2 / 0.8 / 7680 / 5) ** 0.5),
        ("own-reward-rloo", (2 * (0.9 * 0.1 / 256 + 0.02**2) / 5) ** 0.5),
        ("own-fall-rloo", 0.03 * (2 / 5) ** 0.5),
        ("95-worst-rloo", 0.064),
        ("85-update-trend-rloo", 2**0.5 * (0.85 * 0.15 / (0.6 * 7680)) ** 0.5 / 1.4),
    ],
)
def test_errors_by_hand(name, error):
    assert error_of(ATOM[name], DESIGN) == pytest.approx(error, rel=1e-12)


def test_a_count_has_no_error_and_every_atom_has_a_row():
    table = power_table(DESIGN).set_index("atom")
    assert table["error"].notna().all()
    assert table["supported if equal"].notna().all()
    assert list(table.loc["own-ends", ["error", "supported if equal", "seen with 80 %"]]) == [0, 1, 1]


def test_a_headline_is_supported_no_more_often_than_its_weakest_atom_near_0():
    table = power_table(DESIGN).assign(**{"supported if equal": 0.9})
    weak = table["atom"].isin(["own-fall-gspo", "own-trend-rloo", "log-update-normal"])
    table.loc[weak, "supported if equal"] = 0.2
    found = headline_power(table).set_index("headline")
    assert list(found.loc["C5"]) == ["own-fall-gspo", 0.2]
    assert found.loc["C1p", "supported if equal at most"] == 0.9
    assert list(found.loc["C4u"]) == ["log-update-normal", 0.2]
    assert "C2" not in found.index  # each of its atoms says that a difference is above 0


def test_chances_of_the_worst_bin_are_those_of_drawn_bins():
    design, atom = PlannedRuns(logs=4, seeds=5, rollouts=20, responses=9000, held_out=256), ATOM["85-fspo-bins"]
    row, rng = power_of(atom, design), np.random.default_rng(0)
    half = sps.norm.isf(ALPHA / DEFAULT_BINS) * row["error"]  # of an interval that holds in all bins together
    drawn = row["error"] * rng.standard_normal((20000, row["numbers"] * DEFAULT_BINS))
    assert np.mean(np.abs(drawn).max(1) + half < atom.margin) == pytest.approx(row["supported if equal"], abs=0.015)
    assert 0.2 < row["supported if equal"] < 0.8
    assert np.mean(row["seen with 80 %"] + drawn[:, 0] - half > atom.margin) == pytest.approx(0.8, abs=0.015)


def test_a_log_of_few_responses_cannot_show_that_no_bin_deviates():
    few = PlannedRuns(logs=4, seeds=5, rollouts=1, responses=10, held_out=256)
    assert power_of(ATOM["85-fspo-bins"], few)["supported if equal"] == 0


def test_chances_above_and_below_a_margin_of_a_normal_number():
    z = sps.norm.isf(ALPHA)
    above, below = sps.norm.cdf((0.05 - 0.02) / 0.01 - z), sps.norm.cdf((-0.02 + 0.05) / 0.01 - z)
    assert chance(0.05, 0.01, np.inf, "above", 0.02) == pytest.approx(above)
    assert chance(-0.05, 0.01, np.inf, "below", -0.02) == pytest.approx(below)
    assert chance(-0.05, 0.01, np.inf, "below", 0.02) == pytest.approx(sps.norm.cdf((0.02 + 0.05) / 0.01 - z))
