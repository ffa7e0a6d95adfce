"""Runs that the claims compare as published differ in the rule alone."""

import pytest
import yaml

from analysis.claims.settings import unlike

RUN = {"rollouts": 14, "threads": 1, "rule": {"preset": "fspo", "drift": None, "range_lo": None, "advantage": "grpo"}}
OTHERS = {"optim": {"learning_rate": 1e-5}, "eval": {"prompts": 256}}


def runs(tmp_path, **changes):
    """Folders of a run of fspo, a run of rloo with the changes, one without a clip, and one of another trainer."""
    rloo = {"preset": "rloo", "range_lo": None} | changes.pop("rule", {})
    learnt = changes.pop("learnt", {})
    made = {
        "fspo": RUN | OTHERS,
        "rloo": RUN | OTHERS | {"seed": 12, "threads": 2} | changes | {"rule": RUN["rule"] | rloo},
        "learnt": RUN | OTHERS | {"rule": RUN["rule"] | {"preset": "fspo-adaptive", "target": None} | learnt},
        "none": RUN | {"rollouts": 10, "rule": RUN["rule"] | {"preset": "none", "drift": "kl"}},
    }
    for name, options in made.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(options))
    (tmp_path / "imported").mkdir()
    return [tmp_path / name for name in (*made, "imported")]


def test_rule_seed_and_what_changes_no_number_may_differ(tmp_path):
    assert unlike(runs(tmp_path)) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim": {"learning_rate": 1e-4}}, "optim.learning_rate is 1e-05 in fspo, 0.0001 in rloo"),
        ({"rollouts": 20}, "rollouts is 14 in fspo, 20 in rloo"),
        ({"eval": {"prompts": 64}}, "eval.prompts is 256 in fspo, 64 in rloo"),
        ({"rule": {"advantage": "dr_grpo"}}, "rule.advantage is grpo in fspo, dr_grpo in rloo"),
        ({"rule": {"range_lo": 0.1}}, "rloo has rule.range_lo 0.1, which is not its preset's"),
        ({"rule": {"drift": "kl"}}, "rloo has rule.drift kl, which is not its preset's"),
        ({"task": {"name": "products"}}, "task.name is None in fspo, products in rloo"),
        ({"learnt": {"target": 0.5}}, "learnt has rule.target 0.5, which is not its preset's"),
        ({"learnt": {"range_lo": 0.5}}, "learnt has rule.range_lo 0.5, which is not its preset's"),
        ({"learnt": {"advantage": "dr_grpo"}}, "rule.advantage is grpo in fspo, dr_grpo in learnt"),
    ],
)
def test_whatever_else_differs_is_said(tmp_path, changes, said):
    assert said in unlike(runs(tmp_path, **changes))
