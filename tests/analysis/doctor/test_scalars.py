"""The checks of scalars find what they mean, under the names of several trainers, and keep quiet otherwise."""

import json

import numpy as np
import pytest

from analysis.doctor.examine import examine
from analysis.doctor.scalars import ON_SCALARS


def found(path, **series):
    """Write metrics (a name's "__" stands for "/") and return the issues of the checks of scalars, by name."""
    n = len(next(iter(series.values())))
    named = {"imported/" + k.replace("__", "/"): v for k, v in series.items()}
    lines = [
        {"phase": "train", "rollout": i, "step": i, **{k: float(v[i]) for k, v in named.items()}} for i in range(n)
    ]
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {a.id: a for a in examine(path).issues if a.id in ON_SCALARS}


WAVE = 1 + 0.05 * np.random.default_rng(0).standard_normal(12)
RISING = np.linspace(0.011, 0.03, 12)


@pytest.mark.parametrize(
    ("wanted", "series"),
    [
        ("weight_scale", {"train__ois": np.full(12, 8.0), "sampling__sampling_logp_difference__mean": 0.01 * WAVE}),
        ("weight_scale", {"sampling__importance_sampling_ratio__mean": 2.5 * WAVE,
                          "sampling__importance_sampling_ratio__max": np.full(12, 2.0)}),
        ("same_ratio", {"ois": WAVE, "tis": WAVE}),
        ("weight_product", {"sampling_importance_ratio": 0.06 * WAVE, "token_mult_prob_error": 0.03 * WAVE + 1,
                            "probs_ratio": np.full(12, 1.0001)}),
        ("weight_product", {"sampling__importance_sampling_ratio__mean": 0.3 * WAVE,
                            "sampling__sampling_logp_difference__mean": 0.045 * WAVE}),
        ("mismatch_trend", {"train__train_rollout_logprob_abs_diff": RISING}),
        ("mismatch_trend", {"sampling__sampling_logp_difference__mean": np.where(np.arange(12) < 2, 0.01, 0.3)}),
        ("mismatch_trend", {"rollout_corr__kl": -RISING}),
        ("mismatch_trend", {"mismatch_kl__all__mean": RISING}),
        ("truncation_count", {"response_length__clip_ratio": np.arange(1, 13) % 3 / 64 + 1 / 64,
                              "response_length__max": 900 + np.arange(12)}),
    ],
)  # fmt: skip
def test_what_scalars_show_is_found(tmp_path, wanted, series):
    assert set(found(tmp_path, **series)) == {wanted}


@pytest.mark.parametrize(
    "series",
    [
        {"train__train_rollout_logprob_abs_diff": 0.011 * WAVE},
        {"ois": WAVE, "tis": WAVE * np.where(np.arange(12) == 5, 1.001, 1)},
        {"ois": np.ones(12), "tis": np.ones(12)},  # no mismatch: both are 1
        {"sampling_importance_ratio": 0.06 * WAVE, "token_mult_prob_error": 3 * WAVE},  # the tokens differ too
        {
            "sampling__importance_sampling_ratio__mean": 0.3 * WAVE,
            "sampling__sampling_logp_difference__mean": 0.3 * WAVE,
        },
        {"sampling_importance_ratio": 0.9 * WAVE, "token_mult_prob_error": 0.03 * WAVE + 1},
        {"sampling__importance_sampling_ratio__mean": WAVE, "sampling__importance_sampling_ratio__max": np.full(12, 2)},
        {"response_length__clip_ratio": np.full(12, 0.25), "response_length__max": np.full(12, 3072)},
        {"response_length__clip_ratio": np.arange(12) % 3 / 64, "response_length__max": 900 + np.arange(12)},
        {"response_length__clip_ratio": 0.1 * WAVE, "response_length__max": 900 + np.arange(12)},
        {"entropy": RISING},
    ],
)
def test_sound_scalars_are_not_blamed(tmp_path, series):
    assert not found(tmp_path, **series)


def test_a_sum_over_the_tokens_of_a_response_is_no_mean_weight(tmp_path):
    lines = [{"rollout/step": i, "rollout/response_lengths": 896 * x} for i, x in enumerate(WAVE)]
    lines += [{"train/step": i, "train/ois": 900 * x} for i, x in enumerate(WAVE)]
    (tmp_path / "slime.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (issue,) = examine(tmp_path / "slime.jsonl").issues
    assert "ois is the mean length in tokens in every line: a sum over a response's tokens" in issue.summary


def test_one_ratio_twice_is_the_samplers_only_where_it_is_farther_from_1_than_updates_move_it(tmp_path):
    for kl, said in ((0.01, True), (0.05, False)):
        ratios = {"train__ois": WAVE, "train__tis": WAVE, "train__ppo_kl": np.full(12, kl)}
        assert ("(the sampler's)" in found(tmp_path, **ratios)["same_ratio"].summary) == said


def test_a_jump_says_since_when_and_what_the_largest_weight_does(tmp_path):
    late = np.arange(12) >= 2
    series = {"sampling__sampling_logp_difference__mean": np.where(late, 0.25 + np.arange(12) / 9, 0.015) * WAVE}
    series["sampling__importance_sampling_ratio__max"] = np.where(late, 3e-5, 1.4)
    answer = found(tmp_path, **series)["mismatch_trend"]
    assert (answer.since, "jumps from 0.01" in answer.summary) == (2, True)
    assert "at step 2" in answer.summary
    assert "every response is masked, the gradient is 0" in answer.summary


def test_a_mean_weight_that_falls_with_the_rise_is_told(tmp_path):
    series = {"sampling__sampling_logp_difference__mean": 0.01 + 0.002 * np.maximum(np.arange(12) - 4, 0)}
    series["sampling__importance_sampling_ratio__mean"] = np.where(np.arange(12) < 6, 0.98, 0.05) * WAVE
    answer = found(tmp_path, **series)["mismatch_trend"]
    assert "beginning about step 5" in answer.summary
    assert "the correction takes most of the update" in answer.summary
    never_level = found(tmp_path, gen_kl_error=0.001 * 1.1 ** np.arange(40))["mismatch_trend"]
    assert "from step 0; the sampler leaves the trainer" in never_level.summary


def test_a_mean_weight_at_its_cap_is_no_sum(tmp_path):
    for top, told in ((2.0, "all weights are at their cap"), (2.5, "a sum over 2 samples, and no mean")):
        series = {"rollout_corr__rollout_is_mean": [1.9995] * 12, "rollout_corr__rollout_is_max": [top] * 12}
        assert found(tmp_path, **series)["weight_scale"].summary.endswith(told)
    assert "or all weights are at a cap" in found(tmp_path, ois=np.full(12, 8.0))["weight_scale"].summary
