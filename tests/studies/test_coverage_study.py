"""The study of the intervals: the truth of a design, and that intervals which hold too rarely end with status 1."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from fspo.theory import lre
from studies import coverage as study


def test_a_design_has_the_acceptance_and_the_lre_that_it_says() -> None:
    for design in study.designs():
        p, a = design.shares(), design.acceptance()
        assert p @ a == pytest.approx(design.mean)
        assert lre(p, a).l2 == pytest.approx(design.lre)
    accepted, cluster, bins = study.draw(np.random.default_rng(0), study.Design(4000, 8, 5, True, 0.9, 0.2, "one", 0.1))
    assert len(np.unique(cluster)) == 4000
    found = np.bincount(bins, accepted) / np.bincount(bins)
    assert found == pytest.approx(study.Design(4000, 8, 5, True, 0.9, 0.2, "one", 0.1).acceptance(), abs=0.02)


@pytest.mark.parametrize("factor", [1.0, 0.3], ids=["as they are", "too narrow"])
def test_intervals_that_hold_too_rarely_end_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    real, two = study.cluster_slope, list(islice(study.designs(), 2))

    def narrow(*args: object) -> object:
        found = real(*args)
        half = factor * (found.ci_high - found.slope)
        return replace(found, ci_low=found.slope - half, ci_high=found.slope + half)

    monkeypatch.setattr(study, "cluster_slope", narrow)
    monkeypatch.setattr(study, "designs", lambda: two)
    monkeypatch.setattr("sys.argv", ["coverage", "--logs", "100"])
    assert study.main() == (1 if factor < 1 else 0)
    head, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    assert all(len(row.split(",")) == len(head.split(",")) for row in rows)
