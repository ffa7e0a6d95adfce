"""Faults of files from outside: types of keys, tokens beyond the held exponent, enormous lengths."""

import subprocess
import sys

import numpy as np
import pytest

from analysis.log.rows import numbered, repeated
from analysis.rules.recompute import recompute
from fspo.gradlog import GradLogWriter
from fspo.rules import token_k3


def test_int32_keys_are_combined_without_a_wrap():
    a, b = (np.array(x, np.int32) for x in ([0, 0, 2**20, 2**20], [0, 2**20, 0, 2**20]))
    assert numbered(a, b).tolist() == [0, 1, 2, 3]
    assert repeated(a, b).tolist() == [False] * 4
    wide = np.array([-(2**31), 2**31 - 1], np.int32)  # the span of the keys itself is no int32
    assert numbered(wide, a[:2]).tolist() == [0, 1]
    assert numbered(a[[0, 2]], b[[2, 0]]).dtype == np.int64


@pytest.mark.parametrize("squares", [True, False])
@pytest.mark.parametrize(
    ("s", "factor", "wrong"),
    [(30.0, 1.0, 0), (3e5, 1.0, 0), (3.0, 1.0, 0), (-3.0, 1.0, 0), (3.0, 0.05, 1), (-3.0, 40.0, 1)],
)
def test_a_k3_of_held_exponents_is_not_bounded(s, factor, wrong, squares):
    """A token of 30 nats has k3 = e^20 - 1 - 30, far below what Jensen's bound and the bound by squares would ask;
    with 3e5 nats the mean over the tokens is beyond the held exponent too."""
    tokens = np.array([s, *np.zeros(3)])
    columns = {"length": np.full(1, 4), "log_ratio": tokens.sum(keepdims=True)}
    columns |= {name: np.zeros(1, np.int64) for name in ("rollout", "step", "response_id")}
    columns["k3_sum"] = factor * token_k3(tokens).sum(keepdims=True)
    if squares:
        columns["sum_sq_log_ratio"] = (tokens**2).sum(keepdims=True)
    wrong = wrong if squares else int(factor < 0.5)  # without squares only Jensen's bound from below is known
    assert recompute(columns, None)["k3_sum"].wrong.sum() == wrong
    assert "k3_sum" not in recompute(columns, None, imported=True)


def test_memory_does_not_grow_with_a_length(tmp_path):
    n = 64
    writer = GradLogWriter(tmp_path, metadata={})
    length = np.where(np.arange(n) == 5, 2**31 - 1, 20 + np.arange(n))
    rows = {"rollout": 0, "step": 1, "updates_since_rollout": 1, "times_used": 0, "truncated": np.arange(n) % 8 == 0}
    rows |= {"prompt_id": np.arange(n) // 8, "response_id": np.arange(n), "length": length}
    rows |= {"log_ratio": 0.01 * np.arange(n), "advantage": np.where(np.arange(n) % 2, 1.0, -1.0)}
    writer.append(rows)
    writer.flush(0)
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30,) * 2); "
    for command in ("doctor", "analyse"):
        code = limited + f"from analysis.__main__ import main; sys.exit(main([{command!r}, {str(tmp_path)!r}]))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
