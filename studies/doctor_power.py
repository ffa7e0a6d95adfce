"""What `python -m analysis doctor` says of defects that it was not built on: writes docs/doctor.md.

    python studies/doctor_power.py [--healthy 200] [--seeds 5] [RUN ...]

1. Unseen defects: 40 ways to spoil a log, written after the checks were fixed (the commit is on the page) and not used
   to change them. Each rewrites a simulated healthy log and the log of the first RUN, a healthy run of the trainer.
2. Power: some of them at several severities, over simulated logs of several seeds.
3. False alarms: healthy simulated logs, and every RUN.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.doctor.doctor import ON_ALL_ROWS, ON_KEPT_ROWS
from analysis.doctor.examine import examine
from analysis.doctor.laws import LEVEL
from analysis.doctor.planted import Plan, write_run
from fspo.base.errors import run_cli
from fspo.base.files import write_text
from fspo.gradlog.run_folder import CONFIG, GRADLOG, METRICS
from fspo.rules import preset

HERE = Path(__file__).parent
PAGE, RESULTS = HERE.parent / "docs" / "doctor.md", HERE / "results" / "doctor_power.json"
Columns = dict[str, np.ndarray]
Rng = np.random.Generator


def after(c: Columns) -> np.ndarray:
    """Mask of the rows that were logged after at least one update since their rollout."""
    return c["updates_since_rollout"] > 0


def add(c: Columns, x: np.ndarray) -> Columns:
    """Add x to S, and let sums, band, side, multiplier and weight follow, as a trainer with such an S logs them."""
    S = c["log_ratio"] + x
    L = c["length"].astype(float)
    each = x / L
    square = c["sum_sq_log_ratio"] + 2 * each * c["log_ratio"] + L * each**2
    k3 = np.exp(each) * (c["k3_sum"] + L + c["log_ratio"]) - L - S
    return again({**c, "log_ratio": S, "sum_sq_log_ratio": square, "k3_sum": k3})


def again(c: Columns) -> Columns:
    """Compute side, multiplier, weight and band acceptance again from S, A and the edges, by fspo's rule."""
    rule = preset("fspo").rule
    done = rule.apply(c["log_ratio"], c["length"].astype(float), c["advantage"].astype(float), None, (c["lo"], c["hi"]))
    new = {"side": done.side, "multiplier": done.multiplier, "weight": done.weight, "band_accept": done.in_band}
    return c | {name: np.asarray(x).astype(c[name].dtype) for name, x in new.items()}


def swapped(c: Columns, name: str, rng: Rng) -> Columns:
    """Permute a column over the rows of a rollout."""
    return c | {name: rng.permutation(c[name])}


def kept(c: Columns, which: np.ndarray) -> Columns:
    """Return the columns of the rows ``which``."""
    return {name: x[which] for name, x in c.items()}


def joined(c: Columns, more: Columns) -> Columns:
    """Append the rows ``more``."""
    return {name: np.concatenate([x, more[name]]) for name, x in c.items()}


def copies(c: Columns, which: np.ndarray, *, prompts: bool) -> Columns:
    """Count some rows twice, under other ids of responses and, if wanted, of prompts."""
    more = kept(c, which)
    more["response_id"] = more["response_id"] + 10**6
    if prompts:
        more["prompt_id"] = more["prompt_id"] + 10**6
    return joined(c, more)


