"""Tests of proofs_check/tools/defined.py, the definitions that the checks compare the package with."""

import math
from typing import get_args

import pytest

from fspo.rules import Drift
from proofs_check.tools.defined import DRIFTS, multiplier


def test_every_drift_is_defined():
    assert get_args(Drift) == DRIFTS


@pytest.mark.parametrize(
    ("outside", "expected"),
    [("drop", 0.0), ("truncate", math.exp(-0.5)), ("cap", math.exp(-0.5)), ("mask", 0.0)],
)
def test_the_multiplier_half_a_nat_above_the_band(outside, expected):
    assert multiplier(outside, None, 1.5, 1.0, -1.0, 1.0, 0.0) == pytest.approx(expected)
    assert multiplier(outside, None, 0.5, 1.0, -1.0, 1.0, 0.0) == 1.0
