"""Check and measure this package on one GPU, in parts that can be chosen; each part has a time limit, and its results
are written as soon as they are known.

    python benchmarks/gpu.py                                               # all parts, on a GPU
    python benchmarks/gpu.py --parts '[correctness,qwen3-8b-lora]' --minutes 4 --out results/gpu.json
    python benchmarks/gpu.py --shapes tiny                                 # the same code at tiny shapes, CPU or GPU

- ``correctness``: numbers on the device against float64, autograd and each other;
- ``qwen3-8b-lora``, ``qwen3-8b-all``: rollouts of 64 x 8 responses of up to 512 tokens at Qwen3-8B's shape, bfloat16,
  random weights: seconds of each phase, memory beside `fspo plan`, share of the device's matrix product rate, clip
  rates and cosines by length; with adapters also the seconds of each sampling engine;
- ``learning``: a model of 99M parameters learns chain-add: the estimands of the claims;
- ``trl``: a rollout step at Qwen3-0.6B's shape beside TRL's.

On a machine without a network, with Python 3.12, torch, accelerate, peft, pandas, pyarrow, scipy, seaborn and jinja2:
carry the wheels that benchmarks/gpu_wheels.txt names, and start with PYTHONPATH=. from the repository's root. With
pyarrow before 26 there are no cosines by length."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import RESULTS, machine, peak_mib, write_results
from transformers import PretrainedConfig, PreTrainedModel

from analysis.claims.estimands import measure as estimates_of
from analysis.log.loading import load_run
from analysis.run import analyse_runs
from analysis.tables.files import read_tables
from fspo import config as c
from fspo.base.command_line import CommandParser
from fspo.base.errors import UserError, run_cli, unknown_name
from fspo.base.options import parse
from fspo.config.machine import MachineConfig
from fspo.gradlog import read_log
from fspo.gradlog.metrics_file import MetricsFile
from fspo.models.load import build_embedded_model, build_random_model, load_tokenizer, ready_for_training
from fspo.models.shapes import RANDOM, shape_of, small_qwen3
from fspo.models.warmup_training import measure as accuracy_of
from fspo.models.warmup_training import train as warm_up
from fspo.plan.memory import plan
from fspo.policy.logprobs import make_batch, token_log_probs
from fspo.policy.scores import score
from fspo.repro.presets import EQUAL, ONE_EPOCH, UNCLIPPED
from fspo.rules import COMPARED_ADVANTAGE
from fspo.sampling.sample import Responses, sample
from fspo.tasks.chain_add import ChainAdd
from fspo.tasks.even_tokens import END, EvenTokensConfig
from fspo.train.trainer import Trainer

Found = Iterator[tuple[str, Any]]
"""Results of a part, each with its name, as they become known."""
END_EVERY = 200
"""At Qwen3-8B's shape every 200th token of the vocabulary ends a response, so that lengths spread from 1 to 512."""

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""The device of the models: the GPU if there is one, else the CPU."""
CPU = DEVICE.type == "cpu"


@dataclass(frozen=True)
class Place:
    """The settings of a part: ``tiny`` models or not, its time limit ``seconds``, the ``folder`` that it fills."""

    tiny: bool
    seconds: float
    folder: Path

    def shape(self, name: str) -> str:
        """Return the name of a model with random weights: of the shape ``name``, or tiny if the part is tiny."""
        if not self.tiny:
            return RANDOM + name
        small_qwen3(width=64, vocab_size=9000).save_pretrained(self.folder / "tiny")
        return f"{RANDOM}{self.folder / 'tiny'}"


def copies(shape: PretrainedConfig, *dtypes: torch.dtype) -> Iterator[PreTrainedModel]:
    """Yield models of one configuration ``shape`` with equal random bfloat16 weights, in each of ``dtypes``."""
    with DEVICE:
        first: Any = build_random_model(shape, "bfloat16", seed=0)
        for dtype in dtypes:
            model = type(first)._from_config(shape, dtype=dtype)
            model.load_state_dict(first.state_dict())
            yield model.eval()


def random_batch(vocabulary: int, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return a batch (tensors by name): ``rows`` prompts of 8 random tokens with responses of 2 to ``tokens``."""
    draw = np.random.default_rng(0)
    prompts, lengths = draw.integers(1, vocabulary, (rows, 8)), np.linspace(2, tokens, rows).astype(int)
    batch = make_batch(list(prompts), [draw.integers(1, vocabulary, n) for n in lengths], pad_token_id=0)
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def check_log_probs(at: Place) -> dict[str, Any]:
    """Compare token log-probs computed tile by tile, and from whole logits, with those from whole logits in float64, on
    the device. Tiles pass if their error is at most twice that of whole logits in the same type."""
    shape, found = shape_of(at.shape("Qwen3-0.6B-Base")), {}
    batch = random_batch(shape.vocab_size, 4, 64)
    mask, exact = batch["response_mask"], torch.empty(0)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    for model in copies(shape, torch.float64, torch.float32, torch.bfloat16):
        with torch.no_grad():
            logits = model(**inputs).logits[:, :-1]
            whole = logits.to(max(model.dtype, torch.float32, key=lambda kind: kind.itemsize)).log_softmax(-1)
            whole = whole.gather(-1, batch["input_ids"][:, 1:, None])[..., 0][mask[:, 1:]].double()
            if model.dtype == torch.float64:
                exact = whole
            tiles = token_log_probs(model, batch, logits=4 * shape.vocab_size)[0][mask].double()
        if model.dtype != torch.float64:
            errors = {"tiles": float((tiles - exact).abs().max()), "whole": float((whole - exact).abs().max())}
            found[str(model.dtype)] = errors | {"pass": errors["tiles"] <= 2 * errors["whole"]}
    return found