Change = Callable[[Columns, Rng, int], Columns]
DEFECTS: dict[str, Change] = {
    "S of temperature 1.02 against 1: .002 a token more": lambda c, r, i: add(c, 0.002 * c["length"]),
    "S too small by .001 a token after updates": lambda c, r, i: add(c, -0.001 * c["length"] * after(c)),
    "S a token more: +.3 in every row": lambda c, r, i: add(c, 0.3 + 0 * c["log_ratio"]),
    "S a token less: -.3 after updates": lambda c, r, i: add(c, -0.3 * after(c)),
    "S with the sign of old - new": lambda c, r, i: again(c | {"log_ratio": -c["log_ratio"]}),
    "S in bits": lambda c, r, i: again(c | {"log_ratio": c["log_ratio"] / np.log(2)}),
    "S as the mean over tokens": lambda c, r, i: again(c | {"log_ratio": c["log_ratio"] / c["length"]}),
    "S held at +-.2": lambda c, r, i: again(c | {"log_ratio": np.clip(c["log_ratio"], -0.2, 0.2)}),
    "S in bfloat16": lambda c, r, i: again(
        c
        | {"log_ratio": (c["log_ratio"].astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)}
    ),
    "S permuted in the rollout": lambda c, r, i: again(swapped(c, "log_ratio", r)),
    "S with noise of .02 a root token, after updates": lambda c, r, i: add(
        c, 0.02 * np.sqrt(c["length"]) * r.standard_normal(len(c["length"])) * after(c)
    ),
    "S of the rollout's second half set to 0": lambda c, r, i: again(
        c | {"log_ratio": c["log_ratio"] * (c["response_id"] % 256 < 128)}
    ),
    "k3 of the wrong sign of s": lambda c, r, i: c | {"k3_sum": c["k3_sum"] + 2 * c["log_ratio"]},
    "k3 as a mean over tokens": lambda c, r, i: c | {"k3_sum": c["k3_sum"] / c["length"]},
    "squares of S and not of its tokens": lambda c, r, i: c | {"sum_sq_log_ratio": c["log_ratio"] ** 2},
    "multiplier 1 everywhere": lambda c, r, i: c | {"multiplier": np.ones_like(c["multiplier"])},
    "weights of the geometric mean": lambda c, r, i: (
        c | {"weight": np.exp(c["log_ratio"] / c["length"]).astype(c["weight"].dtype)}
    ),
    "edges a tenth wider than the header's": lambda c, r, i: again(c | {"lo": c["lo"] * 1.1, "hi": c["hi"] * 1.1}),
    "clip side by S alone, whatever A": lambda c, r, i: (
        c | {"side": ((c["log_ratio"] > c["hi"]) * 1 - (c["log_ratio"] < c["lo"])).astype(c["side"].dtype)}
    ),
    "A not centred: +.2": lambda c, r, i: c | {"advantage": c["advantage"] + np.float32(0.2)},
    "A over the length": lambda c, r, i: (
        c | {"advantage": (c["advantage"] / c["length"] * 100).astype(c["advantage"].dtype)}
    ),
    "A permuted in the rollout": lambda c, r, i: again(swapped(c, "advantage", r)),
    "A of the opposite sign": lambda c, r, i: again(c | {"advantage": -c["advantage"]}),
    "A halved": lambda c, r, i: c | {"advantage": c["advantage"] / 2},
    "A of all rewards of the rollout, not of the group": lambda c, r, i: again(
        c | {"advantage": (c["reward"] - c["reward"].mean()).astype(c["advantage"].dtype)}
    ),
    "rewards permuted in the rollout": lambda c, r, i: swapped(c, "reward", r),
    "lengths permuted in the rollout": lambda c, r, i: swapped(c, "length", r),
    "lengths with the prompt's 20 tokens": lambda c, r, i: c | {"length": c["length"] + 20},
    "times_used 0 everywhere": lambda c, r, i: c | {"times_used": c["times_used"] * 0},
    "updates_since_rollout one less": lambda c, r, i: (
        c | {"updates_since_rollout": np.maximum(c["updates_since_rollout"] - 1, 0)}
    ),
    "every second response counted twice, under new prompts": lambda c, r, i: copies(
        c, c["response_id"] % 2 == 0, prompts=True
    ),
    "all responses counted twice, under their prompts": lambda c, r, i: copies(c, c["response_id"] >= 0, prompts=False),
    "one response in fifty counted twice, under new prompts": lambda c, r, i: copies(
        c, c["response_id"] % 50 == 0, prompts=True
    ),
    "the longest tenth of the rows missing": lambda c, r, i: kept(c, c["length"] < np.quantile(c["length"], 0.9)),
    "the rows of the last update missing": lambda c, r, i: kept(
        c, c["updates_since_rollout"] < c["updates_since_rollout"].max()
    ),
    "half of the prompts missing in rollout 3": lambda c, r, i: kept(c, (c["prompt_id"] % 2 == 0) | (i != 3)),
    "lengths held at the 90th percentile, not marked": lambda c, r, i: c | {"length": np.minimum(c["length"], 100)},
    "steps shifted by one from rollout 5 on": lambda c, r, i: c | {"step": c["step"] + (i >= 5)},
    "E of a sampler with top-p: -.004 a token": lambda c, r, i: (
        c | {"engine_log_ratio": -0.004 * c["length"] * r.uniform(0.5, 1.5, len(c["length"]))}
    ),
    "E of a sampler at temperature 1.3": lambda c, r, i: (
        c | {"engine_log_ratio": -0.02 * c["length"] + 0.2 * np.sqrt(c["length"]) * r.standard_normal(len(c["length"]))}
    ),
}
"""Ways to spoil the rows of a rollout, by description: functions of the log's columns, a random generator and the
rollout's number that return changed columns.
"""

