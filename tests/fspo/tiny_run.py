"""A training run that takes a second: a Qwen3 of 8k parameters on a task that is learnable and noisy.

`in_child` runs it in a process of its own, forked from a server that has imported everything once, so that real
SIGKILLs and real gloo groups cost little.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from contextlib import ExitStack
from functools import cache, partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState

from fspo.base.errors import run_cli
from fspo.base.options import make_parser, parse
from fspo.config import TrainConfig
from fspo.models.load import build_embedded_model
from fspo.tasks import Example, Rewards

ARGUMENTS = [
    *("--rollouts", "2", "--threads", "1", "--trackers", "[]", "--eval.every", "0", "--eval.prompts", "4"),
    *("--batch.prompts", "4", "--batch.responses", "4", "--batch.minibatches", "2", "--batch.epochs", "2"),
    *("--batch.tokens", "256", "--sampling.max_new_tokens", "24", "--optim.learning_rate", "1e-2"),
    *("--optim.warmup_updates", "2", "--log.scores.width", "64", "--log.scores.projection", "4"),
    *("--log.length_edges", "[1,8,16]"),
]


class Digits:
    """Reward 1 for a response with a "1" in its first six characters; prompts differ by a number."""

    name = "digits"

    def size(self, split: str) -> int | None:
        return None

    def example(self, split: str, index: int) -> Example:
        info = {"number": index, "kind": "odd" if index % 2 else "even"}
        return Example(f"{split}-{index}", f"?:{index % 100:02d}=" + "+" * (index % 3), "1", info)

    def score(self, examples: Any, responses: Any, finished: Any) -> Rewards:
        return Rewards(np.array([float("1" in r[:6]) for r in responses]), ["ok"] * len(responses))


def model(
    seed: int = 0, dtype: torch.dtype = torch.float32, layers: int = 1, vocabulary: int = 24, **changes: Any
) -> Any:
    """A Qwen3 with hidden size 32; its initial weights are large enough for rewards and lengths to vary."""
    from transformers import Qwen3ForCausalLM

    from fspo.models.shapes import small_qwen3

    tiny = {"intermediate_size": 48, "num_hidden_layers": layers, "vocab_size": vocabulary, "initializer_range": 0.2}
    config = small_qwen3(32, 2, **tiny | changes)
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return Qwen3ForCausalLM(config).to(dtype).eval()


_parser = cache(partial(make_parser, TrainConfig, "fspo train", ""))


def config(output: Path | str, *arguments: str) -> TrainConfig:
    """The tiny run's configuration; later arguments win."""
    return parse(TrainConfig, [*ARGUMENTS, "--output", str(output), *arguments], _parser())


def trainer(output: Path | str, *arguments: str, net: Any = None, task: Any = None) -> Any:
    """A trainer of the tiny model on `Digits`."""
    from fspo.models.load import load_tokenizer
    from fspo.train.trainer import Trainer

    torch.set_num_threads(1)
    return Trainer(
        config(output, *arguments),
        model=net if net is not None else model(),
        tokenizer=load_tokenizer("embedded"),
        task=task or Digits(),
    )


def metrics(run: Path, phase: str | None = None) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl without the times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if not k.startswith("time/") and k != "step_time"} for line in lines]
    return [line for line in timeless if phase in (None, line["phase"])]


# -- children -----------------------------------------------------------------------------------------------------


