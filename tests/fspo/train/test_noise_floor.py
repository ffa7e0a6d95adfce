"""The noise floor: S of every source against its own recomputation in float64, and the command's manners."""

import numpy as np
import pytest
import tiny_run

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.models.load import load_tokenizer
from fspo.train.noise_floor import measure, noise_config


def measured(folder, *arguments, net=None):
    parts = {"model": net or tiny_run.model(), "tokenizer": load_tokenizer("embedded"), "task": tiny_run.Digits()}
    return read_log(measure(tiny_run.config(folder, *arguments), **parts), phases=("noise",))


def test_each_source_is_measured_and_nothing_is_trained(tmp_path):
    log = measured(tmp_path)
    source, found = log.column("user.source"), {}
    for name in ("training", "alone", "engine"):
        at = source == name
        assert at.sum() == 16  # 4 prompts of 4 responses, once for each source
        found[name] = np.abs(log.column("log_ratio")[at]).max()
    assert 0 < max(found.values()) < 1e-4  # in float32; a processor may give another padding or batch the same
    rows = log.where(source == "engine")  # the mismatch, token by token
    np.testing.assert_allclose(rows.column("log_ratio"), -rows.column("engine_log_ratio"), rtol=1e-6)
    np.testing.assert_allclose(rows.column("sum_sq_log_ratio"), rows.column("engine_sum_sq"), rtol=1e-6)
    assert rows.column("engine_sum_sq").any()  # where both passes use the same kernels a row may have none
    assert set(log.column("phase")) == {"noise"}
    assert set(log.column("updates_since_rollout")) == {0}
    assert set(log.metadata["sources"]) == set(source)


def test_a_second_measurement_does_not_overwrite_the_first(tmp_path):
    assert noise_config(tiny_run.config(tmp_path, "--optim.learning_rate", "0.5")).optim.learning_rate == 0.0
    measured(tmp_path)
    with pytest.raises(UserError, match="remove it"):
        noise_config(tiny_run.config(tmp_path))