SEVERITIES: dict[str, tuple[tuple[float, ...], Callable[[float], Change]]] = {
    "S too large, nats a token": (
        (1e-5, 3e-5, 1e-4, 3e-4),
        lambda s: lambda c, r, i: add(c, s * c["length"] * after(c)),
    ),
    "a token more in S, nats": ((0.003, 0.01, 0.03, 0.1), lambda s: lambda c, r, i: add(c, s * after(c))),
    "share of rows with another multiplier": (
        (1e-4, 1e-3, 1e-2, 0.1),
        lambda s: (
            lambda c, r, i: (
                c | {"multiplier": np.where(r.random(len(c["length"])) < s, 0.5, c["multiplier"]).astype(np.float32)}
            )
        ),
    ),
    "share of responses counted twice": (
        (0.005, 0.02, 0.05, 0.2),
        lambda s: lambda c, r, i: copies(c, c["response_id"] % 200 < 200 * s, prompts=True),
    ),
    "share of groups with permuted advantages": (
        (0.003, 0.01, 0.03, 0.1),
        lambda s: (
            lambda c, r, i: (
                c | {"advantage": np.where(c["prompt_id"] % 1000 < 1000 * s, c["advantage"][::-1], c["advantage"])}
            )
        ),
    ),
}


def rewritten(source: Path, target: Path, change: Change, seed: int) -> Path:
    """Copy a run folder, with the rows of each log file changed."""
    shutil.copytree(source / GRADLOG, target / GRADLOG)
    for name in (METRICS, CONFIG):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    for file in sorted((target / GRADLOG).iterdir()):
        table = pq.read_table(file)
        n = len(table)
        columns = {f: table[f].to_numpy(zero_copy_only=False) for f in table.column_names if table[f].null_count < n}
        rollout = int(columns["rollout"][0])
        changed = change(columns, np.random.default_rng((seed, rollout)), rollout)
        size = len(changed["rollout"])
        arrays = [
            pa.array(changed[f.name]).cast(f.type, safe=False) if f.name in changed else pa.nulls(size, f.type)
            for f in table.schema
        ]
        pq.write_table(pa.Table.from_arrays(arrays, schema=table.schema), file)
    return target


def said(run: Path) -> list[str]:
    """Return the ids of the doctor's findings about a run."""
    return [answer.id for answer in examine(run).findings]


