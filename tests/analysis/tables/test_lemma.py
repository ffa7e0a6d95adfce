"""The lemma's table: hand-made strata, the sharp case, and an integrity check that can fail."""

from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.log.loading import load_run
from analysis.options import Options
from analysis.run import analyse, shared_bins
from analysis.tables.lemma import LemmaRow, StrataSums, filled, lemmas_of
from analysis.tables.lemma import integrity as integrity_of
from fspo.base.errors import UserError
from tests.analysis.conftest import rewrite
from tests.analysis.rows import made


def strata(count, above, g, g_clip, below=None):
    """Sums of one rule over one update."""
    count, above, g, g_clip = (np.asarray(x, float) for x in (count, above, g, g_clip))
    below = count if below is None else np.asarray(below, float)
    return StrataSums(count, above[None], below[None], g, g_clip[None], g_clip.sum(1)[None])


def lemma_of(sums):
    (found,) = lemmas_of(sums, np.array([0]))
    return found


def test_empty_strata_do_not_count_and_nothing_kept_is_refused():
    sums = strata([[4, 0]], [[2, 0]], [[[1.0], [0.0]]], [[[0.5], [0.0]]])
    assert (lemma_of(sums).lre.inf, lemma_of(sums).lre.mean_acceptance) == (0, 0.5)
    assert isinstance(lemma_of(strata([[4, 4]], [[0, 0]], [[[1.0], [1.0]]], [[[0.0], [0.0]]])), UserError)


def analysed(path):
    run = load_run(path)
    options = Options(bins=3, draws=2, rules=("rloo", "gspo", "fspo"), targets=(0.9,))
    return analyse(run, shared_bins([run], options), options)


def test_identity_holds_on_every_update_and_window(fspo_run):
    tables, summary = analysed(fspo_run)
    assert summary["integrity"]["pass"]
    assert summary["integrity"]["max_identity_residual"] < 1e-10
    lemma = tables["lemma"]
    assert set(lemma["updates"]) == {1, 5}
    assert (lemma["slack"].dropna() >= -1e-9).all()
    assert lemma.loc[~lemma["guaranteed"].astype(bool), "bound"].isna().all()
    assert lemma.loc[lemma["guaranteed"].astype(bool), "rho"].lt(1).all()


def test_broken_scores_are_counted_and_left_out(simulate):
    run = simulate(rollouts=2, width=8)
    rewrite(run, score_unit=lambda x, table: [u if u is None or table["rollout"][0].as_py() else 2 * u for u in x])
    tables, summary = analysed(run)
    assert summary["counts"]["scored"]["bad_units"] > 0
    assert any("unit norm" in line for line in summary["warnings"])
    assert set(tables["lemma"]["window"]) == {1}  # the untouched rollout


def integrity(rows):
    return integrity_of([made(LemmaRow, row) for row in rows])


def test_integrity_reports_a_violation():
    sound = {"identity_residual": 0.0, "slack": 0.1, "guaranteed": True, "reason": ""}
    found = integrity([sound | {"identity_residual": 1e-3}, sound | {"slack": -0.2}])
    assert found["pass"] is False
    assert found["bound_violations"] == 1
    for broken in ({"identity_residual": np.nan}, {"identity_residual": np.inf}, {"slack": np.nan}):
        assert integrity([sound, sound | broken])["pass"] is False
    assert integrity([sound, sound | {"slack": np.nan, "guaranteed": False}])["pass"] is True
    assert integrity([])["pass"] is None


def test_rounding_of_raised_weights_is_no_violation():
    """Truncation far above every S raises the weights, and with them a_bar and the rounding of sums, by 1e10."""
    g = np.array([[[1.0, 2.0], [3.0, -1.0]]])
    sums = strata([[4, 4]], [[4e10, 4e10]], g, 1e10 * g)
    for error, sound in ((1e-15, True), (1e-6, False)):
        off = replace(sums, direct=sums.direct * (1 + error))
        (row,) = filled([made(LemmaRow, {"reason": ""})], off, np.array([0]))
        assert integrity_of([row])["pass"] is sound


def test_coordinates_give_the_lemma_of_the_vectors(simulate, monkeypatch):
    """Updates of unlike sizes: their vectors in a window have unlike numbers of coordinates."""
    run = simulate(width=128)
    tables, summary = analysed(run)
    monkeypatch.setattr("analysis.scores.sketches.Vectors.width", 0)  # the vectors themselves
    pd.testing.assert_frame_equal(analysed(run)[0]["lemma"], tables["lemma"], atol=1e-7)
    assert summary["integrity"]["pass"]
