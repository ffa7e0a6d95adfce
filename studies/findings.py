"""Make ``results/paper`` from the runs of ``fspo reproduce --preset paper``: tables with one row a seed, means over
seeds with intervals, verdicts, and four figures.

    fspo reproduce --preset paper                 # hours; or some of its tasks, on several machines
    python -m studies.findings out/paper          # adds finished runs that results/paper does not hold yet

Numbers of runs that ``results/paper`` holds already are kept, so runs may be made on several machines, one after the
other. A claim stays open until all its planned seeds are there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from analysis.claims.catalogue import TASKS
from analysis.claims.estimands import Estimate, holds, measure
from analysis.claims.verdicts import judge, write_claims
from analysis.tables.typed_rows import frame, names
from figures import layout, marks, scales
from figures.of_runs.drift_by_sign import SIGNS
from figures.style import Look, Style, looks, save, styled
from figures.tables import Frame
from fspo.base.errors import UserError, run_cli
from fspo.base.files import whole_file
from fspo.repro.presets import PRESETS, PlannedRun, planned
from fspo.repro.stages import is_over
from fspo.rules import COMPARED
from fspo.stats.intervals import sample_interval
from studies.described import BinRate, Number, Rollout, SeedKey, describe
from studies.pretrained import planned_runs

RESULTS = Path(__file__).resolve().parents[1] / "results" / "paper"
TABLES: dict[str, Any] = {"estimates": Estimate, "numbers": Number, "bins": BinRate, "rollouts": Rollout}
"""Tables with one row a seed (and rule, bin or rollout), by the name of their file."""
MEAN_OF = {
    "estimates": ("estimand", "rule", "clip_rate"),
    "numbers": ("quantity", "responses", "rule", "setting"),
    "bins": ("rule", "clip_rate", "sign", "bin_lo", "bin_hi"),
    "rollouts": ("rule", "rollout"),
}
"""By table: the columns which, beside task and set of runs, are equal in the rows whose mean over seeds is taken."""
VALUE = {"estimates": "value", "numbers": "value", "bins": "rate", "rollouts": "reward"}
MEAN = ("mean", "ci_low", "ci_high")
DESIGN = PRESETS["paper"]
DIGITS = ".6g"


def read(folder: Path) -> dict[str, Frame]:
    """Return by name the tables that a folder of results holds, empty where it lacks one."""
    found = {}
    for name, row in TABLES.items():
        path = folder / f"{name}.csv"
        table = pd.read_csv(path) if path.is_file() else frame(row, [])
        if list(table.columns) != list(names(row)):
            raise UserError(f"{path} has other columns than this version writes: move it away")
        text = [c for c in table if c in ("rule", "setting", "responses")]
        found[name] = table.fillna(dict.fromkeys(text, ""))
    return found


def finished(roots: Sequence[Path], pretrained: Path | None) -> Iterator[PlannedRun]:
    """Yield the runs that are done: those of the preset paper under its output folders ``roots``, each in the folder of
    its task, and those of `studies.pretrained` under the folder ``pretrained``, if it is given.

    A run that diverged and stopped itself is done too; rollouts that it did not reach count with the reward 0."""
    runs = [run for root in roots for task in DESIGN.tasks for run in planned(DESIGN, task, root / task, 1)]
    runs += [] if pretrained is None else planned_runs(pretrained)
    return (run for run in runs if is_over(run.job.run))


def add(tables: dict[str, Frame], run: PlannedRun) -> dict[str, Frame]:
    """Return ``tables`` with the rows of the finished run ``run`` appended."""
    of, key = run.job, SeedKey(run.task, run.runs, run.seed)
    rows: dict[str, Sequence[Any]] = {"estimates": measure(of.run, run.task, run.runs, run.arm, run.seed, of.rollouts)}
    rows |= dict(zip(("numbers", "bins", "rollouts"), describe(of.run, key, run.arm, of.rollouts), strict=True))
    new = {
        # Rounded as the files are, so that means and verdicts are those of the files.
        name: frame(TABLES[name], found).map(lambda x: float(f"{x:{DIGITS}}") if isinstance(x, float) else x)
        for name, found in rows.items()
    }
    return {name: pd.concat([t for t in (tables[name], table) if len(t)] or [table]) for name, table in new.items()}


def means(name: str, table: Frame) -> Frame:
    """Return the mean over seeds of each number of the table ``name``, with its interval and standard deviation.

    A bin's mean length is the mean of its seeds' means. A slope of the log clip rate also gives the factor of the clip
    rate for each doubling of the length."""
    keys = ["task", "runs", *MEAN_OF[name]]
    rows = []
    for key, some in table.groupby(keys, dropna=False, sort=True):
        values = some[VALUE[name]].dropna().to_numpy(float)
        found = dict(zip(MEAN, sample_interval(values), strict=True))
        sd = values.std(ddof=1) if len(values) > 1 else np.nan
        of = dict(zip(keys, key, strict=True)) | {"seeds": len(values)}
        of |= {"length": some.length.mean()} if name == "bins" else {}
        rows.append(of | found | {"sd": sd})
        if of.get(MEAN_OF[name][0]) == "slope":
            factors = {end: np.exp(x) for end, x in found.items()}
            rows.append(of | factors | {MEAN_OF[name][0]: "factor a doubling", "sd": np.nan})
    more = ["length"] if name == "bins" else []
    return pd.DataFrame(rows, columns=[*keys, *more, "seeds", *MEAN, "sd"])


def differences(tables: dict[str, Frame]) -> Frame:
    """Return, for each pair of rules, the mean over seeds of one rule's number less the other's, with its interval.

    The numbers are the training reward, the slopes of the clip rate and their absolute values; also the slopes of
    fspo's band around other centres, and those of the rules at default ranges, without and with a dual clip."""
    rewards = tables["rollouts"].groupby([*SeedKey._fields, "rule"], as_index=False).reward.mean()
    slopes, numbers = tables["estimates"].query("estimand == 'slope'"), tables["numbers"].assign(clip_rate=np.nan)
    centres = numbers[numbers.quantity.str.startswith("slope, centre ")]
    ranges = numbers.query("quantity == 'slope' and setting in ('default', 'dual clip')")
    told = {
        "reward, mean over rollouts": rewards.rename(columns={"reward": "value"}).assign(clip_rate=np.nan),
        "slope": slopes,
        "size of the slope": slopes.assign(value=slopes.value.abs()),
        "slope, other centre": centres.assign(
            rule=centres.quantity.str.removeprefix("slope, "), clip_rate=as_share(centres.setting)
        ),
        "slope, default ranges": ranges.assign(
            rule=ranges.rule + ranges.setting.map({"default": "", "dual clip": ", dual clip"})
        ),
    }
    rows = []
    for quantity, table in told.items():
        for (task, runs, rate), some in table.groupby(["task", "runs", "clip_rate"], dropna=False):
            wide = some.pivot(index="seed", columns="rule", values="value")
            for other, one in combinations(sorted(wide.columns), 2):
                gaps = (wide[one] - wide[other]).dropna().to_numpy(float)
                if len(gaps) > 1:
                    rows.append((task, runs, rate, quantity, one, other, len(gaps), *sample_interval(gaps)))
    return pd.DataFrame(rows, columns=["task", "runs", "clip_rate", "quantity", "rule", "less", "seeds", *MEAN])