def arm(point: str, count: int) -> None:
    """Have this process kill itself, or fail, at the ``count``-th time (from 1) that it comes to a point.

    ``full-...`` fills the disk: while that file is written, the system refuses more than a few bytes.
    """
    import shutil

    import pyarrow.parquet as pq
    import safetensors.torch
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    from fspo.distributed import files
    from fspo.gradlog.metrics_file import MetricsFile
    from fspo.train import updates

    def always(*_: Any) -> bool:
        return True

    def checkpoint_is_named(_: Any, target: Any) -> bool:
        return Path(target).name.startswith("step-")

    def checkpoint_is_removed(path: Any, *_: Any) -> bool:
        return Path(path).name.startswith(".part-old-step-") and Path(path).exists()

    def nothing(*_: Any) -> None:
        pass

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def tear(_: Any, path: Path) -> None:
        os.truncate(path, path.stat().st_size // 2)
        die()

    def half_a_line(file: MetricsFile, values: dict[str, Any]) -> None:
        with file.path.open("a") as handle:
            handle.write(json.dumps(values)[:40])
        die()

    def half_removed(path: Any, *_: Any) -> None:
        (Path(path) / "model.safetensors").unlink()
        die()

    def fill_disk(*_: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))

    def free_disk(*_: Any) -> None:  # the child's own log lies on the same disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    owner, name, where, before, after = {
        "update": (updates.Updater, "accumulate", always, nothing, die),
        "shards": (safetensors.torch, "save", always, nothing, die),
        "full-shards": (HuggingFaceStorageWriter, "write_data", always, fill_disk, free_disk),
        "checkpoint": (files, "save_file", always, nothing, tear),
        "full-checkpoint": (files, "save_file", always, fill_disk, free_disk),
        "log": (pq, "write_table", always, nothing, tear),
        "full-log": (pq, "write_table", always, fill_disk, free_disk),
        "metrics": (MetricsFile, "write", always, half_a_line, nothing),
        "before-rename": (os, "replace", checkpoint_is_named, die, nothing),
        "remove": (shutil, "rmtree", checkpoint_is_removed, half_removed, nothing),
        "nan": (updates, "objective", lambda new, *_: new.requires_grad, lambda new, *_: new.data.fill_(nan), nothing),
    }[point]
    function, seen = getattr(owner, name), 0

    def armed(*args: Any, **options: Any) -> Any:
        nonlocal seen
        come = where(*args)
        seen += come
        due = come and seen == count
        if due:
            before(*args)
        try:
            return function(*args, **options)
        finally:
            if due:
                after(*args)

    setattr(owner, name, armed)


def shard() -> None:
    """Have accelerate shard the model with FSDP2 in this process; on a CPU it would run plain data parallelism."""
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    from fspo.train import launch

    inner: Any = launch.Accelerator

    def accelerator(**options: Any) -> Any:
        made = inner(**options)
        made.state.distributed_type = DistributedType.FSDP
        made.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True
        )
        return made

    launch.Accelerator = accelerator


Runs = list[tuple[Path, list[str]]]


def _child(runs: Runs, ports: list[str], kill: tuple[str, int] | None, sharded: bool) -> None:
    log = open(f"{runs[0][0]}.{os.environ.get('RANK', 0)}.log", "a")  # noqa: SIM115 (the process ends with it)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=log)
    if kill:
        arm(*kill)
    if sharded:
        shard()

    def train() -> None:
        for (output, arguments), port in zip(runs, ports, strict=True):
            AcceleratorState._reset_state(reset_partial_state=True)  # a run's end takes its process group down
            os.environ["MASTER_PORT"] = port
            trainer(output, *arguments, net=build_embedded_model() if sharded else None).train()

    run_cli(train)


def free_ports(number: int) -> list[int]:
    """Return ``number`` different free TCP ports. All are bound at once, because two requests in a row may get the
    same port."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def in_child(output: Path, *arguments: str, kill: tuple[str, int] | None = None, processes: int = 1) -> list[int]:
    """Train in child processes (a gloo group where there are several); their exit codes (-9: killed)."""
    return in_children([(output, list(arguments))], kill=kill, processes=processes)


def in_children(runs: Runs, **options: Any) -> list[int]:
    """Train as `start` does and wait; exit codes (2: a UserError)."""
    children = start(runs, **options)
    children[0].join(240)
    for child in children:
        child.join(10 if children[0].exitcode else 60)
        if child.is_alive():  # it hangs, or its partner was killed: end it as torchrun would
            os.kill(child.pid, signal.SIGUSR1)  # its log then says where it stood
            time.sleep(1)
            child.kill()
            child.join()
    return [child.exitcode for child in children]


def start(
    runs: Runs,
    *,
    kill: tuple[str, int] | None = None,
    rank_to_kill: int = 0,
    processes: int = 1,
    sharded: bool = False,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Child processes that train one run after another; FSDP2 shards the embedded model where asked for."""
    ports = [str(port) for port in free_ports(len(runs))]
    children = []
    for rank in range(processes):
        armed = kill if rank == rank_to_kill else None
        children.append(
            forked(_child, runs, ports, armed, sharded, rank=rank, processes=processes, **environment or {})
        )
    return children


def forked(target: Any, *arguments: Any, rank: int = 0, processes: int = 1, **environment: str) -> Any:
    """A process that runs a function, one of a gloo group where there are several."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tiny_run", "fspo.train.trainer"])
    if processes > 1:
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        environment |= {"MASTER_ADDR": "127.0.0.1"}
    child = context.Process(target=_with_environment, args=(environment, target, arguments))
    child.start()
    return child


def _with_environment(environment: dict[str, str], target: Any, arguments: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    target(*arguments)


def child_log(output: Path, rank: int = 0) -> str:
    """What a child printed."""
    return Path(f"{output}.{rank}.log").read_text()


if __name__ == "__main__":
    trainer(sys.argv[1], *sys.argv[2:]).train()