def unseen(bases: dict[str, Path], folder: Path) -> list[dict[str, Any]]:
    """Return, for each defect and healthy run, which findings the spoilt log has and the healthy one has not."""
    before = {name: set(said(run)) for name, run in bases.items()}
    rows = []
    for number, (defect, change) in enumerate(DEFECTS.items()):
        row: dict[str, Any] = {"defect": defect}
        for name, run in bases.items():
            made = rewritten(run, folder / f"{name}-{number}", change, number)
            row[name] = [i for i in said(made) if i not in before[name]]
            shutil.rmtree(made)
        rows.append(row)
        print(row, flush=True)
    return rows


def power(seeds: int, folder: Path) -> list[dict[str, Any]]:
    """Return the share of seeds in which a defect of each severity is found."""
    rows = []
    for name, (severities, make) in SEVERITIES.items():
        for severity in severities:
            seen = 0
            for seed in range(seeds):
                base = folder / f"base-{seed}"
                if not base.exists():
                    write_run(base, Plan(), 1000 + seed)
                made = rewritten(base, folder / "made", make(severity), seed)
                seen += bool(set(said(made)) - set(said(base)))
                shutil.rmtree(made)
            rows.append({"defect": name, "severity": severity, "found": seen, "of": seeds})
            print(rows[-1], flush=True)
    return rows


def false_alarms(number: int, folder: Path) -> dict[str, Any]:
    """Examine healthy simulated runs of several rules."""
    rules = ("fspo", "fspo-kl", "fspo-truncate", "none", "fspo-cap")
    found = []
    for seed in range(number):
        run = write_run(folder / "healthy", Plan(rule=preset(rules[seed % len(rules)]).rule), 5000 + seed)
        ids = said(run)
        shutil.rmtree(run)
        found += [{"seed": seed, "rule": rules[seed % len(rules)], "findings": ids}] if ids else []
    return {"runs": number, "with findings": found}


