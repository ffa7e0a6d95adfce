"""What a rule does to rows, three ways: plain formulas written here, row by row (`evaluate`), and the fast sums.

Combinations of shape, drift, what happens outside, dual clip, weight and online target, at the rule's own range and at
a matched acceptance, on a simulated log with zero advantages, rows at an edge and exponents at the cap.
"""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from analysis.log.loading import load_run
from analysis.log.rows import USES, windows
from analysis.rules.evaluate import Case, evaluate, measured
from analysis.rules.replay import replay
from analysis.tables.passes import look_through
from fspo.base.errors import UserError
from fspo.rules import Rule
from fspo.stats.bins import Bins
from tests.analysis.conftest import Plan, write_log

RANGES = {"none": (0, 0), "fixed": (0.2, 0.25), "linear": (0.02, 0.03), "sqrt": (0.08, 0.1), "power": (0.05, 0.04)}
GAMMA = {"fixed": 0.0, "linear": 1.0, "sqrt": 0.5}
TARGETS = (0.9, 0.6)
WINDOW = 2  # rollouts
BINS = Bins((1, 12, 30, 80, 301))
CAP = 20.0


def made(shape, drift, source, weight, adapt, dual, outside):
    """Return the rule with these options, or None if Rule refuses them; its name leaves ``outside`` out."""
    options = {"gamma": 0.7} if shape == "power" else {}
    options |= {"target": 0.8} if adapt != "none" else {}
    options |= {"name": "-".join(map(str, (shape, drift, source, weight, adapt, dual)))}
    try:
        return Rule(
            shape, *RANGES[shape], drift=drift, drift_source=source, weight=weight, adapt=adapt, dual=dual,
            outside=outside, **options,
        )  # fmt: skip
    except UserError:
        return None


RULES = [
    rule
    for shape, drift, source, *more in product(
        *(RANGES, ("none", "kl"), ("two_pass", "lagged"), ("sequence", "geometric"), ("none", "exponent"), (None, 1.5)),
        ("drop", "truncate", "cap", "mask"),
    )
    if (source == "two_pass" or (drift != "none" and shape == "sqrt")) and (rule := made(shape, drift, source, *more))
]

# -- plain formulas -------------------------------------------------------------------------------------------------


class Plain(NamedTuple):
    """What a rule does to rows, arrays (N,)."""

    side: np.ndarray
    in_band: np.ndarray
    weight: np.ndarray
    clipped_weight: np.ndarray

    def measure(self, name):
        """Numerator and denominator (N,)."""
        ones = np.ones(len(self.side))
        pairs = {"band": (1.0 * self.in_band, ones), "update": (1.0 * (self.side == 0), ones)}
        return {**pairs, "weight": (self.clipped_weight, self.weight)}[name]


def placed(rule, rows, states):
    """Centre and half-widths of each row's band; the rule of its step where it follows a target."""
    L, late = rows.length, rule.drift_source == "lagged"
    k3, sigma2 = (rows.k3_lagged, rows.sigma2_lagged) if late else (rows.k3, rows.sigma2)
    m = {"none": 0.0, "kl": -k3, "gaussian": -sigma2 / 2}[rule.drift]
    below, above = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
    steps = np.unique(rows.step) if rule.shape != "none" else ()
    for step in steps:
        at, now = rows.step == step, rule if states is None else states[int(step)]
        gamma = now.gamma if now.shape == "power" else GAMMA[now.shape]
        scale = L[at] ** gamma
        lo, hi = now.range_lo, now.range_hi
        if now.shape in ("fixed", "linear"):
            lo, hi = -np.log1p(-lo), np.log1p(hi)
        upper = scale if now.gamma_hi is None else L[at] ** now.gamma_hi
        below[at], above[at] = lo * scale, hi * upper
    return m * L, below, above


