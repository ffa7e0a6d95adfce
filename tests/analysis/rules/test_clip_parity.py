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
from analysis.log.rows import windows
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


class Combination(NamedTuple):
    shape: str
    drift: str
    source: str
    weight: str
    adapt: str
    dual: float | None
    outside: str

    @property
    def band(self):
        return self[:-1]

    @property
    def rule(self):
        lo, hi = RANGES[self.shape]
        options = {"gamma": 0.7} if self.shape == "power" else {}
        options |= {"target": 0.8} if self.adapt != "none" else {}
        named = {k: v for k, v in self._asdict().items() if k not in ("source", "shape")}
        return Rule(
            self.shape, lo, hi, drift_source=self.source, name="-".join(map(str, self.band)), **options, **named
        )

    def __str__(self):
        return "-".join(map(str, self))


def valid(c):
    try:
        return bool(c.rule)
    except UserError:
        return False


COMBINATIONS = [
    c
    for values in product(
        RANGES,
        ("none", "kl"),
        ("two_pass", "lagged"),
        ("sequence", "geometric"),
        ("none", "exponent"),
        (None, 1.5),
        ("drop", "truncate", "cap", "mask"),
    )
    if valid(c := Combination(*values)) and (c.source == "two_pass" or (c.drift != "none" and c.shape == "sqrt"))
]

# -- plain formulas -------------------------------------------------------------------------------------------------


class Plain(NamedTuple):
    """What a rule does to rows, arrays (N,)."""

    side: np.ndarray
    in_band: np.ndarray
    weight: np.ndarray
    clipped: np.ndarray

    def measure(self, name):
        """Numerator and denominator (N,)."""
        ones = np.ones(len(self.side))
        pairs = {"band": (1.0 * self.in_band, ones), "update": (1.0 * (self.side == 0), ones)}
        return {**pairs, "weight": (self.clipped, self.weight)}[name]


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
    """A case on the rows of one use, window by window, and the numbers of these rows.

    Left out are the rows of a window in which no range gives the target.
    """
    window, parts, order = windows(rows.rollout, WINDOW), [], []
    for first in np.unique(window):
        at = np.flatnonzero(window == first)
        here = rows.take(at)
        centre, below, above = placed(case.rule, here, case.states)
        if case.source == "matched":
            factor = matched_factor(case.rule, here, centre, below, above, case.target, rate)
            if not factor > 0:
                continue
            below, above = factor * below, factor * above
        parts.append(clip(case.rule, here, centre, below, above))
        order.append(at)
    if not parts:
        return None, np.zeros(0, int)
    at = np.concatenate(order)
    back = np.argsort(at)
    return Plain(*(np.concatenate([p[i] for p in parts])[back] for i in range(4))), at[back]


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


def fast(run, cases):
    """Of the fast sums: case -> use -> (measure, subset) -> (numerator, denominator) by bin."""
    tally, _ = look_through(run, BINS, cases, WINDOW)
    found = [{use: {} for use in tally.uses} for _ in cases]
    for use, sums in tally.uses.items():
        for (i, measure, subset), column in sums.columns.items():
            if i >= 1:  # the first case is the rule that trained
                found[i - 1][use][measure, subset] = column.y.sum(0), column.d.sum(0)
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Fspo's log of 4 rollouts in 2 windows."""
    plan = Plan(rollouts=4, prompts=12, width=0, sigma=0.03)
    run = load_run(write_log(tmp_path_factory.mktemp("parity") / "fspo-0", plan))
    return replace(run, rows=awkward(run.rows))


@pytest.fixture(scope="module")
def cases(log):
    """The cases of each combination."""
    made = {}
    states = {}
    for c in COMBINATIONS:
        rule = c.rule
        if rule.adapt != "none" and c.band not in states:
            states[c.band] = replay(replace(rule, outside="drop"), log.rows)
        known = states.get(c.band)
        made[c] = [Case(rule, rule.name, "given", states=known)]
        if rule.adapt != "range" and rule.shape != "none":
            made[c] += [Case(rule, rule.name, "matched", target, known) for target in TARGETS]
    return made


@pytest.fixture(scope="module")
def summed(log, cases):
    """What the fast sums give for each combination and case."""
    every = [case for of_combination in cases.values() for case in of_combination]
    found = iter(fast(log, every))
    return {c: [next(found) for _ in of_combination] for c, of_combination in cases.items()}


def by_bin(values, rows):
    return np.bincount(BINS.index(rows.coordinate), values, len(BINS))


def agree(case, rows, use, found, measure, subset):
    """The fast sums of one measure are the plain ones."""
    expected, at = plain(case, rows.use(use), "band" if measure == "band" else "update")
    if expected is None:
        assert (measure, subset) not in found[use]
        return
    part = rows.use(use).take(at)
    keep = slice(None) if subset == "all" else part.A != 0
    part = part.subset(subset)
    for ours, values in zip(found[use][measure, subset], expected.measure(measure), strict=True):
        np.testing.assert_allclose(ours, by_bin(values[keep], part), rtol=1e-9, err_msg=f"{case.key} {use} {measure}")


