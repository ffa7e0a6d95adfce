"""Compare this project's trainer with TRL's GRPOTrainer: seconds and memory of one rollout step (sampling and all
updates on the responses), measured in turn in one run.

    python benchmarks/trl_rollout_step.py [--cases embedded ...] [--rollouts 4] [--rounds 2] [--threads 2]

In each case of `CASES` both trainers train the same model with GSPO's rule (TRL: importance_sampling_level="sequence"),
on the same prompts, with the same numbers of responses and updates, optimizer and learning rates, on the CPU or GPU. A
trainer with its settings is called a side. Each side runs in its own process, the sides take turns, and the first
rollout of each process warms up and is left out (with --rollouts 1 it counts: at large shapes it costs what any other
does, but for the first allocations). TRL runs with microbatches of several sizes, of which the largest is a whole
minibatch; for each measure (seconds, memory) the size that is best at it counts. No side writes a checkpoint.

Users wait for wall seconds; CPU seconds (all threads) move less on a busy machine. Peak memory includes imports."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from measuring import RESULTS, machine, peak_mib, write_results

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # Idle threads shall sleep: busy waiting would slow training down.

OURS = "fspo"


@dataclass(frozen=True)
class TrainedCase:
    """A case of the comparison: the model, task and settings with which this project's trainer and TRL's train, and the
    sizes of TRL's microbatches, in responses. If ``model`` is empty, the warmed-up embedded model is trained."""

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
    cpu: bool = True

    @property
    def updates(self) -> int:
        """Number of updates on a rollout."""
        return self.minibatches * self.epochs

    @property
    def sides(self) -> list[str]:
        """Names of what is compared: this trainer (with its gradient log), and TRL with microbatches of each size."""
        return [OURS, *(f"trl-{n}" for n in self.microbatches)]


QWEN = TrainedCase("even-tokens", 8, 4, 4, 1, 128, 1e-6, 4, (8, 2), "random:Qwen3-0.6B-Base")
CASES = {
    "embedded": TrainedCase("chain-add", 64, 8, 4, 2, 264, 2e-4, 24, (128, 32, 8)),
    "qwen3-0.6b": QWEN,
    "qwen3-0.6b-bfloat16": replace(QWEN, dtype="bfloat16"),
    "qwen3-0.6b-gpu": replace(QWEN, prompts=32, responses=8, microbatches=(64, 16), dtype="bfloat16", cpu=False),
    "tiny": replace(QWEN, prompts=2, minibatches=2, max_new_tokens=8, microbatches=(4,)),
}
"""Cases by name: the embedded model (0.4M parameters) after its warm-up; Qwen3-0.6B's shape with random weights, on the
CPU and on a GPU. The case tiny is for the GPU benchmark's own test, which names a model."""
KEPT = ("completions/mean_length", "reward")


def run_fspo(case: TrainedCase, rollouts: int, threads: int, folder: str) -> dict[str, Any]:
    """Train ``rollouts`` rollouts with this project's trainer. Return ``clocks``, wall and CPU seconds at the start of
    each rollout and the end of the last, and ``parts``, the metrics of each rollout."""
    from fspo import config as c
    from fspo.gradlog.metrics_file import MetricsFile
    from fspo.train.trainer import Trainer

    clocks: list[tuple[float, float]] = []  # wall and CPU seconds

    class Timed(Trainer):
        """A trainer that reads the clocks as each rollout begins and as the last one ends, and saves no weights."""

        def _rollout(self, rollout: int) -> dict[str, float]:
            clocks.append((time.perf_counter(), time.process_time()))
            values = super()._rollout(rollout)
            if rollout == rollouts - 1:
                clocks.append((time.perf_counter(), time.process_time()))
            return values

        def _checkpoint(self) -> None: ...

        def _export(self) -> None: ...

    Timed(
        c.TrainConfig(
            output=folder,
            rollouts=rollouts,
            threads=threads,
            checkpoint_every=0,
            trackers=(),
            cpu=case.cpu,
            model=c.ModelConfig(name_or_path=case.model, dtype=case.dtype),
            task=c.TaskConfig(name=case.task),
            rule=c.RuleConfig(preset="gspo"),
            batch=c.BatchConfig(
                prompts=case.prompts, responses=case.responses, minibatches=case.minibatches, epochs=case.epochs
            ),
            sampling=c.SamplingConfig(max_new_tokens=case.max_new_tokens),
            optim=c.OptimConfig(learning_rate=case.learning_rate, warmup_updates=case.warmup_updates),
            eval=c.EvalConfig(every=0),
        )
    ).train()
    return {"clocks": clocks, "parts": MetricsFile(folder).of_phase("train")}


