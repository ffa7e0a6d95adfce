"""Compare this project's trainer with TRL's GRPOTrainer: seconds and memory of one rollout step (sampling and all
updates on the responses), measured in turn in one run.

    python benchmarks/trl_rollout_step.py [--cases embedded ...] [--rollouts 4] [--rounds 2] [--threads 2]
    python benchmarks/trl_rollout_step.py --cases pretrained --model FOLDER

In each case of `CASES` both trainers train the same model with GSPO's rule (TRL: importance_sampling_level="sequence"),
on the same prompts, with the same numbers of responses and updates, the same optimizer and learning rates, on the CPU.
A trainer with its settings is called a side. Each side runs in its own process, the sides take turns, and the first
rollout of each process warms up and is left out (with --rollouts 1 it counts: at large shapes it costs what any other
does, but for the first allocations). TRL runs with microbatches of several sizes, of which the largest is a whole
minibatch; for each measure (seconds, memory) the size that is best at it counts. No side writes a checkpoint.

Wall seconds are what a user waits for; CPU seconds (all threads) move less on a busy machine. Peak memory is the
process's resident maximum, its imports included, which are also measured alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from measuring import RESULTS, machine, peak_mib, write_results

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # Idle threads shall sleep: busy waiting would slow training down.

RESULT = RESULTS / "trl_rollout_step.json"
OURS = {
    "fspo": "this trainer, gradient log with a score pass each rollout (default)",
    "fspo-no-scores": "this trainer, gradient log without score passes",
}


@dataclass(frozen=True)
class TrainedCase:
    """A case of the comparison: the model, task and settings with which this project's trainer and TRL's train, and the
    sizes of TRL's microbatches, in responses.

    If ``model`` is empty, `prepared` finds or makes a folder with the model.
    """

    task: str
    prompts: int
    responses: int
    minibatches: int
    epochs: int
    max_new_tokens: int
    learning_rate: float
    warmup_updates: int
    microbatches: tuple[int, ...]
    model: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def minibatch(self) -> int:
        """Number of responses in a minibatch."""
        return self.prompts * self.responses // self.minibatches

    @property
    def updates(self) -> int:
        """Number of updates on a rollout."""
        return self.minibatches * self.epochs

    @property
    def sides(self) -> dict[str, str]:
        """Descriptions of the sides (a trainer with its settings) that are compared, by name."""
        return OURS | {f"trl-{n}": f"TRL, microbatches of {n} responses" for n in self.microbatches}


QWEN = TrainedCase("even-tokens", 8, 4, 4, 1, 128, 1e-6, 4, (8, 2), "random:Qwen3-0.6B-Base")
CASES = {
    "embedded": TrainedCase("chain-add", 64, 8, 4, 2, 264, 2e-4, 24, (128, 32, 8)),
    "qwen3-0.6b": QWEN,
    "qwen3-0.6b-bfloat16": replace(QWEN, dtype="bfloat16"),
    "pretrained": TrainedCase("dataset", 4, 8, 4, 1, 160, 1e-6, 4, (8, 2)),
}
"""Cases by name: the embedded model (0.4M parameters) after its warm-up; Qwen3-0.6B's shape with random weights; a
pretrained model that learns to count, as in `studies/pretrained.py`.
"""
KEPT = ("completions/mean_length", "reward")


def now() -> tuple[float, float]:
    """Return the present readings of two clocks: wall seconds, and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()