def check_scores(at: Place) -> dict[str, Any]:
    """Compare scores with gradients by autograd in float64, on the device. Return the largest errors of the cosine of
    two responses and of a norm, and whether they pass: scores are stored as float16, whose rounding is 2^-11."""
    exact, model = copies(small_qwen3(), torch.float64, torch.float32)
    batch = random_batch(24, 8, 64)
    scores = score(model, batch, config=c.ScoreConfig(width=None, projection=None))
    kept = [p for name, p in exact.named_parameters() if name not in scores.uncovered]
    sums = token_log_probs(exact, batch)[0].sum(1)
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(s, kept, retain_graph=True)]) for s in sums]
    norms = torch.stack(rows).norm(dim=1).cpu().numpy()
    unit, ours = torch.nn.functional.normalize(torch.stack(rows)).cpu().numpy(), scores.unit.astype(np.float64)
    cosine = float(np.abs(ours @ ours.T - unit @ unit.T).max())
    norm = float(np.abs(scores.norm / norms - 1).max())
    return {"cosine_error": cosine, "norm_error": norm, "pass": cosine <= 2 * 2.0**-11 and norm <= 2.0**-11}


def check_engines(at: Place) -> dict[str, Any]:
    """Sample the same responses with both engines in float32 on the device. Return the share of equal ones; it passes
    at .9, because logits differ in their last bits."""
    with DEVICE:
        model = build_random_model(shape_of(at.shape("Qwen3-0.6B-Base")), "float32", seed=0)
    fast, other = (drawn for _, drawn, _ in by_engine(model, c.SamplingConfig(max_new_tokens=64, batch_size=32), 4))
    equal = float(np.mean([np.array_equal(a, b) for a, b in zip(fast.tokens, other.tokens, strict=True)]))
    return {"equal_responses": equal, "tokens": int(fast.lengths.sum()), "pass": equal >= 0.9}


