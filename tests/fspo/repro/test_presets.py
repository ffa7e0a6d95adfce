"""What the reproduction's presets train."""

from itertools import pairwise

import pytest

from analysis.claims.catalogue import CLAIMS, TASKS
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.repro import presets
from fspo.repro.options import ReproductionOptions
from fspo.repro.presets import PRESETS, SCORED, WARMUP_SEEDS, planned


def test_only_the_smoke_preset_leaves_checks_of_the_theory_out():
    assert [name for name, design in PRESETS.items() if design.checks] == ["smoke"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_run_has_the_options_of_a_run_of_its_own(name, tmp_path):
    design = PRESETS[name]
    folders, seen = [], set()
    for task in design.tasks:
        for run in planned(design, task, tmp_path / task, threads=1):
            folders.append(run.job.run)
            if (kind := (task, run.runs, run.arm)) in seen:  # of each kind of run the first seed's
                continue
            seen.add(kind)
            config = parse(TrainConfig, list(run.job.arguments))
            assert (config.seed, config.rollouts) == (run.seed, run.job.rollouts)
            assert config.warmup.seed == (0 if design.shared_warmup else WARMUP_SEEDS * run.seed)
            assert all(0 < at < config.batch.minibatches for at in config.scored_updates())
    assert len(set(folders)) == len(folders) > 0


def test_whole_seeds_come_first_and_the_first_log_scores_of_updated_minibatches(tmp_path):
    runs = [*planned(PRESETS["quick"], "chain-add", tmp_path, threads=1)]
    equal = [(run.seed, run.arm) for run in runs if run.runs == "equal"]
    assert equal == [(seed, arm) for seed in (1, 2) for arm in ("rloo", "gspo", "fspo")]
    words = [f"--log.score_minibatches={SCORED['log.score_minibatches']}", "--log.score_every=1"]
    scored = {run.seed for run in runs if set(words) <= set(map("=".join, pairwise(run.job.arguments)))}
    assert scored == {1, 2}


def test_the_long_reproduction_has_the_runs_and_tasks_of_every_claim():
    paper = PRESETS["paper"]
    assert tuple(presets.TASKS) == TASKS
    for claim in CLAIMS:
        for hypothesis in claim.hypotheses:
            runs = paper.sets[hypothesis.runs]
            assert set(claim.tasks) <= set(runs.seeds)
            if hypothesis.runs != "unclipped":
                assert {hypothesis.rule, hypothesis.rival} - {""} <= set(runs.arms)
    seeds = [seed for runs in paper.sets.values() for of_task in runs.seeds.values() for seed in of_task]
    assert min(seeds) > 40  # no run with these seeds was looked at before the claims were fixed


def test_folders_of_a_preset():
    assert ReproductionOptions(output="o").folder("chain-add").as_posix() == "o/quick"
    assert ReproductionOptions(preset="paper", output="o").folder("products").as_posix() == "o/paper/products"
