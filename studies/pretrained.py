"""Measure how S depends on the length on a pretrained language model. Writes CSV files to results/pretrained/.

Unclipped runs train a small pretrained model to count: the prompt shows four solved examples and asks for the numbers
from a to b. The reward of the first run is 1 for the right numbers and a line end, else 0. As its rewards were soon
equal within most groups, whose updates have no gradient, the further runs have a graded reward
(`studies.counting_reward`). Responses have some 2 to 150 tokens. A run that was stopped goes on. The model is a folder
of a base model with an unquantised tokenizer, as ``save_pretrained`` writes it; the published numbers come from Gemma 3
270M (268M parameters, 262,144 tokens).

    python -m studies.pretrained MODEL --output out/pretrained     # 32 rollouts a run, an hour on two idle cores
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from transformers import AutoTokenizer, GenerationConfig

from analysis.api import analyse
from analysis.log.loading import load_run
from analysis.stats.fair_exponent import fair_exponents
from fspo.base.errors import run_cli
from fspo.base.files import whole_file, write_text
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.gradlog.metrics_file import MetricsFile
from fspo.gradlog.run_folder import MODEL
from fspo.rules import COMPARED, COMPARED_ADVANTAGE
from fspo.train.trainer import Trainer

RUNS = {
    "exact-seed11": (11, "exact"),
    "graded-seed12": (12, "studies.counting_reward:graded"),
    "graded-seed13": (13, "studies.counting_reward:graded"),
}
"""Seed of the prompts and of the run, and verifier, of each run. All constants of a run were fixed, and committed,
before it began."""
PROMPTS = 512
MOST_NUMBERS = 50
SHOTS = ((3, 6), (12, 14), (7, 7), (21, 29))
EDGES = (1, 8, 16, 32, 64, 161)
ROLLOUTS = 32
RULES = COMPARED
RESULTS = Path(__file__).resolve().parents[1] / "results" / "pretrained"
SHARES = (0.75, 0.85, 0.95)
"""Accepted shares at which the fair exponent is estimated."""
MEASURES = ("subset == 'all' and measure == 'band'", "subset == 'nonzero' and measure == 'update'")
"""What is shown of each rule: which of all responses lie in its band, which with A != 0 it does not clip."""
OPTIONS = {
    "rule.preset": "none",
    "rule.advantage": COMPARED_ADVANTAGE,
    "batch.prompts": 8,
    "batch.responses": 8,
    "batch.minibatches": 4,
    "batch.epochs": 1,
    "sampling.max_new_tokens": EDGES[-1] - 1,
    "optim.learning_rate": 1e-6,
    "optim.warmup_updates": 4,
    "log.score_minibatches": [1, 2, 3],
    "eval.every": 0,
    "checkpoint_every": 2,
    "keep_checkpoints": 1,
    "resume": "true",
    "trackers": "[]",
}
"""Options of all runs; those that are not named have their defaults. Scores are logged in all updates of a rollout but
the first."""


def counted(first: int, last: int) -> str:
    """Return all whole numbers from ``first`` to ``last`` as text, separated by blanks."""
    return " ".join(str(number) for number in range(first, last + 1))


def question(first: int, last: int) -> str:
    """Return the prompt that asks for the numbers from ``first`` to ``last``."""
    shots = "".join(f"Count from {a} to {b}: {counted(a, b)}\n" for a, b in SHOTS)
    return f"{shots}Count from {first} to {last}:"


def write_task(path: Path, seed: int) -> None:
    """Write `PROMPTS` distinct prompts, drawn with a seed, with their answers to a file.

    The first of the numbers that a prompt asks for is uniform in 1 to 49, and their count is log-uniform in 1 to 50. A
    prompt that was drawn before is drawn anew, so the two laws hold only nearly.
    """
    rng = np.random.default_rng(seed)
    asked: dict[tuple[int, int], None] = {}
    while len(asked) < PROMPTS:
        first = int(rng.integers(1, 50))
        many = min(int((MOST_NUMBERS + 1) ** rng.random()), MOST_NUMBERS)
        asked.setdefault((first, first + many - 1))
    rows = [json.dumps({"prompt": question(*pair), "answer": counted(*pair)}) for pair in asked]
    write_text(path, "\n".join(rows) + "\n")


def with_line_end(model: Path, folder: Path) -> Path:
    """Make a folder that links to the model's files, with the line end among the end tokens; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in model.resolve().iterdir():
        link = folder / path.name
        if not link.exists() and path.name != "generation_config.json":
            link.symlink_to(path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    (line_end,) = tokenizer("\n", add_special_tokens=False)["input_ids"]
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, line_end],
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    return folder


