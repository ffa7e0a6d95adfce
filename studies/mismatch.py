"""Which mask of a mismatch treats all lengths alike? Writes docs/mismatch.md but its section about single vLLM tokens.

Trains the embedded model with responses from other laws than the trainer's: bfloat16 and int8 weights, top-p, a vLLM
server in bfloat16, weights of earlier rollouts. Each log is analysed by ``python -m analysis`` on the ratio that its
run adds. Runs that are done are kept under --output; a run that was stopped goes on.

    python -m studies.mismatch --output out/mismatch
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm

from analysis.log.loading import load_run
from analysis.log.rows import Floats, Rows
from analysis.rules.evaluate import TARGETS
from analysis.run import Options, analyse
from analysis.tables.ess import EXACT
from figures.style import DPI, LOOKS, Style
from fspo.base.errors import run_cli
from fspo.base.files import whole_file, write_text
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.gradlog import read_log
from fspo.gradlog.files import log_paths, rollout_of
from fspo.gradlog.run_folder import GRADLOG, MODEL
from fspo.gradlog.schema import RATIO_COLUMNS
from fspo.models.load import load_model
from fspo.models.warmup import warm_up
from fspo.rules import Ratio
from fspo.sampling.vllm import write_weights
from fspo.stats.bins import Bins
from fspo.stats.intervals import CONFIDENCE, PERCENT
from fspo.train.trainer import Trainer
from studies.vllm_mismatch import EDGES, PAGE, ROOT, TITLE
from studies.vllm_mismatch import RESULTS as VLLM_RESULTS
from studies.vllm_server import serve

RESULTS = ROOT / "studies" / "results" / "mismatch.json"
IMAGES = ROOT / "docs" / "images"
MASKS = {"product": "rloo", "geometric": "gspo", "sqrt": "fspo", "sqrt-kl": "fspo-kl"}
"""The masks that are compared, each with the preset of the same shape, in whose colour and marker it is drawn."""
DRAWS = 400
"""Number of bootstrap draws for the interval of the fair exponent."""


class Source(NamedTuple):
    """A run whose responses come from another law than the trainer's.

    Attributes
    ----------
    text : str
        Name in tables and figures.
    on : str
        The ratio in which the mismatch lies.
    options : tuple of str
        Options of the training run.
    first : int
        First rollout that is analysed: from there on the staleness is the one asked for.
    """

    text: str
    on: Ratio
    options: tuple[str, ...]
    first: int = 0


SOURCES = {
    "bfloat16": Source("E (bfloat16)", "engine", ("--sampling.precision", "bfloat16")),
    "vllm": Source("E (vLLM bfloat16)", "engine", ("--sampling.engine", "vllm", "--rollouts", "11")),
    "int8": Source("E (int8 weights)", "engine", ("--sampling.precision", "int8")),
    "top_p": Source("E (top-p .95)", "engine", ("--sampling.top_p", "0.95")),
    "stale1": Source("D (1 rollout)", "behaviour", ("--batch.staleness", "1"), 1),
    "stale4": Source("D (4 rollouts)", "behaviour", ("--batch.staleness", "4"), 4),
}
UPDATE = "bfloat16"
"""The run on which the update's ratio S is analysed beside its mismatch."""
LABELS = {name: source.text for name, source in SOURCES.items()} | {"update": "S (bfloat16 run)"}


def trained(name: str, rollouts: int, output: Path, threads: int) -> Path:
    """Train a source's run, unless it is done, and return its folder."""
    run, folder = output / name, output / f"{name}-weights"
    if (run / MODEL).exists():
        return run
    arguments = ["--output", str(run), "--rollouts", str(rollouts), "--resume", "true", "--threads", str(threads)]
    arguments += ["--eval.every", "0", "--trackers", "[]", "--checkpoint_every", "1", "--keep_checkpoints", "1"]
    arguments += ["--log.score_minibatches", "[0,1,2,3]", "--log.tokens", "true", *SOURCES[name].options]
    served = "vllm" in SOURCES[name].options
    if served:
        write_weights(load_model(warm_up()), folder)
    with serve(folder, dtype="bfloat16") if served else nullcontext() as server:
        if server is not None:
            arguments += ["--sampling.vllm_url", server.url, "--sampling.vllm_weights", str(folder)]
        Trainer(parse(TrainConfig, arguments, prog="mismatch", description="")).train()
    return run


