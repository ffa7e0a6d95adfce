"""Healthy runs of the trainer and inside the real TRL: the doctor checks them and finds nothing."""

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from analysis.doctor.examine import examine
from examples.trl_observe import digits, sample_in_bfloat16
from fspo.integrations.trl import FSPOConfig, FSPOTrainer, observe
from fspo.models.load import build_embedded_model, load_tokenizer
from tests.analysis.doctor.healthy import train_run

LAWS = {"mean_weight", "before_update", "estimator", "uses", "sums", "mismatch"}


def clear(run):
    """The checks that found a run sound; fails with the issues if there are any."""
    diagnosis = examine(run)
    assert not diagnosis.issues, "\n".join(diagnosis.lines())
    return {answer.id for answer in diagnosis.answers if answer.status == "clear"}


@pytest.mark.slow  # it warms a model up
def test_our_trainer(tmp_path):
    train_run(tmp_path / "run", "fspo", 5, rollouts=3)
    assert clear(tmp_path / "run") >= LAWS | {"band", "clip"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config", "options", "more"),
    [
        (observe(GRPOTrainer), GRPOConfig, {}, set()),
        (FSPOTrainer, FSPOConfig, {"rule": "fspo", "range_lo": 0.1, "range_hi": 0.1}, {"band", "clip"}),
    ],
    ids=["observe(GRPOTrainer)", "FSPOTrainer"],
)
def test_trl(tmp_path, kind, config, options, more):
    args = config(
        output_dir=str(tmp_path), per_device_train_batch_size=32, num_generations=8, max_completion_length=96,
        learning_rate=1e-4, max_steps=12, steps_per_generation=2, num_iterations=2, save_strategy="no", report_to=[],
        use_cpu=True, bf16=False, disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = kind(
        model=build_embedded_model(0),
        reward_funcs=digits,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(8) for b in range(8)]),
        processing_class=load_tokenizer("embedded"),
        rollout_func=sample_in_bfloat16,  # so that sampler and trainer differ
    )
    trainer.train()
    assert clear(tmp_path) >= LAWS | more