def check_trainer(at: Place) -> dict[str, Any]:
    """Train two rollouts in ``at.folder``, once unbroken and once stopped between them and resumed. S must be 0 before
    the first update, not 0 throughout later ones, and equal in both runs. Return two results by name: largest |S|, and
    difference of S, nats, each with ``pass``, whether it is as it must be. Nothing is raised if not."""
    logs = []
    for folder, steps in (("whole", (2,)), ("resumed", (1, 2))):
        for rollouts in steps:
            own = {"rollouts": rollouts, "resume": rollouts > 1, "checkpoint_every": 1}
            Trainer(training(at, "Qwen3-0.6B-Base", folder, 4, 24, **own)).train()
        logs.append(read_log(at.folder / folder, columns=("log_ratio", "updates_since_rollout")))
    S, since = (logs[0].column(name) for name in ("log_ratio", "updates_since_rollout"))
    first, moved = (float(np.abs(S[which]).max()) for which in (since == 0, since > 0))
    difference = float(np.abs(S - logs[1].column("log_ratio")).max())
    return {
        "S_before_first_update": {"largest": first, "largest_later": moved, "pass": first == 0 < moved},
        "resume": {"largest_difference_of_S": difference, "pass": difference == 0},
    }


def correctness(at: Place) -> Found:
    """Check the numbers of the device: log-probs, scores, sampling, training; yield each result by name."""
    yield "log_probs", check_log_probs(at)
    yield "scores", check_scores(at)
    yield "engines", check_engines(at)
    yield from check_trainer(at).items()


def training(at: Place, shape: str, run: str, prompts: int, tokens: int, **options: Any) -> c.TrainConfig:
    """Return the options of a run on even-tokens with the run folder ``run`` in ``at.folder``: a model of the
    configuration ``shape``, random bfloat16 weights, no LoRA, ``prompts`` a rollout, 8 responses to each, of at most
    ``tokens``, and ``options``."""
    return c.TrainConfig(
        output=str(at.folder / run),
        cpu=CPU,
        trackers=(),
        model=c.ModelConfig(at.shape(shape), dtype="bfloat16", gradient_checkpointing=True),
        task=c.TaskConfig("even-tokens", max_prompt_tokens=EvenTokensConfig().prompt_tokens),
        optim=c.OptimConfig(learning_rate=1e-5, warmup_updates=2),
        batch=c.BatchConfig(prompts=prompts, responses=8, minibatches=4, epochs=1, tokens=16384),
        sampling=c.SamplingConfig(max_new_tokens=tokens, batch_size=256),
        eval=c.EvalConfig(every=0),
        **options,
    )


def train(at: Place, config: c.TrainConfig, began: float, seconds: float, **parts: Any) -> list[dict[str, Any]]:
    """Train for the rollouts that fit into ``seconds`` since the time ``began``; return the metrics of each rollout.
    ``config`` holds the run's options, ``parts`` (model, tokenizer, task) go to the trainer."""

    class Limited(Trainer):
        def _rollouts(self) -> dict[str, float]:
            last: dict[str, float] = {}
            for rollout in range(config.rollouts):
                start = time.monotonic()
                last = self._rollout(rollout)
                if 2 * time.monotonic() - start > began + seconds:  # another one would end too late
                    break
            return last

    Limited(config, **parts).train()
    return MetricsFile(config.output).of_phase("train")


def forward_flop(shape: PretrainedConfig, parameters: int, lengths: np.ndarray) -> float:
    """Return the floating-point operations of a forward pass of a model over sequences of these lengths, in tokens.

    There are 2 for each parameter and token, and those of the two matrix products of causal attention, in which a token
    attends to half of the sequence on average. The embedding is a look-up and is left out."""
    used = parameters - (0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size)
    attention = 2 * shape.num_attention_heads * shape.head_dim * shape.num_hidden_layers
    return float(np.sum(2.0 * used * lengths + attention * np.square(lengths, dtype=float)))