def clip(rule, rows, centre, below, above):
    """The clip itself (docs/theory.md section 2)."""
    S, L, A, low, high = rows.S, rows.length, rows.A, centre - below, centre + above
    side, edge = np.zeros(len(rows), int), S.copy()
    if rule.outside in ("cap", "mask"):
        side[(high < S) & (A != 0)] = 1
        side[(low > S) & (A != 0) & (rule.outside == "mask")] = -1
    else:
        side[(A > 0) & (high < S)] = 1
        side[(A < 0) & (low > S)] = -1
    edge, dual = np.where(side == 1, high, np.where(side == -1, low, S)), None
    if rule.dual is not None:
        dual = centre + rule.dual * above
        over = (A < 0) & (dual < S)
        side[over], edge[over] = 2, dual[over]
    scale = L if rule.weight == "geometric" else 1.0
    weight, at_edge = np.exp(np.minimum(S / scale, CAP)), np.exp(np.minimum(edge / scale, CAP))
    kept = np.where(side == 0, weight, 0.0 if rule.outside in ("drop", "mask") else at_edge)
    return Plain(side, (low <= S) & (high >= S), weight, kept)


def matched_factor(rule, rows, centre, below, above, target, rate):
    """The factor on the half-widths that accepts the share ``target``: midway between two rows, or just above ties."""
    over, under = (rows.S - centre) / above, (centre - rows.S) / below
    if rate == "band":
        excess = np.maximum(over, under)
    elif rule.outside in ("cap", "mask"):
        excess = (over if rule.outside == "cap" else np.maximum(over, under))[rows.A != 0]
    else:
        negative = under if rule.dual is None else np.maximum(under, over / rule.dual)
        excess = np.where(rows.A > 0, over, negative)[rows.A != 0]
    ordered = np.sort(excess)
    k = min(max(round(target * len(ordered)), 1), len(ordered))
    here = ordered[k - 1]
    upper = ordered[k] if k < len(ordered) and ordered[k] > here else here * (1 + 1e-9)
    return (here + upper) / 2


def plain(case, rows, rate):
    """What a case does to the rows of a window; None where no range gives its target."""
    centre, below, above = placed(case.rule, rows, case.states)
    if case.source == "matched":
        factor = matched_factor(case.rule, rows, centre, below, above, case.target, rate)
        if not factor > 0:
            return None
        below, above = factor * below, factor * above
    return clip(case.rule, rows, centre, below, above)


# -- the log, and the three ways on it ------------------------------------------------------------------------------


def awkward(rows):
    """The rows with exponents at the cap on both scales, and rows that lie at an edge exactly."""
    S, L = rows.S.copy(), rows.length.copy()
    rng = np.random.default_rng(3)
    for value, length in ((25.0, None), (-30.0, None), (50.0, 2.0), (np.log1p(0.25), None), (np.log1p(-0.2), None)):
        for sign in (-1, 0, 1):
            at = rng.choice(np.flatnonzero((np.sign(rows.A) == sign) & (rows.updates > 0)), 3, replace=False)
            S[at] = value
            if length:
                L[at] = length
    return replace(rows, S=S, length=L, coordinate=L.copy(), trend=np.log2(L))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Fspo's log of 4 rollouts in 2 windows."""
    plan = Plan(rollouts=4, prompts=12, width=0, sigma=0.03)
    run = load_run(write_log(tmp_path_factory.mktemp("parity") / "fspo-0", plan))
    return replace(run, rows=awkward(run.rows))


@pytest.fixture(scope="module")
def cases(log):
    """All cases of all rules."""
    states = {r.name: replay(r, log.rows) for r in RULES if r.adapt != "none" and r.outside == "drop"}
    found = [Case(rule, rule.name, "given", states=states.get(rule.name)) for rule in RULES]
    return found + [
        Case(rule, rule.name, "matched", target, states.get(rule.name))
        for rule, target in product(RULES, TARGETS)
        if rule.adapt != "range" and rule.shape != "none"
    ]


def by_window(rows):
    window = windows(rows.rollout, WINDOW)
    return [np.flatnonzero(window == first) for first in np.unique(window)]


