"""Every public function of theory and rules refuses an argument that its statement does not allow, or returns None. It
never returns NaN; the one exception is T10's fair exponent if no band accepts the wanted share."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from fspo import rules, theory
from fspo.base.errors import UserError
from fspo.rules import preset

FSPO, KL = preset("fspo").rule, preset("fspo-kl").rule
S, N, A = [0.1, -2.0, 0.3], [4.0, 9.0, 16.0], [1.0, -1.0, 1.0]
NAN, INF = math.nan, math.inf
FULL = np.ones((2, 3))
NO_NUMBERS = {"rule", "stats", "rate", "label", "identical", "one_sided", "name", "changes", "source", "mask"}
"""Parameters that are no numbers."""
P = {"p": [0.5, 0.5], "a": [0.5, 0.6]}
BAND = {"rule": FSPO, "lengths": [1.0, 9.0], "mu": 0.0, "sigma": 0.1, "m": None}
ROWS = {"rule": FSPO, "S": S, "n": N, "A": A, "m": None, "rate": "band"}
CUT = {"positive": [0.5, 0.5], "clipped_high": [0.1, 0.1], "clipped_low": 0.1, "clipped_dual": 0.0}
CASES: dict[Any, dict[str, Any]] = {
    theory.interval_probability: {"lo": [-1.0, 0.0], "hi": [1.0, 1.0]},
    theory.band_acceptance: BAND,
    theory.weight_acceptance: BAND,
    theory.matching_sigma: {"rule": FSPO, "lengths": [1.0, 9.0], "p": [0.5, 0.5], "acceptance": 0.5},
    theory.gaussian_means: {"sigma": 0.1},
    theory.relative_acceptance: P,
    theory.lre: P,
    theory.drift_error_bound: {"u_lo": 1.0, "u_hi": 1.0, "x": [0.1]},
    theory.scale_error_bound: {"tau": 0.1},
    theory.lre_bound: {"bound": 0.1, "a_0": 0.5, "one_sided": True},
    theory.worst_lre: {"u_lo": 1.0, "u_hi": 1.0, "drift": [0.0, 0.1], "scale": [0.9, 1.1]},
    theory.drift_given_length: {"length_ratio": [1.0, 2.0], "kl": [0.1, 0.2]},
    theory.fair_centre: {"mean_weight": [1.0, 2.0], "variance": [0.1, 0.2]},
    theory.length_shift_bounds: {"rule": FSPO, "lengths": [1.0, 9.0], "m": None},
    theory.cap_of_least_error: {"weights": [0.5, 2.0], "probabilities": [0.5, 0.5], "nu": 2.0, "n": 10.0},
    theory.berry_esseen_bound: {"rho3": 1.5, "lengths": [4.0]},
    theory.ar1_variance_ratio: {"ar": 0.5, "lengths": [4.0]},
    theory.upper_edge_supremum: {"u_hi": 1.0},
    theory.update_acceptance: CUT,
    theory.cosine_bound: {"rho": 0.5},
    theory.cosine: {"u": [1.0, 2.0], "v": [1.0, 0.0]},
    theory.cosine_lemma: P | {"g": [[1.0], [2.0]], "clipped": [[0.5], [1.0]]},
    rules.excess_quantiles: {"excess": [0.5, 1.0, 2.0], "targets": [0.5]},
    rules.standardized_excess: ROWS,
    rules.scaled: {"rule": FSPO, "factor": 2.0, "above": 3.0},
    rules.calibrate: ROWS | {"target": 0.5},
    rules.excess_quantile: {"excess": [0.1, 0.2], "target": 0.5},
    rules.drift_stats: {"log_ratios": 0.1 * FULL, "mask": FULL > 0},
    rules.correction: {"name": "mis"},
    rules.preset: {"name": "fspo"},
}
"""Good arguments of each function."""
SHARES, WEIGHTS, POSITIVE = [0.0, 1.0, INF], [[], [-1.0, 2.0], [0.0, 0.0]], [0.0, -1.0, INF]
BAD: dict[str, list[Any]] = {
    "lengths": [[], [0.5], [INF]],
    "p": WEIGHTS,
    "a": [[0.0, 0.0], [-1.0, 1.0], [INF, 1.0]],
    "sigma": POSITIVE,
    "factor": POSITIVE,
    "above": POSITIVE,
    "acceptance": SHARES,
    "target": SHARES,
    "targets": [[0.0], [1.0], ["x"]],
    "u_lo": [-1.0],
    "bound": [-0.1],
    "tau": [-0.1, INF],
    "drift": [[0.1, 0.0], [0.0]],
    "scale": [[0.0, 1.0], [1.0] * 3],
    "length_ratio": [[0.0, 1.0], [1.0] * 3],
    "kl": [[-0.1, 0.0]],
    "mean_weight": [[0.0, 1.0]],
    "variance": [[-0.1, 0.0]],
    "weights": [[-1.0, 1.0], [0.0, 0.0], [1.0]],
    "nu": [0.9, INF],
    "rho3": [0.9],
    "ar": [1.0, -1.0],
    "positive": [-0.1, 1.1],
    "clipped_dual": [-0.1, 0.95],
    "rho": [-0.1],
    "u": [[1.0], [INF, 0.0], [1e200, 0.0]],
    "g": [[[0.0], [0.0]], [1.0, 2.0], [[1e200], [1.0 - 1e200]]],
    "clipped": [[[1.0]], [[INF], [0.0]]],
    "excess": [[], [NAN]],
    "n": [[0.0] * 3],
    "S": [["x"] * 3],
    "rate": ["bnad"],
    "log_ratios": [INF * FULL, np.ones((2, 4))],
    "name": ["fsop", ""],
}
"""Values that every function with a parameter of this name refuses; every numeric parameter is also tried with NaN."""
PASSED_ON = {rules.token_sums, rules.token_k3, rules.capped, rules.exponent, rules.importance_weight}
"""Elementwise on tensors inside the trainer: what is not finite there stays so, and ``drift_stats`` refuses it."""


OF_RULES = {rules.check_ratios}
"""Takes rules alone, checked when they are made; tests/fspo/objective/test_corrections.py has the pairs it refuses."""


def public(module: Any) -> set[Any]:
    """Functions that a module defines, or a package gives out, and does not hide."""
    return {
        f
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__.startswith(module.__name__) and name[0] != "_"
    }


def test_no_public_function_is_forgotten():
    assert set(CASES) | PASSED_ON | OF_RULES == public(theory) | public(rules)


def bad_calls():
    for function, good in CASES.items():
        for parameter in inspect.signature(function).parameters:
            values = BAD.get(parameter, []) if parameter != "n" or "S" in good else []
            if parameter not in NO_NUMBERS:
                assert parameter in good, f"{function.__name__}: no good value for {parameter}"
                values = values if (function, parameter) in NAN_ROWS else [*values, _nan_like(good[parameter])]
            for value in values:
                yield pytest.param(function, {**good, parameter: value}, id=f"{function.__name__}-{parameter}-{value}")
    for function, name in ((rules.preset, "fspo"), (rules.correction, "mis")):
        for changes in ({"range_lo": 0.0}, {"range_lo": NAN}, {"dual": 1.0}, {"on": "x"}):
            yield pytest.param(function, {"name": name, **changes}, id=f"{name}-{changes}")
    for function in (theory.band_acceptance, rules.standardized_excess, rules.calibrate):
        yield pytest.param(function, CASES[function] | {"rule": KL}, id=f"{function.__name__}-without-its-centre")


NAN_ROWS = {(rules.standardized_excess, "S"), (rules.calibrate, "S")}
"""A row whose S is NaN is left out by ``calibrate`` and stays NaN in ``standardized_excess``, as their pages say."""


def _nan_like(value: Any) -> Any:
    return (np.asarray(value, float) * NAN) if np.ndim(value) else NAN


@pytest.mark.parametrize(("function", "arguments"), bad_calls())
@pytest.mark.filterwarnings("error:invalid value")
def test_bad_input_is_one_line(function, arguments):
    with np.errstate(over="ignore"), pytest.raises(UserError) as found:
        function(**arguments)
    assert "\n" not in str(found.value).strip()
    assert len(str(found.value)) > 10


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_good_input_gives_no_nan(function):
    result = function(**CASES[function])
    for value in fields_of(result):
        assert not np.any(np.isnan(np.asarray(value, float)))


def fields_of(result: Any) -> list[Any]:
    """The numbers of a result."""
    if isinstance(result, tuple):
        return [x for part in result for x in fields_of(part)]
    if is_dataclass(result):
        return [x for f in fields(result) for x in fields_of(getattr(result, f.name))]
    return [] if result is None or isinstance(result, (str, bool)) else [result]


def test_beyond_the_hypotheses_the_answer_is_none():
    assert theory.cosine_bound(1.0) is None
    assert theory.cosine_bound(INF) is None
    assert theory.lre_bound(0.5, 0.5, one_sided=True) is None
    assert theory.lre_bound(INF, 0.5, one_sided=False) is None
    assert theory.matching_sigma(preset("none").rule, [1.0], [1.0], 0.5) is None
    lemma = theory.cosine_lemma([0.5, 0.5], [1.0, 0.2], [[1.0, 5.0], [1.0, -5.0]], [[1.0, 5.0], [0.2, -1.0]])
    assert lemma.rho >= 1
    assert lemma.bound is None