def matmul_rate(size: int) -> float:
    """Return the FLOP/s that the device reaches in a bfloat16 product of two (size, size) matrices: the best of 10."""
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    taken = []
    for _ in range(10):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        taken.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(taken)


def qwen3(at: Place, lora: bool) -> Found:
    """Train a model of Qwen3-8B's shape, all weights or LoRA adapters, as ``at`` says. Yield by name: planned and peak
    memory, GiB; the device's matrix product rate, FLOP/s; seconds of each phase in a mean rollout; which share of that
    rate old log-probs and updates reach; clip rates and cosines by length; with LoRA the seconds of sampling."""
    began = time.monotonic()
    config = training(at, "Qwen3-8B-Base", "run", *((12, 24) if at.tiny else (64, 512)), rollouts=2 if at.tiny else 5)
    if lora:
        adapters = replace(config.model, lora=c.LoraOptions())
        config = replace(config, model=adapters, optim=replace(config.optim, learning_rate=1e-3))
    planned = plan(config, MachineConfig(device="cpu" if CPU else "gpu", gpus=1))
    yield "planned_gib", {name: total / 2**30 for name, total in planned.totals.items()}
    rate = matmul_rate(256 if at.tiny else 8192)
    shape = shape_of(config.model.name_or_path)
    yield "matmul_flops", rate
    with DEVICE:
        model = build_random_model(shape, "bfloat16", seed=0)
    model.generation_config.eos_token_id = list(range(END, shape.vocab_size, END_EVERY))
    parameters = sum(p.numel() for p in model.parameters())
    model = ready_for_training(model, "the model", gradient_checkpointing=True, lora=config.model.lora)
    tokenizer = load_tokenizer(config.model.name_or_path)
    lines = train(at, config, began, 0.8 * at.seconds, model=model, tokenizer=tokenizer)
    peak = peak_mib() / 2**10 if CPU else torch.cuda.max_memory_allocated() / 2**30
    expected = planned.peak / 2**30
    yield "peak_gib", {"measured": peak, "planned": expected, "measured_over_planned": peak / expected}
    timed = lines[1:] or lines  # the first rollout warms up
    seconds = {k: float(np.mean([line[k] for line in timed])) for k in lines[0] if k.startswith(("time/", "step_"))}
    rows = load_run(config.output).rows
    lengths = rows.length[rows.rollout >= len(lines) - len(timed)] + config.task.max_prompt_tokens
    # In forward passes: one backward pass of all weights is 2, of adapters about 1; checkpointing adds 1.
    passes = {"time/old_log_probs": 1, "time/update": 3 if lora else 4}
    flop = forward_flop(shape, parameters, lengths) / len(timed)
    yield (
        "rollouts",
        {
            "number": len(lines),
            "parameters": parameters,
            "tokens": float(lengths.sum() / len(timed)),
            "seconds": seconds,
            "share_of_matmul_rate": {name: n * flop / seconds[name] / rate for name, n in passes.items()},
            "share_of_score_passes": seconds["time/scores"] / seconds["step_time"],
        },
    )
    analyse_runs([config.output])
    yield "by_length", by_length(config.output)
    if lora:
        yield "sampling_seconds", {engine: taken for engine, _, taken in by_engine(model, config.sampling, 8)}


