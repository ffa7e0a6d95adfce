"""Which rule gives the best update if all keep the same share of responses? This script writes docs/which_rule.md.

The study has three parts, each with intervals. On gradient logs, every band and every treatment outside the band is
compared at one update acceptance in each window. In models whose update is known exactly, the same cases are compared
at one band acceptance. In short training runs, the range of every rule follows the same target acceptance. Finished
parts are kept under --output and not computed again; if no trained runs are given, the page's section on training stays
as it is.

examples:
  python studies/which_rule_logs.py --output out/which_rule/logs
  python studies/which_rule.py --logs out/which_rule/logs/* --output out/which_rule
  python studies/which_rule.py --logs RUN --trained RUNS/fspo-seed0 RUNS/fspo-cap-seed0 --output out/which_rule
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats as sps
from tqdm import tqdm

from analysis.log.loading import load_run
from analysis.rules.evaluate import BANDS, TARGETS, make_cases
from analysis.scores.sketch_error import effective_width
from analysis.scores.sketches import ScoredWindows
from analysis.tables.columns import RunKey, frame
from analysis.tables.cosine import CosineRow, CosineTable
from analysis.tables.population import PopulationRow, PopulationTable
from fspo.base.errors import UserError, run_cli
from fspo.base.files import digest, write_text
from fspo.gradlog import metric_names as metric
from fspo.gradlog.metrics_file import MetricsFile
from fspo.rules import OF_CLIP_RULES, PRESETS, Rule, TokenMeans
from fspo.rules.online import OnlineRule
from fspo.stats.bins import Bins
from fspo.stats.intervals import CONFIDENCE, PERCENT, sample_interval
from fspo.theory import cosine
from proofs_check.maps.models import MODELS
from proofs_check.maps.policies import LocationPolicy, Policy, SoftmaxPolicy
from proofs_check.maps.settings import TYPICAL_PROMPTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "which_rule.md"
PROMPTS = TYPICAL_PROMPTS
"""Number of independent responses in an update, for models whose update is known exactly. The variance of one
response's gradient is divided by this number."""
REFERENCE = ("fspo", "drop")
MODEL_BANDS = ("rloo", "gspo", "fspo", "fspo-kl", "fspo-tilted", "power", "fspo-adaptive")
LEAST_RANGE = 10
"""Rollouts at the start of a trained run that its mean acceptance leaves out, because learnt ranges still change
there."""
Row = dict[str, Any]


def kept(folder: Path, name: str, key: str, work: Callable[[], list[Row]]) -> list[Row]:
    """Return the rows of one part of the study that docs/which_rule.md reports. If ``folder`` holds rows that were
    computed from the inputs ``key``, they are read; else ``work`` computes them, and they are stored."""
    path = folder / f"{name}-{digest(key)[:12]}.json"
    if path.is_file():
        return json.loads(path.read_text())
    rows = work()
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(rows) + "\n")
    return rows


def log_rows(path: Path) -> list[Row]:
    """Return, for each case (band and treatment outside) at equal update acceptance on one log, the squared errors of
    the clipped update (T12), relative to the error without clipping, and its same-batch cosine."""
    run = load_run(path)
    bins = Bins((1, int(run.rows.length.max()) + 1))
    cases = [case for case in make_cases(BANDS, TARGETS, run.rows) if case.source == "matched"]
    width, _ = effective_width(run)
    population = PopulationTable(RunKey.of(run), bins, cases, width)
    cosines = CosineTable(RunKey.of(run), bins, cases, (), 1, 0, width)
    for window in ScoredWindows(run, bins, 5):
        if window.use == "first":
            population.add(window)
            cosines.add(window)
    tables = {"population": frame(PopulationRow, population.rows()), "same_batch": frame(CosineRow, cosines.rows())}
    tables["same_batch"] = tables["same_batch"].query("weight == 'sequence'").assign(quantity="cosine_same_batch")
    found: list[Row] = []
    for reference, table in tables.items():
        ours = (table["bin"] == -1) & table["rule"].isin(BANDS) & (table["reference"] == reference)
        columns = ["rule", "outside", "target", "quantity", "estimate", "ci_low", "ci_high"]
        rows = table.loc[ours & (table["source"] == "matched"), columns]
        found += [{"unit": run.name, **row} for row in rows.to_dict("records")]
    return found


