"""Train a pretrained language model without a clip, for the numbers of unclipped runs on a model of another kind.

The prompt shows four solved examples and asks for the numbers from a to b; the reward is graded
(`studies.counting_reward`). Responses have some 2 to 150 tokens. The model is a folder of a base model with an
unquantised tokenizer, as ``save_pretrained`` writes it; the published numbers come from Gemma 3 270M (268M parameters,
262,144 tokens). A run that was stopped goes on. `studies.findings` publishes the finished runs.

    python -m studies.pretrained MODEL --output out/pretrained     # three runs of an hour each on two cores
    python -m studies.findings --pretrained out/pretrained
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, GenerationConfig

from fspo.base.errors import run_cli
from fspo.base.files import write_text
from fspo.base.options import parse
from fspo.config import TrainConfig
from fspo.gradlog.run_folder import MODEL
from fspo.repro.presets import PlannedRun
from fspo.repro.stages import Job
from fspo.train.trainer import Trainer

SEEDS = (41, 42, 43)
"""Seeds of the prompts and of the runs. All constants were fixed, and committed, before the first run began."""
ROLLOUTS = 15
PROMPTS = 512
MOST_NUMBERS = 50
SHOTS = ((3, 6), (12, 14), (7, 7), (21, 29))
CONFIG = Path(__file__).with_suffix(".yaml")


def counted(first: int, last: int) -> str:
    """Return all whole numbers from ``first`` to ``last`` as text, separated by blanks."""
    return " ".join(str(number) for number in range(first, last + 1))


def question(first: int, last: int) -> str:
    """Return the prompt that asks for the numbers from ``first`` to ``last``."""
    shots = "".join(f"Count from {a} to {b}: {counted(a, b)}\n" for a, b in SHOTS)
    return f"{shots}Count from {first} to {last}:"


def write_task(path: Path, seed: int) -> None:
    """Write 512 distinct prompts, drawn with a seed, with their answers to a file.

    The first of the numbers that a prompt asks for is uniform in 1 to 49, and their count is log-uniform in 1 to 50. A
    prompt that was drawn before is drawn anew, so the two distributions hold only nearly."""
    rng = np.random.default_rng(seed)
    asked: dict[tuple[int, int], None] = {}
    while len(asked) < PROMPTS:
        first = int(rng.integers(1, 50))
        many = min(int((MOST_NUMBERS + 1) ** rng.random()), MOST_NUMBERS)
        asked.setdefault((first, first + many - 1))
    rows = [json.dumps({"prompt": question(*pair), "answer": counted(*pair)}) for pair in asked]
    write_text(path, "\n".join(rows) + "\n")


def with_line_end(model: Path, folder: Path) -> Path:
    """Make a folder that links to the files of the model folder ``model``, with the line end among the end tokens;
    return it."""
    if not folder.exists():
        own = shutil.ignore_patterns("generation_config.json")
        shutil.copytree(model.resolve(), folder, ignore=own, copy_function=os.symlink)
    tokenizer = AutoTokenizer.from_pretrained(model)
    (line_end,) = tokenizer("\n", add_special_tokens=False)["input_ids"]
    ends, others = [tokenizer.eos_token_id, line_end], {"bos_token_id": tokenizer.bos_token_id}
    GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, **others).save_pretrained(folder)
    return folder


def planned_runs(output: Path) -> Iterator[PlannedRun]:
    """Yield the runs whose folders lie under ``output``, in the form of the runs of a reproduction."""
    for seed in SEEDS:
        yield PlannedRun("counting", "pretrained", "none", seed, Job(output / f"seed{seed}", (), ROLLOUTS))


def train(run: PlannedRun, model: Path, threads: int) -> None:
    """Train a run of the pretrained model in the folder ``model`` with ``threads`` threads, unless it is done."""
    folder = run.job.run
    task = folder.parent / f"counting-seed{run.seed}.jsonl"
    if (folder / MODEL).exists():
        return
    if not task.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_task(task, run.seed)
    of_task = {"path": str(task), "judge": {"verifier": "studies.counting_reward:graded"}}
    words = ["--config", str(CONFIG), "--output", str(folder), "--seed", str(run.seed), "--threads", str(threads)]
    words += ["--model.name_or_path", str(with_line_end(model, folder.parent / "start")), "--rollouts", str(ROLLOUTS)]
    Trainer(parse(TrainConfig, [*words, "--task.options", json.dumps(of_task)])).train()


def main() -> int:
    """Train the runs that the output folder does not hold yet, and return the exit status."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path, help="folder of the pretrained model")
    p.add_argument("--output", type=Path, default=Path("out/pretrained"), help="folder of the runs")
    p.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS), help="runs to train")
    p.add_argument("--threads", type=int, default=2, help="torch threads")
    args = p.parse_args()
    for run in planned_runs(args.output.resolve()):
        if run.seed in args.seeds:
            train(run, args.model, args.threads)
    return 0


if __name__ == "__main__":
    run_cli(main)
