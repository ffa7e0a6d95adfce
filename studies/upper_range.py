"""Which upper range trains fastest, by the number of updates that a rollout has: a small grid on one development seed.

    python -m studies.upper_range --output out/upper-range       # about half an hour on one core; resumable

fspo trains chain-add with the lower range .03 and upper ranges of 1, 2, 5 and 20 times that, each rollout with 4
minibatches and 1, 2, 4 or 8 epochs. Writes results/upper_range.csv, a row for each run, and a figure. No claim rests on
it: the seed is none of those that judge the claims.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures import draw, layout, scales
from figures.style import Look, Style, save, styled
from fspo.base.errors import run_cli
from fspo.base.files import whole_file
from fspo.gradlog.metrics_file import MetricsFile
from fspo.repro.presets import MANY_UPDATES, ReproductionDesign, RunSet, planned
from fspo.repro.stages import run_jobs

RESULTS = Path(__file__).parent / "results"
SEED, ROLLOUTS, LOWER = 31, 12, 0.03
EPOCHS, TIMES = (1, 2, 4, 8), (1, 2, 5, 20)
ARMS = {
    f"{epochs}-{times}": {"rule.preset": "fspo", "rule.range_hi": times * LOWER, "batch.epochs": epochs}
    for epochs in EPOCHS
    for times in TIMES
}
DESIGN = ReproductionDesign({"upper-range": RunSet(ARMS, {"chain-add": (SEED,)}, ROLLOUTS, MANY_UPDATES)})
COLOURS = dict(zip(EPOCHS, ("#9ecae1", "#4292c6", "#2171b5", "#08306b"), strict=True))


def measured(output: Path) -> pd.DataFrame:
    """Return the mean training reward of each finished run, in all rollouts and in the first half of them."""
    rows = []
    for run in planned(DESIGN, "chain-add", output, 1):
        rewards = [line["reward"] for line in MetricsFile(run.job.run).of_phase("train")][:ROLLOUTS]
        if len(rewards) == ROLLOUTS:
            epochs, times = map(int, run.arm.split("-"))
            halves = {"reward": np.mean(rewards), "first_half": np.mean(rewards[: ROLLOUTS // 2])}
            rows.append({"updates": 4 * epochs, "times": times, "seed": SEED} | halves)
    return pd.DataFrame(rows)


@styled
def figure(table: pd.DataFrame, style: Style) -> Figure:
    """Draw the mean reward by the upper range, a line for each number of updates a rollout."""
    done = set(table.updates)
    known = {str(4 * epochs): Look(colour, "o") for epochs, colour in COLOURS.items() if 4 * epochs in done}
    keys = {f"{n} updates a rollout": layout.key(look.color, look.marker) for n, look in known.items()}
    fig, (ax,) = layout.panel_grid(style, 1, 2.2, keys, columns=1)
    draw.curves(
        table.assign(mean=table.reward, updates=table.updates.astype(str)),
        ax,
        x="times",
        y="mean",
        hue="updates",
        known=known,
    )
    ax.set_xscale("log")
    scales.fixed_ticks(ax.xaxis, TIMES)
    ax.set_xlabel("upper range over lower range")
    ax.set_ylabel(f"training reward, mean of {ROLLOUTS} rollouts")
    ax.set_ylim(0, 1)
    return fig


def main() -> int:
    """Train the runs that are missing, and write the table and the figure of those that are finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("out/upper-range"), help="folder of the runs")
    parser.add_argument("--at-once", type=int, default=1, help="runs that train at once, each on one thread")
    options = parser.parse_args()
    run_jobs([run.job for run in planned(DESIGN, "chain-add", options.output, 1)], options.at_once)
    table = measured(options.output)
    with whole_file(RESULTS / "upper_range.csv") as path:
        table.to_csv(path, index=False, float_format="%.4g")
    save(figure(table, Style()), RESULTS, "upper_range", Style())
    print(table.pivot(index="updates", columns="times", values="reward").to_string(float_format="{:.3f}".format))
    return 0


if __name__ == "__main__":
    run_cli(main)
