"""The sizes of the reproduction's presets."""

from analysis.claims.catalogue import DEVELOPMENT_SEEDS
from fspo.repro.presets import JUDGING_SEEDS, PRESETS


def test_judging_seeds_are_none_of_those_that_were_looked_at():
    assert not set(JUDGING_SEEDS) & set(DEVELOPMENT_SEEDS)
    assert all(set(PRESETS[name].seeds) <= set(JUDGING_SEEDS) for name in ("quick", "paper"))


def test_only_the_smoke_preset_leaves_checks_of_the_theory_out():
    assert [name for name, sizes in PRESETS.items() if sizes.checks or sizes.maps] == ["smoke"]