def by_engine(model: Any, config: c.SamplingConfig, group: int) -> Iterator[tuple[str, Responses, float]]:
    """Let each sampling engine draw responses to one batch of prompts, ``group`` to each; yield the engine's name, the
    responses, and the seconds that it took."""
    prompts = [[7, 8, 9, 10 + i // group] for i in range(config.batch_size)]
    ends: dict[str, Any] = {"eos_token_id": model.generation_config.eos_token_id, "pad_token_id": END}
    for engine in ("fast", "generate"):
        start, chosen = time.monotonic(), replace(config, engine=engine)
        drawn = sample(model, prompts, np.arange(len(prompts)), config=chosen, seed=0, rollout=0, **ends)
        yield engine, drawn, time.monotonic() - start


def by_length(run: str) -> dict[str, Any]:
    """Return, for each rule at its own range and at equal clip rates, the clip rate (A != 0) and the cosine of clipped
    and unclipped gradient by length bin, from the tables of the run folder ``run``."""
    tables, found = read_tables([run]), {}
    for name, measure in (("acceptance", "update"), ("cosine", None)):
        table: Any = tables[name]
        table = table[table.source.isin(["given", "matched"]) & (table.use == "first") & (table.subset == "nonzero")]
        table = table[table.measure == measure] if measure else table
        for row in table[table.estimate.notna()].itertuples():
            value = 1 - row.estimate if measure else row.estimate
            words = f"{row.bin_lo:g} to {row.bin_hi:g}" if row.bin >= 0 else "all"
            setting = "own range" if row.source == "given" else f"{1 - row.target:.0%} clipped"
            found.setdefault(name, {}).setdefault(f"{row.rule} {row.outside}, {setting}", {})[words] = value
    return found


def learning(at: Place) -> Found:
    """Warm a model up on chain-add, then train it from there in each arm, unclipped or at equal clip rates; yield by
    name the warm-up's accuracy and each run's rewards and the numbers by which the claims are judged."""
    task, began = ChainAdd(), time.monotonic()
    size = {} if at.tiny else {"width": 768, "heads": 12, "num_hidden_layers": 14}
    model: Any = build_embedded_model(0, small_qwen3(vocab_size=len(task.build_tokenizer()), **size))
    warmup = c.WarmupConfig(steps=20) if at.tiny else c.WarmupConfig(steps=600, examples_per_step=64, adamw_lr=1e-3)
    accuracy = accuracy_of(warm_up(warmup, task, model.to(DEVICE)), task, 16 if at.tiny else 512)
    parameters = sum(p.numel() for p in model.parameters())
    yield "warmup", {"parameters": parameters, "seconds": time.monotonic() - began, **accuracy, **asdict(warmup)}
    start = at.folder / "warmed"
    model.save_pretrained(start)
    task.build_tokenizer().save_pretrained(start)
    arms = {f"{name} unclipped": own for name, own in UNCLIPPED.items()}
    arms |= {f"{name} equal": own for name, own in EQUAL.items()}
    spent = time.monotonic()
    for number, (arm, own) in enumerate(arms.items(), 1):
        # the unclipped run, from which most estimands come, has half of the time
        until = (0.9 * at.seconds - (spent - began)) * (number + len(arms) - 2) / (2 * len(arms) - 2)
        options = {"output": at.folder / arm, "model.name_or_path": start, "rule.advantage": COMPARED_ADVANTAGE}
        options |= {"rollouts": 2 if at.tiny else 20, "cpu": CPU, "trackers": [], "batch.tokens": 16384}
        options |= {**ONE_EPOCH, **own} | ({"batch.prompts": 8, "sampling.max_new_tokens": 24} if at.tiny else {})
        config = parse(c.TrainConfig, [word for key, value in options.items() for word in (f"--{key}", str(value))])
        lines = train(at, config, spent, until)
        rule, kind = arm.split()
        found = estimates_of(Path(config.output), "chain-add", kind, rule, config.seed, len(lines))
        yield (
            arm,
            {
                "rollouts": len(lines),
                "seconds_of_a_rollout": float(np.mean([line["step_time"] for line in lines])),
                "rewards": [line["reward"] for line in lines],
                "estimates": [{k: v for k, v in row._asdict().items() if v == v} for row in found],
            },
        )


def trl(at: Place) -> Found:
    """Yield seconds and memory of a rollout step by this trainer and by TRL's, at Qwen3-0.6B's shape or a tiny one."""
    out = at.folder / "trl.json"
    command = [sys.executable, str(Path(__file__).with_name("trl_rollout_step.py")), "--out", str(out), "--rounds", "1"]
    case = "tiny" if at.tiny else "qwen3-0.6b-gpu"
    command += ["--cases", case, "--rollouts", "2" if at.tiny else "3", "--model", at.shape("Qwen3-0.6B-Base")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield case, json.loads(out.read_text())["cases"][case]["sides"]


PARTS: Mapping[str, tuple[Callable[[Place], Found], float]] = {
    "correctness": (correctness, 2),
    "qwen3-8b-lora": (lambda at: qwen3(at, lora=True), 6),
    "qwen3-8b-all": (lambda at: qwen3(at, lora=False), 6),
    "learning": (learning, 4),
    "trl": (trl, 2.5),
}
"""The parts by name, each with its time limit in minutes."""


def child(name: str, shapes: str, seconds: str, out: str) -> None:
    """Run the part ``name`` for at most ``seconds``, with ``shapes`` tiny or full; write its results to a file."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for key, value in PARTS[name][0](Place(shapes == "tiny", float(seconds), Path(folder))):
            found[key] = value
            write_results(found, Path(out))


def run_part(name: str, shapes: str, seconds: float, out: Path) -> dict[str, Any]:
    """Run the part ``name`` in a process of its own, which writes to the file ``out``, and end it after ``seconds``;
    return its status and what it found till then. ``shapes`` "tiny" makes the models tiny."""
    out.unlink(missing_ok=True)
    code = "import sys, gpu; gpu.child(*sys.argv[1:])"
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-c", code, name, shapes, str(seconds), str(out)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TQDM_DISABLE": "1"}
    variables |= {"OMP_WAIT_POLICY": "PASSIVE"}  # idle threads sleep, as in fspo train
    start = time.perf_counter()
    process = subprocess.Popen(command, env=variables, start_new_session=True)
    try:
        ended = process.wait(seconds)
    except subprocess.TimeoutExpired:
        ended = None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    status = "time limit" if ended is None else "done" if ended == 0 else f"failed with status {ended}"
    found = json.loads(out.read_text()) if out.exists() else {}
    out.unlink(missing_ok=True)
    return {"status": status, "seconds": time.perf_counter() - start, "limit_seconds": seconds, "found": found}


def main(args: list[str] | None = None) -> int:
    """Run the parts that are asked for, write what was found after each; return 1 if one failed or took too long, or if
    a check of it did not pass."""
    parser = CommandParser(prog="python benchmarks/gpu.py", description=__doc__ or "")
    parser.add_argument("--parts", type=list[str], default=list(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--shapes", choices=("full", "tiny"), default="full", help="tiny: runs on a CPU too")
    parser.add_argument("--minutes", type=float, default=0.0, help="time limit of each part; 0: its own")
    parser.add_argument("--out", default=str(RESULTS / "gpu.json"), help="results file")
    options = parser.parse_args(args)
    if unknown := [name for name in options.parts if name not in PARTS]:
        raise unknown_name("part", unknown[0], tuple(PARTS))
    if options.shapes == "full" and not torch.cuda.is_available():
        raise UserError("the full shapes need a GPU: add --shapes tiny to run the same code on a CPU")
    out, gpu = Path(options.out), torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    described = {"gpu": gpu, "cuda": torch.version.cuda}
    described |= machine("torch", "transformers", "accelerate", "peft", "trl", "fspo")
    parts: dict[str, Any] = {}
    for name in options.parts:
        seconds = 60 * (options.minutes or PARTS[name][1])
        parts[name] = run_part(name, options.shapes, seconds, out.with_suffix(f".{name}.json"))
        print(name, json.dumps(parts[name], indent=1))
        write_results({"shapes": options.shapes, "machine": described, "parts": parts}, out)
    return int(any(part["status"] != "done" or '"pass": false' in json.dumps(part) for part in parts.values()))


if __name__ == "__main__":
    run_cli(main)