def run_trl(case: TrainedCase, rollouts: int, threads: int, folder: str, microbatch: int) -> dict[str, Any]:
    """Train with TRL's GRPOTrainer, on the prompts and rewards that `run_fspo` uses, in microbatches of ``microbatch``
    responses; return ``clocks`` and ``parts`` as `run_fspo` does."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from fspo.models.load import eos_token_ids, load_model, load_tokenizer
    from fspo.tasks import make_task, prompt_order

    torch.set_num_threads(threads)
    task, tokenizer = make_task(case.task, {}), load_tokenizer(case.model)
    model = load_model(case.model, case.dtype)
    ends = eos_token_ids(model, tokenizer)
    indices = prompt_order(task.size("train"), 0, 0, rollouts * case.prompts)
    examples = [task.example("train", int(i)) for i in indices]
    data = Dataset.from_list([{"prompt": e.prompt, "number": i} for i, e in enumerate(examples)])
    clocks: list[tuple[float, float]] = []  # wall and CPU seconds

    def reward(completions: list[str], completion_ids: list[list[int]], number: list[int], **_: Any) -> Any:
        finished = [ids[-1] in ends for ids in completion_ids]
        return task.score([examples[i] for i in number], completions, finished).values.tolist()

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % case.updates == 0:
                clocks.append((time.perf_counter(), time.process_time()))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clocks.append((time.perf_counter(), time.process_time()))

    args = GRPOConfig(
        output_dir=folder,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=case.updates,
        use_cpu=case.cpu,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=case.prompts * case.responses // case.minibatches // microbatch,
        steps_per_generation=case.prompts * case.responses // microbatch,
        num_iterations=case.epochs,
        num_generations=case.responses,
        max_completion_length=case.max_new_tokens,
        max_steps=rollouts * case.updates,
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=3e-4,
        epsilon_high=4e-4,
        shuffle_dataset=False,
        learning_rate=case.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=case.warmup_updates,
        adam_beta2=0.95,
    )
    trainer = GRPOTrainer(model, reward, args, data, processing_class=tokenizer, callbacks=[Clock()])
    trainer.train()
    return {"clocks": clocks, "parts": [line for line in trainer.state.log_history if KEPT[0] in line]}


def run_side(side: str, case: TrainedCase, rollouts: int, threads: int) -> dict[str, Any]:
    """Train in this process with the trainer that ``side`` names. Return by name the wall and CPU seconds of each
    rollout, the peak memory, MiB (the GPU's, if the case uses one), and each rollout's metrics (``parts``)."""
    with tempfile.TemporaryDirectory() as folder:
        if side == OURS:
            found = run_fspo(case, rollouts, threads, f"{folder}/run")
        else:
            found = run_trl(case, rollouts, threads, folder, int(side.split("-")[1]))
    clocks = found.pop("clocks")
    if len(clocks) != rollouts + 1:
        raise RuntimeError(f"{side}: {len(clocks) - 1} rollouts were timed, not {rollouts}")
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(clocks)]
    peak = peak_mib()
    if not case.cpu:
        import torch

        peak = torch.cuda.max_memory_allocated() / 2**20
    return found | {"wall_s": [s[0] for s in steps], "cpu_s": [s[1] for s in steps], "peak_mib": peak}


def measure(case: TrainedCase, rollouts: int, rounds: int, threads: int) -> dict[str, list[dict[str, Any]]]:
    """Run each trainer once in each of ``rounds`` rounds, in a new process; return what `run_side` returned."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in case.sides}
    os.environ |= {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}  # the processes inherit it
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as process:
        for side in case.sides * rounds:
            runs[side].append(process.submit(run_side, side, case, rollouts, threads).result())
    return runs


def summarise(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return for each compared trainer the mean seconds of a rollout step, over rounds and rollouts, and the largest
    memory; for this project's trainer also how many times faster than TRL it is, by round, and its memory over TRL's.
    The first rollout of a process is left out if the process has others. Each measure is compared with the microbatch
    size at which TRL is best at it."""
    table: dict[str, dict[str, Any]] = {}
    for side, found in runs.items():
        row: dict[str, Any] = {}
        for key in ("wall_s", "cpu_s"):
            row[f"{key}_by_round"] = [fmean(run[key][1:] or run[key]) for run in found]
            row[key] = fmean(row[f"{key}_by_round"])
        row["peak_mib"] = max(run["peak_mib"] for run in found)
        parts = [part for run in found for part in run["parts"][1:] or run["parts"]]
        row["parts"] = {name: fmean([part[name] for part in parts]) for name in KEPT}
        table[side] = row
    peers = {side: row for side, row in table.items() if side != OURS}
    row = table[OURS]
    for key in ("wall_s", "cpu_s"):
        best = min(peers, key=lambda peer: peers[peer][key])
        ours, theirs = row[f"{key}_by_round"], peers[best][f"{key}_by_round"]
        row[f"against_{key}"] = best
        row[f"speedup_{key}"] = [b / a for a, b in zip(ours, theirs, strict=True)]
    row["memory_ratio"] = row["peak_mib"] / min(peer["peak_mib"] for peer in peers.values())
    return table


def main() -> None:
    """Compare this project's trainer with TRL's, print what was measured and write it to benchmarks/results."""
    # Parse with argparse, because the imports of fspo.base.command_line would count in the memory measured for TRL.
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4, help="rollouts of each process")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each process")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES)[:3], help="what is trained")
    parser.add_argument("--model", default="", help="another model than the case's")
    parser.add_argument("--out", default=str(RESULTS / "trl_rollout_step.json"), help="results file")
    options = parser.parse_args()
    for name in options.cases:
        case = replace(CASES[name], model=options.model or CASES[name].model)
        if not case.model:
            from fspo.models.warmup import warm_up

            case = replace(case, model=str(warm_up()))
        table = summarise(measure(case, options.rollouts, options.rounds, options.threads))
        print(name, json.dumps(table, indent=1))
        report = {
            "sides": table,
            "setting": {key: value for key, value in asdict(CASES[name]).items() if key != "microbatches"},
            "rollouts": options.rollouts,
            "rounds": options.rounds,
            "threads": options.threads,
            **machine("torch", "transformers", "trl", "accelerate", "fspo"),
        }
        out = Path(options.out)
        found = json.loads(out.read_text(encoding="utf-8"))["cases"] if out.exists() else {}
        write_results({"cases": found | {name: report}}, out)


if __name__ == "__main__":
    main()