def commit_of(path: str) -> str:
    """Return the last commit that changed a folder."""
    done = subprocess.run(["git", "log", "-1", "--format=%h", "--", path], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def page(found: dict[str, Any]) -> str:
    """Return the text of docs/doctor.md."""
    rows, bases = found["unseen"], found["bases"]
    lines = [
        "# The doctor",
        "",
        "Written by `studies/doctor_power.py`; the numbers are in `studies/results/doctor_power.json`.",
        "",
        "`python -m analysis doctor RUN` reads a gradient log and says what cannot be true of a sound run. Checks of "
        "single rows and files recompute; laws are tests, and one level of "
        f"{LEVEL:.0%} is shared by all of a report and by every look at a log that grows "
        "(`analysis/stats/anytime.py`). The level is asymptotic: exact for symmetric terms, and it does not hold for "
        "heavy tails. Outside it are `before_update`, `direction`, `engine`, `drift`, `numerics` and "
        "`sorted_minibatches`, which compare with thresholds of their own. Each finding has a cure, its evidence and "
        "the rollout from which on it holds.",
        "",
        "Rows chosen by their outcome (DAPO's dynamic sampling drops groups with equal rewards) break the laws: "
        "`mean_weight` and `k1_k3` may then name a sound run.",
        "",
        "| law | source | check |",
        "| --- | --- | --- |",
        "| $`E[e^S] = 1`$ at first use | T9 | `mean_weight` |",
        "| $`E[\\sum_t (e^{s_t}-1)] = 0`$, so $`-E[S] = E[k3]`$ | T9 (ii) | `k1_k3` |",
        "| $`E[(e^S-1) h(L)]`$ is the shift of the mean of $`h(L)`$ | T9 | `weight_by_length` |",
        "| $`E[S] = -KL \\le 0`$ | T9, Jensen | `drift_sign` |",
        "| S = 0 where new and old weights are one | section 1 | `before_update` |",
        "| an ascent step raises $`\\sum A (S - \\bar S)`$, $`\\bar S`$ the group's mean, over the rows that it "
        "trained on | section 1 | `direction` |",
        "| $`E_{mu}[e^E] = 1`$; below 1 where sampling was truncated | T16 | `sampler_law` |",
        "| edges, sides, multipliers, weights follow from rule, drift, S and A | section 2 | `band`, `clip` |",
        "| Cauchy-Schwarz, Jensen and monotonicity bound the sums over tokens | section 1 | `sums` |",
        "| A is a line in the group's reward through its mean | section 1 | `estimator` |",
        "",
        f"Checks of every row: {', '.join(f'`{n}`' for n in ON_ALL_ROWS)}. Of kept rows: "
        f"{', '.join(f'`{n}`' for n in ON_KEPT_ROWS)}.",
        "",
        "## Defects that nobody planted for it",
        "",
        f"{len(rows)} rewrites, written after the checks (commit {found['commit']}) and not used to change them. Named "
        "are the checks that find something on the rewritten log and nothing on the log itself.",
        "",
        f"| defect | {' | '.join(bases)} |",
        "| --- |" + " --- |" * len(bases),
        *(f"| {r['defect']} | " + " | ".join(", ".join(r[b]) or "**unseen**" for b in bases) + " |" for r in rows),
        "",
        *(f"Seen on the {b} log: {sum(bool(r[b]) for r in rows)} of {len(rows)}." for b in bases),
    ]
    if found["power"]:
        lines += ["", "## Power", "", "| defect | severity | found |", "| --- | --- | --- |"]
        lines += [f"| {r['defect']} | {r['severity']:g} | {r['found']} of {r['of']} |" for r in found["power"]]
    alarms, real = found["false_alarms"], found["real"]
    lines += [
        "",
        "## False alarms",
        "",
        f"Healthy simulated runs with a finding: {len(alarms['with findings'])} of {alarms['runs']}"
        + "".join(f"; {a['rule']}, seed {a['seed']}: {', '.join(a['findings'])}" for a in alarms["with findings"])
        + ".",
        "",
        f"Short real runs of the trainer with a finding: {sum(bool(v) for v in real.values())} of {len(real)}"
        + "".join(f"; {name}: {', '.join(ids)}" for name, ids in real.items() if ids)
        + ".",
    ]
    return "\n".join([*lines, "", *WORTH]) + "\n"


WORTH = (
    "## What these numbers are worth",
    "",
    "- Who wrote the checks wrote the 40 defects too. A defect counts as seen where any check finds something new,",
    "  under whatever name; some rewrites disturb more columns than the defect needs.",
    "- The simulated healthy runs had been of other rules first: 12 of 100 had the finding `acceptance`, all of rule",
    "  `power`, whose published range is wide for these logs. That rule was then replaced by fspo-cap.",
    "- The real healthy runs are a second batch. In the first, with a larger learning rate and responses of at most 96",
    "  tokens, 29 of 32 had findings (`truncation`, `drift`, `acceptance`, `heavy_weights`), none of them from a law.",
    "- The tables were made before a last change of `direction`, `values_of_s` and `length_pile`, which makes them",
    "  find less in sound runs, and were not made again.",
    "- A shift of S by -.1 after the updates was missed in a log of 10 rollouts: one heavy weight hides means below 0.",
)


def main() -> None:
    """Run the study and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bases = {"simulated": write_run(folder / "simulated", Plan(), 0)}
        bases |= {"real": options.runs[0]} if options.runs else {}
        found: dict[str, Any] = {"bases": list(bases), "commit": commit_of("../analysis/doctor")}
        found["unseen"] = unseen(bases, folder)
        found["real"] = {run.name: said(run) for run in options.runs}
        found["power"] = power(options.seeds, folder)
        found["false_alarms"] = false_alarms(options.healthy, folder)
    write_text(RESULTS, json.dumps(found, indent=2) + "\n")
    write_text(PAGE, page(found))


if __name__ == "__main__":
    run_cli(main)
