"""Check T13: the bias of an update that leaves a part of the log-ratio out of the importance weight, and the variance
of a log-ratio that is a sum of parts (section 6).
"""

from __future__ import annotations

from functools import partial

import mpmath as mp
import numpy as np

from proofs_check.frame import Check, Method, Outcome
from proofs_check.tools.compare import close, holds, worst
from proofs_check.tools.settings import DIGITS


def local_exponent(rng: np.random.Generator, weighted: bool = True, falling: bool = False) -> Outcome:
    """Check T10 (f): for a variance that is a sum of powers v_i L^(2 H_i) of the length, half its local exponent (slope
    of log variance on log L) is the mean of the H_i, weighted by their shares of the variance. That mean rises with the
    length. mpmath computes the slope.
    """
    errors, slack = [], []
    for _ in range(20):
        H, v = rng.uniform(0.3, 0.9, 3), 10 ** rng.uniform(-4, 0, 3)
        found = []
        for length in (1.0, 10.0, 100.0, 1000.0):
            with mp.workdps(DIGITS):
                log_variance = lambda x, H=H, v=v: mp.log(  # noqa: E731
                    sum(mp.mpf(a) * mp.e ** (2 * mp.mpf(h) * x) for a, h in zip(v.tolist(), H.tolist(), strict=True))
                )
                slope = float(mp.diff(log_variance, mp.log(length)) / 2)
            share = v * length ** (2 * H) if weighted else np.ones(3)
            errors.append(close(slope, share @ H / share.sum(), 1e-11))
            slack += [slope - H.min(), H.max() - slope]
            found.append(slope)
        slack += list(-np.diff(found) if falling else np.diff(found))
    formula = worst(*errors)
    return formula if min(slack) > -1e-12 else holds(slack, "exponent")


CHECKS = (
    Check(
        "T10",
        Method.CLOSED,
        "local exponent of a sum of parts",
        local_exponent,
        {"plain mean": partial(local_exponent, weighted=False), "falls": partial(local_exponent, falling=True)},
    ),
)