def test_the_log_has_every_awkward_row(log):
    rows = log.rows
    assert np.any(rows.A == 0)
    assert np.any(rows.A > 0)
    assert np.any(rows.A < 0)
    assert np.any((rows.S > CAP) & (rows.A < 0))
    assert np.any(rows.S / rows.length > CAP)
    assert set(np.unique(windows(rows.rollout, WINDOW))) == {0, 2}
    assert {c.shape for c in COMBINATIONS} == set(RANGES)
    assert len(COMBINATIONS) == len(set(COMBINATIONS))


@pytest.mark.parametrize("shape", RANGES)
def test_row_by_row(shape, log, cases):
    here = [case for c, of_combination in cases.items() if c.shape == shape for case in of_combination]
    for case, use, rate in product(here, ("first", "reused"), ("band", "update")):
        rows = log.rows.use(use)
        found, (expected, at) = evaluate(case, rows, windows(rows.rollout, WINDOW), rate), plain(case, rows, rate)
        if len(at) < len(rows):
            assert found.reason
            continue
        np.testing.assert_array_equal(found.side, expected.side, err_msg=case.key)
        np.testing.assert_array_equal(found.in_band, expected.in_band, err_msg=case.key)
        for measure in ("band", "update", "weight"):
            for ours, values in zip(measured(found, measure), expected.measure(measure), strict=True):
                np.testing.assert_allclose(ours, values, rtol=1e-12, err_msg=case.key)


@pytest.mark.parametrize("shape", RANGES)
def test_sums(shape, log, cases, summed):
    here = [c for c in COMBINATIONS if c.shape == shape]
    assert here
    for c, use in product(here, ("first", "reused")):
        for case, found in zip(cases[c], summed[c], strict=True):
            for measure, subset in (("update", "nonzero"), ("weight", "nonzero")):
                agree(case, log.rows, use, found, measure, subset)
            for subset in ("all", "nonzero") if case.rule.clip.zeroes else ():
                agree(case, log.rows, use, found, "band", subset)


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
    centre = run.rows.drift * run.rows.length
    tally, _ = look_through(run, BINS, [], WINDOW)
    for use in ("first", "reused"):
        at = np.flatnonzero(run.rows.used == 0 if use == "first" else run.rows.used > 0)
        rows, sums = run.rows.take(at), tally.uses[use]
        expected = clip(rule, rows, centre[at], centre[at] - rows.lo, rows.hi - centre[at])
        assert (use == "first" or rule.dual is None) or np.any(expected.side == 2)
        np.testing.assert_array_equal(rows.side, expected.side)
        acting = rows.A != 0
        for measure in ("update", "weight"):
            y = expected.measure(measure)[0][acting]
            ours = sums.columns[0, measure, "nonzero"].y.sum(0)
            np.testing.assert_allclose(ours, by_bin(y, rows.take(acting)), rtol=1e-9)


def test_rows_without_advantage_are_never_cut(log, cases):
    none = replace(log.rows, A=np.zeros(len(log.rows)))
    for combination in COMBINATIONS:
        found = evaluate(cases[combination][0], none, windows(none.rollout, WINDOW), "update")
        assert not np.any(found.side), combination
    tally, _ = look_through(replace(log, rows=none), BINS, [cases[COMBINATIONS[-1]][0]], WINDOW)
    for sums in tally.uses.values():
        assert all(column.y.sum() == 0 for (_, _, subset), column in sums.columns.items() if subset == "nonzero")


def test_no_rows_give_a_reason_and_no_sums(log, cases):
    first = replace(log, rows=log.rows.use("first"))
    case = cases[COMBINATIONS[0]][0]
    assert evaluate(case, first.rows.use("reused"), np.zeros(0, np.int64), "band").reason == "no rows"
    assert set(look_through(first, BINS, [case], WINDOW)[0].uses) == {"first"}


def test_a_row_without_S_summed(log):
    S = log.rows.S.copy()
    S[::7] = np.nan
    rows, rule = replace(log.rows, S=S), Rule("sqrt", 0.05, 0.05)
    (found,) = fast(replace(log, rows=rows), [Case(rule, "sqrt", "given")])
    for use, measure in product(("first", "reused"), ("update", "band")):
        agree(Case(rule, "sqrt", "given"), rows, use, found, measure, "nonzero")


@pytest.mark.parametrize("outside", ["drop", "truncate", "cap"])
def test_a_row_without_S_is_never_cut(outside):
    rule = Rule("sqrt", 0.05, 0.05, outside=outside)
    done = rule.apply(np.array([np.nan, 9.0]), np.array([4.0, 4.0]), np.array([1.0, 1.0]))
    assert done.side.tolist() == [0, 1]
    assert not done.in_band[0]
    assert np.isnan(done.clipped_weight[0])
