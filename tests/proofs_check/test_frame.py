"""The frame may say "all is well" only when it is."""

import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from fspo.base.errors import UserError
from proofs_check import frame
from proofs_check.catalogue import CHECKS
from proofs_check.frame import Check, Method, Outcome, Parts, Verdict, exit_status, holm, select
from proofs_check.run import run_checks


def margin(value: float):
    return lambda rng: Outcome(value, "unit")


def p_value(value: float):
    return lambda rng: Outcome(p_value=value)


def boom(rng):
    raise RuntimeError("broken")


def check(run, near_miss=None, name: str = "a") -> Check:
    near_misses = {"near miss": near_miss or margin(-1.0), "another": margin(-1.0)}
    return Check("T1", Method.CLOSED, name, run, near_misses)


def not_run(rng):
    return Outcome(not_run="no prover")


PASS, FAIL, UNDECIDED, NOT_RUN = Verdict


@pytest.mark.parametrize(
    ("run", "verdict", "of_near_miss"),
    [
        (margin(0.0), PASS, PASS),
        (margin(-1e-9), FAIL, FAIL),
        (margin(math.nan), UNDECIDED, UNDECIDED),
        (boom, FAIL, UNDECIDED),
        (p_value(frame.ALPHA), PASS, PASS),
        (p_value(frame.ALPHA / 2), FAIL, FAIL),
        (p_value(math.nan), UNDECIDED, UNDECIDED),
        (not_run, NOT_RUN, NOT_RUN),
    ],
)
def test_a_suite_is_sound_if_no_claim_fails_and_every_near_miss_does(run, verdict, of_near_miss):
    rows = run_checks([check(margin(1.0)), check(run, name="b"), check(margin(1.0), run, name="c")])
    assert [row.verdict for row in rows] == [PASS, verdict, PASS]
    assert rows[2].near_misses == {"near miss": of_near_miss, "another": FAIL}
    assert exit_status(rows[:1]) == 0
    assert exit_status(rows[:2]) == (verdict not in (PASS, NOT_RUN))
    assert exit_status(rows[::2]) == (of_near_miss is not FAIL)


def test_what_was_not_run_says_why_and_is_no_success_alone_or_if_strict():
    rows = run_checks([check(not_run), check(margin(1.0), name="ran")])
    assert rows[0].note == "no prover"
    assert exit_status(rows, strict=True) == exit_status(rows[:1]) == exit_status([]) == 1


def test_a_check_without_near_miss_is_refused():
    with pytest.raises(UserError, match="no near miss"):
        Check("T1", Method.CLOSED, "a", margin(1.0), {})


def test_holm_is_that_of_statsmodels_and_counts_nan_which_stays():
    p = 0.2 * np.random.default_rng(0).random(25)
    expected = multipletests(np.append(p, 1.0), method="holm")[1]
    np.testing.assert_allclose(holm([*p, math.nan]), [*expected[:-1], math.nan])


def test_claims_and_near_misses_are_corrected_for_the_simulated_checks_that_were_selected():
    chosen = [check(p_value(4e-4), p_value(4e-4)), check(p_value(0.5), name="b"), check(margin(1.0), name="c")]
    row = run_checks(chosen)[0]
    assert row.p_adjusted == pytest.approx(8e-4)
    assert (row.verdict, row.near_misses["near miss"]) == (FAIL, FAIL)
    row = run_checks([*chosen, check(p_value(0.9), name="d")])[0]
    assert row.p_adjusted == pytest.approx(1.2e-3)
    assert (row.verdict, row.near_misses["near miss"]) == (PASS, PASS)


def test_seed_reproduces_rows_and_selection_does_not_change_them():
    def draw(rng):
        return Outcome(float(rng.random()), "u")

    checks = [check(draw, name="a"), check(draw, name="b")]
    first, again, alone = run_checks(checks, seed=7), run_checks(checks, seed=7), run_checks(checks[1:], seed=7)
    assert [row.margin for row in first] == [row.margin for row in again]
    assert alone[0].margin == first[1].margin
    assert first[0].margin != first[1].margin
    assert first[0].margin != run_checks(checks, seed=8)[0].margin


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


def resolved(run, method: Method = Method.CLOSED, sees: float = math.inf):
    """The row of a check that can be made false by a number x, which its test ``run`` is given."""
    made = Check("T1", method, "a", lambda rng: run, {"near miss": margin(-1.0)}, "of a", sees)
    return run_checks([made])[0]


def seen_from(*sizes: float) -> Parts:
    """The test of several statements that notices each made false by its size or more."""
    return Parts(tuple(lambda x, y=y: Outcome(1.0 if x < y else -1.0, "unit") for y in sizes))


@pytest.mark.parametrize(
    ("sizes", "found"),
    [((2e-7,), 2e-7), ((1.5e-7, 1e-3, 1e-9), 1e-3), ((1e-20,), frame.SIZES[0]), ((2.0,), math.inf)],
)
def test_the_resolution_is_the_smallest_size_that_is_noticed_in_every_part(sizes, found):
    row = resolved(seen_from(*sizes))
    assert (row.verdict, row.resolution) == (PASS, found)


def test_a_check_that_sees_too_little_is_undecided():
    assert resolved(seen_from(2e-3), sees=2e-3).verdict is PASS
    row = resolved(seen_from(5e-3), sees=2e-3)
    assert row.verdict is UNDECIDED
    assert row.note == "resolution 5e-03 of a: too coarse, at most 2e-03 is allowed"


def test_the_resolution_of_p_values_holds_in_the_largest_family():
    run = lambda x: Outcome(p_value=1.0 if x < 0.1 else frame.ALPHA / 2 if x < 0.4 else 1e-9)  # noqa: E731
    assert resolved(run, Method.SIMULATED).resolution == 0.5  # alpha / 2 is not enough among 50


def test_an_exception_while_it_is_made_false_is_no_pass():
    row = resolved(lambda x: boom(None) if x else Outcome(1.0, "unit"))
    assert (row.verdict, row.resolution) == (PASS, frame.SIZES[0])