def run_fspo(
    case: TrainedCase, task: dict[str, Any], rollouts: int, threads: int, folder: str, score_every: int
) -> dict[str, Any]:
    """Train with this project's trainer and time each rollout step: the same work that `run_trl` times."""
    from fspo import config as c
    from fspo.config import SamplingConfig
    from fspo.gradlog import metric_names as metric
    from fspo.train.trainer import Trainer

    imports = peak_mib()
    clocks: list[tuple[float, float]] = []
    parts: list[dict[str, float]] = []

    class Timed(Trainer):
        """A trainer that reads the clocks at the beginning of each rollout and at the end of the last one, and saves
        no weights."""

        def _rollout(self, rollout: int) -> dict[str, float]:
            clocks.append(now())
            values = super()._rollout(rollout)
            parts.append({k: v for k, v in values.items() if k.startswith(metric.TIME) or k in KEPT})
            if rollout == rollouts - 1:
                clocks.append(now())
            return values

        def _checkpoint(self) -> None: ...

        def _export(self) -> None: ...

    trainer = Timed(
        c.TrainConfig(
            output=folder,
            rollouts=rollouts,
            threads=threads,
            checkpoint_every=0,
            trackers=(),
            cpu=True,
            model=c.ModelConfig(name_or_path=case.model, dtype=case.dtype),
            task=c.TaskConfig(name=case.task, options=task),
            rule=c.RuleConfig(preset="gspo"),
            batch=c.BatchConfig(
                prompts=case.prompts, responses=case.responses, minibatches=case.minibatches, epochs=case.epochs
            ),
            sampling=SamplingConfig(max_new_tokens=case.max_new_tokens),
            optim=c.OptimConfig(learning_rate=case.learning_rate, warmup_updates=case.warmup_updates),
            log=c.LogConfig(score_every=score_every),
            eval=c.EvalConfig(every=0),
        )
    )
    trainer.train()
    return {"clocks": clocks, "parts": parts, "imports_mib": imports}


