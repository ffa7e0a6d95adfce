"""The study of rules: medians and sign tests by enumeration, on units that would carry a mean away."""

from itertools import product

import numpy as np
import pytest

from studies.which_rule import answer, compared, median_interval, number, page, standing_out, verdict


@pytest.mark.parametrize("n", [6, 7, 9, 12])
def test_the_interval_of_a_median_is_the_shortest_that_holds_95_percent(n):
    """All 2^n ways in which n units lie above (1) or below (0) the true median are equally likely."""
    _, low, high = median_interval(list(range(1, n + 1)))
    rank = int(low)
    assert high == n + 1 - rank
    above = np.array([sum(signs) for signs in product((0, 1), repeat=n)])
    holds = [np.mean((above > n - r) | (above < r)) for r in (rank, rank + 1)]  # misses, r-th to (n+1-r)-th
    assert holds[0] <= 0.05 < holds[1]


def test_five_units_have_no_interval():
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0])[0] == 3
    assert all(np.isnan(end) for end in median_interval([1.0, 2.0, 3.0, 4.0, 5.0])[1:])
    assert np.isnan(median_interval([])[0])


def rows(case, values, quantity="mse"):
    rule, outside = case
    place = {"rule": rule, "outside": outside, "quantity": quantity}
    return [{"unit": i, "target": t, "estimate": v, **place} for i, v in enumerate(values) for t in (0.95, 0.85)]


def test_one_absurd_unit_a_negative_estimate_and_a_missing_one_are_told():
    table = rows(("fspo", "drop"), [0.5, 1.0, 2.0, 1.0, 1.0, 1.0])
    table += rows(("fspo", "cap"), [0.4, 0.8, 1.6, 0.8, 0.8, 0.8])
    table += rows(("fspo", "truncate"), [0.6, 1.2, 2.4, 1.2, 1.2, 7e12])
    table += rows(("rloo", "drop"), [-0.1, 0.9, 1.8, 0.9, 0.9, 1.1])
    table += rows(("gspo", "cap"), [0.1, 0.1, 0.1, 0.1, 0.1, np.nan])
    found = compared(table, "mse", 0.85).set_index(["rule", "outside"])
    cap, truncate, rloo = (found.loc[case] for case in (("fspo", "cap"), ("fspo", "truncate"), ("rloo", "drop")))
    assert (cap.estimate, cap.ci_low, cap.ci_high) == pytest.approx((0.8, 0.8, 0.8))
    assert (cap.better, cap.units, cap.p) == (6, 6, pytest.approx(2 / 64))
    assert (truncate.estimate, truncate.ci_high) == pytest.approx((1.2, 7e12))
    assert (rloo.estimate, rloo.ci_low, rloo.better) == pytest.approx((0.9, -0.2, 5))  # a squared error below 0 stays
    gspo = found.loc["gspo", "cap"]
    assert (gspo.units, gspo.better) == (5, 5)
    assert np.isnan(gspo.ci_low)
    line = verdict(table, "mse", "MSE")[1]
    assert "`fspo` with cap" in line  # gspo's lacks a unit
    assert "p = 0.031 alone, 0.12 as the best of 4" in line
    assert number(7e12) == "7e+12"


def test_the_section_on_training_stays_where_no_trained_runs_are_given():
    models = [r | {"outside": o} for o in ("drop", "cap", "truncate") for r in rows(("fspo", o), [1.0] * 6)]
    models += [{**r, "quantity": "cosine_exact"} for r in models]
    before = "# Old\n\n## On gradient logs\n\nold\n\n## In training\n\n| kept | 3 |\n"
    text = page([], models, [], before)
    assert text.endswith("## In training\n\n| kept | 3 |\n")
    assert "old" not in text.split("## In training")[0]
    assert "## In training" not in page([], models, [], "")


def test_only_what_all_looks_leave_stands_out():
    """12 of 12 has p = 2/4096, times 3 looks .0015; 10 of 12 has p = .039, times 3 .12."""
    table = rows(("fspo", "drop"), [1.0] * 12) + rows(("fspo", "cap"), [0.9] * 12)
    table += rows(("fspo", "truncate"), [1.1] * 12) + rows(("rloo", "cap"), [0.9] * 10 + [1.1] * 2)
    line = standing_out(table, "mse", "MSE", 0.85)
    assert line == "- MSE at 85%, significant among all cases; better: `fspo` cap; worse: `fspo` truncate."


def test_the_answer_names_what_is_better_at_every_acceptance():
    table = rows(("fspo", "drop"), [1.0] * 12) + rows(("fspo", "cap"), [0.8] * 12)
    for outside, worse in (("drop", 0.95), ("cap", 0.85)):  # better at one of the two, worse at the other
        some = rows(("rloo", outside), [0.5] * 12)
        table += [row | {"estimate": 2.0} if row["target"] == worse else row for row in some]
    assert answer(table, {"mse": "MSE"}) == (
        "On logs, significantly better than `fspo` with drop at every acceptance compared; by MSE: `fspo` cap."
    )
