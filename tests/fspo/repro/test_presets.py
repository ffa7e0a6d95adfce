"""The sizes of the reproduction's presets."""

from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.repro.presets import PRESETS, on_task


def test_only_the_smoke_preset_leaves_checks_of_the_theory_out():
    assert [name for name, sizes in PRESETS.items() if sizes.checks] == ["smoke"]


def test_the_options_of_every_preset_are_those_of_a_run() -> None:
    for sizes in PRESETS.values():
        for task in sizes.tasks:
            options = on_task(sizes, task).options
            config = parse(TrainConfig, [f"--{name}={value}" for name, value in options.items()])
            assert all(0 < at < config.batch.minibatches for at in config.scored_updates())
    assert config.scored_updates() == {1}  # of the two updates of preset smoke


def test_the_long_reproduction_scores_all_that_has_moved_and_has_unclipped_runs_of_every_seed() -> None:
    paper = PRESETS["paper"]
    config = parse(TrainConfig, [f"--{name}={value}" for name, value in paper.options.items()])
    assert config.scored_updates() == set(range(1, config.batch.minibatches))
    assert "none" in paper.rules