def run_trl(
    case: TrainedCase, options: dict[str, Any], rollouts: int, threads: int, folder: str, microbatch: int
) -> dict[str, Any]:
    """Train with TRL's GRPOTrainer, on the prompts and rewards that `run_fspo` uses, and time each rollout step."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from fspo.gradlog import metric_names as metric
    from fspo.models.load import eos_token_ids, load_model, load_tokenizer
    from fspo.tasks import make_task, prompt_order

    imports = peak_mib()
    torch.set_num_threads(threads)
    task, tokenizer = make_task(case.task, options), load_tokenizer(case.model)
    model = load_model(case.model, case.dtype)
    ends = eos_token_ids(model, tokenizer)
    indices = prompt_order(task.size("train"), 0, 0, rollouts * case.prompts)
    examples = [task.example("train", int(i)) for i in indices]
    data = Dataset.from_list([{"prompt": e.prompt, "number": i} for i, e in enumerate(examples)])
    clocks: list[tuple[float, float]] = []
    parts: list[dict[str, float]] = []

    def reward(
        completions: list[str], completion_ids: list[list[int]], number: list[int], **_: Any
    ) -> list[float | None]:
        sampled = time.perf_counter() - clocks[-1][0]
        finished = [ids[-1] in ends for ids in completion_ids]
        values = task.score([examples[i] for i in number], completions, finished).values
        mean = sum(map(len, completion_ids)) / len(completion_ids)
        parts.append({"completions/mean_length": mean, "reward": float(values.mean()), metric.TIME + "sample": sampled})
        return values.tolist()

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % case.updates == 0:
                clocks.append(now())

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clocks.append(now())

    args = GRPOConfig(
        output_dir=folder,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=case.updates,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=case.minibatch // microbatch,
        steps_per_generation=case.prompts * case.responses // microbatch,
        num_iterations=case.epochs,
        num_generations=case.responses,
        max_completion_length=case.max_new_tokens,
        max_steps=rollouts * case.updates,
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=3e-4,
        epsilon_high=4e-4,
        beta=0.0,
        temperature=1.0,
        shuffle_dataset=False,
        learning_rate=case.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=case.warmup_updates,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    return {"clocks": clocks, "parts": parts, "imports_mib": imports}


def child(side: str, case: TrainedCase, task: dict[str, Any], rollouts: int, threads: int, result: str) -> None:
    """Train in this process with one of the compared trainers (``side``: TRL's or this project's), and write seconds
    and memory to the file ``result``."""
    with tempfile.TemporaryDirectory() as folder:
        if side.startswith("trl"):
            found = run_trl(case, task, rollouts, threads, folder, int(side.split("-")[1]))
        else:
            found = run_fspo(case, task, rollouts, threads, f"{folder}/run", 0 if side == "fspo-no-scores" else 1)
    clocks = found.pop("clocks")
    if len(clocks) != rollouts + 1:
        raise RuntimeError(f"{side}: {len(clocks) - 1} rollouts were timed, not {rollouts}")
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(clocks)]
    found |= {"wall_s": [s[0] for s in steps], "cpu_s": [s[1] for s in steps], "peak_mib": peak_mib()}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def prepared(name: str, model: str | None, folder: Path) -> tuple[TrainedCase, dict[str, Any]]:
    """Return the benchmark's case ``name`` with its model filled in (a name or a folder), and the options of its task.

    The embedded model is warmed up first. A pretrained model, in the folder ``model``, gets a second folder in which
    the line end is one of the tokens that end a response.

    New files are written to ``folder``.
    """
    case = CASES[name]
    if case.model:
        return case, {}
    if name == "embedded":
        from fspo.models.warmup import warm_up

        return replace(case, model=str(warm_up())), {}
    from studies.pretrained import RUNS, with_line_end, write_task

    seed, _ = RUNS["exact-seed11"]
    write_task(folder / "counting.jsonl", seed)
    start = with_line_end(Path(str(model)), folder / "start")
    return replace(case, model=str(start)), {"path": str(folder / "counting.jsonl")}


def measure(
    case: TrainedCase, task: dict[str, Any], sides: list[str], rollouts: int, rounds: int, threads: int
) -> dict[str, list[dict[str, Any]]]:
    """Run every compared trainer once in each round, each in a process started for it."""
    from tqdm import tqdm

    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    bar = tqdm([(r, side) for r in range(rounds) for side in sides], desc="benchmark", unit="process")
    for _, side in bar:
        bar.set_postfix_str(side)
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            told = json.dumps({"case": asdict(case), "task": task})
            command = [sys.executable, __file__, "--child", side, "--told", told, "--result", str(result)]
            command += ["--rollouts", str(rollouts), "--threads", str(threads)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
            runs[side].append(json.loads(result.read_text(encoding="utf-8")))
    return runs


def summarise(case: TrainedCase, runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return for each compared trainer the mean seconds of a rollout step, over rounds and rollouts, and the largest
    memory. The first rollout of a process is left out if the process has others."""
    table: dict[str, dict[str, Any]] = {}
    for side, found in runs.items():
        row: dict[str, Any] = {"what": case.sides[side]}
        for key in ("wall_s", "cpu_s"):
            row[f"{key}_by_round"] = [fmean(run[key][1:] or run[key]) for run in found]
            row[key] = fmean(row[f"{key}_by_round"])
        row["peak_mib"] = max(run["peak_mib"] for run in found)
        row["imports_mib"] = max(run["imports_mib"] for run in found)
        names = dict.fromkeys(name for run in found for part in run["parts"] for name in part)
        parts = [part for run in found for part in run["parts"][1:] or run["parts"]]
        row["parts"] = {n: fmean([part.get(n, 0.0) for part in parts]) for n in names}
        table[side] = row
    return compare(table)