def trained(name: str, model: Path, output: Path, rollouts: int, threads: int) -> Path:
    """Train the run ``name`` of `RUNS` under ``output``, unless it is done, and return its folder."""
    (seed, verifier), run = RUNS[name], output / name
    task = output / f"counting-seed{seed}.jsonl"
    if not task.exists():
        output.mkdir(parents=True, exist_ok=True)
        write_task(task, seed)
    if (run / MODEL).exists():
        return run
    options = OPTIONS | {
        "output": run,
        "seed": seed,
        "rollouts": rollouts,
        "threads": threads,
        "model.name_or_path": with_line_end(model, output / "start"),
        "task.name": "dataset",
        "task.options": json.dumps({"path": str(task), "judge": {"verifier": verifier}}),
    }
    Trainer(parse(TrainConfig, [word for name, value in options.items() for word in (f"--{name}", str(value))])).train()
    return run


def publish(run: Path, results: Path, seed: int) -> None:
    """Analyse the run, and write its small tables and its numbers to the folder ``results``."""
    tables = analyse(run, edges=EDGES, rules=RULES)
    rows = load_run(run).rows.use("first")
    rows = rows.take(rows.updates > 0)
    exponents = [
        {"responses": responses, "share": share, **found._asdict()}
        for responses in ("all", "A != 0")
        for share, found in zip(SHARES, fair_exponents(rows, SHARES, responses), strict=True)
    ]
    files = {"fair_exponent": pd.DataFrame(exponents)}
    bins = ["bin_lo", "bin_hi", "bin_mean", "count", "clusters", "estimate"]
    for name, columns in (("trend", ["slope"]), ("acceptance", bins)):
        drops = tables[name].query("source == 'matched' and outside == 'drop'")
        found = [drops.query(where) for where in MEASURES]
        shown = ["rule", "measure", "target", *columns, "ci_low", "ci_high"]
        files[name] = pd.DataFrame(pd.concat(found), columns=shown)
    results.mkdir(parents=True, exist_ok=True)
    for name, table in files.items():
        with whole_file(results / f"{name}.csv") as path:
            table.to_csv(path, index=False, float_format="%.4g")
    rewards = np.array([row["reward"] for row in MetricsFile(run).of_phase("train")])
    quarter = max(len(rewards) // 4, 1)
    law = tables["scaling"].query("use == 'first' and sign == 'all'").set_index("subset")
    said = {
        "seed": seed,
        "rollouts": len(rewards),
        "planned": ROLLOUTS,
        "rows": len(rows),
        "nonzero": int(np.sum(rows.A != 0)),
        "prompts": len(np.unique(rows.cluster)),
        "shortest": int(rows.length.min()),
        "longest": int(rows.length.max()),
        "first": float(rewards[:quarter].mean()),
        "last": float(rewards[-quarter:].mean()),
        "unmoved": int(np.sum(rows.S == 0)),
        **{
            name: [float(law.loc[subset, column]) for column in ("slope_2H", "ci_low", "ci_high")]
            for name, subset in (("exponent", "all"), ("exponent_nonzero", "nonzero"))
        },
    }
    write_text(results / "run.json", json.dumps(said, indent=1) + "\n")


def main() -> int:
    """Train the runs that are missing, and publish their numbers."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path, help="folder of the pretrained model")
    p.add_argument("--output", type=Path, default=Path("out/pretrained"), help="folder of the runs")
    p.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="runs to train and publish")
    p.add_argument("--rollouts", type=int, default=ROLLOUTS, help="rollouts of 8 prompts with 8 responses")
    p.add_argument("--threads", type=int, default=2, help="torch threads")
    args = p.parse_args()
    for name in args.runs:
        run = trained(name, args.model, args.output.resolve(), args.rollouts, args.threads)
        publish(run, RESULTS / name, RUNS[name][0])
    return 0


if __name__ == "__main__":
    run_cli(main)
