"""The error that score sketches add to the cosines of a log (docs/theory.md section 5).

A random projection to width D changes inner products of vectors a, b, c, d by errors with covariance ``cov(<a,b>,
<c,d>) = (<a,c><b,d> + <a,d><b,c>) / D`` (exact for Gaussian projections). Each rollout has a new projection, so errors
of different rollouts are independent and average out over a run. Within an update all responses have the same
projection, so a jackknife over prompts does not show the projection's error. Every interval of a cosine therefore has
this error added."""

from __future__ import annotations

import math

import numpy as np

from analysis.log.loading import Run
from analysis.log.rows import Floats
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile


def effective_width(run: Run) -> tuple[float, str]:
    """Return the width D of a run's sketches, and a text that says where it comes from.

    For exact scores D is infinite. If the run measured its sketch error, D is ``1 / error^2``; otherwise D is the width
    that the log's header names. If the header names no width (a log of another trainer), D is infinite, and the text
    says that the sketch's error is not known."""
    if run.score_options.get("mode") == "exact":
        return math.inf, "exact scores"
    logged = [record.get(metric.COSINE_ERROR) for record in MetricsFile(run.path).read()[0]]
    errors = [float(e) for e in logged if isinstance(e, int | float) and math.isfinite(e) and e > 0]
    if errors:
        return 1 / float(np.mean(np.square(errors))), f"measured in training ({len(errors)} times)"
    stored = run.score_options.get("width")
    if not isinstance(stored, int | float) or not stored > 0:
        return math.inf, "unknown: the log names no sketch width, so intervals leave the sketch's error out"
    return float(stored), "the sketch's width: training measured no error"


def cosine_variance(n: Floats, a: Floats, b: Floats, width: float) -> Floats:
    """Return the variance (...) that sketching gives a rule's cosine ``sum <c,w> / sqrt(sum <c,c> sum <w,w>)``.

    Here c is the clipped gradient of the rule, w the unclipped gradient, and sums are over U updates.

    Parameters
    ----------
    n, a, b : arrays (U, ...)
        ``<c, w>``, ``<c, c>`` and ``<w, w>`` of each update.
    width : float
        Width D of the sketch.
    """
    if math.isinf(width):
        return np.zeros(np.broadcast_shapes(n.shape, b.shape)[1:])
    with np.errstate(invalid="ignore", divide="ignore"):
        A, B = a.sum(0), b.sum(0)
        cosine = n.sum(0) / np.sqrt(A * B)
        # Derivatives of the cosine by its numerator and by its two squared norms.
        slope = (1 / np.sqrt(A * B), -cosine / (2 * A), -cosine / (2 * B))
        moments = (
            (a * b + n * n, 2 * a * n, 2 * n * b),
            (2 * n * a, 2 * a * a, 2 * n * n),
            (2 * n * b, 2 * n * n, 2 * b * b),
        )
        terms = [slope[i] * slope[j] * moments[i][j].sum(0) for i in range(3) for j in range(3)]
        return np.sum(terms, axis=0) / width