def compare(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add to the table's rows of this project's trainer how many times faster than TRL it is, and its memory over
    TRL's. Each measure is compared with the microbatch size at which TRL is best at it."""
    peers = [side for side in table if side.startswith("trl")]
    for side in [s for s in table if s.startswith("fspo")] if peers else []:
        row = table[side]
        for key in ("wall_s", "cpu_s"):
            best = min(peers, key=lambda peer: table[peer][key])
            ours, theirs = row[f"{key}_by_round"], table[best][f"{key}_by_round"]
            row[f"against_{key}"] = best
            row[f"speedup_{key}"] = [b / a for a, b in zip(ours, theirs, strict=True)]
        row["memory_ratio"] = row["peak_mib"] / min(table[peer]["peak_mib"] for peer in peers)
    return table


def show(table: dict[str, dict[str, Any]]) -> str:
    """Return as text a table of the compared trainers: seconds, memory, mean length of responses and mean reward."""
    from fspo.gradlog import metric_names as metric

    heads = ("wall s", "CPU s", "peak MiB", "imports", "tokens", "reward")
    lines = [f"{'side':16s}" + "".join(f"{head:>9s}" for head in heads)]
    for side, row in table.items():
        parts = row["parts"]
        lines.append(
            f"{side:16s}{row['wall_s']:9.2f}{row['cpu_s']:9.2f}{row['peak_mib']:9.0f}{row['imports_mib']:9.0f}"
            f"{parts['completions/mean_length']:9.1f}{parts['reward']:9.3f}"
        )
    for side, row in table.items():
        if "memory_ratio" in row:
            speeds = []
            for key, name in (("wall_s", "wall seconds"), ("cpu_s", "CPU seconds")):
                factors = ", ".join(f"{x:.2f}" for x in row[f"speedup_{key}"])
                speeds.append(f"{factors} times faster in {name} ({row[f'against_{key}']})")
            lines.append(
                f"{side}: {' and '.join(speeds)} (one number a round); {row['memory_ratio']:.2f} of the peak memory of "
                "the leanest TRL side"
            )
        inside = {k.removeprefix(metric.TIME): v for k, v in row["parts"].items() if k.startswith(metric.TIME)}
        rest = row["wall_s"] - sum(inside.values())
        shares = ", ".join(f"{k} {v:.2f} s ({v / row['wall_s']:.0%})" for k, v in (inside | {"rest": rest}).items())
        lines.append(f"  {side}, of {row['wall_s']:.2f} s: {shares}")
    return "\n".join(lines)


def main() -> None:
    """Compare this project's trainer with TRL's, print the tables and write them to benchmarks/results."""
    # Parse with argparse, because the imports of fspo.base.command_line would count in the memory measured for TRL.
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rollouts", type=int, default=4, help="rollouts of each process, of two or more without the first"
    )
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each process")
    default = [name for name in CASES if name != "pretrained"]
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=default, help="what is trained")
    parser.add_argument(
        "--sides", nargs="+", help="what is compared, as fspo and trl-8; by default all sides of a case"
    )
    parser.add_argument("--model", help="folder of the pretrained model; the case pretrained needs it")
    for name in ("--child", "--told", "--result"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        told = json.loads(options.told)
        case = TrainedCase(**told["case"])
        child(options.child, case, told["task"], options.rollouts, options.threads, options.result)
        return
    if "pretrained" in options.cases and options.model is None:
        parser.error("the case pretrained needs --model, a folder of a pretrained model")
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            case, task = prepared(name, options.model, Path(folder))
            sides = [side for side in case.sides if side in (options.sides or case.sides)]
            runs = measure(case, task, sides, options.rollouts, options.rounds, options.threads)
        table = summarise(case, runs)
        print(name, show(table), sep="\n")
        report = {
            "sides": table,
            "setting": {key: value for key, value in asdict(CASES[name]).items() if key != "microbatches"},
            "rollouts": options.rollouts,
            "rounds": options.rounds,
            "threads": options.threads,
            "machine": f"{platform.system()} {platform.machine()}",
            **machine("torch", "transformers", "trl", "accelerate", "fspo"),
        }
        found = json.loads(RESULT.read_text(encoding="utf-8"))["cases"] if RESULT.exists() else {}
        write_results({"cases": found | {name: report}}, RESULT)


if __name__ == "__main__":
    main()