def as_share(setting: Frame) -> Frame:
    """Return the clip rates in the column ``setting``, texts such as "5%", as numbers."""
    return setting.str.rstrip("%").astype(float) / 100


def panel_words(task: str, table: Frame) -> str:
    """Return the title of a panel that draws the rows ``table`` of a task: the task's name and its number of seeds."""
    return f"{task} ({int(table[table.task == task].seeds.max())} seeds)"


@styled
def who_is_clipped(of_bins: Frame, style: Style) -> Figure:
    """Draw clip rates by length, means over seeds: a curve a rule, a column a task, a row an overall clip rate."""
    data = of_bins[(of_bins.sign == "both") & of_bins.rule.isin(COMPARED)]
    data = data[2 * data.seeds > data.groupby("task").seeds.transform("max")]  # lengths that most seeds have
    tasks, rates = [t for t in TASKS if (data.task == t).any()], sorted(data.clip_rate.unique())
    known = looks(COMPARED)
    fig, axes = layout.panel_grid(
        style, len(tasks) * len(rates), 1.45, layout.rule_keys(known), columns=len(tasks), sharey="row", sharex="col"
    )
    for k, ax in enumerate(axes):
        rate, task = rates[k // len(tasks)], tasks[k % len(tasks)]
        some = data[(data.task == task) & (data.clip_rate == rate)]
        marks.curves(some, ax, x="length", y="mean", known=known)
        marks.reference(ax, rate)
        scales.length_axis(ax, some.length)
        scales.percent_axis(ax.yaxis)
        if k < len(tasks):
            ax.set_title(panel_words(task, data))
        if k % len(tasks) == 0:
            ax.set_ylabel(f"clipped (%), {100 * rate:.0f} overall")
        if k >= len(axes) - len(tasks):
            ax.set_xlabel("length (tokens)")
        ax.set_ylim(0, 1.03 * data[data.clip_rate == rate][["mean", "ci_high"]].max(axis=None))
    return fig


@styled
def fair_exponents(numbers: Frame, style: Style) -> Figure:
    """Draw the fair exponent by clip rate, means over seeds, for both signs of A and each: a panel for each task."""
    data = numbers[(numbers.quantity == "fair exponent") & (numbers.runs == "unclipped")]
    data = data.assign(rate=as_share(data.setting))
    words = {"A != 0": SIGNS["all"], "A < 0": SIGNS["negative"], "A > 0": SIGNS["positive"]}
    known = {name: Look(color, marker) for name, (_, color, marker) in words.items()}
    tasks = [t for t in TASKS if (data.task == t).any()]
    keys = {label: layout.key(look.color, look.marker) for look, label in
            zip(known.values(), ("A ≠ 0", "A < 0", "A > 0"), strict=True)}  # fmt: skip
    fig, axes = layout.panel_grid(style, len(tasks), 1.6, keys, sharey=True)
    for ax, task in zip(axes, tasks, strict=True):
        some = data[data.task == task]
        marks.curves(some, ax, x="rate", y="mean", hue="responses", known=known)
        marks.reference(ax, 0.5)
        ax.set_title(panel_words(task, data))
        scales.fixed_ticks(ax.xaxis, sorted(some.rate.unique()))
        scales.percent_axis(ax.xaxis)
        ax.set_xlabel("clip rate (%)")
    axes[0].set_ylabel("fair exponent")
    return fig


@styled
def lost_direction(numbers: Frame, style: Style) -> Figure:
    """Draw means over seeds: the cosine of clipped and unclipped gradient; the share of the loss between lengths."""
    quantities = {"cosine": "cosine with the unclipped update",
                  "share of the loss between strata of length": "share of the loss between lengths"}  # fmt: skip
    data = numbers[numbers.quantity.isin(list(quantities)) & numbers.rule.isin(COMPARED)]
    data = data[data.setting.isin(["5%", "15%"])].assign(row=lambda t: t.setting + ", " + t.task)
    rows = [f"{rate}, {task}" for rate in ("5%", "15%") for task in TASKS if (data.task == task).any()]
    known = looks(COMPARED)
    fig, axes = layout.panel_grid(style, 2, 0.24 * len(rows) + 0.5, layout.rule_keys(known, lines=False), columns=2)
    for ax, (name, label) in zip(axes, quantities.items(), strict=True):
        some = data[data.quantity == name]
        marks.dots(some, ax, rows=rows, row="row", x="mean", by="rule", order=list(COMPARED), step=0.24,
                  mapped=marks.rule_marks("rule", known))  # fmt: skip
        ax.set_xlabel(label)
        scales.few_ticks(ax.xaxis)
    axes[1].set_yticklabels([])
    marks.reference(axes[1], 0, along="x")
    return fig


ARMS = {
    "none": "no clip",
    **{rule: rule for rule in COMPARED},
    "fspo-adaptive": "a range and exponent for each side",
    "fspo-default": "fspo, default range",
    "fspo-wide-above": "fspo, upper range times 5",
    "rloo-default": "rloo, default range",
    "rloo-wide-above": "rloo, upper range times 5",
}
"""Arms of the stress runs, as the figure names them."""
FEW = 5
"""Least number of seeds with which the figure of training shows intervals."""
PANELS = {
    "32 updates a rollout, half clipped": ("stress", ["none", *COMPARED, "fspo-adaptive"]),
    "32 updates a rollout": ("stress", [arm for arm in ARMS if "-default" in arm or "-wide" in arm]),
    "8 updates a rollout, 5% clipped": ("equal", list(COMPARED)),
}
"""Title of each panel of the figure of training: set of runs, and its arms."""


def of_arm(name: str) -> Look:
    """Return how the arm ``name`` is drawn: in its rule's colour, with marks and dashes for default and wide ranges."""
    for end, marker, dashes in (("-default", "P", (1.0, 1.6)), ("-wide-above", "v", (4.0, 1.6))):
        if name.endswith(end):
            return Look(of_arm(name.removesuffix(end)).color, marker, dashes)
    return looks([name])[name]


@styled
def training(rollouts: Frame, style: Style) -> Figure:
    """Draw the training reward by rollout on chain-add, means over seeds: a panel for each kind of runs there is."""
    known = {arm: of_arm(arm) for arm in ARMS}
    data = rollouts[rollouts.task == "chain-add"]
    told = data.seeds >= FEW  # an interval over fewer seeds covers the panel and says nothing
    data = data.assign(**{end: data[end].where(told) for end in ("ci_low", "ci_high")})
    some = {title: data[(data.runs == runs) & data.rule.isin(arms)] for title, (runs, arms) in PANELS.items()}
    some = {title: table for title, table in some.items() if len(table)}
    drawn = {rule for table in some.values() for rule in table.rule}
    keys = {ARMS[a]: layout.key(k.color, k.marker, linestyle=k.linestyle) for a, k in known.items() if a in drawn}
    fig, axes = layout.panel_grid(style, max(len(some), 1), 1.7, keys, columns=max(len(some), 1), sharey=True)
    for ax, (title, table) in zip(axes, some.items(), strict=False):
        marks.curves(table, ax, x="rollout", y="mean", known=known)
        ax.set_title(title)
        few, most = int(table.seeds.min()), int(table.seeds.max())
        ax.set_xlabel(f"rollout (mean of {few if few == most else f'{few} to {most}'} seeds)")
        scales.fixed_ticks(ax.xaxis, [1, 4, 8, 12])
        ax.set_ylim(0, 1)
    axes[0].set_ylabel("training reward")
    return fig


FIGURES = {
    "who_is_clipped": (who_is_clipped, "bins"),
    "fair_exponent": (fair_exponents, "numbers"),
    "lost_direction": (lost_direction, "numbers"),
    "training": (training, "rollouts"),
}
"""The figures, and the table whose means each shows."""


def publish(tables: dict[str, Frame], folder: Path) -> None:
    """Write the tables, their means over seeds, the verdicts and the figures that have data into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    claims, parts = judge(tables["estimates"], planned=DESIGN.seed_counts)
    write_claims(folder, tables["estimates"], claims, parts)
    of_means = {name: means(name, table) for name, table in tables.items()}
    for name, row in TABLES.items():
        if name != "estimates":
            write(tables[name].sort_values(list(names(row)[:-1]), kind="stable"), folder / f"{name}.csv")
        if name != "rollouts":
            write(of_means[name], folder / f"means_of_{name}.csv")
    write(differences(tables), folder / "differences.csv")
    for name, (figure, of) in FIGURES.items():
        save(figure(of_means[of][of_means[of].task.isin(TASKS)], Style()), folder, name, Style())
    for claim in claims:
        print(f"{claim.claim:3} {claim.verdict:9} {claim.sentence} ({claim.decides})")


def write(table: Frame, path: Path) -> None:
    """Write a table as a CSV file, whole or not at all."""
    with whole_file(path) as part:
        table.to_csv(part, index=False, float_format=f"%{DIGITS}")


def main() -> int:
    """Add finished runs to the results, and publish them."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", type=Path, nargs="*", help="output folders of the preset paper, such as out/paper")
    p.add_argument("--pretrained", type=Path, help="output folder of studies.pretrained")
    p.add_argument("--results", type=Path, default=RESULTS, help="folder of the published tables and figures")
    args = p.parse_args()
    tables = read(args.results)
    done, known = finished(args.runs, args.pretrained), tables["estimates"]
    found = [run for run in done if not holds(known, run.task, run.runs, run.arm, run.seed)]
    if not found and not len(tables["rollouts"]):
        raise UserError("no finished run of the preset paper: name the folder OUTPUT/paper of fspo reproduce")
    for run in tqdm(found, desc="runs", unit="run", dynamic_ncols=True):
        tables = add(tables, run)
    publish(tables, args.results)
    return 0


if __name__ == "__main__":
    run_cli(main)