@pytest.mark.parametrize("shape", RANGES)
def test_row_by_row(shape, log, cases):
    here = [case for case in cases if case.rule.shape == shape]
    for case, use, rate in product(here, USES, ("band", "update")):
        rows = log.rows.use(use)
        found = evaluate(case, rows, windows(rows.rollout, WINDOW), rate)
        parts = [(at, plain(case, rows.take(at), rate)) for at in by_window(rows)]
        if any(expected is None for _, expected in parts):
            assert found.reason
            continue
        for at, expected in parts:
            np.testing.assert_array_equal(found.side[at], expected.side, err_msg=case.key)
            np.testing.assert_array_equal(found.in_band[at], expected.in_band, err_msg=case.key)
            for measure in ("band", "update", "weight"):
                for ours, values in zip(measured(found, measure), expected.measure(measure), strict=True):
                    np.testing.assert_allclose(ours[at], values, rtol=1e-12, err_msg=case.key)


def assert_summed(run, cases):
    """The fast sums of every case, use, measure and subset are those of the plain formulas, by bin."""
    tally, _ = look_through(run, BINS, cases, WINDOW)
    for (i, case), use in product(enumerate(cases, start=1), USES):  # the first case is the rule that trained
        rows = run.rows.use(use)
        for measure, subset in (("update", "nonzero"), ("weight", "nonzero"), ("band", "all"), ("band", "nonzero")):
            if measure == "band" and not case.rule.clip.zeroes:
                continue
            expected = np.zeros((2, len(BINS)))
            for part in map(rows.take, by_window(rows)):
                done = plain(case, part, "band" if measure == "band" else "update")
                if done is not None:
                    keep = slice(None) if subset == "all" else part.A != 0
                    place = BINS.index(part.coordinate[keep])
                    expected += [np.bincount(place, x[keep], len(BINS)) for x in done.measure(measure)]
            column = tally.uses[use].columns.get((i, measure, subset))
            ours = [x.sum(0) for x in (column.y, column.d)] if column else np.zeros((2, len(BINS)))
            np.testing.assert_allclose(ours, expected, rtol=1e-9, err_msg=f"{case.key} {use} {measure}")


@pytest.mark.parametrize("shape", RANGES)
def test_sums(shape, log, cases):
    here = [case for case in cases if case.rule.shape == shape]
    assert here
    assert_summed(log, here)


@pytest.mark.parametrize("outside", ["drop", "truncate", "cap"])
def test_a_row_without_S_summed(log, outside):
    S = log.rows.S.copy()
    S[::7] = np.nan
    assert_summed(
        replace(log, rows=replace(log.rows, S=S)), [Case(Rule("sqrt", 0.05, 0.05, outside=outside), "sqrt", "given")]
    )


# -- the rule that trained, and logs that lack something ------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        Rule("sqrt", 0.05, 0.06, dual=1.5, name="dual"),
        Rule("sqrt", 0.05, 0.06, drift="gaussian", outside="truncate", dual=1.5, name="centred"),
        Rule("linear", 0.01, 0.02, drift="tilted", outside="cap", weight="geometric", name="cap"),
    ],
    ids=lambda rule: rule.name,
)
def test_the_rule_that_trained_summed(rule, tmp_path):
    run = load_run(write_log(tmp_path / "run", Plan(rule=rule, rollouts=2, prompts=12, width=0, sigma=0.05)))
    tally, _ = look_through(run, BINS, [], WINDOW)
    for use in USES:
        rows = run.rows.use(use)
        centre = rows.drift * rows.length
        expected = clip(rule, rows, centre, centre - rows.lo, rows.hi - centre)
        assert (use == "first" or rule.dual is None) or np.any(expected.side == 2)
        np.testing.assert_array_equal(rows.side, expected.side)
        acting = rows.A != 0
        for measure in ("update", "weight"):
            y = expected.measure(measure)[0][acting]
            ours = tally.uses[use].columns[0, measure, "nonzero"].y.sum(0)
            np.testing.assert_allclose(ours, np.bincount(BINS.index(rows.coordinate[acting]), y, len(BINS)), rtol=1e-9)


def test_no_rows_give_a_reason_and_no_sums(log, cases):
    first = replace(log, rows=log.rows.use("first"))
    assert evaluate(cases[0], first.rows.use("reused"), np.zeros(0, np.int64), "band").reason == "no rows"
    assert set(look_through(first, BINS, cases[:1], WINDOW)[0].uses) == {"first"}
