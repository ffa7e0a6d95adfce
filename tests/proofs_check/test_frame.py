"""The frame may say "all is well" only when it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from fspo.base.errors import UserError
from proofs_check import frame
from proofs_check.catalogue import CHECKS
from proofs_check.frame import Check, Method, Outcome, Parts, Verdict, exit_status, holm, judge, select
from proofs_check.run import run_checks


def margin(value: float):
    return lambda rng: Outcome(value, "unit")


def p_value(value: float):
    return lambda rng: Outcome(p_value=value)


def boom(rng):
    raise RuntimeError("broken")


def check(run, near_miss=None, name: str = "a", statement: str = "T1") -> Check:
    return Check(statement, Method.CLOSED, name, run, {"near miss": near_miss or margin(-1.0)})


def test_passing_check_with_failing_near_miss_is_sound():
    rows = run_checks([check(margin(0.5))])
    assert (rows[0].verdict, rows[0].near_misses) == (Verdict.PASS, {"near miss": Verdict.FAIL})
    assert exit_status(rows) == 0


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (margin(-1e-9), Verdict.FAIL),
        (margin(math.nan), Verdict.UNDECIDED),
        (boom, Verdict.FAIL),
        (p_value(1e-9), Verdict.FAIL),
        (p_value(math.nan), Verdict.UNDECIDED),
    ],
)
def test_anything_but_a_pass_makes_the_status_nonzero(run, verdict):
    rows = run_checks([check(margin(1.0), name="sound"), check(run)])
    assert rows[1].verdict is verdict
    assert exit_status(rows) == 1


NOT_FAILING = [margin(0.0), margin(math.nan), boom, p_value(0.5), p_value(math.nan), lambda rng: Outcome(not_run="no")]


@pytest.mark.parametrize("near_miss", NOT_FAILING)
def test_a_near_miss_that_does_not_fail_makes_the_suite_fail(near_miss):
    rows = run_checks([check(margin(1.0), near_miss)])
    assert rows[0].verdict is Verdict.PASS
    assert rows[0].near_misses["near miss"] is not Verdict.FAIL
    assert exit_status(rows) == 1


def test_one_passing_near_miss_among_failing_ones_is_enough_to_fail():
    mixed = Check("T1", Method.CLOSED, "a", margin(1.0), {"bad": margin(1.0), "good": margin(-1.0)})
    rows = run_checks([mixed])
    assert rows[0].near_misses == {"bad": "pass", "good": "fail"}
    assert exit_status(rows) == 1


def test_not_run_is_neither_pass_nor_failure_unless_strict():
    rows = run_checks([check(margin(1.0), name="ran"), check(lambda rng: Outcome(not_run="no prover"))])
    assert rows[1].verdict is Verdict.NOT_RUN
    assert rows[1].note == "no prover"
    assert exit_status(rows) == 0
    assert exit_status(rows, strict=True) == 1
    assert exit_status(rows[1:]) == 1  # nothing ran at all
    assert exit_status([]) == 1


def test_a_check_without_near_miss_is_refused():
    with pytest.raises(UserError, match="no near miss"):
        Check("T1", Method.CLOSED, "a", margin(1.0), {})


def test_holm_is_that_of_statsmodels():
    p = np.random.default_rng(0).random(25) ** 3
    expected = np.asarray(multipletests(p, method="holm")[1])
    np.testing.assert_allclose(holm(p), expected)


def test_holm_keeps_nan_and_counts_it():
    adjusted = holm([0.01, math.nan, 0.02])
    assert math.isnan(adjusted[1])
    np.testing.assert_allclose([adjusted[0], adjusted[2]], [0.03, 0.04])


def test_a_selection_is_corrected_over_its_own_family():
    # the run's family is what was selected: two simulated claims of three, and no deterministic one
    chosen = [check(p_value(4e-4)), check(p_value(0.5), name="b"), check(margin(1.0), name="c")]
    rows = run_checks(chosen)
    assert rows[0].p_adjusted == pytest.approx(8e-4)
    assert rows[0].verdict is Verdict.FAIL
    assert run_checks([*chosen, check(p_value(0.9), name="d")])[0].p_adjusted == pytest.approx(1.2e-3)


def test_near_misss_pay_for_the_family_too():
    # the near miss's p-value times the family of 5 stays above alpha: it did not fail
    family = [check(p_value(0.5), p_value(4e-4))] + [check(p_value(0.5), name=str(i)) for i in range(4)]
    assert run_checks(family)[0].near_misses["near miss"] is Verdict.PASS


def test_judge_at_the_borders():
    assert judge(Outcome(0.0)) is Verdict.PASS
    assert judge(Outcome(p_value=frame.ALPHA)) is Verdict.PASS
    assert judge(Outcome(p_value=frame.ALPHA / 2)) is Verdict.FAIL
    assert judge(Outcome(p_value=frame.ALPHA / 2), p_adjusted=0.5) is Verdict.PASS


def test_seed_reproduces_rows_and_selection_does_not_change_them():
    def draw(rng):
        return Outcome(float(rng.random()), "u")

    checks = [check(draw, name="a"), check(draw, name="b")]
    first, again = run_checks(checks, seed=7), run_checks(checks, seed=7)
    alone, other = run_checks(checks[1:], seed=7), run_checks(checks, seed=8)
    assert [row.margin for row in first] == [row.margin for row in again]
    assert alone[0].margin == first[1].margin
    assert first[0].margin != first[1].margin
    assert first[0].margin != other[0].margin


def test_two_processes_give_the_same_rows_beside_a_check_outside_the_catalogue():
    quick = select(CHECKS, ["T2"])
    assert {c.method for c in quick} >= {Method.SIMULATED, Method.ATTACKED}
    chosen = [check(margin(0.25), name="own"), *quick]
    one, two = run_checks(chosen, seed=3), run_checks(chosen, seed=3, jobs=2)
    assert [(r.name, r.verdict, r.near_misses) for r in one] == [(r.name, r.verdict, r.near_misses) for r in two]
    # other draws would differ in the first digits; BLAS with other threads differs in the last ones
    assert [r.margin for r in two] == pytest.approx([r.margin for r in one], rel=1e-9)
    assert two[0].margin == 0.25


def test_bad_requests_name_the_fix():
    with pytest.raises(UserError, match="--list"):
        select(CHECKS, ["T11"], "machine-proved")
    with pytest.raises(UserError, match="share one name"):
        run_checks([check(margin(1.0)), check(margin(1.0))])


def seen_from(*sizes: float, sees: float = math.inf) -> Check:
    """A check of several statements that notices each made false by its size or more."""
    run = lambda rng: Parts(tuple(lambda x, y=y: Outcome(1.0 if x < y else -1.0, "unit") for y in sizes))  # noqa: E731
    return Check("T1", Method.CLOSED, "a", run, {"near miss": margin(-1.0)}, "of a", sees)


def test_the_resolution_is_the_smallest_size_that_is_noticed_in_every_part():
    for sizes, found in (((1.0,), 1.0), ((2e-7,), 2e-7), ((1.5e-7, 1e-3, 1e-9), 1e-3), ((1e-20,), frame.SIZES[0])):
        (row,) = run_checks([seen_from(*sizes)])
        assert (row.verdict, row.resolution) == (Verdict.PASS, found)
    (row,) = run_checks([seen_from(2.0)])
    assert row.resolution == math.inf


def test_a_check_that_sees_too_little_is_undecided():
    assert run_checks([seen_from(2e-3, sees=2e-3)])[0].verdict is Verdict.PASS
    (row,) = run_checks([seen_from(5e-3, sees=2e-3)])
    assert row.verdict is Verdict.UNDECIDED
    assert row.note == "resolution 5e-03 of a: too coarse, at most 2e-03 is allowed"


def test_the_resolution_of_p_values_holds_in_the_largest_family():
    run = lambda rng: lambda x: Outcome(p_value=1.0 if x < 0.1 else frame.ALPHA / 2 if x < 0.4 else 1e-9)  # noqa: E731
    simulated = Check("T1", Method.SIMULATED, "a", run, {"near miss": margin(-1.0)}, "of a")
    assert run_checks([simulated])[0].resolution == 0.5  # alpha / 2 is not enough among 50


def test_an_exception_while_it_is_made_false_is_no_pass():
    run = lambda rng: lambda x: boom(rng) if x else Outcome(1.0, "unit")  # noqa: E731
    (row,) = run_checks([Check("T1", Method.CLOSED, "a", run, {"near miss": margin(-1.0)}, "of a")])
    assert row.verdict is Verdict.PASS
    assert row.resolution == frame.SIZES[0]
