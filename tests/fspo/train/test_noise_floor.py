"""The noise floor: S of every source against its own recomputation in float64, and the command's manners."""

import numpy as np
import pytest
import tiny_run
import torch

from fspo.base.errors import UserError
from fspo.gradlog import read_log
from fspo.models.load import load_tokenizer
from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.train.noise_floor import measure, noise_config


def measured(folder, *arguments, net=None):
    parts = {"model": net or tiny_run.model(), "tokenizer": load_tokenizer("embedded"), "task": tiny_run.Digits()}
    return read_log(measure(tiny_run.config(folder, *arguments), **parts), phases=("noise",))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("run"))


def largest(log, source):
    at = log.column("user.source") == source
    assert at.sum() == 16  # 4 prompts of 4 responses, once for each source
    return float(np.abs(log.column("log_ratio")[at]).max())


def test_the_same_computation_gives_zero(log):
    assert largest(log, "again") == 0.0


def test_float32_layouts_stay_at_rounding_and_bfloat16_does_not(log):
    for source in ("training", "padding", "alone", "chunks", "engine"):
        assert largest(log, source) < 1e-4, source
    assert 1e-4 < largest(log, "bfloat16") < 1.0


def test_rows_of_the_engine_are_the_mismatch_token_by_token(log):
    rows = log.where(log.column("user.source") == "engine")
    np.testing.assert_allclose(rows.column("log_ratio"), -rows.column("engine_log_ratio"), rtol=1e-6)
    np.testing.assert_allclose(rows.column("sum_sq_log_ratio"), rows.column("engine_sum_sq"), rtol=1e-6)
    assert rows.column("engine_sum_sq").any()  # where both passes use the same kernels a row may have none


def test_nothing_is_trained_and_every_row_says_so(log):
    assert set(log.column("phase")) == {"noise"}
    assert set(log.column("updates_since_rollout")) == {0}
    assert set(log.metadata["sources"]) == set(log.column("user.source"))


def test_bfloat16_rows_equal_a_model_in_autocast(tmp_path):
    """Worked apart: sample again with the same keys, sum the log-probs in float32 and under autocast."""
    net = tiny_run.model()
    log = measured(tmp_path, net=net)
    trainer = tiny_run.trainer(tmp_path / "other", net=net, task=tiny_run.Digits())
    from fspo.rollouts.counts import Counts

    batch = trainer.sample(0, Counts())
    tensors = make_batch([p.tolist() for p in batch.prompts], [r.tolist() for r in batch.responses], 0)
    with torch.no_grad():
        plain, _ = token_log_probs(net, tensors)
        with torch.autocast("cpu", torch.bfloat16):
            low, _ = token_log_probs(net, tensors)
    expected = dict(zip(batch.response_ids.tolist(), (low.double() - plain.double()).sum(1).tolist(), strict=True))
    at = log.column("user.source") == "bfloat16"
    found = dict(zip(log.column("response_id")[at].tolist(), log.column("log_ratio")[at].tolist(), strict=True))
    assert found.keys() == expected.keys()
    # another padding width moves bfloat16 sums a little: the same size and mostly the same sign
    a, b = np.array([found[k] for k in found]), np.array([expected[k] for k in found])
    assert np.corrcoef(a, b)[0, 1] > 0.9


def test_an_output_layer_in_chunks_is_the_same_function():
    net = tiny_run.model()
    batch = make_batch([[3, 4], [5]], [[6, 7, 1], [8, 1]], 0)
    with torch.no_grad():
        plain, _ = token_log_probs(net, batch)
        chunked, _ = token_log_probs(net, batch, tokens=2)
    assert torch.allclose(plain, chunked, atol=1e-6)
    assert not torch.equal(plain, chunked)


def test_a_second_measurement_does_not_overwrite_the_first(tmp_path):
    measured(tmp_path)
    with pytest.raises(UserError, match="remove it"):
        noise_config(tiny_run.config(tmp_path))


def test_a_learning_rate_is_never_used(tmp_path):
    assert noise_config(tiny_run.config(tmp_path, "--optim.learning_rate", "0.5")).optim.learning_rate == 0.0


def test_a_sharded_launch_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match="start it without FSDP"):
        noise_config(tiny_run.config(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