def from_rollout(run: Path, first: int) -> Path:
    """Return a run folder with links to the logs of the rollouts from ``first`` on."""
    part = run.with_name(f"{run.name}-from-{first}")
    (part / GRADLOG).mkdir(parents=True, exist_ok=True)
    for path in log_paths(run):
        link = part / GRADLOG / path.name
        if rollout_of(path) >= first and not link.exists():
            link.symlink_to(path.resolve())
    return part


def measured(run: Path, on: Ratio) -> dict[str, Any]:
    """Analyse a log on one ratio and return the numbers that docs/mismatch.md shows."""
    options, bins = Options(edges=EDGES, on=on), Bins(EDGES)
    loaded = load_run(run, on=on)
    tables, summary = analyse(loaded, bins, options)
    rows = loaded.rows.use("first")
    scaling = tables["scaling"].query("subset == 'all' and use == 'first' and sign == 'all'")
    return {
        "rollouts": len(np.unique(rows.rollout)),
        "rows": summary["counts"]["rows_first_use"],
        "warnings": summary["warnings"],
        "exponent": [end / 2 for end in _cells(scaling, "slope_2H")[0]],
        "fair": {str(target): fair_exponent(rows, target) for target in TARGETS},
        "by_length": _by_length(tables),
        "masks": [] if on == "update" else _masks(tables),
        "cross": None if on == "update" else cross_term(run, on),
    }


def _cells(table: pd.DataFrame, name: str = "estimate") -> list[list[float]]:
    """Return value and interval of each row of a table."""
    prefix = "" if name in ("estimate", "slope", "slope_2H") else f"{name}_"
    return table[[name, f"{prefix}ci_low", f"{prefix}ci_high"]].astype(float).values.tolist()


