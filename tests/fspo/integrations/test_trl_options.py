"""Options of FSPOTrainer: what is refused, each with one line that names the fix."""

from dataclasses import fields

import pytest

from fspo.base.errors import UserError
from fspo.integrations.trl_options import FSPOConfig
from fspo.objective import ObjectiveConfig
from fspo.rules import Rule


def config(tmp_path, **options):
    return FSPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], **{"steps_per_generation": 4} | options)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"steps_per_generation": None}, "S identically 0.*steps_per_generation=4.*num_iterations=2"),
        ({"gradient_accumulation_steps": 4}, "S identically 0.*steps_per_generation=16"),
        ({"epsilon": 0.1}, "epsilon=0.1.*set range_lo and range_hi"),
        ({"use_adaptive_entropy": True}, "use_adaptive_entropy=True.*leave it out"),
        ({"beta": 0.1, "use_bias_correction_kl": True}, "use_bias_correction_kl=True.*set it to False"),
        ({"rule": "fspo-kl"}, "set drift_source='lagged'"),
        ({"rule": "gspo", "aggregation": "constant"}, "divides by length twice"),
        ({"score_every": -1}, "score_every is -1"),
    ],
)
def test_what_would_not_apply_is_refused_in_one_line(tmp_path, options, line):
    with pytest.raises(UserError, match=line) as caught:
        config(tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_the_rule_is_the_preset_with_its_parts_changed(tmp_path):
    args = config(tmp_path, rule="fspo", outside="truncate", range_lo=0.02, dual=3.0, aggregation="constant")
    assert args.clip_rule() == Rule("sqrt", 0.02, 0.03, outside="truncate", dual=3.0, name="fspo")
    assert args.objective() == ObjectiveConfig("constant", constant_length=512)  # TRL's default limit


def test_every_part_of_a_rule_but_those_that_make_a_preset_and_its_ratio_is_an_option():
    of_a_preset = {"shape", "weight", "name", "on", "gamma_hi"}  # gamma_hi is learnt
    assert {part.name for part in fields(Rule)} - of_a_preset <= {option.name for option in fields(FSPOConfig)}
