"""Measure how the law of S depends on the model's size. Writes results/model_size.csv and docs/findings.md.

The embedded model (0.4M parameters) and a wider one of the same build (4.8M) learn the task chain-add. Both are warmed
up alike and then trained without a clip, with three seeds each, at learning rates in inverse proportion to the width.
Finished runs are kept, and a run that was killed is resumed.

    python -m studies.model_size --output out/model_size    # half an hour on two cores
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import AutoModelForCausalLM

from analysis.api import analyse
from analysis.log.loading import load_run
from fspo.base.errors import run_cli
from fspo.base.files import whole_file, write_text
from fspo.config import TrainConfig, WarmupConfig
from fspo.gradlog.metrics_file import MetricsFile
from fspo.models.shapes import EMBEDDED_WIDTH
from fspo.models.warmup import warm_up
from fspo.repro.presets import ReproductionSizes
from fspo.repro.stages import Job, run_jobs
from fspo.repro.training import Training
from studies import findings
from studies.reproduction_tables import exponent_rows, moved

WIDTHS = (EMBEDDED_WIDTH, 448)
SEEDS = (31, 32, 33)
"""Seeds of the runs. The design was fixed before any run with these seeds."""
ROLLOUTS = 20
SHARE = 0.85
"""Acceptance of a band at which the fair exponent is published: the gamma with which a band |S| <= f L^gamma accepts
all lengths alike."""


def jobs(output: Path, width: int, warm: str) -> list[Job]:
    """Return the jobs that train the embedded model of hidden width ``width`` without a clip, one job for each seed.
    ``warm`` is the folder of that model after its warm-up."""
    rate = TrainConfig().optim.learning_rate * EMBEDDED_WIDTH / width
    options: dict[str, Any] = {"optim.learning_rate": rate, "log.score_every": 0, "eval.every": 0}
    sizes = ReproductionSizes(("none",), SEEDS, ROLLOUTS, ROLLOUTS, options=options)
    training = Training(output / f"width{width}", sizes, warm)
    return [training.job("none", seed, ROLLOUTS, {}) for seed in SEEDS]


def measured(run: Path) -> dict[str, Any]:
    """Return one run's row of model_size.csv: rewards, and estimates about S from responses at first use, logged after
    the first update of their rollout."""
    law = analyse(run)["scaling"].query("subset == 'all' and use == 'first' and sign == 'all'").iloc[0]
    loaded = load_run(run)
    rows = moved(loaded)
    exponents = {row["responses"]: row for row in exponent_rows(rows, [SHARE])}
    fair, of_update = exponents["all"], exponents["A != 0"]
    rewards = [line["reward"] for line in MetricsFile(run).of_phase("train")]
    return {
        "seed": loaded.seed,
        "rows": len(rows),
        "shortest": int(rows.length.min()),
        "longest": int(rows.length.max()),
        "median_abs_S": float(abs(pd.Series(rows.S)).median()),
        "reward_first": rewards[0],
        "reward_last": rewards[-1],
        **{name: float(law[name]) for name in ("slope_2H", "ci_low", "ci_high")},
        **{f"fair_{name}": fair[name] for name in ("value", "low", "high")},
        **{f"fair_nonzero_{name}": of_update[name] for name in ("value", "low", "high")},
    }


def main() -> int:
    """Train the runs that are missing, and publish the numbers of all runs."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--output", type=Path, default=Path("out/model_size"), help="folder of the runs")
    output = p.parse_args().output.resolve()
    rows: list[dict[str, Any]] = []
    for width in WIDTHS:
        warm = warm_up(WarmupConfig(), width=width)
        parameters = AutoModelForCausalLM.from_pretrained(warm).num_parameters()
        wanted = jobs(output, width, str(warm))
        run_jobs(wanted, 2, f"width {width}")
        rows += [{"parameters": parameters, **measured(job.run)} for job in wanted]
    with whole_file(findings.MODEL_SIZE) as path:
        pd.DataFrame(rows).to_csv(path, index=False, float_format="%.4g")
    write_text(findings.PAGE, findings.published())
    return 0


if __name__ == "__main__":
    run_cli(main)