def _by_length(tables: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return count, sd, mean weight and effective sample size of each bin, and of all responses at the end."""
    moments = tables["moments"].query("subset == 'all' and use == 'first'").sort_values("bin", key=_last)
    ess = _cells(tables["ess"].query(f"use == 'first' and rule == '{EXACT}'").sort_values("bin", key=_last))
    return [
        {
            "bin": "all" if row["bin"] == -1 else f"{row['bin_lo']:.0f}-{row['bin_hi'] - 1:.0f}",
            "length": row["bin_mean"],
            "sd": np.sqrt(variance).tolist(),
            "weight": weight,
            "ess": size,
        }
        for row, variance, weight, size in zip(
            moments.to_dict("records"), _cells(moments, "var_S"), _cells(moments, "mean_weight"), ess, strict=True
        )
    ]


def _last(bins: pd.Series) -> pd.Series:
    """Return a column's numbers by bin, with the number over all bins moved to the end."""
    return bins.where(bins >= 0, len(EDGES))


def _masks(tables: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return, for each mask at each target acceptance, its acceptance by length, trend, LRE, and the errors of the
    update that it leaves.
    """
    found = []
    for target in TARGETS:
        for mask in MASKS:
            case = f"rule == '{mask}' and outside == 'mask' and source == 'matched' and target == {target}"
            of_case = {name: table.query(case) for name, table in tables.items() if "outside" in table}
            whole = "subset == 'all' and measure == 'band'"
            accepted = of_case["acceptance"].query(whole).sort_values("bin", key=_last)
            every = {name: of_case[name].query("bin == -1") for name in ("cosine", "population")}
            of_population = every["population"].query("reference == 'population'").set_index("quantity")
            found.append(
                {
                    "mask": mask,
                    "target": target,
                    "acceptance": _cells(accepted),
                    "trend": _cells(of_case["trend"].query(whole), "slope")[0],
                    "lre": _cells(of_case["lre"].query(f"{whole} and norm == 'l2'"))[0],
                    "cosine": _cells(every["cosine"].query("weight == 'sequence'"))[0],
                    "bias2": _cells(of_population.loc[["bias2"]])[0],
                    "mse": _cells(of_population.loc[["mse"]])[0],
                    "population_cosine": _cells(of_population.loc[["cosine"]])[0],
                }
            )
    return found


def cross_term(run: Path, on: Ratio) -> float:
    """Return Var(S + ratio) / (Var S + Var ratio), at first use after an update; 1 without correlation (T18)."""
    column = RATIO_COLUMNS[on].log_ratio
    log = read_log(run, columns=["log_ratio", column, "times_used", "updates_since_rollout"]).table.to_pandas()
    log = log[(log.times_used == 0) & (log.updates_since_rollout > 0)]
    return float((log.log_ratio + log[column]).var() / (log.log_ratio.var() + log[column].var()))


def fair_exponent(rows: Rows, target: float) -> list[float]:
    """Return the power of L that comes nearest to accepting ``target`` in every bin, with its interval (T17).

    The power is the slope of the logarithm of the target quantile of |ratio| over that of the bin's mean length.
    Prompts are redrawn for the interval.
    """
    size, at = np.abs(rows.S), Bins(EDGES).index(rows.length)
    clusters, cluster = np.unique(rows.cluster, return_inverse=True)

    def slope(times: np.ndarray) -> float:
        points = []
        for k in range(len(EDGES) - 1):
            here = times[at == k]
            if here.sum() > 0:
                values = np.repeat(size[at == k], here)
                length = np.average(rows.length[at == k], weights=here)
                points.append((np.log(length), np.log(np.quantile(values, target)), np.sqrt(len(values))))
        x, y, weight = np.array(points).T
        return float(np.polyfit(x, y, 1, w=weight)[0])

    rng = np.random.default_rng(0)
    draws = [rng.multinomial(len(clusters), np.full(len(clusters), 1 / len(clusters)))[cluster] for _ in range(DRAWS)]
    low, high = np.quantile([slope(times) for times in draws], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return [slope(np.ones(len(size), int)), float(low), float(high)]


def say(values: Sequence[float], digits: int = 2) -> str:
    """Return a value with its interval as text, or "unknown" where there is none."""
    value, low, high = values
    if not np.isfinite(value):
        return "unknown"
    text = f"{value:.{digits}f}"
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low + high) else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table from its head and its rows."""
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def direction(trend: Sequence[float], verdicts: int = 1) -> str:
    """Say which responses a mask cuts more, by the trend of its acceptance over length and the trend's interval.

    With several ``verdicts`` the interval is widened so that all of them hold together (Bonferroni).
    """
    wider = norm.isf((1 - CONFIDENCE) / 2 / verdicts) / norm.isf((1 - CONFIDENCE) / 2)
    value, low, high = trend
    return "long" if value + wider * (high - value) < 0 else "short" if value + wider * (low - value) > 0 else "neither"


def page(results: dict[str, Any]) -> str:
    """Return the text of docs/mismatch.md, without the section about single vLLM tokens."""
    sources: dict[str, Any] = results["sources"]
    other = json.loads(VLLM_RESULTS.read_text(encoding="utf-8"))["bfloat16"]
    lines = [
        "# Engine mismatch and staleness",
        "",
        "Which lengths does a mask on the sampler's mismatch cut, and what does that do to the update?",
        "`python -m studies.mismatch` makes the runs, the numbers (`studies/results/mismatch.json`) and this page.",
        "",
        f"Each run trains the embedded model (0.4M parameters, rule fspo) in float32 with torch {results['torch']},",
        "with 8 responses to each of 64 prompts in a rollout, and samples from another law: with weights and",
        "activations in bfloat16, with the weights of linear layers rounded to int8, with top-p .95, with a vLLM",
        "0.32 server in bfloat16 (`make test-vllm`), or with the weights of 1 or 4 rollouts before. E is the engine",
        "ratio, D the staleness, S the ratio of the rollout's own updates ([theory.md](theory.md)). Rollouts whose",
        "staleness is not yet the one asked for are left out. Each response counts once, at first use. Brackets",
        f"are {PERCENT} intervals, clustered by prompt. One model, one task, one seed.",
        "",
        "## Verdicts",
        "",
        *verdicts(sources),
        "",
        "## How the ratios grow with length",
        "",
        "![Standard deviation of each ratio by length](images/mismatch_growth.png)",
        "",
        f"*sd of each ratio in {len(EDGES) - 1} bins of length, with its interval; dotted: sqrt(L).*",
        "",
    ]
    rows = []
    for name, found in [*sources.items(), ("update", results["update"])]:
        whole, top = found["by_length"][-1], found["by_length"][-2]
        rows.append(
            [
                LABELS[name],
                str(found["rollouts"]),
                f"{found['rows']:,}",
                say(found["exponent"]),
                *(say(found["fair"][str(target)]) for target in TARGETS),
                say(whole["sd"], 3),
                say(top["sd"], 3),
                say(whole["weight"], 3),
                say(top["weight"], 3),
                "" if found["cross"] is None else f"{found['cross']:.2f}",
            ]
        )
    share = [f"{100 * target:.0f} %" for target in TARGETS]
    longest = sources["bfloat16"]["by_length"][-2]["bin"]
    head = ["ratio", "rollouts", "responses", "H of sd", *(f"fair exponent at {s}" for s in share)]
    head += ["sd, all", f"sd, {longest} tokens", "mean weight, all", f"mean weight, {longest} tokens"]
    head += ["cross term with S"]
    lines += [
        *table(head, rows),
        "",
        "H is the exponent of sd(ratio | L). The fair exponent is the slope, over 6 bins, of the logarithm of the",
        "quantile of |ratio| at which a mask cuts. Where that quantile is a power of L, a band of this exponent",
        "accepts the same share at every length (T17); here it is one only roughly. A product mask has",
        "exponent 0, the sqrt masks 1/2, a geometric mask 1; sqrt-kl is centred on -KL, the others on 0. The mean",
        "weight is that of e^ratio; over all responses it is below 1 where the sampler cannot draw all that the",
        "trainer's policy would (T16). The cross term is Var(S + ratio) / (Var S + Var ratio), 1 without",
        "correlation (T18). Intervals are about the one run: another run with vLLM in bfloat16, that of the last",
        f"section, has H = {say(other['exponent'])}.",
        "",
        "## Which lengths a mask cuts",
        "",
        "![Acceptance by length of the masks at 85 %](images/mismatch_acceptance.png)",
        "",
        f"*Band acceptance by length; each mask's range is set so that it accepts {share[-1]} of each window of 5",
        "rollouts (grey line).*",
        "",
    ]
    for target, name in zip(TARGETS, share, strict=True):
        rows = []
        for source, found in sources.items():
            of_masks = {m["mask"]: m for m in found["masks"] if m["target"] == target}
            rows.append([LABELS[source], *(say(m[q], 3) for q in ("trend", "lre") for m in of_masks.values())])
        lines += [
            f"At {name}: change of the acceptance for each doubling of the length (below 0: long responses are cut",
            "more), and LRE_2, the distance of the accepted lengths from all (0 is fair).",
            "",
            *table(["ratio", *MASKS, *(f"LRE, {m}" for m in MASKS)], rows),
            "",
        ]
    lines += [
        "## What a mask does to the update",
        "",
        "![Squared bias and mean squared error of the masked update](images/mismatch_update.png)",
        "",
        f"*At {share[-1]}. Left: squared bias of the masked update (T12). Right: mean squared error. Both over the",
        "variance of the update with all responses.*",
        "",
    ]
    for target, name in zip(TARGETS, share, strict=True):
        rows = [
            [LABELS[source], m["mask"], *(say(m[q]) for q in ("bias2", "mse", "population_cosine", "cosine"))]
            for source, found in sources.items()
            for m in found["masks"]
            if m["target"] == target
        ]
        head = ["ratio", "mask", "squared bias", "mean squared error", "cosine, population", "cosine, same batch"]
        lines += [f"At {name}:", "", *table(head, rows), ""]
    lines += [
        "The true update is the mean of w A psi with w = e^(S + ratio), the masked one that of M w A psi. The squared",
        "bias is estimated without bias from pairs of different prompts, so it may lie below 0. The cosine with the",
        "population compares expected updates; that with the same batch compares the updates of one batch, which share",
        "their noise (theory.md section 5). An estimate of the former may exceed 1; it is unknown where noise hides",
        "its denominator.",
        "",
        "## Effective sample size by length",
        "",
        "(sum of w)^2 / (n sum of w^2) with w = e^ratio, without a mask, of the responses whose advantage is not 0:",
        "the share of the responses that is left.",
        "",
        *table(
            ["ratio", *(row["bin"] for row in sources["bfloat16"]["by_length"])],
            [[LABELS[s], *(say(row["ess"], 3) for row in found["by_length"])] for s, found in sources.items()],
        ),
        "",
    ]
    return "\n".join(lines)


def verdicts(sources: dict[str, Any]) -> list[str]:
    """Return the page's lines that say, for each mask at each target acceptance, which lengths it cuts more."""
    number = len(sources) * len(MASKS) * len(TARGETS)
    lines = [
        "The product mask is the shape of preset mis (`--correction.preset`; TRL's sequence mode), the geometric mask",
        "that of geo-mask, sqrt-kl that of engine-sqrt; sqrt is the same without its centre. Here each range is set so",
        "that the mask keeps 95 or 85 % of a run's responses; where the mismatch is small, mis at its default range",
        f"cuts nothing. The {number} verdicts are of the trend over length and hold together at {PERCENT}",
        "(Bonferroni); intervals of the tables hold one by one, and for this run alone.",
        "",
    ]
    for target in TARGETS:
        of_mask = {
            mask: {
                s: next(m for m in f["masks"] if (m["mask"], m["target"]) == (mask, target)) for s, f in sources.items()
            }
            for mask in MASKS
        }
        lines += [f"At {100 * target:.0f} % of the responses accepted:", ""]
        for mask, found in of_mask.items():
            words = {way: [LABELS[s] for s, m in found.items() if direction(m["trend"], number) == way] for way in WAYS}
            told = "; ".join(f"{WAYS[way]} on {', '.join(which)}" for way, which in words.items() if which)
            share = [abs(m["trend"][0] / of_mask["product"][s]["trend"][0]) for s, m in found.items()]
            size = f" The size of its trend is {min(share):.2f} to {max(share):.2f} times the product mask's."
            lines.append(f"- The {mask} mask {told}.{size if mask != 'product' else ''}")
        best = {s: min(MASKS, key=lambda mask: of_mask[mask][s]["lre"][0]) for s in sources}
        told = "; ".join(
            f"{mask} on {', '.join(LABELS[s] for s in best if best[s] == mask)}"
            for mask in MASKS
            if mask in best.values()
        )
        lines += [f"- Smallest estimate of LRE_2: {told}. Where the intervals below overlap, it decides nothing.", ""]
    spans = [[f["fair"][str(target)][0] for f in sources.values()] for target in TARGETS]
    told = " and ".join(f"{min(x):.2f} to {max(x):.2f} at {100 * t:.0f} %" for x, t in zip(spans, TARGETS, strict=True))
    every = [m["bias2"] for f in sources.values() for m in f["masks"]]
    return [
        *lines,
        f"The exponent of the quantile at which a mask cuts (see below) is {told}: a mask of a smaller",
        "exponent (product 0, sqrt 1/2, geometric 1) tends to cut long responses more, one of a greater exponent short",
        "ones. Data are no exact power, so a mask of that very exponent still leaves a bend over the bins.",
        f"{sum(low > 0 for _, low, _ in every)} of {len(every)} intervals of the update's squared bias lie above "
        "0: no mask's bias can",
        f"be seen in these runs; the largest interval reaches {max(high for *_, high in every):.2f} of the update's "
        "variance.",
    ]


WAYS = {"long": "cuts long responses more", "short": "cuts short responses more", "neither": "shows no trend"}


def look(name: str) -> dict[str, Any]:
    """Return the colour, marker and line style in which a mask is drawn."""
    found = LOOKS[MASKS[name]]
    return {"color": found.color, "marker": found.marker, "linestyle": found.linestyle}


def length_axis(axes: Any) -> None:
    """Make the horizontal axis a logarithmic axis of response lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 16, 32, 64, 128, 256], ["8", "16", "32", "64", "128", "256"])
    axes.set_xlabel("response length L (tokens)")


def bars(values: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """Return values (n,) with the lengths of their error bars (2, n), from intervals."""
    found = np.array(values, dtype=np.float64)
    return found[:, 0], np.abs(found[:, 1:].T - found[:, 0])


def growth(results: dict[str, Any], style: Style) -> Any:
    """Draw sd of each ratio against length."""
    drawn = style.new_figure(3.0)
    axes = drawn.subplots()
    for (name, found), drawn_as in zip(
        {**results["sources"], "update": results["update"]}.items(), LOOKS.values(), strict=False
    ):
        rows = found["by_length"][:-1]
        value, error = bars([row["sd"] for row in rows])
        label = f"{LABELS[name]}: H = {found['exponent'][0]:.2f}"
        shape = {"color": drawn_as.color, "marker": drawn_as.marker, "linestyle": drawn_as.linestyle}
        axes.errorbar([row["length"] for row in rows], value, error, capsize=2, label=label, **shape)
    grid = np.array([8.0, 256.0])
    for level in (3e-3, 3e-2):
        axes.plot(grid, level * np.sqrt(grid), color="#7F7F7F", linestyle=":", linewidth=0.8, zorder=0)
    axes.set_yscale("log")
    axes.set_ylabel("standard deviation, nats")
    length_axis(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return drawn


def acceptance(results: dict[str, Any], style: Style) -> Any:
    """Draw acceptance by length of each mask at the lower target, one panel for each source."""
    sources = results["sources"]
    drawn = style.new_figure(3.6)
    panels = drawn.subplots(2, 3, sharex=True, sharey=True)
    for axes, (name, found) in zip(panels.flat, sources.items(), strict=True):
        axes.axhline(TARGETS[-1], color="#7F7F7F", linewidth=0.8, zorder=0)
        for m in found["masks"]:
            if m["target"] == TARGETS[-1]:
                value, error = bars(m["acceptance"][:-1])
                lengths = [row["length"] for row in found["by_length"][:-1]]
                axes.errorbar(lengths, value, error, capsize=2, label=m["mask"], **look(m["mask"]))
        axes.set_title(LABELS[name])
        length_axis(axes)
        axes.set_ylim(0, 1.03)
    for axes in panels[0]:
        axes.set_xlabel("")
    for axes in panels[:, 0]:
        axes.set_ylabel("share accepted")
    panels[0, 0].legend(loc="lower left")
    return drawn


def update(results: dict[str, Any], style: Style) -> Any:
    """Draw squared bias and mean squared error of the masked updates at the lower target."""
    drawn = style.new_figure(2.4)
    for axes, quantity, title in zip(
        drawn.subplots(1, 2, sharey=True), ("bias2", "mse"), ("squared bias", "mean squared error"), strict=True
    ):
        for shift, mask in zip((-0.3, -0.1, 0.1, 0.3), MASKS, strict=True):
            found = [
                m[quantity]
                for f in results["sources"].values()
                for m in f["masks"]
                if (m["mask"], m["target"]) == (mask, TARGETS[-1])
            ]
            value, error = bars(found)
            place = np.arange(len(found)) + shift
            axes.errorbar(value, place, xerr=error, capsize=2, label=mask, **(look(mask) | {"linestyle": "none"}))
        axes.axvline(1.0 if quantity == "mse" else 0.0, color="#7F7F7F", linewidth=0.8, zorder=0)
        axes.set_xlabel(f"{title} / variance")
        axes.set_yticks(range(len(results["sources"])), [LABELS[name] for name in results["sources"]])
    axes.invert_yaxis()
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return drawn


FIGURES = {"mismatch_growth": growth, "mismatch_acceptance": acceptance, "mismatch_update": update}


def write(results: dict[str, Any]) -> None:
    """Write numbers, figures and page; the section about single vLLM tokens stays as it is."""
    write_text(RESULTS, json.dumps(results, indent=1) + "\n")
    style = Style("neurips")
    with style.context():
        for name, draw in FIGURES.items():
            with whole_file(IMAGES / f"{name}.png") as part:
                draw(results, style).savefig(part, format="png", dpi=DPI, metadata={"Software": None})
    old = PAGE.read_text(encoding="utf-8")
    write_text(PAGE, page(results) + "\n" + old[old.index(TITLE) :])


def main() -> int:
    """Train where runs are missing, measure, and write page, figures and numbers."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--output", type=Path, default=Path("out/mismatch"), help="folder of the runs")
    p.add_argument("--rollouts", type=int, default=14)
    p.add_argument("--threads", type=int, default=1, help="torch threads of the trainer")
    args = p.parse_args()
    runs = {name: trained(name, args.rollouts, args.output.resolve(), args.threads) for name in SOURCES}
    sources = {name: measured(from_rollout(runs[name], source.first), source.on) for name, source in SOURCES.items()}
    write({"torch": torch.__version__, "sources": sources, "update": measured(runs[UPDATE], "update")})
    return 0


if __name__ == "__main__":
    run_cli(main)