def model_rule(name: str, policy: Policy, rng: np.random.Generator) -> Rule:
    """Return a rule with the band of a preset. The band's exponent in fspo-adaptive, which is learnt in training, is
    first learnt from 100 updates of 256 simulated responses."""
    rule = PRESETS[name].rule
    if rule.adapt != "exponent":
        return Rule(rule.shape, rule.range_lo, rule.range_hi, gamma=rule.gamma, drift=rule.drift)
    online = OnlineRule(rule)
    for _ in range(100):
        if isinstance(policy, SoftmaxPolicy):
            at = rng.choice(policy.S.size, 256, p=policy.mass / policy.mass.sum())
            online.observe(policy.S[at], policy.n[at], policy.A[at])
        elif isinstance(policy, LocationPolicy):
            online.observe(*policy.sample(rng, 256)[:3])
    return Rule("power", 1.0, 1.0, gamma=online.rule.gamma)


def model_rows(model: str) -> list[Row]:
    """Return, for each band and treatment outside at equal band acceptance in one exactly known model, the mean squared
    error of the clipped update, divided by that of the unclipped one, and the clipped update's cosine."""
    policy = MODELS[model][1]()
    rng = np.random.default_rng(0)
    free = policy.moments(Rule("none"), 0.0)
    own = (free.second - float(free.g @ free.g)) / PROMPTS
    found: list[Row] = []
    for name in MODEL_BANDS:
        shape = model_rule(name, policy, rng)
        centre = shape.centre(TokenMeans(policy.kl, 2 * policy.kl))
        for target in TARGETS:
            fitted = policy.calibrated(shape, centre, target)
            for outside in OF_CLIP_RULES if fitted is not None else ():
                assert fitted is not None
                rule = Rule(**{**fitted.to_dict(), "outside": outside})
                m = policy.moments(rule, centre)
                error = m.g_clip - m.g
                mse = float(error @ error) + (m.second - float(m.g_clip @ m.g_clip)) / PROMPTS
                place = {"unit": model, "rule": name, "outside": outside, "target": target}
                found.append({**place, "quantity": "mse", "estimate": mse / own})
                found.append({**place, "quantity": "cosine_exact", "estimate": cosine(m.g_clip, m.g)})
    return found


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of the finite values with Student's interval; the ends are NaN with fewer than two values."""
    return sample_interval([v for v in values if math.isfinite(v)])


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median with the sign test's interval; the ends are NaN with fewer than six values.

    The median is used because one log or model may have so large a ratio of squared errors that this ratio alone would
    determine a mean.
    """
    x = np.sort(np.asarray(values, np.float64))
    # The sign test's interval begins at the value of this rank among the sorted values; 0: too few values.
    rank = int(sps.binom.ppf((1 - CONFIDENCE) / 2, x.size, 0.5))
    middle = float(np.median(x)) if x.size else math.nan
    return (middle, float(x[rank - 1]), float(x[x.size - rank])) if rank else (middle, math.nan, math.nan)


def compared(rows: list[Row], quantity: str, target: float) -> pd.DataFrame:
    """Compare every case (band and treatment outside) with fspo's band that drops, paired by log or model: the median
    ratio of squared errors of the update, or the median gain in cosine.

    An unbiased estimate of a squared error may be negative. If that of a case is, the log or model has the smallest
    ratio of all; if that of fspo's drop is, the log or model is left out.

    Columns: rule, outside, estimate, ci_low, ci_high, units (number of logs or models), better (in how many of them the
    case is better than fspo's drop), p (sign test, two-sided).
    """
    table: Any = pd.DataFrame(rows)
    table = table[(table.quantity == quantity) & np.isclose(table.target, target)]
    ratio = quantity.startswith("mse")
    base = table[(table.rule == REFERENCE[0]) & (table.outside == REFERENCE[1])].set_index("unit")["estimate"]
    base = base[(base > 0) | (not ratio)]
    out = []
    for (rule, outside), part in table.groupby(["rule", "outside"], sort=False):
        pair = part.set_index("unit")["estimate"].reindex(base.index)
        gap = (pair / base if ratio else pair - base).dropna().to_numpy(np.float64)
        value, low, high = median_interval(gap.tolist())
        ahead = -np.log(np.maximum(gap, 1e-300)) if ratio else gap
        better, told = int(np.sum(ahead > 0)), int(np.sum(ahead != 0))
        p = float(sps.binomtest(better, told).pvalue) if told else 1.0
        names = {"rule": rule, "outside": outside, "estimate": value, "ci_low": low, "ci_high": high}
        out.append({**names, "units": len(gap), "better": better, "p": p})
    return pd.DataFrame(out).sort_values("estimate", ascending=ratio)


def trained_rows(paths: Sequence[Path]) -> list[Row]:
    """Return rewards (all rollouts, last 5, held-out) and acceptance of trained runs, whose folders are called
    RULE-seedN.
    """
    found: list[Row] = []
    for path in paths:
        name, _, seed = path.name.rpartition("-seed")
        metrics = MetricsFile(path)
        if not metrics.path.is_file() or not name:
            raise UserError(f"{path} is no trained run named RULE-seedN: give folders that fspo.train wrote")
        train = metrics.of_phase("train")
        late = [line for line in train if line["rollout"] >= LEAST_RANGE]
        held = [line[metric.HELD_OUT_REWARD] for line in metrics.of_phase("eval")]
        values = {
            "reward, all rollouts": float(np.mean([line[metric.REWARD] for line in train])),
            "reward, last 5": float(np.mean([line[metric.REWARD] for line in train[-5:]])),
            "held-out reward": held[-1] if len(held) > 1 else math.nan,
            "band acceptance": float(np.mean([1 - line[metric.OUT_OF_BAND] for line in late])),
        }
        found += [{"unit": seed, "rule": name, "quantity": q, "estimate": v} for q, v in values.items()]
    return found


def number(value: float) -> str:
    """Return a number as text: with three decimals, or with three digits if it is large."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def cell(row: Any) -> str:
    """Return a table cell: an estimate, with its interval if it has one."""
    if not math.isfinite(row["ci_low"]):
        return number(row["estimate"])
    return f"{number(row['estimate'])} [{number(row['ci_low'])}, {number(row['ci_high'])}]"


def comparison_table(rows: list[Row], quantities: dict[str, str], targets: Sequence[float] = TARGETS) -> list[str]:
    """Return a Markdown table that compares every case (a row) with fspo's band that drops, in order of the first
    quantity. "(8/12)" behind an estimate says that the case is better in 8 of 12 logs or models."""
    case = ["rule", "outside"]
    parts: dict[Any, Any] = {(q, t): compared(rows, q, t).set_index(case) for q in quantities for t in targets}
    columns = [f"{words} at {t:.0%}" for words in quantities.values() for t in targets]
    lines = [f"| rule | outside | {' | '.join(columns)} |", "| --- | --- |" + " --- |" * len(columns)]
    for name in next(iter(parts.values())).index:
        cells = [f"{cell(p.loc[name])} ({int(p.loc[name].better)}/{int(p.loc[name].units)})" for p in parts.values()]
        lines.append(f"| `{name[0]}` | {name[1]} | {' | '.join(cells)} |")
    return lines


def verdict(rows: list[Row], quantity: str, words: str) -> list[str]:
    """Return a sentence for each target acceptance: which case is best, whether its lead is significant when corrected
    for the number of cases compared, and how fspo's band does with other treatments outside."""
    out = []
    for target in TARGETS:
        table = compared(rows, quantity, target)
        others = table[(table.units == table.units.max()) & ((table.rule != "fspo") | (table.outside != "drop"))]
        best, looks = others.iloc[0], len(table) - 1
        p = min(best.p * looks, 1.0)
        fspo = table[table.rule == "fspo"].set_index("outside")
        sentence = f"At {target:.0%}: least {words} in estimate is `{best.rule}` with {best.outside}, {cell(best)} of"
        sentence += f" fspo's drop (p = {best.p:.2g} alone, {p:.2g} as the best of {looks})"
        own = [f"its {o} {cell(fspo.loc[o])} (p = {fspo.loc[o].p:.2g})" for o in sorted({*OF_CLIP_RULES} - {"drop"})]
        out.append(f"- {sentence}; fspo's own band, {', '.join(own)}.")
    return out


def told_apart(rows: list[Row], quantity: str, target: float) -> dict[str, list[str]]:
    """Return the cases whose ``quantity`` (cosine or squared error of the update) is better and worse than that of
    fspo's band with drop, by a sign test over logs or models at 5 %, Bonferroni-corrected for the number of cases."""
    table = compared(rows, quantity, target)
    names: dict[str, list[str]] = {"better": [], "worse": []}
    for r in (r for r in table.to_dict("records") if r["p"] * (len(table) - 1) < 0.05):
        names["better" if r["better"] > r["units"] / 2 else "worse"].append(f"`{r['rule']}` {r['outside']}")
    return names


def standing_out(rows: list[Row], quantity: str, words: str, target: float) -> str:
    """Return a line of docs/which_rule.md that names the cases significantly better and worse than fspo's drop."""
    sides = [f"{side}: {', '.join(names) or 'none'}" for side, names in told_apart(rows, quantity, target).items()]
    return f"- {words} at {target:.0%}, significant among all cases; {'; '.join(sides)}."


def answer(rows: list[Row], quantities: dict[str, str]) -> str:
    """Return the first sentence of docs/which_rule.md: which cases are better than the preset fspo with drop, at every
    target acceptance, by each quantity."""
    parts = []
    for quantity, words in quantities.items():
        first, *others = (told_apart(rows, quantity, target)["better"] for target in TARGETS)
        parts.append(f"by {words}: {', '.join(n for n in first if all(n in o for o in others)) or 'none'}")
    return f"On logs, significantly better than `fspo` with drop at every acceptance compared; {'; '.join(parts)}."


def training_table(rows: list[Row]) -> list[str]:
    """Return Markdown lines about the trained runs: means over seeds, and differences from fspo paired by seed."""
    table = pd.DataFrame(rows)
    quantities = list(dict.fromkeys(table.quantity))
    lines = [f"| rule | seeds | {' | '.join(quantities)} | reward, all rollouts, less fspo's |"]
    lines.append("| --- | --- |" + " --- |" * (len(quantities) + 1))
    wide = {q: table[table.quantity == q].pivot(index="unit", columns="rule", values="estimate") for q in quantities}
    first = wide[quantities[0]]
    for rule in first.columns:
        cells = [f"{mean_interval(wide[q][rule].tolist())[0]:.3f}" for q in quantities]
        value, low, high = mean_interval((first[rule] - first["fspo"]).tolist()) if "fspo" in first else (math.nan,) * 3
        gap = cell({"estimate": value, "ci_low": low, "ci_high": high}) if rule != "fspo" else ""
        lines.append(f"| `{rule}` | {first[rule].count()} | {' | '.join(cells)} | {gap} |")
    return lines


def page(logs: list[Row], models: list[Row], trained: list[Row], before: str = "") -> str:
    """Return the text of docs/which_rule.md. Without trained runs, the section on training is copied from ``before``,
    the page's earlier text."""
    quantities = {"mse": "MSE", "mse_direction": "MSE of the direction", "cosine_same_batch": "gain in cosine"}
    lines = [
        HEAD.format(
            answer=answer(logs, quantities) if logs else "No logs were given.",
            level=PERCENT,
            ways=", ".join(OF_CLIP_RULES),
            logs=len({r["unit"] for r in logs}),
            models=len({r["unit"] for r in models}),
        )
    ]
    if logs:
        names = ", ".join(dict.fromkeys(f"`{r['unit']}`" for r in logs))
        lines += [
            LOGS.replace("{names}", names),
            *verdict(logs, "mse", "MSE"),
            *verdict(logs, "mse_direction", "MSE of the direction"),
            *(standing_out(logs, q, words, t) for q, words in quantities.items() for t in TARGETS),
            "",
            *comparison_table(logs, quantities),
            "",
        ]
    lines += [EXACT, *verdict(models, "mse", "MSE"), ""]
    lines += [*comparison_table(models, {"mse": "MSE", "cosine_exact": "gain in cosine"}), ""]
    if trained:
        lines += [TRAINED, *training_table(trained), "", CLOSE]
    elif TRAINING in before:
        lines += [TRAINING + before.split(TRAINING, 1)[1]]
    return "\n".join(lines)


TRAINING = "## In training\n"
HEAD = """# Which rule gives the best update at equal acceptance?

{answer}

`python studies/which_rule.py` writes this page. A case is a rule's band and what happens outside it ({ways}).
MSE is the mean squared error of the clipped update as an estimate of the true one (docs/theory.md T12), shown as
a ratio to `fspo` with drop: below 1 is better. A gain in cosine is a difference from it: above 0 is better. A unit is a
log or a model ({logs} logs, {models} models); cases are compared on the same unit. How to read a cell:

- `0.959 [0.858, 1.004] (8/12)`: the median over units is 0.959, and the case is better in 8 of the 12 units that have
  a number.
- Square brackets: the sign test's interval for the median (at least {level}; the least and the greatest of 6 to 8
  units, the second ones of 9 to 11, the third ones of 12 to 14).
- p: two-sided, of the sign test. `alone` is for a case chosen beforehand; `as the best of 29` is multiplied by the 29
  cases compared, because the best of many looks better than it is. "Significant among all cases" is below 5 % after
  that multiplication; with fewer than 11 units no case of thirty can be.
"""
LOGS = """## On gradient logs

Responses at first use, every rule at the common weight $`e^S`$, its range matched in each window of 5 rollouts to one
update acceptance over $`A \\ne 0`$. For cap that is the share that is not capped, on either sign of $`A`$, so at one
acceptance cap has another range than drop, and the comparison is of bands together with what happens outside them.
The range comes from the rows that it is then judged on (T12 wants it frozen), for all rules alike. Bands that follow a
target take their shape from earlier updates alone. A log has no number for a case that no range matches.

The logs are `studies/which_rule_logs.py`'s, named by task, step size and seed: {names}. Tasks: `chain-add` after a
supervised warm-up; `digits`, the share of digits; `brief`, whether a response ends within 24 characters; all of one
0.4M-parameter architecture. Logs of one task are more alike than logs of two, so the units are fewer than they look.
On the logs of `fspo reproduce --preset paper`, claim C6 judges whether truncating or capping keeps more of the
update's direction: [findings](findings.md#verdicts).
"""
EXACT = """## In models whose update is known

The policies of `proofs_check/maps/`: exact moments, {prompts} responses an update, ranges matched to one band
acceptance, so that here a band is the same whatever happens outside it. Units are the models, which were chosen and
not drawn: the interval says how much it depends on the model, and a p-value is no more than a count of models.
""".replace("{prompts}", str(PROMPTS))
TRAINED = f"""{TRAINING}
Short runs of `chain-add` on two-core hardware: each rule's range follows the same band acceptance
(`--rule.adapt range`), all else is equal and paired by seed; band acceptance is averaged from rollout {LEAST_RANGE} on.
Means over seeds; in brackets Student's {PERCENT} interval: the fewer the seeds, the larger a difference that it cannot
exclude. Each run: `fspo train --rule.preset RULE --rule.advantage grpo --rule.adapt range --rule.target 0.85 --rollouts
20`; the range follows from behind, so the acceptance is not quite the target.
"""
CLOSE = "What such short runs of a small model cannot show is how rules differ over thousands of updates.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute those parts of the study that the folder --output does not hold yet, then write docs/which_rule.md."""
    words = (__doc__ or "").strip()
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", nargs="*", type=Path, default=[], metavar="RUN", help="run folders with scores")
    parser.add_argument(
        "--trained", nargs="*", type=Path, default=[], metavar="RUN", help="folders RULE-seedN to compare"
    )
    parser.add_argument("--output", type=Path, default=Path("out/which_rule"), help="where finished parts are kept")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page goes")
    options = parser.parse_args(arguments)
    logs, models = list[Row](), list[Row]()
    for path in tqdm(options.logs, desc="logs", disable=not sys.stderr.isatty()):
        logs += kept(
            options.output, path.resolve().name, f"{path.resolve()} {TARGETS} {BANDS}", lambda p=path: log_rows(p)
        )
    for model in tqdm(MODELS, desc="models", disable=not sys.stderr.isatty()):
        models += kept(
            options.output, f"model-{model}", f"{TARGETS} {PROMPTS} {MODEL_BANDS}", lambda m=model: model_rows(m)
        )
    before = options.page.read_text(encoding="utf-8") if options.page.is_file() else ""
    write_text(options.page, page(logs, models, trained_rows(options.trained), before))
    return 0


if __name__ == "__main__":
    run_cli(main)
