"""The picture of a rule: edges, what lies outside a picture, and the weight that is left."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from figures.rule_band import plot_band, plot_weight
from fspo.rules import CORRECTIONS, preset


def axes():
    return Figure().subplots()


def edges(ax) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata()) for line in ax.get_lines() if line.get_linestyle() == "-"]


def test_the_band_of_fspo_has_half_width_c_sqrt_L():
    ax = axes()
    plot_band(preset("fspo").rule, ax, "k")
    lo, hi = edges(ax)
    assert hi[-1] == pytest.approx(0.03 * 64)  # 4,096 tokens
    np.testing.assert_allclose(lo, -hi)


def test_two_centres_are_two_bands_and_a_cap_has_no_lower_edge():
    for rule, count in ((preset("fspo-signed").rule, 4), (preset("fspo-cap").rule, 1), (CORRECTIONS["mis"], 2)):
        ax = axes()
        plot_band(rule, ax, "k")
        assert len(edges(ax)) == count


@pytest.mark.parametrize(
    ("name", "positive", "negative"),
    [("fspo", 0.0, np.exp(0.9)), ("fspo-truncate", np.exp(0.03 * 512**0.5), np.exp(0.9))],
)
def test_the_weight_above_the_band_by_the_sign_of_the_advantage(name, positive, negative):
    ax = axes()
    plot_weight(preset(name).rule, ax)
    for line, want in zip(ax.get_lines(), (positive, negative), strict=True):
        S, left = (np.asarray(part, float) for part in line.get_data())
        assert np.interp(0.9, S, left) == pytest.approx(want, rel=1e-3)
